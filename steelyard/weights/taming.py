"""Weights made less uneven: a little bias for much less variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.weights.effective_size import effective_sample_size
from steelyard.weights.normalizing import checked, log_mean_exp


def truncate(log_w: Tensor, dim: int = -1) -> Tensor:
    """Cap importance weights at sqrt(n) times their mean.

        w_i <- min(w_i, sqrt(n) * mean(w))

    Bounds the variance where E[w^2] is infinite; the bias vanishes as n grows.

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw.
        dim: dimension of the draws.

    Returns:
        Log-weights of the same shape and dtype.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf.

    Reference:
        Ionides (2008), Truncated importance sampling, JCGS 17(2).
    """
    return clip(log_w, math.sqrt(checked(log_w, dim).shape[dim]), dim, relative=True)


def clip(log_w: Tensor, limit: float | Tensor, dim: int = -1, *, relative: bool = False) -> Tensor:
    """Cap importance weights at a given limit.

        w_i <- min(w_i, limit)      or, relative:      w_i <- min(w_i, limit * mean(w))

    The bias does not vanish with n; with non-negative integrands it is towards zero.

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw.
        limit: largest weight (not its log), positive; a tensor has the shape of `log_w` without `dim`.
        dim: dimension of the draws; only the relative limit looks at it.
        relative: the limit counts in mean weights, for weights known up to a factor.

    Returns:
        Log-weights of the same shape and dtype.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf, or a limit that is not positive.

    Reference:
        Ionides (2008), Truncated importance sampling, JCGS 17(2), whose truncation level is free.
    """
    log_w = checked(log_w, dim)
    level = torch.as_tensor(limit, dtype=torch.float64, device=log_w.device)
    if not bool((level > 0).all()):
        raise ValueError(f"A weight's limit must be positive, got {limit}.")
    cap = level.log()
    if relative:
        cap = cap + log_mean_exp(log_w.double(), dim)
    return log_w.minimum((cap.unsqueeze(dim) if cap.ndim else cap).to(log_w.dtype))


def temper(log_w: Tensor, *, ess: float, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Flatten weights by the largest exponent that keeps a wanted effective size.

        w_i <- w_i^b,    b = max {b in [0, 1]: (sum_i w_i^b)^2 / sum_i w_i^(2b) >= ess}

    Kish's size never rises with b, so b is 1 where the weights have that size already. Otherwise it solves
    the equation to about 1e-12, by Newton's method on log b inside a bracket. Gradients take b as given.

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw, which stays dead.
        ess: effective size wanted, at least 1 and at most the number of living draws of each sample.
        dim: dimension of the draws.

    Returns:
        Log-weights of the same shape and dtype, and the exponents b, float64, without `dim`.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf, or a size that no exponent reaches.

    Reference:
        Jasra, Stephens, Doucet & Tsagaris (2011), Inference for Levy-driven stochastic volatility models via
        adaptive sequential Monte Carlo, Scandinavian Journal of Statistics 38(1) (the exponent of the next
        tempering step solved from the effective size).
    """
    given = checked(log_w, dim).double().movedim(dim, -1)
    rows = given.detach()
    living = rows > -math.inf
    alive = living.sum(-1, keepdim=True)
    if not 1 <= ess <= int(alive.min()):
        raise ValueError(
            f"No exponent gives an effective size of {ess}: it lies between 1 and the {int(alive.min())} "
            f"living draws of the sample that has fewest."
        )
    top = rows.amax(-1, keepdim=True)
    gap = top - rows.where(living, top)
    reached, full = effective_sample_size(rows).unsqueeze(-1) >= ess, alive <= ess
    exponent = _exponent(gap, living, math.log(ess), reached | full)
    exponent = exponent.where(~full, 0.0).where(~reached, 1.0)
    b = exponent.squeeze(-1)
    tempered = (given.where(living, 0.0) * exponent).where(living, -math.inf)
    return tempered.movedim(-1, dim).to(log_w.dtype), b


def _exponent(gap: Tensor, living: Tensor, log_ess: float, known: Tensor) -> Tensor:
    """Root in b of log ESS(b) = log_ess, for `w = exp(-gap)`, by Newton's method on log b in a bracket.

    Rows whose answer is `known` otherwise are not waited for.
    """
    # All weights lie in [exp(-b * widest gap), 1], so at the lower end the size is full within 1e-12.
    high = torch.zeros_like(gap[..., :1])
    low = -gap.amax(-1, keepdim=True).clamp(min=1.0).log() - 28.0
    log_b = (low + high) / 2
    for _ in range(200):
        b = log_b.exp()
        size, slope = [], []
        for power in (b, 2 * b):
            terms = (-power * gap).where(living, -math.inf)
            size.append(terms.logsumexp(-1, keepdim=True))
            slope.append((terms.softmax(-1) * power * gap).sum(-1, keepdim=True))
        error = 2 * size[0] - size[1] - log_ess
        low, high = low.where(error < 0, log_b), high.where(error > 0, log_b)
        if bool((known | (error.abs() < 1e-13) | (high - low < 1e-15 * log_b.abs())).all()):
            break
        step = log_b - error / (slope[1] - 2 * slope[0])
        log_b = step.where((step > low) & (step < high), (low + high) / 2)
    return log_b.exp()
