"""What a weighted sample says: log-weights normalised, averaged, and counted in independent draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _checked(log_w: Tensor, dim: int) -> Tensor:
    if not log_w.is_floating_point():
        raise TypeError(f"Log-weights must be floating point, got {log_w.dtype}.")
    if log_w.ndim == 0 or log_w.shape[dim] == 0:
        raise ValueError(f"There is no draw along dim {dim} of log-weights of shape {tuple(log_w.shape)}.")
    if bool((log_w.isnan() | (log_w == math.inf)).any()):
        raise ValueError("Log-weights have NaN or +inf; mark a dead draw with -inf.")
    return log_w


def normalize(log_w: Tensor, dim: int = -1) -> Tensor:
    """Log-weights that sum to one.

        log_w_i - log sum_j exp(log_w_j)

    Where every draw is dead (all -inf) there is nothing to normalise and the result stays -inf.

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw.
        dim: dimension of the draws.

    Returns:
        Log-weights of the same shape and dtype.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf.
    """
    top = _checked(log_w, dim).amax(dim, keepdim=True)
    # Shifted first: in float32 the log of n vanishes beside log-weights of size 1e8.
    shifted = log_w - top.where(top > -math.inf, 0.0)
    total = shifted.logsumexp(dim, keepdim=True)
    return shifted - total.where(total > -math.inf, 0.0)


def log_mean_exp(log_w: Tensor, dim: int = -1) -> Tensor:
    """Log of the mean weight: the estimate of a log normaliser.

        log (1/n) sum_i exp(log_w_i)

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw, and counts in n.
        dim: dimension of the draws.

    Returns:
        Shape of `log_w` without `dim`; -inf where every draw is dead.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf.
    """
    return _checked(log_w, dim).logsumexp(dim) - math.log(log_w.shape[dim])


def effective_sample_size(log_w: Tensor, dim: int = -1) -> Tensor:
    """How many equally weighted draws these are worth (Kish).

        (sum_i w_i)^2 / sum_i w_i^2

    Args:
        log_w: log-weights, (..., n) along `dim`; any common factor cancels; -inf marks a dead draw.
        dim: dimension of the draws.

    Returns:
        Shape of `log_w` without `dim`, between 1 and n; 0 where every draw is dead.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf.

    Reference:
        Kish (1965), Survey Sampling, section 11.7; Kong (1992), A note on importance sampling using
        standardized weights, University of Chicago technical report 348.
    """
    log_w = normalize(log_w, dim)
    return torch.exp(-torch.logsumexp(2 * log_w, dim)).where((log_w > -math.inf).any(dim), 0.0)
