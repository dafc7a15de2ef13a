"""Keeping rows by a score without losing whole regions of it: strata, cuts at the hard end, and plain tops."""

from __future__ import annotations

import math
import operator

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.poisson import look_up


def coverage_centric(
    score: ArrayLike | Tensor,
    k: int,
    *,
    beta: float = 0.0,
    strata: int = 50,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw evenly across strata of difficulty, after the very hardest rows are cut off (CCS).

        drop the floor(beta n) hardest;   cut the range of the rest into equal widths;
        smallest stratum first:   m_h = min(N_h, floor(budget left / strata left))
        inclusion(i) = m_h / N_h  for i in stratum h,   0 for a row that is cut off

    What a small stratum leaves goes to the larger ones, so the budget is spent exactly, a remainder in the
    largest. With a budget below the number of strata that have rows, the smallest of them get nothing.

    Args:
        score: (n,): difficulty, larger is harder, such as `el2n` or `-area_under_margin(...)`. An infinite
            score is allowed only among the rows that `beta` cuts off.
        k: how many rows to draw.
        beta: share of the hardest rows that is cut off, in [0, 1). The paper searches it: about 0.3 at 90%
            pruning of CIFAR-10.
        strata: number of strata of equal width.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (k,), ascending, and exact inclusion probabilities.

    Raises:
        TypeError: complex or bool scores, or `k` or `strata` is not an integer.
        ValueError: scores not one-dimensional or with NaN, an infinite one that is not cut off; `k` outside
            0 to the number of rows left; `beta` outside [0, 1); no stratum.

    Reference:
        Zheng, Liu, Lai and Prakash (2023), Coverage-centric coreset selection for high pruning rates, ICLR,
        arXiv 2210.15809.
    """
    value, k, strata = as_scores(score), operator.index(k), operator.index(strata)
    if strata < 1:
        raise ValueError(f"strata must be 1 at least, got {strata}.")
    rows = drop_hardest(value, beta)
    if not 0 <= k <= len(rows):
        raise ValueError(
            f"k must lie between 0 and the {len(rows)} rows left of {len(value)} after the hardest, got {k}."
        )
    left = value[rows]
    if not bool(left.isfinite().all()):
        bad = int((~left.isfinite()).sum())
        raise ValueError(
            f"{bad} infinite scores are left after the hardest are cut off, and have no stratum; raise beta "
            f"from {beta} or leave these rows out."
        )
    stratum = _equal_widths(left, strata)
    sizes = torch.bincount(stratum, minlength=strata)
    budget = stratum_budgets(sizes, k)
    # Rows in random order, then put together by stratum: the first m_h of each are a uniform draw.
    shuffled = torch.randperm(len(rows), generator=generator)
    grouped = shuffled[stratum[shuffled].argsort(stable=True)]
    place = torch.arange(len(rows)) - (sizes.cumsum(0) - sizes)[stratum[grouped]]
    ids = rows[grouped[place < budget[stratum[grouped]]]].sort().values
    share = budget.double().log() - sizes.double().log()
    table = torch.full((len(value),), -math.inf, dtype=torch.float64)
    table[rows] = share[stratum]
    return Draws(ids, table[ids], lambda asked: look_up(table, asked, -math.inf))


def stratum_budgets(sizes: ArrayLike | Tensor, budget: int) -> Tensor:
    """Share a budget among strata as evenly as their sizes allow, the smallest served first.

        m_h = min(N_h, floor(budget left / strata left)),   in ascending order of N_h

    Args:
        sizes: integers, (H,): rows of each stratum; ties are served in the order given.
        budget: at most the sum of the sizes.

    Returns:
        int64, (H,), which sums to the budget.

    Raises:
        TypeError: sizes or budget are not integers.
        ValueError: not one-dimensional, a negative size, or a budget outside 0 to the sum of the sizes.

    Reference:
        Zheng et al. (2023), Coverage-centric coreset selection, ICLR, arXiv 2210.15809 (algorithm 1).
    """
    count, budget = torch.as_tensor(sizes), operator.index(budget)
    if count.is_floating_point() or count.is_complex() or count.dtype == torch.bool:
        raise TypeError(f"sizes must be integers, got {count.dtype}.")
    if count.ndim != 1 or bool((count < 0).any()):
        raise ValueError(f"sizes must be (H,) and not negative, got {count.tolist()!s:.80}.")
    if not 0 <= budget <= int(count.sum()):
        raise ValueError(
            f"budget must lie between 0 and the {int(count.sum())} rows there are, got {budget}."
        )
    result, left = torch.zeros_like(count, dtype=torch.int64), budget
    order = count.argsort(stable=True).tolist()
    for turn, h in enumerate(order):
        result[h] = min(int(count[h]), left // (len(order) - turn))
        left -= int(result[h])
    return result


def drop_hardest(score: ArrayLike | Tensor, share: float) -> Tensor:
    """All rows but the hardest share of them.

        kept = all but the floor(share n) largest scores

    Fine-tuned text models gain from it: a small share with the highest error norm, after a warm-up of one
    epoch at least, is mostly noise. Of equal scores the rows of lower id go first.

    Args:
        score: (n,): difficulty, larger is harder; infinite ones are allowed.
        share: in [0, 1).

    Returns:
        Ids of the rows kept, int64, ascending.

    Raises:
        TypeError: complex or bool scores.
        ValueError: scores not one-dimensional or with NaN, or a share outside [0, 1).

    Reference:
        Fayyaz et al. (2022), BERT on a data diet: finding important examples by gradient-based pruning,
        arXiv 2211.05610.
    """
    value = as_scores(score)
    if not 0 <= share < 1:
        raise ValueError(f"The share of the hardest must lie in [0, 1), got {share}.")
    return (~top_mask(value, whole(share * len(value)))).nonzero().flatten()


def top_mask(score: Tensor, m: int) -> Tensor:
    """The m largest scores, by a partial select; of equal ones those of lower id.

    Args:
        score: (n,), without NaN.
        m: between 0 and n.

    Returns:
        bool, (n,), True for m rows.
    """
    if m == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    limit = score.kthvalue(len(score) - m + 1).values
    chosen = score > limit
    ties = (score == limit).nonzero().flatten()
    chosen[ties[: m - int(chosen.sum())]] = True
    return chosen


def as_scores(score: ArrayLike | Tensor, name: str = "score") -> Tensor:
    """Scores of rows as a float vector on the CPU, detached: float32 for shorter floats, float64 for integers.

    Raises:
        TypeError: complex or bool.
        ValueError: not one-dimensional, or NaN.
    """
    value = torch.as_tensor(score).detach().cpu()
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must be real numbers, got {value.dtype}.")
    if value.ndim != 1:
        raise ValueError(f"{name} must be (n,), one number for each row, got {tuple(value.shape)}.")
    if not value.is_floating_point():
        value = value.double()
    bad = int(value.isnan().sum())
    if bad:
        raise ValueError(f"{name} has NaN in {bad} of {len(value)} rows; leave these out.")
    return value.to(torch.promote_types(value.dtype, torch.float32))


def whole(number: float) -> int:
    """The number rounded down, unless rounding alone put it below a whole one: 0.29 * 100 is 29."""
    return math.floor(number + 1e-9 * max(1.0, abs(number)))


def _equal_widths(score: Tensor, strata: int) -> Tensor:
    """Number of the stratum of each row; the largest score belongs to the last, whatever its sign."""
    if len(score) == 0:
        return torch.zeros(0, dtype=torch.int64)
    value = score.double()
    low, high = value.aminmax()
    if not low < high:
        return torch.zeros(len(score), dtype=torch.int64)
    # Halved, or the width of scores from -1e308 to 1e308 would be infinite.
    place = (value / 2 - low / 2) / (high / 2 - low / 2) * strata
    return place.long().clamp_(max=strata - 1)
