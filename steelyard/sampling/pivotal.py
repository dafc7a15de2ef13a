"""Pivotal sampling: inclusion probabilities settled by duels, at random, in order, or between neighbours."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.poisson import as_rows, pack
from steelyard.sampling.successive import GOLDEN, draw_seeds, inlined, mix, njit

Order = Literal["random", "given", "local"]

_LEAF = 8
_U = np.uint64


def pivotal(
    inclusion: Tensor,
    *,
    order: Order = "random",
    x: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw with given inclusion probabilities and a size that never varies, by duels of two candidates.

        a + b < 1:   (a, b) -> (a + b, 0) with probability a / (a + b),            else (0, a + b)
        a + b >= 1:  (a, b) -> (1, a + b - 1) with probability (1 - b) / (2 - a - b), else (a + b - 1, 1)

    Each duel settles one of the two and keeps both expectations, so every inclusion probability is exact. If
    they sum to an integer, that is the size of every draw (but for the rounding of that sum); if not,
    the last one left takes a coin, and the size is one of the two integers beside the sum.

    The order says who meets whom. "random": a chain in random order, near the greatest entropy. "given": a
    chain in the order of the candidates, which spreads the draw along it. "local": one at random meets its
    nearest neighbour in `x` among those not settled, which spreads the draw in space (scale the coordinates
    so that a unit means the same in each); O(n log n) by a k-d tree. The last two lower the variance where
    neighbours are alike, and can raise it where they are not.

    Args:
        inclusion: probabilities in [0, 1], (..., n).
        order: "random", "given" or "local".
        x: coordinates, (n, d) shared or (..., n, d); with "local" only.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws on the CPU with ids (..., m), ascending, and the log of `inclusion`. Their number varies by at
        most one; a row with fewer ends in an empty slot (id 0, log_expected +inf).

    Raises:
        TypeError: `inclusion` or `x` is not floating point.
        ValueError: probabilities outside [0, 1] or NaN; an unknown order; `x` without "local" or "local"
            without `x`; coordinates of the wrong shape, NaN or infinite.

    Reference:
        Deville & Tillé (1998), Unequal probability sampling without replacement through a splitting method,
        Biometrika 85(1); "local": Grafström, Lundström & Schelin (2012), Spatially balanced
        sampling through the pivotal method, Biometrics 68(2), their second method (LPM2).
    """
    rows, lead = as_probabilities(inclusion)
    if order not in ("random", "given", "local"):
        raise ValueError(f'order must be "random", "given" or "local", got {order!r}.')
    if (order == "local") != (x is not None):
        raise ValueError('Coordinates x and order="local" come together: give both or neither.')
    state = rows.double().numpy().copy()
    seeds = draw_seeds(generator, len(rows))
    if x is None:
        _chains(state, seeds[:, 0], order == "random")
    else:
        points = _coordinates(x, (*lead, rows.shape[1]))
        for r in range(len(state)):
            _local(state[r], points[r if len(points) > 1 else 0], seeds[r, 0])
    mask = torch.from_numpy(state == 1).reshape(*lead, rows.shape[1])
    return pack(mask, rows.log().reshape(mask.shape))


def as_probabilities(inclusion: Any) -> tuple[Tensor, torch.Size]:
    """Inclusion probabilities as (rows, n) on the CPU, and their leading shape.

    Raises:
        TypeError: not floating point.
        ValueError: outside [0, 1] or NaN.
    """
    rows, lead = as_rows(inclusion, "inclusion")
    good = (rows >= 0) & (rows <= 1)
    if not bool(good.all()):
        bad = float(rows[~good][0])
        raise ValueError(f"Inclusion probabilities must lie in [0, 1], got {bad} (are they logs?).")
    return rows, lead


def _coordinates(x: Any, shape: tuple[int, ...]) -> Any:
    points = torch.as_tensor(x).detach().cpu()
    if not points.is_floating_point():
        raise TypeError(f"Coordinates must be floating point, got {points.dtype}.")
    n = shape[-1]
    if points.ndim < 2 or points.shape[-2] != n or (points.ndim > 2 and points.shape[:-1] != shape):
        raise ValueError(
            f"x must have shape ({n}, d) or ({', '.join(map(str, shape))}, d) for inclusion of shape {shape}, got "
            f"{tuple(points.shape)}."
        )
    if points.shape[-1] == 0:
        raise ValueError(f"Coordinates need at least one dimension, got shape {tuple(points.shape)}.")
    if not bool(points.isfinite().all()):
        raise ValueError("Coordinates have NaN or an infinite value.")
    rows = points.shape[:-2].numel()
    return points.double().reshape(rows, n, points.shape[-1]).contiguous().numpy()


@inlined
def uniform(seed: Any, step: Any) -> Any:
    """Number `step` of a stream of uniforms in [0, 1)."""
    return np.float64(mix(_U(step) * GOLDEN + seed) >> _U(11)) * 2.0**-53


@njit
def shuffled(n: int, seed: Any) -> Any:
    """0 ... n - 1 in random order (Fisher-Yates), with numbers 0 ... n - 1 of the stream."""
    places = np.arange(n)
    for j in range(n - 1, 0, -1):
        i = min(int(uniform(seed, j) * (j + 1)), j)
        places[i], places[j] = places[j], places[i]
    return places


@njit
def _duel(pi: Any, i: int, j: int, u: float) -> None:
    both = pi[i] + pi[j]
    if both < 1:
        if u * both < pi[i]:
            pi[i], pi[j] = both, 0.0
        else:
            pi[i], pi[j] = 0.0, both
    elif u * (2 - both) < 1 - pi[j]:
        pi[i], pi[j] = 1.0, both - 1
    else:
        pi[i], pi[j] = both - 1, 1.0


@njit
def _chains(rows: Any, seeds: Any, at_random: bool) -> None:
    n = rows.shape[1]
    for r in range(len(rows)):
        pi, seed = rows[r], seeds[r]
        places = shuffled(n, seed) if at_random else np.arange(n)
        left = -1
        for t in range(n):
            j = places[t]
            if not 0 < pi[j] < 1:
                continue
            if left >= 0:
                _duel(pi, left, j, uniform(seed, n + t))
            else:
                left = j
            if not 0 < pi[left] < 1:
                left = j if 0 < pi[j] < 1 else -1
        if left >= 0:
            pi[left] = 1.0 if uniform(seed, 2 * n) < pi[left] else 0.0


@njit
def _local(pi: Any, x: Any, seed: Any) -> None:
    """Duels of nearest neighbours; the tree is built anew, of those not settled, when half of it is."""
    names = np.flatnonzero((pi > 0) & (pi < 1))
    step = 0
    while len(names) > 1:
        places, split, box, parent, leaf_of = _tree(x[names])
        names = names[places]  # neighbours stand together now
        names, step = _duels(pi, names, x[names], split, box, parent, leaf_of, seed, step)
    if len(names) == 1:
        pi[names[0]] = 1.0 if uniform(seed, step) < pi[names[0]] else 0.0


@njit
def _duels(
    pi: Any, names: Any, x: Any, split: Any, box: Any, parent: Any, leaf_of: Any, seed: Any, step: int
) -> Any:
    n = m = len(names)
    alive = np.zeros(len(parent), np.int64)
    for t in range(n):
        _add(alive, parent, leaf_of[t], 1)
    unsettled, where = np.arange(n), np.arange(n)
    stack = np.empty(128, np.int64)
    while m > 1 and 2 * m > n:
        i = unsettled[min(int(uniform(seed, step) * m), m - 1)]
        j, step = _nearest(x, i, where, split, box, alive, stack, seed, step + 1)
        _duel(pi, names[i], names[j], uniform(seed, step))
        step += 1
        for k in (i, j):
            if not 0 < pi[names[k]] < 1:
                m -= 1
                last = unsettled[m]
                unsettled[where[k]], where[last] = last, where[k]
                where[k] = -1
                _add(alive, parent, leaf_of[k], -1)
    return names[where >= 0], step


@njit
def _add(alive: Any, parent: Any, node: int, by: int) -> None:
    while node >= 0:
        alive[node] += by
        node = parent[node]


@njit
def _tree(x: Any) -> Any:
    """A k-d tree: the points in the order of its leaves; of each node (first, last, left child), box, parent;
    of each point in that order its leaf.
    """
    n, d = x.shape
    places = np.arange(n)
    room = 4 * (n // _LEAF + 1) + 1
    split = np.full((room, 3), -1)
    box = np.empty((room, 2, d))
    parent = np.full(room, -1)
    leaf_of = np.empty(n, np.int64)
    split[0, 0], split[0, 1] = 0, n
    nodes, node = 1, 0
    while node < nodes:
        first, last = split[node, 0], split[node, 1]
        widest, width = 0, -1.0
        for c in range(d):
            low, high = np.inf, -np.inf
            for t in range(first, last):
                low, high = min(low, x[places[t], c]), max(high, x[places[t], c])
            box[node, 0, c], box[node, 1, c] = low, high
            if high - low > width:
                widest, width = c, high - low
        if last - first <= _LEAF:
            leaf_of[first:last] = node
        else:
            half = (first + last) // 2
            _halve(places, x, first, last, half, widest)
            split[node, 2] = nodes
            split[nodes, 0], split[nodes, 1], parent[nodes] = first, half, node
            split[nodes + 1, 0], split[nodes + 1, 1], parent[nodes + 1] = half, last, node
            nodes += 2
        node += 1
    return places, split, box, parent[:nodes], leaf_of


@njit
def _halve(places: Any, x: Any, low: int, last: int, rank: int, c: int) -> None:
    """Order places[low:last] so that none before `rank` has a larger coordinate c than any from it on."""
    high = last - 1
    while low < high:
        a, b, e = x[places[low], c], x[places[(low + high) // 2], c], x[places[high], c]
        pivot = max(min(a, b), min(max(a, b), e))
        i, j = low, high
        while i <= j:
            while x[places[i], c] < pivot:
                i += 1
            while pivot < x[places[j], c]:
                j -= 1
            if i <= j:
                places[i], places[j] = places[j], places[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            return


@njit
def _distance(x: Any, i: int, box: Any, node: int) -> float:
    total = 0.0
    for c in range(x.shape[1]):
        gap = max(box[node, 0, c] - x[i, c], x[i, c] - box[node, 1, c], 0.0)
        total += gap * gap
    return total


@njit
def _nearest(
    x: Any, i: int, where: Any, split: Any, box: Any, alive: Any, stack: Any, seed: Any, step: int
) -> Any:
    """The nearest unsettled neighbour of i, one of equals at random (the first found at distance 0)."""
    best, found, ties = np.inf, -1, 0
    stack[0] = 0
    height = 1
    while height > 0:
        height -= 1
        node = stack[height]
        if alive[node] == 0 or best == 0 or _distance(x, i, box, node) > best:
            continue
        child = split[node, 2]
        if child < 0:
            for j in range(split[node, 0], split[node, 1]):
                if j == i or where[j] < 0:
                    continue
                gap = 0.0
                for c in range(x.shape[1]):
                    gap += (x[i, c] - x[j, c]) ** 2
                if gap < best:
                    best, found, ties = gap, j, 1
                elif gap == best:
                    ties += 1
                    if uniform(seed, step) * ties < 1:
                        found = j
                    step += 1
            continue
        nearer = child if _distance(x, i, box, child) <= _distance(x, i, box, child + 1) else child + 1
        stack[height], stack[height + 1] = 2 * child + 1 - nearer, nearer
        height += 2
    return found, step
