"""Ranking losses for judged pools: what nobody judged is not irrelevant."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.softmax import Reduction, check_fits, reduce


def pooling_log_weight(score: Tensor, *, temperature: float = 2.0, limit: float | None = None) -> Tensor:
    """Log of the inverse chance that a candidate was passed over, from its score under the other model.

        w = min( 1 / (1 - sigmoid(score / temperature)), limit )

    With the true logits of being judged and temperature 1, the unjudged candidates, each weighed by w,
    estimate a sum over all candidates without bias (Horvitz-Thompson). An unjudged candidate that would
    surely have been judged had it been good is a safe negative and weighs much; one that the pool could not
    reach weighs 1. The temperature flattens the weights.

    Args:
        score: float, (...): logit of being judged.
        temperature: above 0; 2 in the authors' code.
        limit: largest weight, at least 1; None for none.

    Returns:
        float, (...), at least 0.

    Raises:
        ValueError: a temperature that is not positive or a limit below 1.

    Reference:
        Cai, Guo, Fan, Ai, Zhang and Cheng (2022), Hard negatives or false negatives: correcting pooling bias
        in training neural ranking models, CIKM, arXiv 2209.05072; the weight as in the authors' code.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    if limit is not None and not limit >= 1:
        raise ValueError(f"limit must be at least 1, the least weight there is, got {limit}.")
    log_weight = softplus(score / temperature)
    return log_weight if limit is None else log_weight.clamp(max=math.log(limit))


def cet(
    relevance_positive: Tensor,
    relevance_negative: Tensor,
    selection_positive: Tensor,
    selection_negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float = 2.0,
    limit: float | None = None,
    relative: bool = False,
    reduction: Reduction = "mean",
) -> tuple[Tensor, Tensor]:
    """Coupled estimation: a relevance and a selection model, each trained with weights from the other.

        L_R = mean_j w(s_j) log(1 + exp(r_j - r_p))        L_S = mean_j w(r_j) log(1 + exp(s_j - s_p))
        w(x) = min( 1 / (1 - sigmoid(x / temperature)), limit )

    A label says both "judged" and "relevant", so both models learn to tell the labelled document from the
    others, and each takes the other's part of the explanation into account. Weights get no gradient: step
    each model with its own loss. `relative=True` divides each weight by the positive's, so that a selection
    that is the same for all gives the plain pairwise loss exactly (otherwise a multiple of it).
    Reconstructed: with one negative a query, `limit=None` and `relative=False` it is the authors' code;
    means over more negatives, the limit and the ratio are additions.

    Args:
        relevance_positive: float, (...): the relevance model's score of the labelled document.
        relevance_negative: float, (..., K): those of unlabelled ones, from the top of a ranking.
        selection_positive: float, (...): the selection model's score of the labelled document.
        selection_negative: float, (..., K): those of the unlabelled ones.
        log_expected: float, broadcastable to the negatives: log of the expected count of each draw, for a
            self-normalised mean over everything they stand for; default 0.
        mask: bool, broadcastable to the negatives: True leaves a candidate out.
        temperature: flattens the weights, above 0.
        limit: largest weight before any ratio, at least 1; None for none.
        relative: divide by the weight of the positive.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        L_R and L_S, scalars or (...) for "none". A query without candidates has loss 0.

    Raises:
        ValueError: shapes do not fit, a weight overflows, a temperature that is not positive, a limit below
            1, an unknown reduction, or the mean over no queries.

    Reference:
        Cai, Guo, Fan, Ai, Zhang and Cheng (2022), Hard negatives or false negatives: correcting pooling bias
        in training neural ranking models, CIKM, arXiv 2209.05072.
    """
    relevance = (relevance_positive, relevance_negative)
    selection = (selection_positive, selection_negative)
    if not (
        relevance_negative.shape == selection_negative.shape
        and relevance_negative.shape[:-1] == relevance_positive.shape == selection_positive.shape
    ):
        raise ValueError(
            "Both models must score the same documents, (...) labelled and (..., K) others, got "
            f"{tuple(relevance_positive.shape)}, {tuple(relevance_negative.shape)}, "
            f"{tuple(selection_positive.shape)} and {tuple(selection_negative.shape)}."
        )
    share = mean_shares(relevance_negative, log_expected, mask)
    losses = []
    for (positive, negative), (other_positive, other_negative) in (
        (relevance, selection),
        (selection, relevance),
    ):
        kept = torch.where(share > 0, other_negative.detach(), -math.inf)
        log_weight = pooling_log_weight(kept, temperature=temperature, limit=limit)
        if relative:
            own = pooling_log_weight(other_positive.detach(), temperature=temperature, limit=limit)
            log_weight = log_weight - own.unsqueeze(-1)
        weight = log_weight.exp()
        if not bool(weight.isfinite().all()):
            raise ValueError("A weight is not finite: the scores are too large, give a limit.")
        gap = torch.where(share > 0, negative, 0.0) - positive.unsqueeze(-1)
        losses.append(reduce((share * weight * softplus(gap)).sum(-1), reduction))
    return losses[0], losses[1]


def mean_shares(negative: Tensor, log_expected: Tensor | None, mask: Tensor | None) -> Tensor:
    """Shares of candidates in a mean over what they stand for.

        share_j = (1 / expected_j) / sum_k (1 / expected_k)

    Args:
        negative: float, (..., K): whose shape and dtype are taken.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True gives a share of 0.

    Returns:
        float, (..., K), with sum 1, or all 0 where no candidate is left.

    Raises:
        ValueError: shapes do not fit.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.
    """
    if not negative.is_floating_point():
        raise TypeError(f"Scores must be floating point, got {negative.dtype}; call .float() on them.")
    check_fits("log_expected", log_expected, negative)
    check_fits("mask", mask, negative)
    log_weight = torch.zeros_like(negative) if log_expected is None else 0 - log_expected
    log_weight = log_weight.expand(negative.shape)
    if mask is not None:
        log_weight = log_weight.masked_fill(mask, -math.inf)
    empty = (log_weight == -math.inf).all(-1, keepdim=True)
    return torch.softmax(log_weight.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
