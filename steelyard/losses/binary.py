"""Losses of one score at a time: calibrated binary cross-entropy and the cosine contrastive loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.pairwise import check_scores
from steelyard.losses.pooling_bias import mean_shares
from steelyard.losses.softmax import Reduction, reduce


def gbce(
    positive: Tensor,
    negative: Tensor,
    mask: Tensor | None = None,
    *,
    n_items: int,
    t: float = 0.75,
    reduction: Reduction = "mean",
) -> Tensor:
    """Generalised binary cross-entropy: the positive's chance to a power, against overconfidence (gBCE).

        L = -( beta log sigmoid(s_p) + sum_k log(1 - sigmoid(s_k)) ) / (K + 1)
        alpha = K / (n_items - 1),   beta = alpha ( t (1 - 1 / alpha) + 1 / alpha ) = 1 - t (1 - alpha)

    With K of all the other items drawn uniformly, plain binary cross-entropy (`t=0`) learns
    `sigmoid(s) = P / (P + alpha (1 - P))`, near 1 wherever P is far from 0. `t=1` learns `sigmoid(s) = P`.
    The power only scales the logarithm, so scores stay logits and no transform in float64 is needed.
    For draws of unequal chances, weigh each by its own: `sampled_bce` with `log_expected`.

    Args:
        positive: float, (...): logit of the positive.
        negative: float, (..., K): logits of uniformly drawn other items.
        mask: bool, broadcastable to `negative`: True leaves a draw out, and out of K.
        n_items: size of the catalogue, more than 1 and than K.
        t: calibration, 0 (none) to 1 (full).
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". With no draw left it is `-(1 - t) log sigmoid(s_p)`.

    Raises:
        ValueError: shapes do not fit, `n_items` or `t` out of range, an unknown reduction, or the mean over
            nothing.
        TypeError: scores that are not floating point.

    Reference:
        Petrov and Macdonald (2023), gSASRec: Reducing overconfidence in sequential recommendation trained
        with negative sampling, RecSys, arXiv 2308.07192.
    """
    check_scores(positive, negative, mask)
    if n_items < 2:
        raise ValueError(f"n_items must exceed 1, got {n_items}.")
    if not 0 <= t <= 1:
        raise ValueError(f"t must lie between 0 and 1, got {t}.")
    left_out = torch.zeros((), dtype=torch.bool, device=negative.device) if mask is None else mask
    left_out = left_out.expand(negative.shape)
    others = softplus(negative.masked_fill(left_out, 0.0)).masked_fill(left_out, 0.0).sum(-1)
    count = (~left_out).sum(-1).double()
    if negative.shape[-1] >= n_items and bool((count >= n_items).any()):
        raise ValueError(
            f"n_items must exceed the draws of other items, {int(count.max())}, got {n_items}: draw fewer "
            "candidates."
        )
    beta = (1 - t + t * count / (n_items - 1)).to(positive.dtype)
    return reduce((beta * softplus(-positive) + others) / (count + 1).to(positive.dtype), reduction)


def ccl(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    margin: float = 0.9,
    negative_weight: float = 10.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cosine contrastive loss: many easy negatives are dropped by a margin, the hard ones averaged (CCL).

        L = (1 - cos_p) + negative_weight mean_j max(0, cos_j - margin)

    Only negatives above the margin push, each equally hard. The mean keeps the balance of the two parts the
    same for any number of negatives. The margin and the weight are to be tuned together; the defaults are
    those of a common re-implementation.

    Args:
        positive: float, (...): cosine of the positive.
        negative: float, (..., K): cosines of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, for a
            self-normalised mean over everything they stand for; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        margin: cosine up to which a negative costs nothing, in [-1, 1].
        negative_weight: of the mean over negatives, at least 0.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive all of whose draws are masked keeps its own part.

    Raises:
        ValueError: shapes do not fit, `margin` or `negative_weight` out of range, an unknown reduction, or
            the mean over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Mao et al. (2021), SimpleX: A simple and strong baseline for collaborative filtering, CIKM,
        arXiv 2109.12613. The correction by expected counts is ours.
    """
    check_scores(positive, negative, mask)
    if not -1 <= margin <= 1:
        raise ValueError(f"margin is compared with cosines and must lie in [-1, 1], got {margin}.")
    if not 0 <= negative_weight < math.inf:
        raise ValueError(f"negative_weight must be finite and at least 0, got {negative_weight}.")
    share = mean_shares(negative, log_expected, mask)
    above = (negative - margin).masked_fill(share == 0, 0.0).relu()
    return reduce(1 - positive + negative_weight * (share * above).sum(-1), reduction)
