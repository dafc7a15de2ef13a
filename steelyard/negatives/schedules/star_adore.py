"""STAR, hard negatives kept steady by random ones, and ADORE, the query side against its own top results."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from steelyard.losses.pooling_bias import mean_shares
from steelyard.losses.softmax import Reduction, reduce
from steelyard.negatives.context import Context
from steelyard.negatives.top_k import wanted_rows

CHUNK = 2**22  # scores held at once


def star_loss(
    positive: Tensor,
    hard: Tensor,
    in_batch: Tensor,
    hard_mask: Tensor | None = None,
    in_batch_mask: Tensor | None = None,
    in_batch_log_expected: Tensor | None = None,
    *,
    alpha: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Pairwise loss on static hard negatives, stabilised by random ones from the batch.

        L = mean_hard log(1 + exp(s_j - s_p)) + alpha mean_batch log(1 + exp(s_j - s_p))

    Static hard negatives alone teach nothing about all other documents, and training diverges; the random
    ones keep those down.

    Args:
        positive: float, (B,): score of each positive.
        hard: float, (B, H): scores of negatives mined once, before training.
        in_batch: float, (B, M): scores of the other positives of the batch, or of any random documents.
        hard_mask: bool, broadcastable to `hard`: True leaves one out.
        in_batch_mask: bool, broadcastable to `in_batch`: True leaves one out: the own positive, a known one.
        in_batch_log_expected: float, broadcastable to `in_batch`: log of the expected count of each, for a
            self-normalised mean over everything they stand for; default 0.
        alpha: weight of the random part, 0 or more.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none". A part without negatives adds 0.

    Raises:
        ValueError: shapes do not fit, a negative `alpha`, an unknown reduction, or the mean over no queries.

    Reference:
        Zhan et al. (2021), Optimizing dense retrieval model training with hard negatives, SIGIR, arXiv
        2104.08051. The weights are ours.
    """
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be finite and not negative, got {alpha}.")
    parts = []
    for scores, log_expected, mask in (
        (hard, None, hard_mask),
        (in_batch, in_batch_log_expected, in_batch_mask),
    ):
        if scores.ndim != 2 or positive.shape != scores.shape[:1]:
            raise ValueError(
                f"Scores of negatives must be ({len(positive)}, K) for positives {tuple(positive.shape)}, got "
                f"{tuple(scores.shape)}."
            )
        share = mean_shares(scores, log_expected, mask)
        pairs = torch.nn.functional.softplus(scores - positive.unsqueeze(1)).masked_fill(share == 0, 0.0)
        parts.append((share * pairs).sum(1))
    return reduce(parts[0] + alpha * parts[1], reduction)


def adore_candidates(query: Tensor, documents: Tensor, context: Context, n: int) -> tuple[Tensor, Tensor]:
    """The exact top n documents of each query under the query encoder as it is now, and which are relevant.

    Called at every step: the documents stand still, so the negatives are never stale. Where none of the top n
    is relevant, what the query is known to want follows after them. Takes O(B I d) time and works through the
    documents in chunks.

    Args:
        query: float, (B, d): as the encoder gives them; no gradient flows here.
        documents: float, (I, d): encoded once.
        context: the batch, with the positives and whatever else is known.
        n: how many, 1 to I.

    Returns:
        int64, (B, n + m), best first, -1 in an empty slot at the end of a row, m as many as the longest row
        needs; and bool of the same shape, True at relevant documents.

    Raises:
        ValueError: shapes that do not fit, `n` outside 1 to I, NaN scores, positives or known ones outside
            the documents.

    Reference:
        Zhan et al. (2021), Optimizing dense retrieval model training with hard negatives, SIGIR, arXiv
        2104.08051, and its code.
    """
    if query.ndim != 2 or documents.ndim != 2 or query.shape != (len(context), documents.shape[1]):
        raise ValueError(
            f"Wanted queries ({len(context)}, d) and documents (I, d), got {tuple(query.shape)} and "
            f"{tuple(documents.shape)}."
        )
    if not 1 <= n <= len(documents):
        raise ValueError(f"n must lie between 1 and the {len(documents)} documents, got {n}.")
    known = wanted_rows(context, len(documents))
    top = _exact_top(query.detach(), documents.detach(), n)
    relevant = context.mask(top)
    without = ~relevant.any(1)
    width = int(known.counts[without].max()) if bool(without.any()) else 0
    column = torch.arange(width)
    fits = without.unsqueeze(1) & (column < known.counts.unsqueeze(1))
    more = torch.full(fits.shape, -1)
    more[fits] = known.values[(known.offsets[:-1].unsqueeze(1) + column)[fits]]
    return torch.cat([top, more], 1), torch.cat([relevant, fits], 1)


def adore_loss(
    score: Tensor,
    relevant: Tensor,
    mask: Tensor | None = None,
    *,
    metric: Literal["mrr", "ndcg"] = "mrr",
    cutoff: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Pairwise loss of each query, weighed by what swapping the two would do to a measure: LambdaRank.

        L = 1/|pairs| sum over i relevant, j not   |g(r_i) - g(r_j)| log(1 + exp(s_j - s_i))
        g(r) = 1 / r for "mrr",   1 / log2(1 + r) / ideal DCG for "ndcg",   0 beyond the cutoff

    r are the ranks by score within the row, equal scores by column. No gradient flows through the weights.

    Args:
        score: float, (B, n): of the candidates, such as those of `adore_candidates`, of which only the query
            side has a gradient: `(query.unsqueeze(1) * documents.detach()[ids.clamp(min=0)]).sum(-1)`.
        relevant: bool, (B, n).
        mask: bool, (B, n): True at an empty slot.
        metric: what is to rise.
        cutoff: of the measure; None for all ranks.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none". A query without a relevant or without another has loss 0.

    Raises:
        TypeError: `relevant` or `mask` is not bool, or `score` not floating point.
        ValueError: shapes that do not fit, an unknown metric or reduction, a cutoff below 1, a score that is
            not finite at a candidate, or the mean over no queries.

    Reference:
        Zhan et al. (2021), Optimizing dense retrieval model training with hard negatives, SIGIR, arXiv
        2104.08051, and its code, whose first version has the wrong sign in half of the pairs; Burges, Ragno and
        Le (2006), Learning to rank with nonsmooth cost functions, NeurIPS.
    """
    if metric not in ("mrr", "ndcg"):
        raise ValueError(f'metric must be "mrr" or "ndcg", got {metric!r}.')
    if cutoff is not None and cutoff < 1:
        raise ValueError(f"cutoff must be at least 1, got {cutoff}.")
    empty = torch.zeros_like(relevant) if mask is None else mask
    if relevant.dtype != torch.bool or empty.dtype != torch.bool:
        raise TypeError(f"relevant and mask must be bool, got {relevant.dtype} and {empty.dtype}.")
    if score.ndim != 2 or not score.shape == relevant.shape == empty.shape:
        raise ValueError(
            f"score, relevant and mask must be (B, n), got {tuple(score.shape)}, {tuple(relevant.shape)} and "
            f"{tuple(empty.shape)}."
        )
    if not score.is_floating_point():
        raise TypeError(f"score must be floating point, got {score.dtype}; call .float() on it.")
    score = score.masked_fill(empty, 0.0)
    if not bool(score.isfinite().all()):
        raise ValueError("score is NaN or infinite at a candidate; mask what is no candidate.")
    ordered = score.detach().masked_fill(empty, -math.inf).argsort(dim=1, descending=True, stable=True)
    wide = torch.promote_types(score.dtype, torch.float32)  # half precision has no rank 257
    places = torch.arange(1, score.shape[1] + 1, dtype=wide, device=score.device)
    gain = 1 / places if metric == "mrr" else 1 / (1 + places).log2()
    if cutoff is not None:
        gain[cutoff:] = 0
    of_row = torch.zeros_like(score, dtype=wide).scatter(1, ordered, gain.expand_as(score))
    good, bad = relevant & ~empty, ~relevant & ~empty
    if metric == "ndcg":
        ideal = torch.cat([gain.new_zeros(1), gain.cumsum(0)])[good.sum(1)]
        of_row = of_row / ideal.clamp(min=1).unsqueeze(1)  # the first rank alone has gain 1
    pairs = good.unsqueeze(2) & bad.unsqueeze(1)
    weight = (of_row.unsqueeze(2) - of_row.unsqueeze(1)).abs() * pairs
    difference = torch.nn.functional.softplus(score.unsqueeze(1) - score.unsqueeze(2))
    return reduce((weight * difference).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1), reduction)


def _exact_top(query: Tensor, documents: Tensor, n: int) -> Tensor:
    """Ids of the n largest inner products of each query, the best first."""
    step = max(1, CHUNK // max(1, len(query)))
    best = torch.zeros(len(query), 0, dtype=torch.int64)
    score = query.new_zeros(len(query), 0)
    for low in range(0, len(documents), step):
        part = query @ documents[low : low + step].to(query.dtype).T
        ids = torch.arange(low, low + part.shape[1]).expand(part.shape)
        both = torch.cat([score, part], 1)
        score, place = both.topk(min(n, both.shape[1]), 1)
        best = torch.cat([best, ids], 1).gather(1, place)
    if bool(score.isnan().any()):  # the largest of all, for topk
        raise ValueError("The scores of queries and documents have NaN.")
    return best
