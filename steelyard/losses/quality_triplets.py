"""Contrastive regression: whoever is nearer in rating should be nearer in the embedding."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.losses.pairs import check_number


def quality_triplets(
    distance: Tensor,
    quality: Tensor,
    *,
    margin: float | None = None,
    quality_range: float = 4.0,
    active_only: bool = False,
) -> Tensor:
    """Mean hinge over all triplets of an anchor with a nearer and a farther rating.

        L = mean over (a, p, n) with |y_a - y_p| < |y_a - y_n| of  [ d(a, p) - d(a, n) + m ]_+
        m: fixed, or by the ratings  m = ( |y_a - y_n| - |y_a - y_p| ) / range

    With the margin by ratings it is 0 for distances that are proportional to gaps of rating, by a factor of
    1 / range or more; a fixed margin asks as much of ratings that hardly differ. There are B^3 / 2 triplets,
    of which none is made: whether one is active depends on two numbers of its anchor, so that sorting and
    counting give every distance's coefficient. Time B^2 log B, memory B^2.

    Args:
        distance: float, (B, B), finite: between embeddings; of unit vectors in the paper.
        quality: float or integers, (B,), finite: ratings.
        margin: m, at least 0; None for the one by ratings.
        quality_range: largest gap that ratings can have, above 0; 4 for opinion scores of 1 to 5.
        active_only: mean over the triplets with a loss above 0, in place of all.

    Returns:
        A scalar, in the dtype of `distance` (float32 at least); 0 where there is no triplet.

    Raises:
        TypeError: distances that are not floating point.
        ValueError: shapes do not fit, values that are not finite, or parameters out of range.

    Reference:
        Ragano, Skoglund and Hines (2024), SCOREQ: speech quality assessment with contrastive regression,
        NeurIPS, arXiv 2410.06675. Reconstructed: which triplets are averaged.
    """
    if not distance.is_floating_point():
        raise TypeError(f"Distances must be floating point, got {distance.dtype}.")
    if quality.ndim != 1 or distance.shape != (len(quality), len(quality)):
        raise ValueError(
            f"Wanted (B, B) distances and (B,) ratings, got {tuple(distance.shape)} and {tuple(quality.shape)}."
        )
    check_number("quality_range", quality_range, above=0)
    if margin is not None:
        check_number("margin", margin, least=0)
    wide = distance.double()
    rating = quality.detach().double()
    if not bool(wide.detach().isfinite().all() and rating.isfinite().all()):
        raise ValueError("Distances and ratings must be finite.")
    gap = (rating.unsqueeze(1) - rating).abs().to(wide.device)
    level = wide if margin is not None else wide - gap / quality_range
    added = 0.0 if margin is None else margin
    coefficient, active, valid = _count(
        np.ascontiguousarray(level.detach().cpu().numpy()), np.ascontiguousarray(gap.cpu().numpy()), added
    )
    total = (torch.from_numpy(coefficient).to(wide.device) * level).sum() + added * active
    result: Tensor = total / max(active if active_only else valid, 1)
    return result.to(torch.promote_types(distance.dtype, torch.float32))


@numba.njit(cache=True)
def _count(level: Any, gap: Any, margin: float) -> Any:
    """How often each level stands as positive less as negative in active triplets; active and all triplets.

    A triplet is active where level_p + margin > level_n; both passes compare the same two numbers, so that
    they agree on ties.
    """
    size = len(level)
    coefficient = np.zeros((size, size))
    active, valid = 0, 0
    tree = np.zeros(size + 1, np.int64)
    for a in range(size):
        others = np.concatenate((np.arange(a), np.arange(a + 1, size)))
        order = others[np.argsort(gap[a][others])]  # by rating, nearest first
        raised = level[a] + margin
        negatives, positives = np.sort(level[a][others]), np.sort(raised[others])
        n = len(order)
        for backward in (True, False):
            tree[:] = 0
            held, start = 0, 0
            while start < n:
                end = start  # a group of equal gaps, whose members form no triplet with each other
                while end < n and _at(gap[a], order, end, backward) == _at(gap[a], order, start, backward):
                    end += 1
                for i in range(start, end):
                    j = order[n - 1 - i] if backward else order[i]
                    if backward:  # j as positive: how many farther ratings lie below it
                        found = _prefix(tree, np.searchsorted(negatives, raised[j]))
                        coefficient[a, j] += found
                        active += found
                        valid += held
                    else:  # j as negative: how many nearer ratings lie above it
                        below = _prefix(tree, np.searchsorted(positives, level[a, j], side="right"))
                        coefficient[a, j] -= held - below
                for i in range(start, end):
                    j = order[n - 1 - i] if backward else order[i]
                    slot = (
                        np.searchsorted(negatives, level[a, j])
                        if backward
                        else np.searchsorted(positives, raised[j])
                    )
                    k = slot + 1
                    while k <= n:
                        tree[k] += 1
                        k += k & -k
                held += end - start
                start = end
    return coefficient, active, valid


@numba.njit(cache=True)
def _at(values: Any, order: Any, i: int, backward: bool) -> Any:
    return values[order[len(order) - 1 - i]] if backward else values[order[i]]


@numba.njit(cache=True)
def _prefix(tree: Any, k: int) -> Any:
    """How many were put into the first k slots of a Fenwick tree."""
    total = 0
    while k > 0:
        total += tree[k]
        k -= k & -k
    return total
