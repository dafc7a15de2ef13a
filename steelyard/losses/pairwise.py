"""Pairwise ranking losses: the positive should score above each negative, and above the best of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from steelyard.losses.pooling_bias import mean_shares
from steelyard.losses.softmax import Reduction, check_fits, log_weights, reduce


def bpr(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Bayesian personalised ranking: chance that the positive is preferred to a negative.

        L = -mean_j log sigmoid(s_p - s_j)

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, for a
            self-normalised mean over everything they stand for; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive all of whose draws are masked has loss 0.

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Rendle, Freudenthaler, Gantner and Schmidt-Thieme (2009), BPR: Bayesian personalized ranking from
        implicit feedback, UAI, arXiv 1205.2618. The correction by expected counts is ours.
    """
    share, gap = shares_and_gaps(positive, negative, log_expected, mask)
    return reduce((share * softplus(gap)).sum(-1), reduction)


def top1(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """TOP1: a smoothed relative rank of the positive, and negatives pulled to a score of 0.

        L = mean_j ( sigmoid(s_j - s_p) + sigmoid(s_j^2) )

    Bounded, so its gradient vanishes where a positive is far below its negatives; at its least it is 1/2,
    the value of the second term at s_j = 0.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, for a
            self-normalised mean over everything they stand for; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive all of whose draws are masked has loss 0.

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Hidasi, Karatzoglou, Baltrunas and Tikk (2016), Session-based recommendations with recurrent neural
        networks, ICLR, arXiv 1511.06939.
    """
    share, gap = shares_and_gaps(positive, negative, log_expected, mask)
    return reduce((share * (gap.sigmoid() + _score_size(negative, share > 0))).sum(-1), reduction)


def bpr_max(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    regularization: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """BPR against the best of the negatives, softly chosen.

        L = -log( sum_j w_j sigmoid(s_p - s_j) ) + regularization sum_j w_j s_j^2
        w = softmax over the negatives of s_j - log_expected_j

    Plain BPR averages over negatives, most of which are below the positive already; here the weights follow
    the scores, so the gradient does not fade with the number of negatives. It flows through the weights.
    Computed from logs, where the authors' code adds 1e-24.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates; -inf weighs nothing.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, so that w
            estimates the softmax over everything; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        regularization: weight of the squared scores, at least 0.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive none of whose draws has weight has loss 0.

    Raises:
        ValueError: shapes do not fit, a negative `regularization`, an unknown reduction, or the mean over
            nothing.
        TypeError: scores that are not floating point.

    Reference:
        Hidasi and Karatzoglou (2018), Recurrent neural networks with top-k gains for session-based
        recommendations, CIKM, arXiv 1706.03847. The correction by expected counts is ours.
    """
    if not 0 <= regularization < math.inf:
        raise ValueError(f"regularization must be finite and at least 0, got {regularization}.")
    log_w, kept = _log_softmax_weights(positive, negative, log_expected, mask)
    score = torch.where(kept, negative, 0.0)
    own = positive.masked_fill(~kept.any(-1), 0.0).unsqueeze(-1)
    chance = torch.logsumexp(log_w + logsigmoid(own - score), -1)
    size = (log_w.exp() * score.square()).sum(-1)
    return reduce(_where_any(kept, regularization * size - chance), reduction)


def top1_max(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """TOP1 against the best of the negatives, softly chosen.

        L = sum_j w_j ( sigmoid(s_j - s_p) + sigmoid(s_j^2) )
        w = softmax over the negatives of s_j - log_expected_j

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates; -inf weighs nothing.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, so that w
            estimates the softmax over everything; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive none of whose draws has weight has loss 0.

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Hidasi and Karatzoglou (2018), Recurrent neural networks with top-k gains for session-based
        recommendations, CIKM, arXiv 1706.03847. The correction by expected counts is ours.
    """
    log_w, kept = _log_softmax_weights(positive, negative, log_expected, mask)
    gap = torch.where(kept, negative, 0.0) - positive.unsqueeze(-1)
    loss = (log_w.exp() * (gap.sigmoid() + _score_size(negative, kept))).sum(-1)
    return reduce(_where_any(kept, loss), reduction)


def shares_and_gaps(
    positive: Tensor, negative: Tensor, log_expected: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shares of the draws in a mean over what they stand for, and `s_j - s_p`, 0 where a draw has no share.

    Args:
        positive: float, (...).
        negative: float, (..., K).
        log_expected: float, broadcastable to `negative`, or None.
        mask: bool, broadcastable to `negative`, or None.

    Returns:
        Two float tensors, (..., K); what is left out receives no gradient, whatever its score.

    Raises:
        ValueError: shapes do not fit.
        TypeError: scores that are not floating point.
    """
    check_scores(positive, negative, mask)
    share = mean_shares(negative, log_expected, mask)
    return share, (negative - positive.unsqueeze(-1)).masked_fill(share == 0, 0.0)


def check_scores(positive: Tensor, negative: Tensor, mask: Tensor | None = None) -> None:
    """Refuse scores that are no floats, a mask that is not bool, and shapes that do not fit.

    Raises:
        ValueError: `negative` is not (..., K) over the shape of `positive`, or the mask does not broadcast.
        TypeError: scores that are not floating point, or a mask that is not bool.
    """
    for name, tensor in (("positive", positive), ("negative", negative)):
        if not tensor.is_floating_point():
            raise TypeError(
                f"{name} must hold floating-point scores, got {tensor.dtype}; call .float() on it."
            )
    if negative.ndim == 0 or negative.shape[:-1] != positive.shape:
        raise ValueError(
            f"negative must be (..., K) over positive's shape {tuple(positive.shape)}, got {tuple(negative.shape)}."
        )
    check_fits("mask", mask, negative)


def _log_softmax_weights(
    positive: Tensor, negative: Tensor, log_expected: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Log of the softmax over the draws, for what they stand for, and which draws have weight in it."""
    check_scores(positive, negative, mask)
    correction = negative.new_zeros(()) if log_expected is None else log_expected
    logits = log_weights(positive, negative, correction, mask)
    kept = logits != -math.inf
    nothing = ~kept.any(-1, keepdim=True)  # the softmax of a row of -inf is NaN, in the gradient too
    return torch.log_softmax(logits.masked_fill(nothing, 0.0), -1), kept


def _where_any(kept: Tensor, loss: Tensor) -> Tensor:
    return loss.masked_fill(~kept.any(-1), 0.0)


def _score_size(score: Tensor, kept: Tensor) -> Tensor:
    """sigmoid(s^2): 1 for an infinite score, without the gradient 0 times infinity."""
    infinite = score.isinf()
    return torch.where(infinite, 1.0, score.masked_fill(infinite | ~kept, 0.0).square().sigmoid())
