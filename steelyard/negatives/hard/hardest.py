"""Keep the best by score of the candidates that were drawn, alone or on both sides of a contrast."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, check_fits, sampled_softmax
from steelyard.negatives.hard.asked import alike, all_finite, check_count, floating, masked_score


def hardest(score: Any, k: int, mask: Any = None, log_expected: Any = None) -> tuple[Tensor, Tensor]:
    """The k candidates of each query with the largest terms, chosen after they were drawn.

        kept_b = top-k over n of  score[b, n] - log_expected[b, n]

    What it does to the softmax: the loss is then a partial softmax, a lower bound of the one over all draws
    that does not fall as k grows and meets it at k = n. It is no estimate of the softmax over everything: of
    the draws only the largest terms stay, whatever weights they carry. `steelyard.negatives.TopK` keeps hard
    candidates without that bias.

    Args:
        score: float, (..., n), scores of the candidates; -inf for one that must not be taken.
        k: how many to keep, 1 or more; all where there are fewer.
        mask: bool, broadcastable to `score`: True leaves a candidate out (an accidental hit).
        log_expected: float, broadcastable to `score`: log expected counts, where the loss subtracts them;
            +inf marks an empty slot. Of the subsets of k, the one kept gives the tightest bound.

    Returns:
        Columns, int64, (..., min(k, n)), the best first, of equal ones any; and a mask of the same shape,
        True for a slot that is empty because a query has fewer candidates (its column is 0). Both fit
        `score.gather(-1, columns)` and `sampled_softmax(..., mask=mask)`.

    Raises:
        TypeError: scores that are not floating point, a mask that is not bool, a `k` that is no integer.
        ValueError: a `k` below 1, shapes that do not broadcast, NaN or +inf among what is not masked.

    Reference:
        Wilm, Normann, Baumeister & Kobow (2023), Scaling session-based transformer recommendations using
        optimized negative sampling and loss functions (TRON), RecSys, arXiv 2307.14906, which has no
        `log_expected`.
    """
    check_count("k", k)
    terms = masked_score(score, mask)
    if log_expected is not None:
        expected = floating("log_expected", log_expected).detach()
        check_fits("log_expected", expected, terms, of="scores")
        terms = masked_score(terms - expected)
    kept, columns = terms.topk(min(k, terms.shape[-1]), -1)
    empty = kept == -math.inf
    return columns.masked_fill(empty, 0), empty


def dual_view_loss(
    query: Any,
    key: Any,
    queue: Any,
    k: int,
    temperature: float = 0.07,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Momentum contrast from both views, each against the k nearest entries of the queue.

        L = ( l(q, k+; N_k(q)) + l(k+, q; N_k(k+)) ) / 2
        l(a, p; N) = -a.p / t + log( exp(a.p / t) + sum_{j in N} exp(a.j / t) )

    with N_k(a) the k queue entries of largest cosine with a. What it does to the softmax: each half is a
    partial softmax, a lower bound of the one over the whole queue that rises with k and meets it at the
    queue's size. Gradients reach whatever is given with one; detach the key as momentum contrast does, or
    neither view for a symmetric encoder.

    Args:
        query: float, (B, D), one view, on the unit sphere.
        key: float, (B, D), the other view of the same things, on the unit sphere.
        queue: float, (Q, D), earlier keys of other things, on the unit sphere.
        k: how many queue entries each side keeps; all where there are fewer.
        temperature: positive.
        reduction: "mean" over the batch, "sum" or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        TypeError: a tensor that is not floating point, a `k` that is no integer.
        ValueError: shapes that do not fit, entries that are not finite, a `k` below 1 or a temperature that
            is not positive.

    Reference:
        He, Fan, Wu, Xie & Girshick (2020), Momentum contrast for unsupervised visual representation learning,
        CVPR, arXiv 1911.05722, for one side and the whole queue; both sides with selected negatives are
        reconstructed from a description.
    """
    a, b, stored = alike(all_finite("query", query), all_finite("key", key), all_finite("queue", queue))
    if a.ndim != 2 or a.shape != b.shape or stored.ndim != 2 or stored.shape[1] != a.shape[1]:
        raise ValueError(
            f"query and key must be (B, D) and queue (Q, D), got {tuple(a.shape)}, {tuple(b.shape)} and "
            f"{tuple(stored.shape)}."
        )
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    positive = (a * b).sum(1) / temperature
    halves = []
    for view in (a, b):
        score = view @ stored.T / temperature
        columns, mask = hardest(score, k)
        near = score.gather(1, columns)
        halves.append(sampled_softmax(positive, near, torch.zeros_like(near), mask, reduction=reduction))
    return (halves[0] + halves[1]) / 2
