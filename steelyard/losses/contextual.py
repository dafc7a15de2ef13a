"""Contextual similarity: two embeddings are alike as far as they have the same neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.losses.pairs import check_number, label_pairs, widened


def contextual_similarity(
    similarity: Tensor, k: int = 4, *, epsilon: float = 0.05, slope: float = 10.0
) -> Tensor:
    """Shared share of the neighbour sets of two members of a batch, averaged over reciprocal neighbours.

        N_k(i) = { j : d_ij <= d_i(k) + epsilon },   d = 2 - 2 s,   the nearest of i being i itself
        W_ij = [j in N_k(i)] / 2 ( |N_k(i) & N_k(j)| / |N_k(i)| + |not N_k(i) & not N_k(j)| / |not N_k(i)| )
        R(i) = { j : j in N_k/2(i) and i in N_k/2(j) }
        V_i. = mean of W_j. over j in R(i),   J = (V + V^T) / 2

    The value is exact; the gradient takes each step [x >= 0] to have `slope`, without which it would be 0.
    With a complement that is empty, since all are neighbours, its share is taken as 0.

    Args:
        similarity: float, (B, B): cosines within a batch, symmetric.
        k: neighbours, oneself among them, in 2 to B - 1: as a rule the members of each class in the batch.
        epsilon: slack of squared distance within which ties are neighbours, at least 0.
        slope: of the steps in the backward pass, above 0.

    Returns:
        float, (B, B), symmetric, in [0, 1], in float32 at least.

    Raises:
        TypeError: similarities that are not floating point.
        ValueError: another shape, or parameters out of range.

    Reference:
        Liao, Tsiligkaridis and Kulis (2023), Supervised metric learning to rank for retrieval via contextual
        similarity optimization, ICML, arXiv 2210.01908; details as in the authors' code.
    """
    if not similarity.is_floating_point():
        raise TypeError(f"Similarities must be floating point, got {similarity.dtype}.")
    size = len(similarity)
    if similarity.shape != (size, size) or not 2 <= k < size:
        raise ValueError(
            f"Wanted (B, B) similarities with 2 <= k < B, got {tuple(similarity.shape)} and k = {k}; lower k or "
            "take a larger batch."
        )
    check_number("epsilon", epsilon, least=0)
    check_number("slope", slope, above=0)
    distance = (2 - 2 * widened(similarity)).clamp(min=0)
    nearest = distance.detach().topk(k, largest=False).values

    def within(bound: Tensor) -> Tensor:
        slack = epsilon - distance + bound.unsqueeze(1)
        return (slack >= 0).to(slack.dtype) + slope * (slack - slack.detach())

    near = within(nearest[:, -1])
    far = 1 - near
    shared = (near @ near.T) / near.sum(1, keepdim=True).detach()
    apart = (far @ far.T) / far.sum(1, keepdim=True).detach().clamp(min=1)
    weight = (shared + apart) / 2 * near
    closest = within(nearest[:, k // 2 - 1])
    mutual = closest * closest.T
    context = (mutual @ weight) / mutual.sum(1, keepdim=True)
    return (context + context.T) / 2


def contextual_loss(
    similarity: Tensor,
    labels: Tensor,
    k: int = 4,
    *,
    context_weight: float = 0.4,
    mean_weight: float = 0.1,
    mean_similarity: float = 0.25,
    positive_margin: float = 0.75,
    negative_margin: float = 0.6,
    epsilon: float = 0.05,
    slope: float = 10.0,
) -> Tensor:
    """Contextual similarity fitted to the classes, with a contrastive term and one for the mean similarity.

        L = w_c / B^2 sum_{i != j} (J_ij - [y_i = y_j])^2 + w_m (mean s - s_0)^2 + (1 - w_c - w_m) L_contrast
        L_contrast: mean of m+ - s over positives below m+, plus mean of s - m- over negatives above m-

    A wrong label among k neighbours changes a share of J rather than a whole pair, so that label noise does
    less harm than to the contrastive term alone. In the contrastive term a member's pair with itself counts
    as a positive, as in the authors' code, which matters for embeddings off the unit sphere only.

    Args:
        similarity: float, (B, B): cosines within a batch.
        labels: integers, (B,).
        k: neighbours, oneself among them: as a rule the members of each class in the batch.
        context_weight: w_c, at least 0.
        mean_weight: w_m, at least 0; together at most 1.
        mean_similarity: s_0, wanted mean of all similarities of a batch.
        positive_margin: m+.
        negative_margin: m-.
        epsilon: slack of squared distance within which ties are neighbours, at least 0.
        slope: of the steps in the backward pass, above 0.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: similarities that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, or parameters out of range.

    Reference:
        Liao, Tsiligkaridis and Kulis (2023), Supervised metric learning to rank for retrieval via contextual
        similarity optimization, ICML, arXiv 2210.01908; defaults as in the authors' code.
    """
    for name, value in (("context_weight", context_weight), ("mean_weight", mean_weight)):
        check_number(name, value, least=0)
    if context_weight + mean_weight > 1:
        raise ValueError(
            f"context_weight and mean_weight must add up to at most 1, got {context_weight + mean_weight:g}."
        )
    positive, negative = label_pairs(similarity, labels)
    context = contextual_similarity(similarity, k, epsilon=epsilon, slope=slope)
    wrong = torch.where(positive, (1 - context).square(), 0.0) + torch.where(negative, context.square(), 0.0)
    s = widened(similarity)
    own = torch.eye(len(s), dtype=torch.bool, device=s.device)
    short = torch.where(positive | own, (positive_margin - s).relu(), 0.0)
    over = torch.where(negative, (s - negative_margin).relu(), 0.0)
    contrast = sum(part.sum() / (part > 0).sum().clamp(min=1) for part in (short, over))
    mean = (s.mean() - mean_similarity).square()
    return context_weight * wrong.mean() + mean_weight * mean + (1 - context_weight - mean_weight) * contrast
