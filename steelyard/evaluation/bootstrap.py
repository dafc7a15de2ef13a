"""Resampled means over queries, from which intervals and comparisons are made."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_DRAWS_AT_ONCE = 2**21


def resampled_means(values: Tensor, resamples: int, seed: int, groups: Tensor | None = None) -> Tensor:
    """Means over queries, or whole groups of them, drawn with replacement; all rows share each resample.

    Args:
        values: float64, (rows, n).
        resamples: how many.
        seed: seed of the resamples.
        groups: int64, (n,): queries of one number are drawn together; None draws each alone.

    Returns:
        float64, (resamples, rows).
    """
    sizes = None
    if groups is not None:
        distinct, place = torch.unique(groups, return_inverse=True)
        values = values.new_zeros(len(values), len(distinct)).index_add_(1, place, values)
        sizes = torch.bincount(place).to(torch.float64)
    n = values.shape[1]
    generator = torch.Generator().manual_seed(seed)
    parts = []
    at_once = max(1, _DRAWS_AT_ONCE // n)
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = torch.randint(n, (size, n), generator=generator)
        drawn += torch.arange(size)[:, None] * n
        times = torch.bincount(drawn.view(-1), minlength=size * n).view(size, n).to(torch.float64)
        parts.append(times @ values.T / (n if sizes is None else (times @ sizes).unsqueeze(1)))
    return torch.cat(parts)


def expanded_interval(means: Tensor, n: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval from resampled means, its tails thinned for few queries.

        tail = Phi( -t_{n-1} sqrt(n / (n - 1)) ),   t_{n-1} the (1 + level) / 2 quantile of Student's t

    Resamples of n queries vary by sigma_n / sqrt(n), sigma_n with n in its denominator, and their quantiles are
    those of a normal; at the thinner tails the interval is as wide as Student's, so that it covers what it says
    from about eight queries on. With fewer it is the range of the resamples, and too narrow.

    Args:
        means: float64, (resamples,).
        n: how many queries, or groups of them, were resampled; at least 2.
        level: coverage aimed at, inside (0, 1).

    Returns:
        Lower and upper end.

    Reference:
        Efron (1979), Bootstrap methods: another look at the jackknife, Annals of Statistics 7(1); the tails after
        Hesterberg (2015), What teachers should know about the bootstrap, The American Statistician 69(4),
        arXiv 1411.5279, derived again as above.
    """
    from scipy.special import ndtr, stdtrit  # a tenth of a second that only this needs

    tail = float(ndtr(-stdtrit(n - 1, (1 + level) / 2) * math.sqrt(n / (n - 1))))
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high
