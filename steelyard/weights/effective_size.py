"""How many independent draws a weighted sample is worth."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from steelyard.weights.normalizing import checked, normalize


def effective_sample_size(
    log_w: Tensor, dim: int = -1, *, kind: Literal["kish", "perplexity", "max"] = "kish"
) -> Tensor:
    """How many equally weighted draws these are worth.

        kish:        1 / sum_i W_i^2  =  (sum_i w_i)^2 / sum_i w_i^2
        perplexity:  exp(-sum_i W_i log W_i)
        max:         1 / max_i W_i

    with `W = w / sum w`. Always max <= kish <= perplexity <= number of living draws. Kish's size stands
    for no integrand in particular; that of an average of f is the size of `log_w + log |f|`.

    Args:
        log_w: log-weights, (..., n) along `dim`; any common factor cancels; -inf marks a dead draw.
        dim: dimension of the draws.
        kind: "kish", "perplexity" or "max".

    Returns:
        Shape of `log_w` without `dim`, in its dtype, between 1 and n; 0 where every draw is dead.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf, or an unknown kind.

    Reference:
        Kish (1965), Survey Sampling, section 11.7; Kong (1992), A note on importance sampling using
        standardized weights, University of Chicago technical report 348; Martino, Elvira & Louzada (2017),
        Effective sample size for importance sampling based on discrepancy measures, Signal Processing 131,
        arXiv 1602.03572 (perplexity and max).
    """
    log_w = checked(log_w, dim)
    dtype = log_w.dtype
    alive = (log_w > -math.inf).any(dim, keepdim=True)
    # In float64, since float32 sums of a million shares are off by whole draws. Rows with no draw alive are
    # masked before the sums, not after them: the gradient of a sum over nothing is NaN.
    log_w = normalize(log_w.double().where(alive, 0.0), dim)
    if kind == "kish":
        log_size = -torch.logsumexp(2 * log_w, dim)
    elif kind == "perplexity":
        log_size = -(log_w.exp() * log_w.where(log_w > -math.inf, 0.0)).sum(dim)
    elif kind == "max":
        log_size = -log_w.amax(dim)
    else:
        raise ValueError(f'kind is "kish", "perplexity" or "max", got {kind!r}.')
    return log_size.exp().where(alive.squeeze(dim), 0.0).to(dtype)
