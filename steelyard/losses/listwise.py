"""Losses of a whole list of candidates with graded relevance.

A list orders nothing if none, or one, or all equally relevant candidates are left in it. Every loss here is 0
for such a list, without gradient, and it counts in a mean over lists.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.softmax import Reduction, reduce

Weighting = Literal["lambdarank", "ndcg_loss1", "ndcg_loss2", "ndcg_loss2++", "none"]
Gain = Literal["exponential", "linear"]


def listnet(
    score: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy between the top-one chances that the relevances and the scores give each candidate.

        L = -sum_j softmax(relevance)_j log softmax(score)_j

    Equally relevant candidates are asked to score equally. For a list of them alone, where the paper's loss
    still pulls the scores together, it is 0.

    Args:
        score: float, (..., N): scores of the candidates of each list.
        relevance: (..., N): their relevances, any finite numbers.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, a score or relevance that is not finite and not masked, an unknown
            reduction, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Cao, Qin, Liu, Tsai and Li (2007), Learning to rank: from pairwise approach to listwise approach,
        ICML.
    """
    score, relevance, mask, orders = check_lists(score, relevance, mask)
    empty = mask.all(-1, keepdim=True)
    target = relevance.masked_fill(mask, -math.inf).masked_fill(empty, 0.0).softmax(-1)
    log_chance = torch.log_softmax(score.masked_fill(mask, -math.inf).masked_fill(empty, 0.0), -1)
    loss = -(target * log_chance.masked_fill(mask, 0.0)).sum(-1)
    return reduce(loss.masked_fill(~orders, 0.0), reduction)


def listmle(
    score: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Negative log-likelihood of the order by relevance under the Plackett-Luce model of the scores.

        L = sum_i ( log sum_{j: relevance_j <= relevance_i} exp(s_j) - s_i ),   i above the least relevance

    Without ties this is the paper's loss. Among equally relevant candidates every order is right: those of
    the least relevance are left in any order (exactly, their order has chance 1), those of the other grades
    are each drawn as if first of their grade (Breslow's form of the likelihood of Cox's model). So the loss
    does not depend on how the list was sorted, and with two grades it is the summed softmax loss of the
    relevant ones.

    Args:
        score: float, (..., N): scores of the candidates of each list.
        relevance: (..., N): their relevances; only their order matters.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, a score or relevance that is not finite and not masked, an unknown
            reduction, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Xia, Liu, Wang, Zhang and Li (2008), Listwise approach to learning to rank: theory and algorithm,
        ICML. Reconstructed: ties, after Breslow (1974), Covariance analysis of censored survival data,
        Biometrics 30.
    """
    score, relevance, mask, orders = check_lists(score, relevance, mask)
    if score.shape[-1] == 0:
        return reduce(score.sum(-1), reduction)
    key = relevance.masked_fill(mask, math.inf)  # masked candidates last, out of every sum before them
    key, order = key.sort(-1)
    score = score.gather(-1, order)
    last_of_grade = torch.searchsorted(key, key, right=True) - 1
    log_sum = torch.logcumsumexp(score, -1).gather(-1, last_of_grade)
    counted = (key > key[..., :1]) & (key < math.inf)
    loss = (log_sum - score).masked_fill(~counted, 0.0).sum(-1)
    return reduce(loss.masked_fill(~orders, 0.0), reduction)


def ranknet(
    score: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    sigma: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Mean logistic loss over all pairs of candidates of which one is more relevant.

        L = mean_{relevance_i > relevance_j} log(1 + exp(-sigma (s_i - s_j)))

    Args:
        score: float, (..., N): scores of the candidates of each list.
        relevance: (..., N): their relevances; only their order matters.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        sigma: scale of the differences, above 0.
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". Memory grows with N^2.

    Raises:
        ValueError: shapes do not fit, a score or relevance that is not finite and not masked, a `sigma` that
            is not positive, an unknown reduction, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Burges et al. (2005), Learning to rank using gradient descent, ICML.
    """
    _positive("sigma", sigma)
    score, relevance, mask, _ = check_lists(score, relevance, mask)
    pairs = _ordered_pairs(relevance, mask)
    cost = softplus(-sigma * (score.unsqueeze(-1) - score.unsqueeze(-2)))
    total = cost.masked_fill(~pairs, 0.0).sum((-2, -1))
    return reduce(total / pairs.sum((-2, -1)).clamp(min=1), reduction)


def lambda_loss(
    score: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    weighting: Weighting = "ndcg_loss2++",
    k: int | None = None,
    sigma: float = 1.0,
    mu: float = 10.0,
    gain: Gain = "exponential",
    reduction: Reduction = "mean",
) -> Tensor:
    """Pairs weighed by what their order means to NDCG (LambdaLoss, LambdaRank).

        L = sum_{relevance_i > relevance_j} w_ij log2(1 + exp(-sigma (s_i - s_j)))
        lambdarank:    w_ij = |G_i - G_j| |1 / D(r_i) - 1 / D(r_j)|        the NDCG that a swap would cost
        ndcg_loss2:    w_ij = |G_i - G_j| |1 / D(|r_i - r_j|) - 1 / D(|r_i - r_j| + 1)|
        ndcg_loss2++:  w_ij = lambdarank + mu ndcg_loss2
        ndcg_loss1:    w_ij = G_i / D(r_i), over all pairs i != j and not only those that differ in relevance
        G_i = gain_i / max DCG,   D(r) = log2(1 + r),   r_i the rank by score

    Ranks are constants: LambdaRank's gradient is the derivative of a loss whose weights are held fixed.
    Candidates of equal score rank in the order in which they are listed.

    Args:
        score: float, (..., N): scores of the candidates of each list.
        relevance: (..., N): their relevances, at least 0.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        weighting: w; "none" is RankNet's, summed.
        k: keep only pairs whose two ranks are at most k, and cut the ideal list there, as common code does;
            default the whole list.
        sigma: scale of the differences, above 0.
        mu: weight of NDCG-Loss2 within NDCG-Loss2++, at least 0.
        gain: "exponential", `2^relevance - 1`, or "linear", the relevance itself.
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". Memory grows with N^2.

    Raises:
        ValueError: shapes do not fit, a score or relevance that is not finite and not masked, a negative
            relevance, an option out of range or unknown, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Wang, Li, Golbandi, Bendersky and Najork (2018), The LambdaLoss framework for ranking metric
        optimization, CIKM; Burges, Ragno and Le (2006), Learning to rank with nonsmooth cost functions,
        NeurIPS. NDCG-Loss1 over all pairs after the authors of allRank.
    """
    _positive("sigma", sigma)
    if not 0 <= mu < math.inf:
        raise ValueError(f"mu must be finite and at least 0, got {mu}.")
    score, relevance, mask, orders = check_lists(score, relevance, mask)
    gains = gains_of(relevance, mask, gain)
    cut = check_cut(k, score.shape[-1])
    order = score.detach().masked_fill(mask, -math.inf).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(1, order.shape[-1] + 1, device=order.device).expand_as(order)
    )
    gains = gains / ideal_dcg(gains, cut).clamp(min=torch.finfo(gains.dtype).tiny).unsqueeze(-1)
    pairs = _ordered_pairs(relevance, mask)
    if weighting == "ndcg_loss1":
        kept = ~(mask.unsqueeze(-1) | mask.unsqueeze(-2))
        pairs = kept & ~torch.eye(score.shape[-1], dtype=torch.bool, device=score.device)
    within = rank <= cut
    pairs = pairs & within.unsqueeze(-1) & within.unsqueeze(-2) & orders[..., None, None]
    weight = _pair_weights(weighting, gains, rank, mu)
    cost = softplus(-sigma * (score.unsqueeze(-1) - score.unsqueeze(-2))) / math.log(2)
    return reduce((weight * cost).masked_fill(~pairs, 0.0).sum((-2, -1)), reduction)


def check_lists(
    score: Tensor, relevance: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores and relevances, 0 where masked and in float32 at least, the mask, and which lists order anything.

    Args:
        score: float, (..., N).
        relevance: (..., N).
        mask: bool, broadcastable to `score`, or None.

    Returns:
        Scores, relevances and mask, (..., N), and bool (...): whether two relevances left differ.

    Raises:
        ValueError: shapes do not fit, or something that is not masked is not finite.
        TypeError: scores that are not floating point, or a mask that is not bool.
    """
    if not score.is_floating_point():
        raise TypeError(f"score must be floating point, got {score.dtype}; call .float() on it.")
    if score.ndim == 0 or score.shape != relevance.shape:
        raise ValueError(
            f"score and relevance must both be (..., N), got {tuple(score.shape)} and {tuple(relevance.shape)}."
        )
    if mask is None:
        mask = torch.zeros_like(score, dtype=torch.bool)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True for what is left out, got {mask.dtype}.")
    try:
        mask = mask.expand(score.shape)
    except RuntimeError:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to lists of shape {tuple(score.shape)}."
        ) from None
    dtype = torch.promote_types(score.dtype, torch.float32)  # bfloat16 holds no differences of large scores
    score = score.to(dtype).masked_fill(mask, 0.0)
    relevance = relevance.detach().to(dtype).masked_fill(mask, 0.0)
    if not bool(score.isfinite().all() and relevance.isfinite().all()):
        raise ValueError("A score or relevance is not finite; mask candidates that are not in the list.")
    if score.shape[-1] == 0:
        return score, relevance, mask, torch.zeros(score.shape[:-1], dtype=torch.bool, device=score.device)
    highest = relevance.masked_fill(mask, -math.inf).amax(-1)
    return score, relevance, mask, highest > relevance.masked_fill(mask, math.inf).amin(-1)


def gains_of(relevance: Tensor, mask: Tensor, gain: Gain) -> Tensor:
    """Gains of relevances, `2^relevance - 1` or the relevance, 0 where masked.

    Raises:
        ValueError: a negative relevance, one whose gain is not finite, or an unknown gain.
    """
    if bool((relevance < 0).any()):
        raise ValueError("Relevances must be at least 0 for a gain; use 0 for what is not relevant.")
    if gain not in ("exponential", "linear"):
        raise ValueError(f'gain must be "exponential" or "linear", got {gain!r}.')
    gains = torch.expm1(relevance * math.log(2)) if gain == "exponential" else relevance
    gains = gains.masked_fill(mask, 0.0)
    if not bool(gains.sum(-1).isfinite().all()):
        raise ValueError(
            f"A relevance of {float(relevance.max()):g} is too large for the gain 2^relevance - 1: grade it, or take "
            'gain="linear".'
            if gain == "exponential"
            else "Relevances are too large to be summed; scale them down."
        )
    return gains


def ideal_dcg(gains: Tensor, cut: int) -> Tensor:
    """DCG of the best order, over its first `cut` places: float, (...)."""
    best = gains.topk(min(cut, gains.shape[-1]), -1).values
    return (best / torch.arange(2, best.shape[-1] + 2, device=gains.device, dtype=gains.dtype).log2()).sum(-1)


def check_cut(k: int | None, n: int) -> int:
    """The number of places that count, `n` for None.

    Raises:
        ValueError: `k` below 1.
    """
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    return n if k is None else min(k, n)


def _ordered_pairs(relevance: Tensor, mask: Tensor) -> Tensor:
    """bool, (..., N, N): whether i is more relevant than j, both in the list."""
    kept = ~(mask.unsqueeze(-1) | mask.unsqueeze(-2))
    return kept & (relevance.unsqueeze(-1) > relevance.unsqueeze(-2))


def _pair_weights(weighting: Weighting, gains: Tensor, rank: Tensor, mu: float) -> Tensor:
    discount = 1 / (rank + 1).to(gains.dtype).log2()
    if weighting == "none":
        return gains.new_ones(())
    if weighting == "ndcg_loss1":
        return (gains * discount).unsqueeze(-1)
    if weighting not in ("lambdarank", "ndcg_loss2", "ndcg_loss2++"):
        raise ValueError(
            'weighting must be "lambdarank", "ndcg_loss1", "ndcg_loss2", "ndcg_loss2++" or "none", got '
            f"{weighting!r}."
        )
    gap = (gains.unsqueeze(-1) - gains.unsqueeze(-2)).abs()
    swap = (discount.unsqueeze(-1) - discount.unsqueeze(-2)).abs()
    if weighting == "lambdarank":
        return gap * swap
    distance = (rank.unsqueeze(-1) - rank.unsqueeze(-2)).abs().clamp(min=1).to(gains.dtype)
    drop = 1 / (distance + 1).log2() - 1 / (distance + 2).log2()
    return gap * drop if weighting == "ndcg_loss2" else gap * (swap + mu * drop)


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}.")
