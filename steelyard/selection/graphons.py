"""Whether graphs are worth pretraining on: how well mixtures of their graphons explain the graphs at hand."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor


@dataclass(frozen=True)
class Feasibility:
    """How far a downstream graphon is from the mixtures of the sources'.

    Args:
        distance: Gromov-Wasserstein distance to the best mixture; the feasibility is its negative.
        weights: of the sources in it, (S,), which sum to 1.
    """

    distance: float
    weights: Tensor


def graphon(adjacency: ArrayLike | Tensor, resolution: int) -> Tensor:
    """A step function that a graph could have been drawn from, by sorting its nodes and averaging blocks.

        nodes by descending degree, cut into `resolution` groups of equal size;  B_ab = density of edges from a to b

    Args:
        adjacency: symmetric, not negative, (n, n), n at least `resolution`.
        resolution: steps.

    Returns:
        float64, symmetric, (resolution, resolution).

    Raises:
        ValueError: not square, asymmetric, negative or not finite; fewer nodes than steps.

    Reference:
        Chan and Airoldi (2014), A consistent histogram estimator for exchangeable graph models, ICML, without its
        smoothing by total variation.
    """
    a = torch.as_tensor(adjacency).double()
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not bool((torch.isfinite(a) & (a >= 0)).all()):
        raise ValueError(f"adjacency must be square, finite and not negative, got shape {tuple(a.shape)}.")
    if not torch.equal(a, a.T):
        raise ValueError("adjacency must be symmetric: make directed edges go both ways first.")
    if not 1 <= operator.index(resolution) <= len(a):
        raise ValueError(f"resolution must lie between 1 and the {len(a)} nodes, got {resolution}.")
    order = torch.argsort(a.sum(1), descending=True, stable=True)
    group = torch.empty(len(a), dtype=torch.int64)
    group[order] = torch.arange(len(a)) * resolution // len(a)
    share = torch.nn.functional.one_hot(group, resolution).double()
    share = share / share.sum(0)
    return share.T @ a @ share


def gromov_wasserstein(
    first: ArrayLike | Tensor, second: ArrayLike | Tensor, *, rounds: int = 100
) -> tuple[float, Tensor]:
    """Distance of two step functions whatever the order of their steps, all steps of equal mass.

        GW^2 = min over couplings pi of  sum |B_ac - D_bd|^2 pi_ab pi_cd

    Solved by conditional gradient steps (an assignment problem each, with the exact line search), from the product
    coupling and, for equal sizes, from the orders as they are, by row sums and by diagonals; the least is taken. The problem is not
    convex: the result is an upper bound.

    Args:
        first: symmetric, (m, m).
        second: symmetric, (n, n).
        rounds: steps at most from each start.

    Returns:
        The distance, and the coupling, (m, n), which sums to 1.

    Raises:
        ValueError: not square or not finite.

    Reference:
        Peyré, Cuturi and Solomon (2016), Gromov-Wasserstein averaging of kernel and distance matrices, ICML;
        conditional gradients: Vayer et al. (2019), ICML, arXiv 1805.09114.
    """
    b, d = (torch.as_tensor(x).double() for x in (first, second))
    for x in (b, d):
        if x.ndim != 2 or x.shape[0] != x.shape[1] or not bool(torch.isfinite(x).all()):
            raise ValueError(f"Step functions must be finite square matrices, got shape {tuple(x.shape)}.")
    m, n = len(b), len(d)
    starts = [torch.full((m, n), 1 / (m * n), dtype=torch.float64)]
    if m == n:
        starts.append(torch.eye(n, dtype=torch.float64) / n)
        for x, y in ((b.sum(1), d.sum(1)), (b.diagonal(), d.diagonal()), ((b @ b).sum(1), (d @ d).sum(1))):
            for descending in (False, True):
                start = torch.zeros(n, n, dtype=torch.float64)
                start[torch.argsort(x), torch.argsort(y, descending=descending)] = 1 / n
                starts.append(start)
    found = [_conditional_gradient(b, d, start, rounds) for start in starts]
    value, coupling = min(found, key=lambda each: each[0])
    return max(value, 0.0) ** 0.5, coupling


def pretraining_feasibility(
    sources: Sequence[ArrayLike | Tensor], downstream: ArrayLike | Tensor, *, rounds: int = 50
) -> Feasibility:
    """How well mixtures of source graphons explain a downstream graphon, and which sources they need.

        min over a in the simplex of GW(sum_s a_s B_s, D);   feasibility = -min

    Alternates the coupling for given weights, and the weights for a given coupling: a least-squares problem on the
    simplex, solved by projected gradients. It starts from equal weights and from each source alone; the least is taken.

    Args:
        sources: graphons of equal size, (m, m) each.
        downstream: graphon, (n, n).
        rounds: alternations at most from each start.

    Returns:
        Distance and weights.

    Raises:
        ValueError: no source, or sources of different sizes.

    Reference:
        Cao, Xu, Yang, Wang, Zhang, Wang, Chen and Yang (2023), When to pre-train graph neural networks? From data
        generation perspective!, KDD, arXiv 2303.16458. Reconstructed: graphons by sorted degrees, without the
        paper's bases of topological and domain features.
    """
    stack = [torch.as_tensor(s).double() for s in sources]
    if not stack:
        raise ValueError("There is no source graphon.")
    if any(s.shape != stack[0].shape for s in stack):
        raise ValueError(f"Source graphons must have one size, got {[tuple(s.shape) for s in stack]}.")
    bases, d = torch.stack(stack), torch.as_tensor(downstream).double()
    count = len(bases)
    best = Feasibility(float("inf"), torch.full((count,), 1 / count, dtype=torch.float64))
    for start in [best.weights, *torch.eye(count, dtype=torch.float64)]:
        weights, before = start, float("inf")
        for _ in range(rounds):
            distance, coupling = gromov_wasserstein(torch.einsum("s,sij->ij", weights, bases), d)
            if distance < best.distance:
                best = Feasibility(distance, weights)
            if distance > before - 1e-9:
                break
            before, weights = distance, _mixture(bases, d, coupling, weights)
    return best


def _conditional_gradient(b: Tensor, d: Tensor, coupling: Tensor, rounds: int) -> tuple[float, Tensor]:
    from scipy.optimize import linear_sum_assignment, linprog

    m, n = coupling.shape
    rows, columns = coupling.sum(1), coupling.sum(0)
    constant = (b.square() @ rows).unsqueeze(1) + (d.square() @ columns).unsqueeze(0)

    def slope(p: Tensor) -> Tensor:
        return constant - 2 * b @ p @ d.T

    for _ in range(rounds):
        gradient = slope(coupling)
        if m == n:
            i, j = linear_sum_assignment(gradient.numpy())
            target = torch.zeros_like(coupling)
            target[i, j] = 1 / n
        else:
            equal_rows = torch.kron(torch.eye(m), torch.ones(1, n)).numpy()
            equal_columns = torch.kron(torch.ones(1, m), torch.eye(n)).numpy()
            found = linprog(
                gradient.reshape(-1).numpy(),
                A_eq=torch.cat([torch.from_numpy(equal_rows), torch.from_numpy(equal_columns)]).numpy(),
                b_eq=torch.cat([rows, columns]).numpy(),
            )
            target = torch.from_numpy(found.x).reshape(m, n)
        move = target - coupling
        linear = float((gradient * move).sum()) * 2
        square = float(-2 * ((b @ move @ d.T) * move).sum())
        if linear > -1e-14:
            break
        step = min(1.0, -linear / (2 * square)) if square > 0 else 1.0
        if linear * step + square * step**2 > -1e-15:
            break
        coupling = coupling + step * move
    return float((slope(coupling) * coupling).sum()), coupling


def _mixture(bases: Tensor, d: Tensor, coupling: Tensor, weights: Tensor) -> Tensor:
    """The weights on the simplex of least squares for a given coupling."""
    rows = coupling.sum(1)
    mass = rows.unsqueeze(1) * rows.unsqueeze(0)
    seen = coupling @ d @ coupling.T
    quadratic = torch.einsum("sij,tij,ij->st", bases, bases, mass)
    linear = torch.einsum("sij,ij->s", bases, seen)
    size = 1 / float(torch.linalg.eigvalsh(quadratic)[-1].clamp(min=1e-12))
    for _ in range(2000):
        moved = _onto_simplex(weights - size * (quadratic @ weights - linear))
        if torch.equal(moved, weights):
            break
        weights = moved
    return weights


def _onto_simplex(x: Tensor) -> Tensor:
    """The nearest point with entries of at least 0 that sum to 1."""
    ordered = x.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(x) + 1)
    above = int((ordered > excess).sum())
    return (x - excess[above - 1]).clamp(min=0)
