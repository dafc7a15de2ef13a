"""Mine with the embedding that is trained, and leave out what it takes for an unlabelled positive."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.losses.softmax import check_fits
from steelyard.negatives.hard.asked import all_finite
from steelyard.negatives.hard.hardest import hardest


def self_aware(
    score: Any,
    positive_score: Any,
    k: int,
    factor: float = 0.95,
    owner: Any = None,
    query_similarity: Any = None,
    max_query_similarity: float = math.inf,
    mask: Any = None,
) -> tuple[Tensor, Tensor]:
    """Each query's k hardest candidates among those its own embedding does not take for positives.

        keep j for query b   if   s(b, j) <= s+_b - (1 - f) |s+_b|
                            and   r(b, owner_j) <= max_query_similarity

    For a positive score that is f s+_b, and a negative one keeps the same distance below. A candidate that is
    the labelled positive of another query, its owner, is left out where the two queries are near: what
    answers a paraphrase answers the query. What it does to the softmax: the loss is a partial softmax, a
    lower bound of the one over all candidates, that lacks its suspected terms too.

    Args:
        score: float, (B, C), by the embedder being trained; -inf for a candidate that must not be taken.
        positive_score: float, (B,), finite: of each query's positive.
        k: how many to keep, 1 or more.
        factor: f, finite or infinite; at +inf no candidate is too near, and the rule is plain hard mining.
        owner: int64, (C,): the query in [0, B) whose labelled positive the candidate is, -1 for none. A
            query's own are left out.
        query_similarity: float, (B, B): r, of the queries among themselves; needed for
            `max_query_similarity`.
        max_query_similarity: above it an owner is too near.
        mask: bool, broadcastable to `score`: True leaves a candidate out.

    Returns:
        Columns, int64, (B, min(k, C)), the hardest first, and a mask of that shape, True for a slot that is
        empty (`hardest`).

    Raises:
        TypeError: tensors of the wrong kind.
        ValueError: shapes that do not fit, NaN, an owner outside the batch, `max_query_similarity` without
            owners and similarities.

    Reference:
        The rule is reconstructed from a description; its first half is the percentage of the positive of
        Moreira et al. (2024), NV-Retriever, arXiv 2407.15831, by the embedder itself.
    """
    s, positive = torch.as_tensor(score), all_finite("positive_score", positive_score).detach().double()
    if s.ndim != 2 or positive.shape != s.shape[:1]:
        raise ValueError(
            f"score must be (B, C) and positive_score (B,), got {tuple(s.shape)} and {tuple(positive.shape)}."
        )
    if math.isnan(factor) or math.isnan(max_query_similarity):
        raise ValueError("factor and max_query_similarity must not be NaN.")
    out = torch.zeros(s.shape, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    check_fits("mask", out, s, of="scores")
    if factor < math.inf:
        out = out | (s.detach().double() > (positive - (1 - factor) * positive.abs()).unsqueeze(1))
    if owner is not None:
        out = out | _near_owner(torch.as_tensor(owner), s.shape, query_similarity, max_query_similarity)
    elif max_query_similarity < math.inf:
        raise ValueError("max_query_similarity needs owner and query_similarity.")
    return hardest(s, k, out)


def _near_owner(owner: Tensor, shape: torch.Size, similarity: Any, limit: float) -> Tensor:
    if owner.dtype != torch.int64:
        raise TypeError(f"owner must be int64, got {owner.dtype}.")
    if owner.shape != shape[1:] or (
        len(owner) and not (int(owner.min()) >= -1 and int(owner.max()) < shape[0])
    ):
        raise ValueError(f"owner must be ({shape[1]},) with queries in [0, {shape[0]}) or -1 for none.")
    out = torch.arange(shape[0]).unsqueeze(1) == owner
    if limit < math.inf:
        if similarity is None:
            raise ValueError("max_query_similarity needs query_similarity.")
        near = all_finite("query_similarity", similarity).detach()
        if near.shape != (shape[0], shape[0]):
            raise ValueError(f"query_similarity must be ({shape[0]}, {shape[0]}), got {tuple(near.shape)}.")
        out = out | ((near > limit)[:, owner.clamp(min=0)] & (owner >= 0))
    return out
