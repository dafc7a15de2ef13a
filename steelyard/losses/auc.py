"""Area under the ROC curve as a loss: every positive against every negative, across queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from steelyard.losses.pairwise import check_scores
from steelyard.losses.pooling_bias import mean_shares
from steelyard.losses.softmax import Reduction, reduce


def mann_whitney(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    chunk_pairs: int = 1 << 24,
    reduction: Reduction = "mean",
) -> Tensor:
    """Mean logistic loss over the pairs of any positive and any negative, of whatever queries (MW loss).

        L_i = mean over all negatives j of all queries of log(1 + exp((s_j - s_i) / temperature))

    The mean over positives, divided by log 2, is at least 1 - AUC, one minus the chance that a positive
    scores above a negative (the Mann-Whitney statistic). The softmax loss compares within a query only, so
    adding a number to all scores of one query leaves it as it is; this loss asks for scores that one
    threshold can be laid on.

    Args:
        positive: float, (...): scores of the positives.
        negative: float, (..., K): scores of each query's negatives, in-batch ones with the positive masked.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, for a
            self-normalised mean over everything they stand for; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out, for all positives.
        temperature: above 0; 0.01 for cosines in the paper.
        chunk_pairs: pairs at once; beyond it each chunk is computed again in the backward pass.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none"; 0 if no negative is left. Time grows with the number of
        positives times that of all negatives.

    Raises:
        ValueError: shapes do not fit, a `temperature` or `chunk_pairs` that is not positive, an unknown
            reduction, or the mean over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Sheikholeslami, Hosseini, Bechard, Daruru and Rajeswar (2025), Optimizing what matters: AUC-driven
        learning for robust neural retrieval, arXiv 2510.00137. The correction by expected counts is ours.
    """
    check_scores(positive, negative, mask)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    if chunk_pairs < 1:
        raise ValueError(f"chunk_pairs must be at least 1, got {chunk_pairs}.")
    mean_shares(negative, log_expected, mask)  # refuses what does not broadcast
    expected = None if log_expected is None else log_expected.expand(negative.shape).reshape(-1)
    share = mean_shares(
        negative.reshape(-1), expected, None if mask is None else mask.expand(negative.shape).reshape(-1)
    )
    kept = share > 0
    scores, share = negative.reshape(-1)[kept], share[kept]
    rows = max(1, chunk_pairs // max(1, len(scores)))
    if positive.numel() <= rows:
        loss = _against_all(positive.reshape(-1), scores, share, temperature)
    else:
        parts = [
            checkpoint(_against_all, chunk, scores, share, temperature, use_reentrant=False)
            for chunk in torch.split(positive.reshape(-1), rows)
        ]
        loss = torch.cat(parts)
    return reduce(loss.reshape(positive.shape), reduction)


def _against_all(positive: Tensor, negative: Tensor, share: Tensor, temperature: float) -> Tensor:
    return softplus((negative - positive.unsqueeze(-1)) / temperature) @ share.to(
        torch.promote_types(positive.dtype, negative.dtype)
    )
