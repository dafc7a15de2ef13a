"""Resampled means over queries, from which intervals and comparisons are made."""

from __future__ import annotations

import torch
from torch import Tensor

_DRAWS_AT_ONCE = 2**21


def resampled_means(values: Tensor, resamples: int, seed: int) -> Tensor:
    """Means over queries drawn with replacement; all rows share each resample.

    Args:
        values: float64, (rows, n).
        resamples: how many.
        seed: seed of the resamples.

    Returns:
        float64, (resamples, rows).
    """
    n = values.shape[1]
    generator = torch.Generator().manual_seed(seed)
    parts = []
    at_once = max(1, _DRAWS_AT_ONCE // n)
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = torch.randint(n, (size, n), generator=generator)
        drawn += torch.arange(size)[:, None] * n
        times = torch.bincount(drawn.view(-1), minlength=size * n).view(size, n)
        parts.append(times.to(torch.float64) @ values.T / n)
    return torch.cat(parts)
