"""Losses of the spherical family: of one logit, the sum of all logits and the sum of their squares."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.pairs import check_classes, check_number, widened, widened_alike
from steelyard.losses.softmax import Reduction, reduce


class LogitMoments(NamedTuple):
    """What the spherical family needs to know of each example's logits over all classes.

    Attributes:
        own: float, (B,): logit of the own class.
        mean: float, (B,): mean over classes.
        variance: float, (B,): variance over classes.
        n_classes: C.
    """

    own: Tensor
    mean: Tensor
    variance: Tensor
    n_classes: int


def logit_moments(hidden: Tensor, weight: Tensor, labels: Tensor) -> LogitMoments:
    """Moments of the logits `hidden @ weight.T` of all classes, without the logits.

        mean = w . h,   variance = h^T S h,   w and S the mean and the covariance of the rows of `weight`

    S costs C d^2 once a step, and each example d^2 in place of C d: cheaper where the batch is larger than d.
    For biases add a column to `weight` and ones to `hidden`. The covariance is centred first, since a
    difference of second moments has no digits where the mean is large.

    Args:
        hidden: float, (B, d).
        weight: float, (C, d).
        labels: integers, (B,).

    Returns:
        The moments, with gradient to `hidden` and `weight`; in float32 at least.

    Raises:
        TypeError: inputs that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, no class, or a label out of range.

    Reference:
        Vincent, de Brébisson and Bouthillier (2015), Efficient exact gradient update for training deep
        networks with very large sparse targets, NeurIPS, arXiv 1412.7091. Here by autograd; their
        factored update, whose cost does not know the number of classes, is `FactoredOutput`.
    """
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        raise TypeError(f"Inputs must be floating point, got {hidden.dtype} and {weight.dtype}.")
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or len(weight) == 0:
        raise ValueError(
            f"Wanted (B, d) hidden and (C, d) weight, C above 0, got {tuple(hidden.shape)} and {tuple(weight.shape)}."
        )
    check_classes(labels, len(hidden), len(weight))
    h, w = widened_alike(hidden, weight)
    centre = w.mean(0)
    apart = w - centre
    covariance = apart.T @ apart / len(w)
    own = (h * w[labels.long()]).sum(1)
    variance = ((h @ covariance) * h).sum(1).clamp(min=0)
    return LogitMoments(own, h @ centre, variance, len(w))


def moments_of_logits(logits: Tensor, labels: Tensor) -> LogitMoments:
    """The same from logits that are there.

    Args:
        logits: float, (B, C).
        labels: integers, (B,).

    Returns:
        The moments, with gradient, in float32 at least.

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, no class, or a label out of range.

    Reference:
        de Brébisson and Vincent (2016), The Z-loss, arXiv 1604.08859.
    """
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}.")
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"Logits must be (B, C), C above 0, got {tuple(logits.shape)}.")
    check_classes(labels, *logits.shape)
    z = widened(logits)
    own = z.gather(1, labels.long().unsqueeze(1))[:, 0]
    return LogitMoments(own, z.mean(1), z.var(1, correction=0), z.shape[1])


def z_loss(moments: LogitMoments, *, a: float = 1.0, b: float, reduction: Reduction = "mean") -> Tensor:
    """A soft hinge of how many standard deviations the own logit is above the mean of all.

        L_i = 1/a log(1 + exp(a (b - z))),   z = (o_y - mean) / deviation

    Shifting an example's logits, or scaling them up, changes nothing, as for rank metrics such as top-k
    error.

    Args:
        moments: of `logit_moments` or `moments_of_logits`.
        a: sharpness, above 0.
        b: standard deviations at which the loss bends, finite; z is at most sqrt(C - 1), and b is tuned to
            the metric, lower for a longer list.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        ValueError: parameters out of range, logits that are all equal, whose z is undefined, an unknown
            reduction, or the mean over no examples.

    Reference:
        de Brébisson and Vincent (2016), The Z-loss: a shift and scale invariant classification loss belonging
        to the spherical family, arXiv 1604.08859.
    """
    check_number("a", a, above=0)
    check_number("b", b)
    if not bool((moments.variance > 0).all()):
        raise ValueError(
            "All logits of an example are equal (or NaN), so that they have no standardised score; start from "
            "weights that differ, with two classes or more."
        )
    z = (moments.own - moments.mean) / moments.variance.sqrt()
    return reduce(softplus(a * (b - z)) / a, reduction)


def log_taylor_softmax(moments: LogitMoments, *, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy of the softmax with its exponential cut after the square.

        p_c = t(o_c) / sum_k t(o_k),   t(o) = 1 + o + o^2 / 2 = ( (1 + o)^2 + 1 ) / 2 > 0

    Near the softmax for small logits. Large negative logits are likely again: t is least at -1.

    Args:
        moments: of `logit_moments` or `moments_of_logits`.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        ValueError: an unknown reduction, or the mean over no examples.

    Reference:
        de Brébisson and Vincent (2016), An exploration of softmax alternatives belonging to the spherical
        loss family, ICLR, arXiv 1511.05042.
    """
    whole = ((1 + moments.mean).square() + moments.variance + 1) / 2
    own = ((1 + moments.own).square() + 1) / 2
    return reduce(whole.log() + math.log(moments.n_classes) - own.log(), reduction)


def spherical_squared_error(moments: LogitMoments, *, reduction: Reduction = "mean") -> Tensor:
    """Squared error of all logits against the one-hot code of the class.

        L_i = sum_c (o_c - [c = y])^2

    Args:
        moments: of `logit_moments` or `moments_of_logits`.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        ValueError: an unknown reduction, or the mean over no examples.

    Reference:
        Vincent et al. (2015), NeurIPS, arXiv 1412.7091.
    """
    squares = moments.n_classes * (moments.variance + moments.mean.square())
    return reduce(squares - 2 * moments.own + 1, reduction)
