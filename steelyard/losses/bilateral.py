"""Bilateral softmax loss: negatives weighed more than a likelihood would, against noisy positives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, log_weights, reduce


def bilateral_softmax(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor,
    mask: Tensor | None = None,
    *,
    power: float = 1.2,
    reduction: Reduction = "mean",
) -> Tensor:
    """The softmax loss without the positive in its sum, and with a power of the sum (BSL).

        L = -s_p + power log( sum_n exp(s_n - log_expected_n) )

    A power above 1 is the distributionally robust view of the positives: with scores of bounded length (a
    cosine over a temperature) each positive is pulled less, relative to the push of the negatives, and noise
    among the positives is fitted less. With `power=1` it is the decoupled contrastive loss. A constant added
    to all scores changes the loss unless `power=1`, so it wants scores with a fixed zero.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        power: of the sum, positive; tau_1 / tau_2 of the paper.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive all of whose draws are masked has loss 0.

    Raises:
        ValueError: shapes do not fit, a `power` that is not positive, the mean over nothing, or an unknown
            reduction.

    Reference:
        Wu et al. (2024), BSL: Understanding and improving softmax loss for recommendation, ICDE, arXiv
        2312.12882, in the form of the authors' code (one positive a term); Yeh et al. (2022), Decoupled
        contrastive learning, ECCV, arXiv 2110.06848. The correction by expected counts is ours.
    """
    if not 0 < power < math.inf:
        raise ValueError(f"power must be positive and finite, got {power}.")
    logits = log_weights(positive, negative, log_expected, mask)
    nothing = (logits == -math.inf).all(-1)
    if bool(nothing.any()):  # softmax of a row of -inf is NaN, in the gradient too
        logits = logits.masked_fill(nothing.unsqueeze(-1), 0.0)
    loss = power * torch.logsumexp(logits, -1) - positive if logits.shape[-1] else positive * 0
    return reduce(loss.masked_fill(nothing, 0.0), reduction)
