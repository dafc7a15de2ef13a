"""Averages over a weighted sample, with standard errors and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws, Estimate, Weighted
from steelyard.weights.effective_size import effective_sample_size
from steelyard.weights.normalizing import as_given, checked, log_mean_exp, normalize
from steelyard.weights.pareto import khat_threshold, smooth_tails


@dataclass(frozen=True)
class _Sample:
    """Log-weights (..., n) in float64 whose mean weight is what a plain average needs, and what is behind them."""

    log_w: Tensor
    real: Tensor  # bool, (..., n): not an empty slot
    khat: Tensor

    @property
    def count(self) -> Tensor:
        """Number of draws, dead ones included, float64, (...,)."""
        return self.real.sum(-1).double()

    def estimate(self, value: Tensor, stderr: Tensor) -> Estimate:
        """The estimate with what is known of the weights; no error is known from a single draw."""
        limit = khat_threshold(self.count.clamp(min=1))
        return Estimate(value, stderr, effective_sample_size(self.log_w), self.khat, limit)


def _sample(sample: Tensor | ArrayLike | Draws | Weighted[Any], dim: int, smooth: bool) -> _Sample:
    if isinstance(sample, Draws | Weighted):
        if dim != -1:
            raise ValueError(f"The draws of a {type(sample).__name__} are in dimension -1, got dim={dim}.")
        log_w = -sample.log_expected if isinstance(sample, Draws) else sample.log_weight
        log_w = checked(log_w, -1).detach().double()
        real = sample.log_expected < math.inf if isinstance(sample, Draws) else torch.ones_like(log_w).bool()
        log_w = (
            log_w + real.sum(-1, keepdim=True).double().log()
        )  # their weights are made to be summed, not averaged
    else:
        log_w = checked(sample, dim).detach().double().movedim(dim, -1)
        real = torch.ones_like(log_w, dtype=torch.bool)
    smoothed, khat = smooth_tails(log_w, real.sum(-1))
    return _Sample(smoothed if smooth else log_w, real, khat)


def expectation(
    values: Tensor | ArrayLike,
    log_w: Tensor | ArrayLike | Draws | Weighted[Any],
    *,
    self_normalized: bool = True,
    smooth: bool = False,
    control: Tensor | ArrayLike | None = None,
    control_mean: float | Tensor = 0.0,
    jackknife: bool = False,
    dim: int = -1,
) -> Estimate:
    """Expectation of `values` under the distribution that the weights lead to, from independent draws.

        self-normalised:  mu = sum_i W_i f_i,        stderr^2 = n / (n - 1) sum_i W_i^2 (f_i - mu)^2
        plain:            mu = (1/n) sum_i w_i f_i,  stderr^2 = sum_i (w_i f_i - mu)^2 / (n (n - 1))

    with `W = w / sum w`. Self-normalised weights may miss a common factor; their bias and the error of their
    delta-method standard error vanish as n grows. Plain weights must be exact, `target / proposal`; then the
    estimate is unbiased, unless a control variate is used.

    Control variates: f_i becomes `f_i - beta (g_i - mean of g)`, with the beta that makes the standard error
    least (least squares); each costs a degree of freedom: n - 1 becomes n - 1 - c. A constant plus a
    multiple of g is then estimated without error where self-normalised. Since beta is estimated from the
    same draws, even plain weights then have a bias, of order 1/n.

    Jackknife: `mu + (n - 1) mean_i (mu - mu without draw i)`, which removes the bias of order 1/n of the
    self-normalised ratio, with the jackknife's standard error.

    `Weighted` and `Draws` hold weights to be summed: plain, they estimate `sum_j target_j f(j)`, for `Draws`
    the sum over the whole catalogue, and self-normalised the mean of f. Their draws are treated as
    independent: for designs where they are not use `Estimate.from_replicates`.

    Args:
        values: f at the draws, (..., n) along `dim`, broadcast against the weights: (m, n) values and (n,)
            weights give m estimates. What stands at a dead draw counts for nothing, be it NaN.
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw. Or `Weighted`, or `Draws`.
        self_normalized: divide by the sum of the weights, or by n.
        smooth: Pareto smooth the weights first (`pareto_smooth`); k-hat is reported in any case.
        control: values g of one control variate, with at most as many dimensions as the weights, or of
            c of them, with one more: (c, ..., n).
        control_mean: true mean of g under the target, a number or (c,).
        jackknife: correct the bias of the ratio; only where self-normalised.
        dim: dimension of the draws.

    Returns:
        Estimates in float64, in the broadcast shape without `dim`; it carries no gradient. Of a single draw
        the standard error is inf; where all draws are dead, the self-normalised value is NaN. Both are doubts.

    Raises:
        TypeError: log-weights are not floating point, or complex values or controls.
        ValueError: no draws, NaN or +inf weights, values, controls or their means that are not finite, more
            controls than draws bear, a jackknife of plain weights, plain weights that float64 does not hold
            (the largest of a sample), or shapes that do not broadcast.

    Reference:
        Owen (2013), Monte Carlo theory, methods and examples, sections 9.2 and 9.10; Vehtari et al. (2024),
        Pareto smoothed importance sampling, JMLR 25(72); Quenouille (1956), Notes on bias in estimation,
        Biometrika 43, and Tukey (1958), Bias and confidence in not-quite large samples (the jackknife).
        Self-normalised, beta solves least squares of `W (f - mu)` on `W (g - its weighted mean)`
        (reconstructed: linearised).
    """
    if jackknife and not self_normalized:
        raise ValueError("Plain importance sampling has no bias to correct: leave jackknife out.")
    sample = _sample(log_w, dim, smooth)
    living = sample.log_w > -math.inf
    f = _at_draws("values", values, living, dim)
    spare = sample.count - 1
    if control is not None:
        g = _controls(control, control_mean, living, dim)
        spare = spare - len(g)
        if bool((spare < 1).any()):
            raise ValueError(f"{len(g)} control variates want at least {len(g) + 2} draws.")
        f = _controlled(f, g, sample, self_normalized)
    if self_normalized:
        value, stderr = _ratio(f, sample, spare, jackknife)
    else:
        value, stderr = _plain(f, sample, spare)
    return sample.estimate(value, stderr)


def log_normalizer(
    log_w: Tensor | ArrayLike | Draws | Weighted[Any], *, smooth: bool = False, dim: int = -1
) -> Estimate:
    """Log of the mean weight, which estimates the log of a normaliser, with its delta-method error.

        log Z = log (1/n) sum_i w_i,     stderr^2 = n / (n - 1) (sum_i W_i^2 - 1/n),     W = w / sum w

    Z is unbiased, so its log is low by about stderr^2 / 2.

    Args:
        log_w: log-weights, (..., n) along `dim`; -inf marks a dead draw. Of a `Weighted` the weights are
            summed, not averaged (`draws.weigh(score)` leads to log sum exp(score)), and of bare `Draws`
            the estimate is the log of the number of candidates.
        smooth: Pareto smooth the weights first (`pareto_smooth`); k-hat is reported in any case.
        dim: dimension of the draws.

    Returns:
        Estimates in float64, in the shape of `log_w` without `dim`; it carries no gradient. Of a single draw
        the standard error is inf; where all draws are dead, the value is -inf. Both are doubts.

    Raises:
        TypeError: log-weights are not floating point.
        ValueError: no draws, NaN or +inf.

    Reference:
        Owen (2013), Monte Carlo theory, methods and examples, section 9.2 (the delta method);
        Vehtari et al. (2024), Pareto smoothed importance sampling, JMLR 25(72).
    """
    sample = _sample(log_w, dim, smooth)
    n = sample.count.clamp(min=1)
    value = log_mean_exp(sample.log_w) + math.log(sample.log_w.shape[-1]) - n.log()
    inverse_ess = (2 * normalize(sample.log_w)).exp().sum(-1)
    variance = n / (n - 1) * (inverse_ess - 1 / n).clamp(min=0.0)
    return sample.estimate(value, variance.sqrt().where((n > 1) & (value > -math.inf), math.inf))


def _at_draws(name: str, given: Tensor | ArrayLike, living: Tensor, dim: int) -> Tensor:
    """Values in float64 with the draws last, zero at dead draws."""
    x = as_given(given).to(living.device).detach()
    if x.is_complex():
        raise TypeError(f"The {name} must be real, got {x.dtype}: average real and imaginary parts apart.")
    x = x.double()
    if x.ndim == 0:
        raise ValueError(f"The {name} want a dimension of draws, got a single number.")
    x = x.movedim(dim, -1)
    try:
        x, living = torch.broadcast_tensors(x, living)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(
            f"The {name}, {tuple(x.shape)} with the draws last, do not broadcast to log-weights of shape "
            f"{tuple(living.shape)}."
        ) from None
    x = torch.where(living, x, 0.0)
    if not bool(x.isfinite().all()):
        raise ValueError(f"The {name} of draws that are not dead must be finite, got NaN or an infinity.")
    return x


def _controls(given: Tensor | ArrayLike, mean: float | Tensor, living: Tensor, dim: int) -> Tensor:
    """Controls less their means, (c, ..., n), zero at dead draws."""
    given = as_given(given)
    g = given.to(living.device)
    if g.ndim > living.ndim + 1:
        raise ValueError(
            f"Controls have at most one dimension more than the weights: got {tuple(g.shape)} for "
            f"{tuple(living.shape)}."
        )
    g = _at_draws("controls", g, living, dim)
    if given.ndim <= living.ndim:
        g = g.unsqueeze(0)
    means = torch.as_tensor(mean, dtype=torch.float64, device=g.device)
    if means.ndim > 1 or (means.ndim == 1 and len(means) != len(g)):
        raise ValueError(f"Give one mean, or one for each of {len(g)} controls, got {tuple(means.shape)}.")
    if not bool(means.isfinite().all()):
        raise ValueError(f"The means of controls must be finite, got {mean}.")
    return (g - means.view(-1, *[1] * (g.ndim - 1))).where(living, 0.0)


def _controlled(f: Tensor, g: Tensor, sample: _Sample, self_normalized: bool) -> Tensor:
    """`f - beta g` with the beta of least squares between what the standard errors sum the squares of."""
    if self_normalized:
        w = normalize(sample.log_w).exp()
        y, x = (w * (z - (w * z).sum(-1, keepdim=True)) for z in (f, g))
    else:
        w = (sample.log_w - _top(sample)).exp()
        count = sample.count.unsqueeze(-1)
        y, x = ((w * z - (w * z).sum(-1, keepdim=True) / count).where(sample.real, 0.0) for z in (f, g))
    size = x.square().sum(-1, keepdim=True).sqrt()
    unit = x / size.where(size > 0, 1.0)
    gram = torch.einsum("c...n,d...n->...cd", unit, unit)
    # Controls that say the same twice are one: a pseudo-inverse shares beta among them.
    solved = torch.linalg.pinv(gram, rtol=1e-10, hermitian=True)
    beta = torch.einsum("...cd,d...n,...n->...c", solved, unit, y)
    scaled = g / size.where(size > 0, 1.0)
    return f - torch.einsum("...c,c...n->...n", beta, scaled)


def _ratio(f: Tensor, sample: _Sample, spare: Tensor, jackknife: bool) -> tuple[Tensor, Tensor]:
    w = normalize(sample.log_w).exp()
    n = sample.count
    dead = (w == 0).all(-1)
    mean = (w * f).sum(-1)
    part = w * (f - mean.unsqueeze(-1))
    factor = n / spare
    known = spare > 0
    if jackknife:
        heaviest = torch.nn.functional.one_hot(w.argmax(-1), w.shape[-1]).bool()
        others = w.where(~heaviest, 0.0)
        rest = others.sum(-1, keepdim=True)
        known = known & (rest > 0).squeeze(-1)
        # Mean less the mean without the draw. Where W is nearly 1, f - mean and 1 - W have no digits left.
        of_heaviest = w * (f - (others * f).sum(-1, keepdim=True) / rest.where(rest > 0, 1.0))
        part = torch.where(heaviest, of_heaviest, part / (1 - others)).where(rest > 0, 0.0)
        shift = part.sum(-1) / n
        stderr = ((part - shift.unsqueeze(-1)).square().where(sample.real, 0.0).sum(-1) * factor).sqrt()
        stderr = stderr * (n - 1) / n
        mean = mean + (n - 1) * shift
    else:
        stderr = (part.square().sum(-1) * factor).sqrt()
    return mean.where(~dead, math.nan), stderr.where(known & ~dead, math.inf)


def _plain(f: Tensor, sample: _Sample, spare: Tensor) -> tuple[Tensor, Tensor]:
    top = _top(sample)
    term = (sample.log_w - top).exp() * f
    n, factor = sample.count.clamp(min=1), top.squeeze(-1).exp()
    # An estimate of 0 +- 0 would pass for certain.
    if bool(((factor < torch.finfo(factor.dtype).tiny) | (factor == math.inf)).any()):
        raise ValueError(
            "The largest weight of a sample is beyond float64, and so is the plain average: "
            f"log-weights of at most {float(top.min()):.6g} to {float(top.max()):.6g}. Self-normalise, or take "
            "the scale out of the log-weights and work with log_normalizer."
        )
    mean = term.sum(-1) / n
    square = (term - mean.unsqueeze(-1)).square().where(sample.real, 0.0).sum(-1)
    stderr = (square / (n * spare)).sqrt().where(spare > 0, math.inf)
    return mean * factor, stderr * factor


def _top(sample: _Sample) -> Tensor:
    top = sample.log_w.amax(-1, keepdim=True)
    return top.where(top > -math.inf, 0.0)
