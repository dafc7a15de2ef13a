"""Totals and means of a catalogue from a draw, with the standard error that its design calls for."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from steelyard.draws import Draws, Estimate
from steelyard.weights import effective_sample_size

Design = Literal["poisson", "successive", "conditional_poisson", "with_replacement", "replicates"]


def horvitz_thompson(
    values: Tensor,
    draws: Draws,
    *,
    design: Design,
    population: int | None = None,
    joint: Tensor | None = None,
) -> Estimate:
    """Estimate a total by weighing each draw with one over its expected count.

        total = sum_i t_i,  t_i = f_i / expected_i       (the mean is total / population)

    Unbiased. The variance depends on the design (pi is the inclusion probability, sums over the draws):

        "poisson", "successive":  sum_i (1 - pi_i) t_i^2; for successive sampling pi is given the threshold,
            which leaves the terms uncorrelated, so that the same sum is unbiased (k >= 2)
        "conditional_poisson":  with `joint`, Sen-Yates-Grundy, exact and unbiased:
            1/2 sum_ij (pi_i pi_j - pi_ij) / pi_ij (t_i - t_j)^2
            without, Hájek's approximation in Deville's form, good where sum_i pi_i (1 - pi_i) is large:
            sum_i c_i (t_i - sum_j c_j t_j / sum_j c_j)^2,  c_i = (1 - pi_i) / (1 - sum_j a_j^2),
            a_i = (1 - pi_i) / sum_j (1 - pi_j)
        "with_replacement" (Hansen-Hurwitz):  n / (n - 1) sum_i (t_i - mean t)^2
        "replicates":  R independent draws of any design stand along the first dimension, and the total is the
            mean of theirs, of variance sum_r (total_r - total)^2 / (R (R - 1)). The one way for pivotal and
            systematic sampling, merged draws, and anything else whose draws depend on each other.

    Args:
        values: f of each draw, broadcastable to `draws.ids`; what stands in an empty slot is not looked at.
        draws: (n,), or (R, n) with "replicates".
        design: how they were drawn.
        population: size of the catalogue; where given, the mean is estimated.
        joint: (n, n), joint inclusion probabilities of the draws (`conditional_poisson_joint`), with
            "conditional_poisson" only.

    Returns:
        The total (or mean); `ess` is Kish's number of equal weights, and with "replicates" their number. The
        standard error is infinite, and the estimate not reliable, where it rests on too few draws.

    Raises:
        TypeError: `values` is complex.
        ValueError: an unknown design, the wrong number of dimensions, NaN or infinite values, a `joint` of
            the wrong shape or with another design, an expected count of 0 for what was drawn.

    Reference:
        Horvitz & Thompson (1952), JASA 47(260); Sen (1953), Yates & Grundy (1953); Hansen & Hurwitz (1943),
        Annals of Mathematical Statistics 14(4); "successive": Cohen & Kaplan (2008), PVLDB 1(1), and
        Duffield, Lund & Thorup (2007), JACM 54(6); Hájek (1964), Annals of Mathematical Statistics 35(4), in
        the form given by Tillé (2006), Sampling Algorithms.
    """
    f, log_expected, drawn = _checked(values, draws, design, joint, population)
    scale = 1.0 if population is None else 1.0 / population
    if design == "replicates":
        totals = (f * (-log_expected).exp()).sum(-1) * scale
        return _of_replicates(totals)
    terms = f * (-log_expected).exp() * scale
    variance = _variance(terms, log_expected, drawn, design, joint)
    return Estimate(float(terms.sum()), math.sqrt(variance), _ess(log_expected[drawn]))


def hajek(
    values: Tensor,
    draws: Draws,
    *,
    design: Design,
    population: int | None = None,
    joint: Tensor | None = None,
) -> Estimate:
    """Estimate a mean by the weighted mean of the draws.

        mean = sum_i f_i / expected_i  /  sum_i 1 / expected_i      (the total is population * mean)

    The bias falls like one over the number of draws, and the variance is the smaller one wherever the values
    are far from 0 beside their spread, or the size of the draw varies. It is that of `horvitz_thompson` for
    the linearised values (f_i - mean) / sum_j 1 / expected_j.

    Args:
        values: f of each draw, broadcastable to `draws.ids`; what stands in an empty slot is not looked at.
        draws: (n,), or (R, n) with "replicates", which are pooled.
        design: how they were drawn, as in `horvitz_thompson`.
        population: size of the catalogue; where given, the total is estimated.
        joint: as in `horvitz_thompson`.

    Returns:
        The mean (or total); `ess` and standard error as in `horvitz_thompson`.

    Raises:
        TypeError: `values` is complex.
        ValueError: nothing was drawn, or as in `horvitz_thompson`.

    Reference:
        Hájek (1971), comment in Foundations of Statistical Inference; Särndal, Swensson & Wretman (1992),
        Model Assisted Survey Sampling (linearised variance).
    """
    f, log_expected, drawn = _checked(values, draws, design, joint, population)
    if not bool(drawn.any()):
        raise ValueError("Nothing was drawn, so there is no mean; draw more.")
    # One common factor cancels, and keeps 1 / expected within the range of floats.
    weight = (log_expected[drawn].amin() - log_expected).exp()
    mean = float((f * weight).sum() / weight.sum())
    scale = 1.0 if population is None else float(population)
    terms = (f - mean) * weight / weight.sum() * scale
    terms = terms.where(drawn, 0.0)
    if design == "replicates":
        return _of_replicates(mean * scale + terms.sum(-1) * len(terms))  # the terms of all sum to 0
    variance = _variance(terms, log_expected, drawn, design, joint)
    return Estimate(mean * scale, math.sqrt(variance), _ess(log_expected[drawn]))


def _checked(
    values: Any, draws: Draws, design: str, joint: Tensor | None, population: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Values with 0 in empty slots, log expected counts, and which slots are drawn, in float64."""
    if population is not None and not 1 <= population < math.inf:
        raise ValueError(f"population must be at least 1, got {population}.")
    f = torch.as_tensor(values)
    if f.is_complex():
        raise TypeError("values must be real.")
    if design not in get_args(Design):
        raise ValueError(f"design must be one of {', '.join(get_args(Design))}, got {design!r}.")
    wanted = 2 if design == "replicates" else 1
    if draws.ids.ndim != wanted:
        shape = "(R, n), R independent draws" if wanted == 2 else "(n,), a single draw"
        raise ValueError(f"design={design!r} wants draws of shape {shape}, got {tuple(draws.ids.shape)}.")
    if joint is not None:
        n = draws.ids.shape[-1]
        if design != "conditional_poisson" or joint.shape != (n, n):
            raise ValueError(
                f"joint of shape {tuple(joint.shape)} with design={design!r}: joint probabilities go with "
                f'design="conditional_poisson" and have shape ({n}, {n}).'
            )
    if design == "replicates" and len(draws.ids) == 0:
        raise ValueError('design="replicates" wants at least one draw along the first dimension, got none.')
    log_expected = draws.log_expected.double()
    drawn = log_expected < math.inf
    if bool((log_expected == -math.inf).any()):
        raise ValueError("A candidate was drawn whose expected count is 0.")
    f = torch.where(drawn, f.double(), 0.0)
    if not bool(f.isfinite().all()):
        raise ValueError("values have NaN or an infinite value.")
    return f, log_expected, drawn


def _variance(terms: Tensor, log_expected: Tensor, drawn: Tensor, design: str, joint: Tensor | None) -> float:
    t, pi = terms[drawn], log_expected[drawn].exp()
    n = len(t)
    if n == 0:
        return math.inf
    if design == "with_replacement":
        return float((t - t.mean()).square().sum() * n / (n - 1)) if n > 1 else math.inf
    if design in ("poisson", "successive"):
        return float((-torch.expm1(log_expected[drawn]) * t.square()).sum())
    if joint is not None:
        pair = joint.double()[drawn][:, drawn]
        if not bool(((pair > 0) & (pair <= 1)).all()):
            raise ValueError(
                "joint must hold probabilities above 0 for candidates that were drawn together; make it with "
                "conditional_poisson_joint(log_w, k, draws.ids)."
            )
        product = torch.outer(pi, pi)
        return max(0.0, float(((product - pair) / pair * (t.unsqueeze(1) - t).square()).sum() / 2))
    out = -torch.expm1(log_expected[drawn])
    if not bool((out > 0).any()):
        return 0.0
    left = 1 - (out / out.sum()).square().sum()
    if not float(left) > 0:
        return math.inf
    center = (out * t).sum() / out.sum()
    return float((out * (t - center).square()).sum() / left)


def _of_replicates(values: Tensor) -> Estimate:
    if len(values) == 1:  # nothing to judge it by
        return Estimate(float(values[0]), math.inf, 1.0)
    return Estimate.from_replicates(values)


def _ess(log_expected: Tensor) -> float:
    return float(effective_sample_size(-log_expected)) if len(log_expected) else 0.0
