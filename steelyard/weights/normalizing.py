"""Log-weights made to sum to one, and averaged."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def as_given(x: Tensor | ArrayLike) -> Tensor:
    """Tensors and arrays in their own dtype; Python's floats in float64, which torch would round to float32."""
    return torch.as_tensor(x if isinstance(x, Tensor) else np.asarray(x))


def checked(log_w: Tensor | ArrayLike, dim: int) -> Tensor:
    """Log-weights that can be worked with, or an error that says why not."""
    log_w = as_given(log_w)
    if not log_w.is_floating_point():
        raise TypeError(f"Log-weights must be floating point, got {log_w.dtype}.")
    if log_w.ndim == 0 or log_w.shape[dim] == 0:
        raise ValueError(f"There is no draw along dim {dim} of log-weights of shape {tuple(log_w.shape)}.")
    if log_w.numel() and not bool(log_w.amax() < math.inf):  # the largest of NaN and anything is NaN
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
    log_w = checked(log_w, dim)
    alive = log_w.amax(dim, keepdim=True) > -math.inf
    if bool(alive.all()):
        return torch.log_softmax(log_w, dim)
    return torch.log_softmax(log_w.where(alive, 0.0), dim).where(alive, -math.inf)


def log_mean_exp(log_w: Tensor, dim: int = -1) -> Tensor:
    """Log of the mean weight: the estimate of a log normaliser.

        log (1/n) sum_i exp(log_w_i)

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw, and counts in n.
        dim: dimension of the draws.

    Returns:
        Shape of `log_w` without `dim`, summed in float64 and returned in its dtype; -inf, with a gradient of
        zero, where every draw is dead.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf.
    """
    log_w = checked(log_w, dim)
    alive = (log_w > -math.inf).any(dim, keepdim=True)
    # Masked before the sum, not after it: the gradient of a sum over nothing is NaN.
    mean = log_w.double().where(alive, 0.0).logsumexp(dim) - math.log(log_w.shape[dim])
    return mean.where(alive.squeeze(dim), -math.inf).to(log_w.dtype)
