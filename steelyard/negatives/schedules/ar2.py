"""The game of AR2: a retriever surfaces passages that confuse, a ranker learns to tell them apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, log_weights, reduce, sampled_softmax


def ar2_ranker_loss(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | float = 0.0,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """The ranker's part: find the positive among what the retriever surfaced.

        L = -log p_rank(d+ | d+, D-),   p_rank = softmax of the ranker's scores

    Args:
        positive: float, (B,): the ranker's score of each positive.
        negative: float, (B, n): its scores of the negatives.
        log_expected: float, broadcastable to `negative`: log of the expected count of each negative; 0 for
            the set as it is.
        mask: bool, broadcastable to `negative`: True leaves a negative out.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        ValueError: shapes do not fit, the mean over no queries, or an unknown reduction.

    Reference:
        Zhang et al. (2022), Adversarial retriever-ranker for dense text retrieval, ICLR, arXiv 2110.03611.
    """
    return sampled_softmax(positive, negative, torch.as_tensor(log_expected), mask, reduction=reduction)


def ar2_retriever_loss(
    positive: Tensor,
    negative: Tensor,
    ranker_positive: Tensor,
    ranker_negative: Tensor,
    log_expected: Tensor | float = 0.0,
    mask: Tensor | None = None,
    *,
    kl_weight: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """The retriever's part: prefer the negatives that confuse the ranker, and stay near its distribution.

        L = sum_j p_ret(d_j | D-) log p_rank(d+ | {d+, d_j})  +  kl_weight KL( p_rank || p_ret )
        p_rank(d+ | {d+, d_j}) = 1 / (1 + exp(r_j - r_p));   both distributions of the KL over {d+} and D-

    The first term is least where the retriever puts its weight on what the ranker takes for the positive;
    alone it would drive up false positives and forget the true one, which the second prevents. No gradient
    flows to the ranker. The sum over D- is an expectation under the retriever, so its gradient is that of
    the score function summed over all of D-, without sampling. A ranker that scores all alike leaves only
    the KL term.

    Args:
        positive: float, (B,): the retriever's score of each positive.
        negative: float, (B, n): its scores of the negatives.
        ranker_positive: float, (B,): the ranker's score of each positive.
        ranker_negative: float, (B, n): its scores of the negatives.
        log_expected: float, broadcastable to `negative`: log of the expected count of each negative, for
            distributions over everything they stand for; 0 for the set as it is.
        mask: bool, broadcastable to `negative`: True leaves a negative out.
        kl_weight: 0 or more.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none". A query without negatives has loss 0.

    Raises:
        ValueError: shapes do not fit, `kl_weight` negative, the mean over no queries, or an unknown reduction.

    Reference:
        Zhang et al. (2022), Adversarial retriever-ranker for dense text retrieval, ICLR, arXiv 2110.03611;
        its code has the sum of the logs of p_ret in place of the expectation. Reconstructed: the weight of the
        KL.
    """
    if not 0 <= kl_weight < math.inf:
        raise ValueError(f"kl_weight must be finite and not negative, got {kl_weight}.")
    if ranker_positive.shape != positive.shape or ranker_negative.shape != negative.shape:
        raise ValueError(
            f"Retriever and ranker must score the same passages, {tuple(positive.shape)} and "
            f"{tuple(negative.shape)}, got {tuple(ranker_positive.shape)} and {tuple(ranker_negative.shape)}."
        )
    counts = torch.as_tensor(log_expected)
    ours = log_weights(positive, negative, counts, mask)
    theirs = log_weights(ranker_positive.detach(), ranker_negative.detach(), counts, mask)
    empty = ours == -math.inf
    reward = torch.nn.functional.logsigmoid(ranker_positive.unsqueeze(-1) - ranker_negative).detach()
    # An all-empty row has no distribution; its scores are replaced before the softmax, not after it.
    none = empty.all(-1, keepdim=True)
    share = torch.softmax(ours.masked_fill(none, 0.0), -1)
    adversarial = (share * reward.masked_fill(empty, 0.0)).sum(-1)
    log_ret = torch.log_softmax(torch.cat([positive.unsqueeze(-1), ours], -1), -1)
    log_rank = torch.log_softmax(torch.cat([ranker_positive.detach().unsqueeze(-1), theirs], -1), -1)
    ratio = (log_rank - log_ret).masked_fill(log_rank == -math.inf, 0.0)
    return reduce(adversarial + kl_weight * (log_rank.exp() * ratio).sum(-1), reduction)
