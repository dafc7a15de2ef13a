"""Resampled means over queries, from which intervals and comparisons are made."""

from __future__ import annotations

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
