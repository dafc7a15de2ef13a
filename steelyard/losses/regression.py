"""Regression by classes: numbers as tokens, ratings as soft levels, and labels of bags."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from steelyard.losses.pairs import check_classes, check_number, widened
from steelyard.losses.softmax import Reduction, reduce


def number_token(
    logits: Tensor,
    labels: Tensor,
    values: Tensor,
    *,
    variant: Literal["wasserstein", "squared"] = "wasserstein",
    reduction: Reduction = "mean",
) -> Tensor:
    """How far the digits a language model predicts are from the right one, on the tokens that are numbers.

        wasserstein:  L = sum_i p_i |v_i - v_y|          squared:  L = ( v_y - sum_i p_i v_i )^2
        p: softmax over the number tokens

    The first is the Wasserstein distance to the point mass at the label, 0 for the label alone; the second is
    0, too, for half a 0 and half an 8 where 4 is right. Add 0.3 of it, say, to the cross-entropy.

    Args:
        logits: float, (T, V): of each position over the vocabulary.
        labels: integers, (T,): tokens; positions whose token is no number are left out.
        values: float, (V,): number of each token, NaN for those that are none.
        variant: which distance.
        reduction: "mean" over the positions with a number, "sum", or "none".

    Returns:
        The loss, a scalar or (T,) for "none", with 0 at positions without a number; in float32 at least.

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, an infinite value, an unknown variant or
            reduction, or the mean over no number.

    Reference:
        Zausinger et al. (2025), Regress, don't guess: a regression-like loss on number tokens for language
        models, ICML, arXiv 2411.02083.
    """
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}.")
    if logits.ndim != 2 or values.shape != logits.shape[1:]:
        raise ValueError(
            f"Wanted (T, V) logits and (V,) values, got {tuple(logits.shape)} and {tuple(values.shape)}."
        )
    check_classes(labels, *logits.shape)
    if variant not in ("wasserstein", "squared"):
        raise ValueError(f'variant must be "wasserstein" or "squared", got {variant!r}.')
    z = widened(logits)
    v = values.to(z.device, z.dtype)
    if bool(v.isinf().any()):
        raise ValueError("A value is infinite; mark tokens that are no numbers by NaN.")
    number = ~v.isnan()
    at = number[labels.long()]
    digits = v[number]
    p = torch.softmax(z[at][:, number], 1)
    right = v[labels.long()[at]].unsqueeze(1)
    if variant == "wasserstein":
        each = (p * (digits - right).abs()).sum(1)
    else:
        each = (p * (digits - right)).sum(1).square()  # differences first: large values keep their digits
    if reduction == "none":
        return z.new_zeros(len(z)).masked_scatter(at, each)
    return reduce(each, reduction)


def soft_levels(mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
    """A Gaussian rating as probabilities of levels, with the rating as their mean.

        raw_k = Gaussian mass between the middles to the neighbouring levels
        q_k   proportional to raw_k exp(h k),   h such that sum_k q_k level_k = mean

    Cut into levels, and at the lowest and the highest, the raw masses have another mean. Of all probabilities
    with the right mean q is the nearest to them in divergence. As the variance goes to 0 the two levels
    around the mean are left, one for a mean on a level.

    Args:
        mean: float, (B,), within the levels.
        variance: float, (B,), above 0.
        levels: float, (L,), L at least 2, equally spaced and increasing, such as 1 to 5.

    Returns:
        float, (B, L), without gradient, in float32 at least: soft labels for cross-entropy.

    Raises:
        ValueError: shapes do not fit, levels not equally spaced, a mean outside of them, or a variance not
            positive.

    Reference:
        You, Cai, Gu, Xue and Dong (2025), Teaching large language models to regress accurate image quality
        scores using score distribution (DeQA-Score), CVPR, arXiv 2501.11561. Changed: their correction, a
        raw_k + b, may make a probability negative.
    """
    m, s, c = (t.detach().double() for t in (mean, variance, levels))
    if m.ndim != 1 or m.shape != s.shape or c.ndim != 1 or len(c) < 2:
        raise ValueError(
            f"Wanted (B,) mean and variance and two levels or more, got {tuple(m.shape)}, {tuple(s.shape)} and "
            f"{tuple(c.shape)}."
        )
    step = c.diff()
    if not bool((step > 0).all()) or not torch.allclose(step, step[:1].expand_as(step)):
        raise ValueError("Levels must increase in equal steps.")
    if not bool(((m >= c[0]) & (m <= c[-1])).all()):
        raise ValueError(f"A mean must lie within the levels, {float(c[0]):g} to {float(c[-1]):g}.")
    if not bool(((s > 0) & (s < math.inf)).all()):
        raise ValueError("A variance must be positive and finite.")
    width = float(step[0])
    edges = torch.cat([c - width / 2, c[-1:] + width / 2])
    log_raw = _log_mass((edges - m.unsqueeze(1)) / s.sqrt().unsqueeze(1))
    step_of = torch.arange(len(c), dtype=c.dtype, device=c.device)
    wanted = (m - c[0]) / width
    high = 50 + log_raw.diff(dim=1).abs().amax(1)  # beyond it all mass is at an end
    low = -high
    for _ in range(100):
        middle = (low + high) / 2
        q = torch.softmax(log_raw + middle.unsqueeze(1) * step_of, 1)
        short = (q * step_of).sum(1) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return q.to(torch.promote_types(mean.dtype, torch.float32))


def thurstone_fidelity(
    mean: Tensor,
    variance: Tensor,
    target_mean: Tensor,
    target_variance: Tensor,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Fidelity of pairwise preferences, which mixes data sets whose scales do not agree.

        p_ab = Phi( (mean_a - mean_b) / sqrt(var_a + var_b) ),   p' of the targets
        L_a = mean over b != a of  1 - sqrt(p p') - sqrt((1 - p)(1 - p'))

    0 where the preferences agree, at most 1. Pairs from two data sets are masked.

    Args:
        mean: float, (B,): predicted ratings.
        variance: float, (B,), above 0.
        target_mean: float, (B,): given ratings.
        target_variance: float, (B,), above 0.
        mask: bool, broadcastable to (B, B): True leaves a pair out.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An example without pairs has loss 0.

    Raises:
        ValueError: shapes do not fit, a variance that is not positive, an unknown reduction, or the mean over
            no examples.

    Reference:
        Tsai, Liu, Qin, Chen and Ma (2007), FRank, SIGIR (the loss); You et al. (2025), DeQA-Score, CVPR,
        arXiv 2501.11561.
    """
    given = (mean, variance, target_mean, target_variance)
    if mean.ndim != 1 or any(t.shape != mean.shape for t in given):
        raise ValueError(f"Wanted four tensors (B,), got {[tuple(t.shape) for t in given]}.")
    if not bool((variance > 0).all() and (target_variance > 0).all()):
        raise ValueError("A variance must be positive.")
    size = len(mean)
    kept = ~torch.eye(size, dtype=torch.bool, device=mean.device)
    if mask is not None:
        kept = kept & ~mask.expand(size, size)

    def log_chances(m: Tensor, s: Tensor) -> Tensor:
        wide, spread = widened(m), widened(s)
        gap = (wide.unsqueeze(1) - wide) / (spread.unsqueeze(1) + spread).sqrt()
        result: Tensor = torch.special.log_ndtr(gap)
        return result

    half = (log_chances(mean, variance) + log_chances(target_mean, target_variance)) / 2
    fidelity = 1 - half.exp() - half.T.exp()  # the other outcome of (a, b) is the first of (b, a)
    each: Tensor = fidelity.masked_fill(~kept, 0.0).sum(1) / kept.sum(1).clamp(min=1)
    return reduce(each, reduction)


def easy_llp(
    positive_loss: Tensor,
    negative_loss: Tensor,
    fraction: Tensor,
    bag_size: Tensor,
    *,
    prior: float,
    reduction: Reduction = "mean",
) -> Tensor:
    """Risk over examples of which only the share of positives in each one's bag is known.

        g = k (fraction - prior) + prior,      L = g l(h, 1) + (1 - g) l(h, 0)

    Unbiased: an example's own label moves its bag's fraction by 1 / k, and the others' differ from the prior
    by chance alone, so that E[g | x] = P(y = 1 | x) for bags of independent draws. A bag of one is supervised
    learning. The variance grows with k; g, and a loss, may be negative.

    Args:
        positive_loss: float, (B,): loss of each example were its label 1.
        negative_loss: float, (B,): were it 0.
        fraction: float, broadcastable to (B,): share of positives in the example's bag, in [0, 1].
        bag_size: integers, broadcastable to (B,): k of the example's bag, at least 1.
        prior: share of positives overall, in [0, 1].
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        ValueError: shapes do not fit, a fraction, size or prior out of range, an unknown reduction, or the
            mean over no examples.

    Reference:
        Busa-Fekete, Choi, Dick, Gentile and Munoz Medina (2023), Easy learning from label proportions,
        NeurIPS, arXiv 2302.03115.
    """
    if positive_loss.shape != negative_loss.shape or positive_loss.ndim != 1:
        raise ValueError(
            f"Wanted (B,) losses for either label, got {tuple(positive_loss.shape)} and {tuple(negative_loss.shape)}."
        )
    check_number("prior", prior, least=0)
    if prior > 1 or not bool(((fraction >= 0) & (fraction <= 1)).all()) or not bool((bag_size >= 1).all()):
        raise ValueError("prior and fractions must lie in [0, 1], and a bag has one example or more.")
    one, zero = widened(positive_loss), widened(negative_loss)
    for name, given in (("fraction", fraction), ("bag_size", bag_size)):
        if given.shape not in ((), (1,), one.shape):
            raise ValueError(
                f"{name} of shape {tuple(given.shape)} does not broadcast to {tuple(one.shape)} losses."
            )
    g = bag_size * (fraction.to(one.dtype) - prior) + prior
    return reduce(g * one + (1 - g) * zero, reduction)


def _log_mass(edges: Tensor) -> Tensor:
    """log of the standard normal mass between neighbouring edges, (..., L + 1), in either tail."""
    low, high = edges[..., :-1], edges[..., 1:]
    right = low + high > 0  # where Phi is near 1 its mirror image has the digits
    low, high = torch.where(right, -high, low), torch.where(right, -low, high)
    top, bottom = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    result: Tensor = top + torch.log(-torch.expm1(bottom - top))
    return result
