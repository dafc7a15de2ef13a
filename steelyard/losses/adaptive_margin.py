"""Margins without a teacher: how alike two documents are says how far apart a query should hold them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from steelyard.losses.softmax import Reduction, reduce


def adaptive_relevance_margin(
    query: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    target: Literal["own", "in-batch", "distributed"] = "distributed",
    error: Literal["squared", "absolute", "logistic"] = "squared",
    reduction: Reduction = "mean",
) -> Tensor:
    """Self-distilled margins: the margin of a pair should be the likeness of its two documents.

        m = cos(q, d+) - cos(q, d-),   t = (1 + cos(d+, d-)) / 2,   L = mean of e(m - t)
        own:          m_i with t_ii
        in-batch:     m_ij = cos(q_i, d+_i) - cos(q_i, d-_j) with t_ij, over all j
        distributed:  m_i with t_ji, over all j: the targets of the whole batch
        e(x): x^2, |x|, or log(1 + exp(-x))

    A negative that is like the positive is a hard one and gets a wide margin; an unlike one a narrow margin.
    So hard negatives are mined within the loss, by the encoder's own sense of likeness, without a parameter.
    The gradient flows through the targets. The loss does not reach 0 where a negative equals its positive.

    Args:
        query: float, (B, D): embeddings of the queries, of any length.
        positive: float, (B, D): embeddings of their relevant documents.
        negative: float, (B, D): embeddings of one negative for each.
        target: which margins meet which targets.
        error: e.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none". A zero vector has cosine 0 with all others.

    Raises:
        ValueError: shapes do not fit, an unknown `target`, `error` or reduction, or the mean over no queries.
        TypeError: embeddings that are not floating point.

    Reference:
        Gienapp, Deckers, Potthast and Scells (2025), Learning effective representations for retrieval using
        self-distillation with adaptive relevance margins, ICTIR, arXiv 2407.21515, in the form of the
        authors' code.
    """
    if query.ndim != 2 or not query.shape == positive.shape == negative.shape:
        raise ValueError(
            "query, positive and negative must all be (B, D), got "
            f"{tuple(query.shape)}, {tuple(positive.shape)} and {tuple(negative.shape)}."
        )
    if not (query.is_floating_point() and positive.is_floating_point() and negative.is_floating_point()):
        raise TypeError("Embeddings must be floating point; call .float() on them.")
    dtype = torch.promote_types(query.dtype, torch.float32)  # bfloat16 holds two digits of a cosine
    q, p, n = (normalize(x.to(dtype), dim=-1) for x in (query, positive, negative))
    own = (q * p).sum(-1)
    if target == "own":
        gap = own - (q * n).sum(-1) - (1 + (p * n).sum(-1)) / 2
    elif target == "in-batch":
        gap = own.unsqueeze(-1) - q @ n.T - (1 + p @ n.T) / 2
    elif target == "distributed":
        gap = (own - (q * n).sum(-1)).unsqueeze(-1) - (1 + (p @ n.T).T) / 2
    else:
        raise ValueError(f'target must be "own", "in-batch" or "distributed", got {target!r}.')
    if error == "squared":
        loss = gap.square()
    elif error == "absolute":
        loss = gap.abs()
    elif error == "logistic":
        loss = softplus(-gap)
    else:
        raise ValueError(f'error must be "squared", "absolute" or "logistic", got {error!r}.')
    return reduce(loss if loss.ndim == 1 else loss.sum(-1) / max(1, len(loss)), reduction)
