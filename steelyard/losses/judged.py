"""Learning from a judge: a slower model's scores as soft targets, and as a test for false negatives."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, check_fits, reduce


def judge_alignment(
    score: Tensor,
    judge: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float,
    judge_temperature: float | None = None,
    divergence: Literal["js", "symmetric_kl"] = "js",
    reduction: Reduction = "mean",
) -> Tensor:
    """Distance between the student's and a judge's distribution over a query's candidates.

        p = softmax(score / t),   q = softmax(judge / t'),   m = (p + q) / 2
        js:            ( KL(p || m) + KL(q || m) ) / 2, between 0 and log 2
        symmetric_kl:  ( KL(p || q) + KL(q || p) ) / 2, without an upper end

    The candidates are the positive and its hard negatives alike; the judge grades each, so no candidate has
    to be wrong for another to be right. A judge that is sure of one candidate gives the target of InfoNCE.
    The paper speaks of the Jensen-Shannon divergence, the authors' code computes the symmetric KL.

    Args:
        score: float, (..., N): the student's scores of the candidates.
        judge: float, (..., N): the judge's scores, such as the chance of "yes" against "no".
        mask: bool, broadcastable to `score`: True leaves a candidate out of both distributions.
        temperature: t, above 0.
        judge_temperature: t', above 0; default t, as in the paper.
        divergence: which distance.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query without candidates has loss 0.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, an unknown divergence or reduction,
            or the mean over no queries.

    Reference:
        Gu et al. (2026), UniME-V2: MLLM-as-a-judge for universal multimodal embedding learning, AAAI,
        arXiv 2510.13515.
    """
    if score.shape != judge.shape or score.ndim == 0:
        raise ValueError(
            f"score and judge must both be (..., N), got {tuple(score.shape)} and {tuple(judge.shape)}."
        )
    if divergence not in ("js", "symmetric_kl"):
        raise ValueError(f'divergence must be "js" or "symmetric_kl", got {divergence!r}.')
    check_fits("mask", mask, score, of="scores")
    dropped = (score == -math.inf) & (judge == -math.inf)  # no chance by either adds nothing
    mask = dropped if mask is None else dropped | mask
    log_p = _log_softmax(score, temperature, mask)
    log_q = _log_softmax(judge, temperature if judge_temperature is None else judge_temperature, mask)
    if divergence == "js":
        log_m = torch.logaddexp(log_p, log_q) - math.log(2)
        distance = _kl(log_p, log_m, mask) + _kl(log_q, log_m, mask)
    else:
        distance = _kl(log_p, log_q, mask) + _kl(log_q, log_p, mask)
    return reduce(distance / 2, reduction)


def judged_false_negatives(judge_positive: Tensor, judge_negative: Tensor, margin: float = 0.01) -> Tensor:
    """Candidates that the judge finds about as good as the positive: no negatives.

        drop_j = judge_j > judge_p - margin

    Args:
        judge_positive: float, (...): the judge's score of the positive.
        judge_negative: float, (..., K): the judge's scores of the candidates.
        margin: how far below the positive a candidate must stay, at least 0. Reconstructed: its default.

    Returns:
        bool, (..., K), True = drop, as the `mask` of the losses.

    Raises:
        ValueError: shapes do not fit, a negative margin, or a score that is NaN.

    Reference:
        Gu et al. (2026), UniME-V2: MLLM-as-a-judge for universal multimodal embedding learning, AAAI,
        arXiv 2510.13515.
    """
    if judge_negative.shape[:-1] != judge_positive.shape:
        raise ValueError(
            f"judge_negative must be (..., K) over judge_positive's shape {tuple(judge_positive.shape)}, got "
            f"{tuple(judge_negative.shape)}."
        )
    if not margin >= 0:
        raise ValueError(f"margin must be at least 0, got {margin}.")
    if bool(judge_positive.isnan().any() or judge_negative.isnan().any()):
        raise ValueError("The judge has scores that are NaN; leave those candidates out first.")
    return judge_negative > (judge_positive - margin).unsqueeze(-1)


def _log_softmax(score: Tensor, temperature: float, mask: Tensor) -> Tensor:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    empty = mask.all(-1, keepdim=True)  # a row with nothing in it would be NaN
    logits = (score / temperature).masked_fill(mask, -math.inf).masked_fill(empty, 0.0)
    return torch.log_softmax(logits, -1).masked_fill(mask, 0.0)


def _kl(log_p: Tensor, log_q: Tensor, mask: Tensor) -> Tensor:
    terms = log_p.exp() * torch.where(log_p == -math.inf, 0.0, log_p - log_q)  # 0 log 0 is 0
    return terms.masked_fill(mask, 0.0).sum(-1)
