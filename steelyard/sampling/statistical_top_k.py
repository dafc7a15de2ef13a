"""About k survivors without a sort: the cut-off comes from the mean and the spread."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor


def statistical_top_k(x: Tensor, k: float, dim: int = -1) -> Tensor:
    """Keep about the k largest entries by a soft threshold that needs two sums and no sort.

        theta = mean(x) + std(x) Phi^-1(1 - k / d)
        y = max(x - theta, 0)

    Where the entries look normal, about k survive, give or take a number of order sqrt(k); where they do
    not, their share is another: look at it. The survivors are always the largest entries, as many as they are,
    and stay the same under `a x + b`, a > 0. Linear time; continuous, with gradients through the threshold too.

    Args:
        x: activations, (..., d) along `dim`, floating point.
        k: wanted number of survivors, strictly between 0 and d; need not be whole.
        dim: dimension of the entries.

    Returns:
        In the shape and dtype of `x`; 0 where an entry did not survive.

    Raises:
        TypeError: `x` is not floating point.
        ValueError: k outside (0, d), or entries that are not finite.

    Reference:
        You et al. (2025), Spark Transformer: reactivating sparsity in FFN and attention, arXiv 2506.06644. The
        variance divides by d, as in the released Gemma 3n code.
    """
    centred, _, cut = _split(x, k, dim)
    return (centred - cut).relu().to(x.dtype)


def statistical_threshold(x: Tensor, k: float, dim: int = -1) -> Tensor:
    """The cut-off that about k of d normal entries exceed.

        theta = mean(x) + std(x) Phi^-1(1 - k / d)

    Args:
        x: activations, (..., d) along `dim`, floating point.
        k: wanted number of entries above it, strictly between 0 and d; need not be whole.
        dim: dimension of the entries.

    Returns:
        Shape of `x` without `dim`, float64 for float64, else float32.

    Raises:
        TypeError: `x` is not floating point.
        ValueError: k outside (0, d), or entries that are not finite.

    Reference:
        You et al. (2025), Spark Transformer: reactivating sparsity in FFN and attention, arXiv 2506.06644.
    """
    _, mean, cut = _split(x, k, dim)
    return (mean + cut).squeeze(dim)


def _split(x: Tensor, k: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Entries less their mean, the mean, and the cut-off above it; float64 for float64, else float32."""
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}.")
    if x.ndim == 0:
        raise ValueError("x needs a dimension of entries, got a single number.")
    d = x.shape[dim]
    if not 0 < k < d:
        raise ValueError(f"k must lie strictly between 0 and the {d} entries, got {k}.")
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    mean = wide.mean(dim, keepdim=True)
    centred = wide - mean
    # A norm is faster than torch.std and has a gradient where all entries are equal. The quantile is taken from
    # the lower tail: 1 - k / d would lose the digits of a small k / d.
    std = torch.linalg.vector_norm(centred, dim=dim, keepdim=True) / math.sqrt(d)
    cut = -NormalDist().inv_cdf(k / d) * std
    if not bool((mean + cut).isfinite().all()):
        raise ValueError("x must be finite: it has NaN, an infinity, or entries too large to square.")
    return centred, mean, cut
