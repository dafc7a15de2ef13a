"""Unified negative pairs: similarities of samples join those of samples and classes, without outliers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, reduce
from steelyard.negatives.hard.asked import all_finite, labelled


def inside_whiskers(similarity: Any, whisker: float = 1.0) -> Tensor:
    """Which values a box plot with the given whiskers would not draw as outliers.

        Q1 - r (Q3 - Q1)  <=  s  <=  Q3 + r (Q3 - Q1)

    Q1 and Q3 are the values of ranks floor(n/4) and floor(3n/4), counted from 0, found by partial selection.

    Args:
        similarity: float, (n,), finite.
        whisker: r, not negative; infinite keeps everything.

    Returns:
        bool, (n,); the two quartiles are always inside.

    Raises:
        TypeError: similarities that are not floating point.
        ValueError: another shape, values that are not finite, a negative or NaN whisker.

    Reference:
        Tukey (1977), Exploratory data analysis; its quartiles as in the code of Jung et al. (2022).
    """
    s = all_finite("similarity", similarity).detach()
    if s.ndim != 1:
        raise ValueError(f"similarity must be (n,), got {tuple(s.shape)}.")
    if not whisker >= 0:
        raise ValueError(f"whisker must not be negative, got {whisker}.")
    if len(s) == 0 or whisker == math.inf:  # infinity times a box of height 0 is no number
        return torch.ones(len(s), dtype=torch.bool)
    low = s.kthvalue(len(s) // 4 + 1).values
    high = s.kthvalue(3 * len(s) // 4 + 1).values
    reach = whisker * (high - low)
    return (s >= low - reach) & (s <= high + reach)


def unpg_loss(
    class_similarity: Any,
    sample_similarity: Any,
    labels: Any,
    whisker: float = 1.0,
    scale: float = 64.0,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Softmax of each sample against the classes and against the negative pairs of the whole batch.

        L_i = -c s_{i,y_i} + log( sum_j e^{c s_ij} + sum_{(k,l) in N} e^{c s_kl} )
        N   = { (k, l): k < l, y_k != y_l, s_kl inside the whiskers }

    A sample's softmax holds all pairs of the batch, its own and those of others, so that the largest negative
    similarity anywhere must fall below the smallest positive one. What it does to the softmax: terms are
    added, so the loss lies above the margin softmax over the classes, which it is where the batch has one
    label. The pairs' sum is computed once for the batch.

    Args:
        class_similarity: float, (B, C): cosines of samples and class weights, the margin already taken off
            the sample's own class.
        sample_similarity: float, (B, B): cosines of the samples; only what lies above the diagonal is read.
        labels: integers, (B,), in [0, C).
        whisker: r of `inside_whiskers`, which leaves out pairs that are too hard (likely mislabelled) and too
            easy.
        scale: c, positive.
        reduction: "mean" over the batch, "sum" or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers.
        ValueError: shapes that do not fit, values that are not finite, labels outside the classes, a scale
            that is not positive, a negative whisker.

    Reference:
        Jung, Lee, Oh, Park, Park & Son (2022), Unified negative pair generation toward well-discriminative
        feature space for face recognition, BMVC, arXiv 2203.11593, with its code.
    """
    own = all_finite("class_similarity", class_similarity)
    between, y = labelled("sample_similarity", sample_similarity, labels)
    if own.ndim != 2 or len(own) != len(y):
        raise ValueError(f"class_similarity must be ({len(y)}, C), got {tuple(own.shape)}.")
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < own.shape[1]):
        raise ValueError(f"labels must lie in [0, {own.shape[1]}), got {int(y.min())} to {int(y.max())}.")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale}.")
    pairs = between[(y.unsqueeze(1) != y).triu(1)]
    kept = pairs[inside_whiskers(pairs, whisker)]
    terms = own * scale
    if len(kept):
        shared = torch.logsumexp(kept * scale, 0)
        terms = torch.cat([terms, shared.expand(len(y), 1)], 1)
    positive = terms.gather(1, y.long().unsqueeze(1)).squeeze(1)
    return reduce(torch.logsumexp(terms, 1) - positive, reduction)
