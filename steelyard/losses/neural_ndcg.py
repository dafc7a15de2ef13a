"""NDCG with a gradient, by sorting softly."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.losses.listwise import Gain, check_cut, check_lists, gains_of, ideal_dcg
from steelyard.losses.soft_sorting import Sort, log_soft_permutation
from steelyard.losses.softmax import Reduction, reduce


def neural_ndcg(
    score: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    k: int | None = None,
    gain: Gain = "exponential",
    sort: Sort = "neural",
    sinkhorn_steps: int = 50,
    reduction: Reduction = "mean",
) -> Tensor:
    """One minus the NDCG of a softly sorted list (NeuralNDCG).

        L = 1 - sum_{i <= k} (P g)_i / log2(1 + i) / max DCG@k,   g_j = 2^relevance_j - 1
        P: `log_soft_permutation` of the scores

    As the temperature falls to 0, L becomes one minus the exact NDCG for scores without ties, and its
    gradient vanishes. The paper's transposed variant, `sum_j g_j (P^T d)_j`, is the same number for the same
    P. The paper minimises -NDCG and leaves lists without a relevant candidate out of its mean; here they
    have loss 0, as all lists that order nothing.

    Args:
        score: float, (..., N): scores of the candidates of each list.
        relevance: (..., N): their relevances, at least 0.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        temperature: of the sorting, in units of the scores, above 0.
        k: places that count; default all.
        gain: "exponential", `2^relevance - 1`, or "linear", the relevance itself.
        sort: "neural" as in the paper, or "soft".
        sinkhorn_steps: most rounds of scaling P.
        reduction: "mean" over lists, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, a score or relevance that is not finite and not masked, a negative
            relevance, an option out of range or unknown, or the mean over no lists.
        TypeError: scores that are not floating point.

    Reference:
        Pobrotyn and Bialobrzeski (2021), NeuralNDCG: Direct optimisation of a ranking metric via
        differentiable relaxation of sorting, arXiv 2102.07831.
    """
    score, relevance, mask, orders = check_lists(score, relevance, mask)
    gains = gains_of(relevance, mask, gain)
    cut = check_cut(k, score.shape[-1])
    log_p = log_soft_permutation(
        score, mask, temperature=temperature, sort=sort, sinkhorn_steps=sinkhorn_steps
    )
    at_place = (log_p.exp() @ gains.unsqueeze(-1)).squeeze(-1)[..., :cut]
    discount = torch.arange(2, cut + 2, device=score.device, dtype=score.dtype).log2()
    ideal = torch.where(orders, ideal_dcg(gains, cut), 1.0)
    loss = 1 - (at_place / discount).sum(-1) / ideal
    return reduce(torch.where(orders, loss, 0.0), reduction)
