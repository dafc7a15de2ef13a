"""Grades that are noisy, repaired: how they get confused is learnt from near neighbours, then rare good rows are kept."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

CHUNK = 2**22


@dataclass(frozen=True)
class ScoreTransitions:
    """How true grades turn into given ones.

    Args:
        transition: T, (K, K): chance that a row of true grade k is given grade l.
        prior: share of each true grade, (K,).
    """

    transition: Tensor
    prior: Tensor

    def posterior(self) -> Tensor:
        """Chance of each true grade, given a grade: (K, K), row l over true grades k."""
        joint = self.prior.unsqueeze(1) * self.transition
        return (joint / joint.sum(0).clamp(min=1e-300)).T


def nearest_rows(vectors: ArrayLike | Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k other rows of largest cosine to each row, in chunks.

    Args:
        vectors: (n, d); a row of zeros is like no other.
        k: neighbours, 1 to n - 1.

    Returns:
        Cosines and ids, (n, k), from the nearest.

    Raises:
        ValueError: not a finite matrix, or k outside its range.
    """
    x = torch.as_tensor(vectors)
    if x.ndim != 2 or not bool(torch.isfinite(x.double()).all()):
        raise ValueError(f"vectors must be a finite matrix, got shape {tuple(x.shape)}.")
    if not 1 <= operator.index(k) < len(x):
        raise ValueError(f"k must lie between 1 and {len(x) - 1}, got {k}.")
    unit = torch.nn.functional.normalize(x if x.is_floating_point() else x.float(), dim=1)
    cosines, ids = [], []
    step = max(1, CHUNK // len(unit))
    for start in range(0, len(unit), step):
        part = unit[start : start + step] @ unit.T
        rows = torch.arange(len(part))
        part[rows, rows + start] = -torch.inf
        best = part.topk(k, dim=1)
        cosines.append(best.values)
        ids.append(best.indices)
    return torch.cat(cosines), torch.cat(ids)


def fit_transitions(
    grades: ArrayLike | Tensor, neighbours: ArrayLike | Tensor, n_grades: int, *, steps: int = 600
) -> ScoreTransitions:
    """Learn how grades are confused from how often near rows agree.

        a row, its nearest and its second nearest have one true grade (clusterability), so that over rows
        c1_i = P(grade i) = sum_k p_k T_ki,   c2_ij = sum_k p_k T_ki T_kj,   c3_ijl = sum_k p_k T_ki T_kj T_kl
        T and p minimise the squared distance of these to the counts in the data

    Softmax parameters keep T and p distributions; T starts near the identity, so that true grade k is the one most
    often given as k.

    Args:
        grades: int64, (n,), 0 to n_grades - 1.
        neighbours: ids of each row's nearest two rows at least, (n, 2 or more); the first two are looked at.
        n_grades: K.
        steps: of Adam.

    Returns:
        Transition matrix and prior, float64.

    Raises:
        ValueError: grades outside their range, or neighbours that do not fit.

    Reference:
        Pang, Wei, Shah, Zhu, Wang, Qian, Liu, Bao and Wei (2025), Improving data efficiency via curating
        LLM-driven rating systems, ICLR, arXiv 2410.10877; the estimator of Zhu, Song and Liu (2021), Clusterability as an alternative to
        anchor points when learning with noisy labels, ICML, arXiv 2102.05291.
    """
    y, near = _checked(grades, neighbours, n_grades)
    triple = torch.zeros(n_grades, n_grades, n_grades, dtype=torch.float64)
    triple.index_put_(
        (y, y[near[:, 0]], y[near[:, 1]]), torch.ones(len(y), dtype=torch.float64), accumulate=True
    )
    third = triple / len(y)
    second, first = third.sum(2), third.sum((1, 2))
    logits = torch.nn.Parameter(3.0 * torch.eye(n_grades, dtype=torch.float64))
    prior = torch.nn.Parameter((first + 1e-3).log())
    optimizer = torch.optim.Adam([logits, prior], lr=0.05)
    with torch.enable_grad():
        for _ in range(steps):
            t, p = logits.softmax(1), prior.softmax(0)
            weighed = p.unsqueeze(1) * t
            loss = (weighed.sum(0) - first).square().sum()
            loss = loss + (torch.einsum("ki,kj->ij", weighed, t) - second).square().sum()
            loss = loss + (torch.einsum("ki,kj,kl->ijl", weighed, t, t) - third).square().sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return ScoreTransitions(logits.detach().softmax(1), prior.detach().softmax(0))


def correct_grades(
    grades: ArrayLike | Tensor,
    neighbours: ArrayLike | Tensor,
    transitions: ScoreTransitions,
    *,
    confidence: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Replace grades that neighbours and the transition matrix both speak against.

        post_i(k) is proportional to p_k T[k, y_i] prod over neighbours j of T[k, y_j]
        y_i <- argmax_k post_i(k) where that is at least `confidence` and another grade

    Args:
        grades: int64, (n,).
        neighbours: ids of each row's near rows, (n, k).
        transitions: as `fit_transitions` gave it.
        confidence: least posterior chance of a correction, in [0, 1].

    Returns:
        Corrected grades, (n,), and the posterior chance of the grade each row has now, float64.

    Raises:
        ValueError: grades outside their range, or neighbours that do not fit.

    Reference:
        Pang et al. (2025), arXiv 2410.10877. Reconstructed: the paper flags low agreement with neighbours and
        accepts the transition matrix's correction at a confidence of one half; the two are one posterior here.
    """
    y, near = _checked(grades, neighbours, len(transitions.prior))
    log_t, log_p = transitions.transition.clamp(min=1e-12).log(), transitions.prior.clamp(min=1e-12).log()
    posterior = (log_p + log_t[:, y].T + log_t[:, y[near]].sum(2).T).softmax(1)
    chance, best = posterior.max(1)
    corrected = torch.where(chance >= confidence, best, y)
    return corrected, posterior.gather(1, corrected.unsqueeze(1)).squeeze(1)


def best_and_rarest(grades: ArrayLike | Tensor, rarity: ArrayLike | Tensor, n: int) -> Tensor:
    """Keep whole grades from the highest down, and of the last one the rarest rows.

    Args:
        grades: (N,), higher is better.
        rarity: (N,), for instance the mean cosine distance to each row's neighbours.
        n: rows to keep, at most N.

    Returns:
        Ids, (n,), from the best; of equal grade from the rarest.

    Raises:
        ValueError: shapes that do not fit, NaN, or more rows wanted than there are.

    Reference:
        Pang et al. (2025), arXiv 2410.10877.
    """
    y, rare = torch.as_tensor(grades).double(), torch.as_tensor(rarity).double()
    if y.ndim != 1 or y.shape != rare.shape or bool(torch.isnan(y).any() | torch.isnan(rare).any()):
        raise ValueError(
            f"grades and rarity must be vectors of one length without NaN, got {tuple(y.shape)}, {tuple(rare.shape)}."
        )
    if not 0 <= n <= len(y):
        raise ValueError(f"n must lie between 0 and the {len(y)} rows, got {n}.")
    order = torch.argsort(rare, descending=True, stable=True)
    return order[torch.argsort(y[order], descending=True, stable=True)][:n]


def _checked(
    grades: ArrayLike | Tensor, neighbours: ArrayLike | Tensor, n_grades: int
) -> tuple[Tensor, Tensor]:
    y, near = torch.as_tensor(grades), torch.as_tensor(neighbours)
    if y.is_floating_point() or near.is_floating_point():
        raise ValueError("grades and neighbours must be integers.")
    y, near = y.long(), near.long()
    if y.ndim != 1 or len(y) == 0 or int(y.min()) < 0 or int(y.max()) >= n_grades:
        raise ValueError(f"grades must be a vector of integers from 0 to {n_grades - 1}.")
    if (
        near.ndim != 2
        or len(near) != len(y)
        or near.shape[1] < 2
        or int(near.min()) < 0
        or int(near.max()) >= len(y)
    ):
        raise ValueError(
            f"neighbours must be ids of rows, ({len(y)}, 2 or more), got shape {tuple(near.shape)}."
        )
    return y, near
