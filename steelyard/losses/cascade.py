"""Training a funnel of rankers as one: what matters is what survives every stage."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from steelyard.losses.listwise import check_lists
from steelyard.losses.soft_sorting import Sort, log_soft_permutation
from steelyard.losses.softmax import Reduction, reduce


def log_survival(
    score: Tensor,
    mask: Tensor | None = None,
    *,
    keep: int,
    temperature: float,
    sort: Sort = "neural",
    sinkhorn_steps: int = 50,
) -> Tensor:
    """Log of the soft chance that each candidate is among the best `keep` of its list.

        log P(j) = log sum_{i <= keep} P_ij,   P: `log_soft_permutation` of the scores

    The chances of a list sum to `keep`, and become 0 or 1 as the temperature falls to 0.

    Args:
        score: float, (..., N): scores of one stage for all candidates.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        keep: how many the stage keeps, at least 1.
        temperature: of the sorting, in units of the scores, above 0.
        sort: "neural" or "soft".
        sinkhorn_steps: most rounds of scaling P.

    Returns:
        float32 at least, (..., N), at most 0 but for the tolerance of the scaling; -inf where masked.

    Raises:
        ValueError: shapes do not fit, a score that is not finite and not masked, or an option out of range.
        TypeError: scores that are not floating point.

    Reference:
        Wang et al. (2025), Learning cascade ranking as one network, ICML, arXiv 2503.09492.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}.")
    log_p = log_soft_permutation(
        score, mask, temperature=temperature, sort=sort, sinkhorn_steps=sinkhorn_steps
    )
    if log_p.shape[-1] == 0:
        return log_p.sum(-1)
    top = log_p[..., :keep, :]
    nothing = (top == -math.inf).all(-2)  # masked columns; logsumexp of them has no gradient
    return top.masked_fill(nothing.unsqueeze(-2), 0.0).logsumexp(-2).masked_fill(nothing, -math.inf)


def lcron(
    scores: Sequence[Tensor],
    relevant: Tensor,
    mask: Tensor | None = None,
    *,
    keep: Sequence[int],
    temperature: float,
    stage_scale: Tensor | None = None,
    sort: Sort = "neural",
    sinkhorn_steps: int = 50,
    reduction: Reduction = "mean",
) -> Tensor:
    """End-to-end loss of a cascade of rankers: relevant candidates, and no others, should survive (LCRON).

        L = L_all + sum_s ( L_s / (2 w_s^2) + log w_s )
        L_all = -mean_j ( y_j log prod_s P_s(j) + (1 - y_j) log(1 - prod_s P_s(j)) )
        L_s the same for one stage alone;   P_s: `log_survival`

    A candidate that stands among the best `keep[s]` of the whole list in every stage surely survives the
    cascade, since a stage that sees fewer candidates ranks it no lower: the product of the P_s is a lower
    bound of its chance to survive. A candidate that is not relevant need be dropped by one stage only, and
    that is where the stages share their work; the parts of single stages keep each in shape, with learned
    weights w. Reconstructed from the authors' code: P is scaled by Sinkhorn where the code divides by column
    sums, and both logs are sums of positive terms where it adds 1e-6.

    Args:
        scores: of each stage, float, (..., N), for all candidates, also those that an earlier stage drops.
        relevant: bool, (..., N): candidates that should come out.
        mask: bool, broadcastable to a stage's scores: True leaves a candidate out (padding).
        keep: how many each stage keeps.
        temperature: of the sorting, in units of the scores, above 0.
        stage_scale: float, (stages,), w, above 0; receives a gradient. Default 1.
        sort: "neural" or "soft".
        sinkhorn_steps: most rounds of scaling P.
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none". A list without relevant candidates, or of
        them only, has loss 0 but for the logs of w, and so has L_s where the stage keeps the whole list.

    Raises:
        ValueError: shapes do not fit, stages without a number to keep, a score that is not finite and not
            masked, a `stage_scale` that is not positive, an option out of range, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Wang et al. (2025), Learning cascade ranking as one network, ICML, arXiv 2503.09492.
    """
    if len(scores) == 0 or len(scores) != len(keep):
        raise ValueError(
            f"Each stage needs its scores and a number to keep, got {len(scores)} and {len(keep)}."
        )
    if stage_scale is not None and (stage_scale.shape != (len(scores),) or not bool((stage_scale > 0).all())):
        raise ValueError(f"stage_scale must hold {len(scores)} positive numbers, got {stage_scale}.")
    wanted, left_out, orders = _checked(scores, relevant, mask)
    size = (~left_out).sum(-1)
    cost = size.new_zeros(size.shape, dtype=torch.float32)
    log_all, ways = torch.zeros((), device=size.device), []
    for stage, (score, n) in enumerate(zip(scores, keep, strict=True)):
        if n < 1:
            raise ValueError(f"keep must be at least 1 in every stage, got {tuple(keep)}.")
        log_p = log_soft_permutation(
            score, left_out, temperature=temperature, sort=sort, sinkhorn_steps=sinkhorn_steps
        )
        everywhere = _log_sum(log_p)
        kept = (_log_sum(log_p[..., :n, :]) - everywhere).masked_fill(left_out, 0.0)
        dropped = (_log_sum(log_p[..., n:, :]) - everywhere).masked_fill(left_out, 0.0)
        alone = _cross_entropy(kept, dropped, wanted, left_out, orders & (size > n))
        scale = alone.new_ones(()) if stage_scale is None else stage_scale[stage]
        cost = cost + alone * (0.5 / scale.square()) + scale.log()
        ways.append(log_all + dropped)  # by no stage so far, and then by this one
        log_all = log_all + kept
    log_dropped = _log_sum(torch.stack(ways, -2))
    together = _cross_entropy(log_all, log_dropped, wanted, left_out, orders & (size > min(keep)))
    return reduce(cost + together, reduction)


def _checked(
    scores: Sequence[Tensor], relevant: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Who is relevant, who is left out, and which lists have both kinds."""
    for score in scores:
        _, wanted, left_out, orders = check_lists(score, relevant, mask)
    return wanted > 0, left_out, orders


def _cross_entropy(
    log_kept: Tensor, log_dropped: Tensor, wanted: Tensor, left_out: Tensor, counted: Tensor
) -> Tensor:
    """-mean of the log of what should happen to each candidate, 0 for lists that are not counted."""
    unused = left_out | ~counted.unsqueeze(-1)
    log_right = torch.where(
        wanted, log_kept.masked_fill(unused, 0.0), log_dropped.masked_fill(unused | wanted, 0.0)
    )
    return -log_right.sum(-1) / (~left_out).sum(-1).clamp(min=1)


def _log_sum(log_p: Tensor) -> Tensor:
    """logsumexp over places; -inf, without the gradient NaN, for a column of -inf."""
    nothing = (log_p == -math.inf).all(-2)
    if log_p.shape[-2] == 0:
        return log_p.new_full(nothing.shape, -math.inf)
    return log_p.masked_fill(nothing.unsqueeze(-2), 0.0).logsumexp(-2).masked_fill(nothing, -math.inf)
