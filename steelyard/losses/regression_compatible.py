"""Ranking and calibrated chances from one score: a listwise loss whose optimum is that of a regression."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.losses.listwise import check_lists
from steelyard.losses.softmax import Reduction, check_fits, reduce


def regression_compatible(
    score: Tensor,
    label: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    alpha: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy and a listwise cross-entropy of the chances themselves (RCR).

        L = (1 - alpha) BCE + alpha ListCE
        BCE = -sum_j ( y_j log p_j + (1 - y_j) log(1 - p_j) ),   p = sigmoid(score)
        ListCE = -(1 / sum_j y_j) sum_j y_j log( p_j / sum_l p_l )

    Both parts are least at `p = E[y]`, so ranking better does not cost calibration; the softmax loss of the
    scores has its optimum elsewhere. A list without positive labels has no ListCE; its BCE remains, since
    calibration needs it.

    Args:
        score: float, (..., N): logits of the candidates of each list.
        label: (..., N): clicks, or chances of them, in [0, 1].
        log_expected: float, broadcastable to `score`: log of the expected count of each draw, so that sums
            over j and l are Horvitz-Thompson estimates of those over everything; default each stands for
            itself.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        alpha: weight of the listwise part, in [0, 1].
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none". An empty list has loss 0.

    Raises:
        ValueError: shapes do not fit, a score or label that is not finite and not masked, a label or `alpha`
            outside [0, 1], an unknown reduction, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Bai et al. (2023), Regression compatible listwise objectives for calibrated ranking with binary
        relevance, CIKM, arXiv 2211.01494. Reconstructed: BCE as a sum over the list; the correction by
        expected counts is ours.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}.")
    score, label, mask, _ = check_lists(score, label, mask)
    if not bool(((label >= 0) & (label <= 1)).all()):
        raise ValueError("Labels are chances and must lie between 0 and 1.")
    check_fits("log_expected", log_expected, score, of="lists")
    log_count = torch.zeros_like(score) if log_expected is None else 0 - log_expected
    log_count = log_count.expand(score.shape).masked_fill(mask, -math.inf)
    count, log_p = log_count.exp(), logsigmoid(score)
    regression = -(count * (label * log_p + (1 - label) * logsigmoid(-score))).sum(-1)
    clicks = (count * label).sum(-1)
    clicked = clicks > 0
    log_sum = (log_p + log_count.masked_fill(~clicked.unsqueeze(-1), 0.0)).logsumexp(-1)
    ranking = log_sum - (count * label * log_p).sum(-1) / torch.where(clicked, clicks, 1.0)
    ranking = ranking.masked_fill(~clicked, 0.0)
    return reduce((1 - alpha) * regression + alpha * ranking, reduction)
