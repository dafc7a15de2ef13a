"""Greedy selection: the row that adds most to what is kept, asked of a function or of a judge."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

Gain = Callable[[list[int], int], float]
"""Called with what is kept and a candidate: how much the candidate would add."""


def lazy_greedy(gain: Gain, n_rows: int, n: int) -> list[int]:
    """Keep n rows, each the one of largest marginal gain, where gains never grow as more is kept.

        S <- S + argmax_i F(S + i) - F(S)

    An old gain is an upper bound of the new one, so that only the rows at the top of a heap are asked again: the same
    rows as plain greedy, ties going to the smaller id, with few calls. For a monotone submodular F the result is
    worth at least 1 - 1/e of the best n rows.

    Args:
        gain: marginal gain of a row given those kept.
        n_rows: rows there are.
        n: rows to keep, at most n_rows.

    Returns:
        Ids in the order of selection.

    Raises:
        ValueError: more rows wanted than there are, or a gain that is NaN.

    Reference:
        Minoux (1978), Accelerated greedy algorithms for maximizing submodular set functions; Nemhauser, Wolsey and
        Fisher (1978), Mathematical Programming 14 (the bound).
    """
    _check_sizes(n_rows, n)
    kept: list[int] = []
    heap = [(-math.inf, i, -1) for i in range(n_rows)]
    while len(kept) < n:
        _, row, asked = heapq.heappop(heap)
        if asked == len(kept):
            kept.append(row)
            continue
        value = float(gain(kept, row))
        if math.isnan(value):
            raise ValueError(f"The gain of row {row} is NaN.")
        heapq.heappush(heap, (-value, row, len(kept)))
    return kept


def greedy_by_judge(
    judge: Callable[[list[int], list[int]], int],
    n_rows: int,
    n: int,
    *,
    pool: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """Keep n rows, each chosen by a judge from a small pool of random candidates, given what is kept.

        repeat: C = `pool` rows at random of those left;  S <- S + judge(S, C)

    The judge may be a language model that is shown candidates and asked which adds most, or a function. With pools
    of `N / n log(1 / e)` rows and a judge that finds the largest gain of a monotone submodular function the result is
    worth 1 - 1/e - e of the best n rows on average.

    Args:
        judge: called with the ids kept and the ids of the candidates, returns one of the candidates.
        n_rows: rows there are.
        n: rows to keep, at most n_rows.
        pool: candidates shown at a time; all rows left where None.
        generator: source of randomness.

    Returns:
        Ids in the order of selection.

    Raises:
        ValueError: more rows wanted than there are, an empty pool, or an answer that is no candidate.

    Reference:
        Li, Du, Jiao, Guo, Feng, Wan, Gao and Hu (2025), Add-one-in: Incremental sample selection for large language
        models via a choice-based greedy paradigm, arXiv 2503.02359, seen in its abstract. Mirzasoleiman, Badanidiyuru, Karbasi, Vondrák and Krause (2015), Lazier
        than lazy greedy, AAAI (the bound).
    """
    _check_sizes(n_rows, n)
    if pool is not None and pool < 1:
        raise ValueError(f"A pool must show at least one candidate, got {pool}.")
    left, kept = list(range(n_rows)), list[int]()
    for _ in range(n):
        places = list(range(len(left)))
        if pool is not None and pool < len(left):
            places = torch.randperm(len(left), generator=generator)[:pool].sort().values.tolist()
        shown = [left[p] for p in places]
        answer = judge(kept.copy(), shown)
        if answer not in shown:
            raise ValueError(f"The judge chose {answer!r}, which is not among the candidates {shown}.")
        kept.append(int(answer))
        left.remove(answer)
    return kept


def facility_location(similarity: ArrayLike | Tensor) -> Gain:
    """The gain of covering every row by its most similar one kept.

        F(S) = sum_j max_{i in S} s_ij;   0 for nothing kept

    Args:
        similarity: not negative, (N, N): of row i to row j.

    Returns:
        A function for `lazy_greedy`, which remembers the cover of the last set it was asked about.

    Raises:
        ValueError: not square, negative or not finite.

    Reference:
        Cornuéjols, Fisher and Nemhauser (1977), Location of bank accounts to optimize float, Management Science.
    """
    s = torch.as_tensor(similarity)
    if s.ndim != 2 or s.shape[0] != s.shape[1] or not bool((torch.isfinite(s) & (s >= 0)).all()):
        raise ValueError(f"similarity must be square, finite and not negative, got shape {tuple(s.shape)}.")
    remembered: tuple[list[int], Tensor] = ([], s.new_zeros(len(s)))

    def gain(kept: list[int], row: int) -> float:
        nonlocal remembered
        if remembered[0] != kept:
            remembered = (kept.copy(), s[kept].amax(0) if kept else s.new_zeros(len(s)))
        return float((s[row] - remembered[1]).clamp(min=0).sum(dtype=torch.float64))

    return gain


def augmentation_similarity_subset(
    similarity: ArrayLike | Tensor, classes: ArrayLike | Tensor, share: float
) -> Tensor:
    """Keep of every class the rows whose augmentations are most like those of the rest of the class.

        per class V: greedily maximise  F(S) = sum_{i in S} sum_{j in V, j not in S} s_ij,  |S| = round(share |V|)
        gain of i:  sum_{j in V} s_ij - 2 sum_{j in S} s_ij - s_ii

    Contrastive learning from these rows keeps the classes' centres and their spread, and loses little to learning
    from all. F is submodular but not monotone; gains may be negative towards the end.

    Args:
        similarity: expected similarity of augmented views of rows i and j, symmetric, (N, N); cosines of the
            views' vectors under a proxy model, for instance.
        classes: class of each row, or latent class (a cluster), int64 (N,).
        share: part of each class to keep, in (0, 1].

    Returns:
        Ids, ascending.

    Raises:
        ValueError: shapes that do not fit, asymmetric or not finite similarities, a share outside (0, 1].

    Reference:
        Joshi and Mirzasoleiman (2023), Data-efficient contrastive self-supervised learning: Most beneficial
        examples for supervised learning contribute the least, ICML, arXiv 2302.09195.
    """
    s, labels = torch.as_tensor(similarity).double(), torch.as_tensor(classes)
    if s.ndim != 2 or s.shape != (len(labels), len(labels)):
        raise ValueError(f"similarity of shape {tuple(s.shape)} does not fit {len(labels)} classes.")
    if not bool(torch.isfinite(s).all()) or not torch.allclose(s, s.T):
        raise ValueError("similarity must be finite and symmetric.")
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}.")
    kept = []
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().squeeze(1)
        within = s[rows][:, rows]
        gain = within.sum(1) - within.diagonal()
        taken = torch.zeros(len(rows), dtype=torch.bool)
        for _ in range(max(1, round(share * len(rows)))):
            best = int(gain.masked_fill(taken, -math.inf).argmax())
            taken[best] = True
            gain = gain - 2 * within[best]
        kept.append(rows[taken])
    return torch.cat(kept).sort().values


def _check_sizes(n_rows: int, n: int) -> None:
    if not 0 <= n <= n_rows:
        raise ValueError(f"n must lie between 0 and the {n_rows} rows, got {n}.")
