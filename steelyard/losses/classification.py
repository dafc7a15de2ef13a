"""Classification: against overconfidence, for several tries, for many labels, and without labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from steelyard.losses.pairs import check_classes, check_number, log_sum_exp, widened
from steelyard.losses.softmax import Reduction, reduce


def squentropy(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy plus the mean square of the wrong logits.

        L_i = -log softmax(z)_y + 1 / (C - 1) sum_{j != y} z_j^2

    Wrong logits are held near 0 rather than driven off, which calibrates without a parameter to tune.

    Args:
        logits: float, (B, C).
        labels: integers, (B,).
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least; 0 with one class.

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, an unknown reduction, or the mean over no
            examples.

    Reference:
        Hui, Belkin and Wright (2023), Cut your losses with squentropy, ICML, arXiv 2302.03952.
    """
    z, own = _checked(logits, labels)
    squares = z.square().masked_fill(own, 0.0).sum(1) / max(z.shape[1] - 1, 1)
    return reduce(cross_entropy(z, labels.long(), reduction="none") + squares, reduction)


def direct_coverage(logits: Tensor, labels: Tensor, n: int, *, reduction: Reduction = "mean") -> Tensor:
    """Minus the log of the chance that one of n independent draws is right (pass@n).

        L_i = -log(1 - (1 - p)^n),   p = softmax(z)_y
        gradient: that of cross-entropy times  n p (1 - p)^(n - 1) / (1 - (1 - p)^n),  from 1 to 0 as p grows

    Cross-entropy goes on raising p where n tries succeed already, at the cost of examples where they do not.

    Args:
        logits: float, (B, C).
        labels: integers, (B,).
        n: tries, at least 1; 1 is cross-entropy.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or `n` out of range, an unknown reduction, or the mean over no
            examples.

    Reference:
        Chen, Raventos, Cheng, Ganguli and Druckmann (2025), Rethinking fine-tuning when scaling test-time
        compute: limiting confidence improves mathematical reasoning, arXiv 2502.07154.
    """
    z, own = _checked(logits, labels)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    whole = z.logsumexp(1)
    log_p = z.gather(1, labels.long().unsqueeze(1))[:, 0] - whole
    some = (~own).any(1)
    log_wrong = torch.where(some, log_sum_exp(z, ~own).masked_fill(~some, 0.0) - whole, -1.0)
    # so small a chance that 1 - (1 - p)^n has no digits left is n p to that precision
    tiny = log_p < -16 - math.log(n)
    failed = n * torch.where(tiny, -1.0, log_wrong)
    log_hit = torch.where(tiny, log_p + math.log(n), torch.log(-torch.expm1(failed)))
    return reduce(torch.where(some, -log_hit, 0.0), reduction)


def asymmetric_bce(
    logits: Tensor,
    targets: Tensor,
    *,
    positive_focus: float = 0.0,
    negative_focus: float = 4.0,
    margin: float = 0.05,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy of many labels, which fades for easy negatives and leaves the easiest out (ASL).

        L+ = -(1 - p)^g+ log p          for each label that holds
        L- = -p_m^g- log(1 - p_m)       for the others,   p = sigmoid(z),  p_m = max(p - m, 0)

    Negatives below p = m have no gradient. A very confident one has less than a moderate one, which helps
    where labels are missing. Focuses and margin of 0 give binary cross-entropy, equal focuses the focal loss.

    Args:
        logits: float, (B, L).
        targets: bool, or 0 and 1, (B, L).
        positive_focus: g+, at least 0.
        negative_focus: g-, at least 0.
        margin: m, in [0, 1).
        reduction: "mean" over examples of the sum over labels, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: logits that are not floating point.
        ValueError: shapes do not fit, an infinite logit, targets other than 0 and 1, parameters out of range,
            an unknown reduction, or the mean over no examples.

    Reference:
        Ridnik et al. (2021), Asymmetric loss for multi-label classification, ICCV, arXiv 2009.14119.
    """
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}.")
    if logits.ndim != 2 or targets.shape != logits.shape:
        raise ValueError(
            f"Wanted (B, L) logits and targets, got {tuple(logits.shape)} and {tuple(targets.shape)}."
        )
    for name, value in (("positive_focus", positive_focus), ("negative_focus", negative_focus)):
        check_number(name, value, least=0)
    if not 0 <= margin < 1:
        raise ValueError(f"margin must lie in [0, 1), got {margin}.")
    holds = targets == 1
    if not bool((holds | (targets == 0)).all()):
        raise ValueError("Targets must be 0 or 1.")
    z = widened(logits)
    if bool(z.isinf().any()):
        raise ValueError("A logit is infinite, which leaves no gradient; bound the logits, or leave it out.")
    pull = -logsigmoid(z) * torch.exp(positive_focus * logsigmoid(-z))
    if margin == 0:
        push = -logsigmoid(-z) * torch.exp(negative_focus * logsigmoid(z))
    else:
        p, counted = z.sigmoid(), z > math.log(margin / (1 - margin))
        over = torch.where(counted, p - margin, margin)  # any value, without gradient, where not counted
        push = torch.where(
            counted, -torch.log(torch.sigmoid(-z) + margin) * over.clamp(min=1e-30) ** negative_focus, 0.0
        )
    return reduce(torch.where(holds, pull, push).sum(1), reduction)


def label_encoding_risk(logits: Tensor) -> Tensor:
    """Draw each class's mean prediction, over unlabelled examples, to the one-hot code of that class (LERM).

        t_c = sum_i p_ic p_i / sum_i p_ic,      L = -1/C sum_c log t_cc

    0 for confident predictions that use every class. Entropy minimisation gives 0, too, to one class for all;
    here the others' t_cc are then small, and the loss large. Add it to a supervised loss.

    Args:
        logits: float, (B, C), of unlabelled examples.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: logits that are not floating point.
        ValueError: another shape, or none of either.

    Reference:
        Zhang, Yao, Chen, Jin, Zhang, Jin and Lu (2024), Rethinking guidance information to utilize unlabeled
        samples: a label encoding perspective, ICML, arXiv 2406.02862. Reconstructed: the exact weighting of
        the means.
    """
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}.")
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"Logits must be (B, C), B and C above 0, got {tuple(logits.shape)}.")
    log_p = torch.log_softmax(widened(logits), 1)
    return -(torch.logsumexp(2 * log_p, 0) - torch.logsumexp(log_p, 0)).mean()


def _checked(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}.")
    if logits.ndim != 2:
        raise ValueError(f"Logits must be (B, C), got {tuple(logits.shape)}.")
    check_classes(labels, *logits.shape)
    own = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels.long().unsqueeze(1), True)
    return widened(logits), own
