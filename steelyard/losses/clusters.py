"""Contrastive losses that know clusters: all negatives at the price of cluster pairs, or hard and false ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize, relu

from steelyard.losses.pairs import widened, widened_alike
from steelyard.losses.softmax import Reduction, check_fits, reduce


def pamc_log_negatives(embedding: Tensor, assignment: Tensor, *, temperature: float | Tensor) -> Tensor:
    """Log of the sum over all pairs of nodes, from pairs of soft clusters.

        n_a = sum_i c_ia        m_a = sum_i c_ia z_i / n_a
        log sum_a sum_b n_a n_b exp(m_a . m_b / t)   <=   log sum_i sum_j exp(z_i . z_j / t)

    A lower bound by Jensen's inequality, exact where the members of each cluster share one embedding, and so
    with one cluster a node. Takes N k + k^2 in place of N^2; pairs of a node with itself are in both sums.

    Args:
        embedding: float, (N, d): the z.
        assignment: float, (N, k): the c, at least 0, each row with sum 1.
        temperature: t, above 0; a tensor receives its gradient.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: embeddings or assignments that are not floating point.
        ValueError: shapes do not fit, an assignment that is no distribution, or a temperature that is not
            positive.

    Reference:
        Kulatilleke, Portmann and Chandra (2022), Efficient block contrastive learning via parameter-free
        meta-node approximation, arXiv 2209.14067. Reconstructed: the paper's pairs of meta-nodes counted by
        the pairs of nodes they stand for; the authors' code leaves the counts out.
    """
    if embedding.ndim != 2 or assignment.ndim != 2 or len(embedding) != len(assignment):
        raise ValueError(
            f"Wanted (N, d) embeddings and (N, k) assignments, got {tuple(embedding.shape)} and "
            f"{tuple(assignment.shape)}."
        )
    if not (embedding.is_floating_point() and assignment.is_floating_point()):
        raise TypeError(
            f"Embeddings and assignments must be floating point, got {embedding.dtype} and {assignment.dtype}."
        )
    rows = assignment.detach()
    tolerance = 1e-2 if rows.dtype in (torch.bfloat16, torch.float16) else 1e-4
    if bool((rows < 0).any()) or not bool(((rows.sum(1) - 1).abs() < tolerance).all()):
        raise ValueError("Each row of the assignment must be at least 0 and have sum 1.")
    _check_temperature(temperature)
    embedding, assignment = widened_alike(embedding, assignment)
    size = assignment.sum(0)
    held = size > 0
    safe = torch.where(held, size, 1.0)  # an empty cluster has no mean, and counts for nothing
    mean = (assignment.T @ embedding) / safe[:, None]
    log_size = torch.where(held, safe.log(), -math.inf)
    logits = mean @ mean.T / temperature + log_size[:, None] + log_size
    return torch.logsumexp(logits.reshape(-1), 0)


def pamc(embedding: Tensor, assignment: Tensor, edges: Tensor, *, temperature: float | Tensor) -> Tensor:
    """Contrast the neighbours of a graph with all pairs of nodes, by way of proxy meta-nodes.

        L = -mean_i log sum_{j in N(i)} exp(z_i . z_j / t) + log sum_a sum_b n_a n_b exp(m_a . m_b / t)

    The mean is over the nodes that have neighbours. The authors use unit vectors, and assignments from
    clusters learnt by a loss of their own.

    Args:
        embedding: float, (N, d): the z.
        assignment: float, (N, k): soft clusters, at least 0, each row with sum 1.
        edges: int64, (2, E): pairs (i, j), j in N(i); both orders for a graph without direction.
        temperature: t, above 0; a tensor receives its gradient.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: `edges` is not int64, or embeddings or assignments are not floating point.
        ValueError: shapes do not fit, no edges, an assignment that is no distribution, or a temperature that
            is not positive.

    Reference:
        Kulatilleke, Portmann and Chandra (2022), Efficient block contrastive learning via parameter-free
        meta-node approximation, arXiv 2209.14067.
    """
    if edges.dtype != torch.int64:
        raise TypeError(f"edges must be int64, got {edges.dtype}.")
    if edges.ndim != 2 or len(edges) != 2 or edges.shape[1] == 0:
        raise ValueError(f"edges must be (2, E) with E > 0, got {tuple(edges.shape)}.")
    if int(edges.min()) < 0 or int(edges.max()) >= len(embedding):
        raise ValueError(
            f"edges must lie in 0 .. {len(embedding) - 1}, got {int(edges.min())} .. {int(edges.max())}."
        )
    negatives = pamc_log_negatives(embedding, assignment, temperature=temperature)
    embedding = widened(embedding)
    source, target = edges
    score = (embedding[source] * embedding[target]).sum(-1) / temperature
    top = torch.full_like(embedding[:, 0], -math.inf).scatter_reduce(0, source, score.detach(), "amax")
    shifted = (score - top[source]).exp()
    total = torch.zeros_like(top).index_add(0, source, shifted)
    has = total > 0
    return negatives - (total[has].log() + top[has]).mean()


def nearest_centroids(embedding: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The own and the neighbouring cluster of each item: its nearest and second nearest centroid by cosine.

    The neighbouring centroid is the item's hard negative: near, and of another cluster.

    Args:
        embedding: float, (B, d).
        centroids: float, (k, d), k at least 2.

    Returns:
        Own and neighbouring cluster, int64, (B,) each.

    Raises:
        TypeError: vectors that are not floating point.
        ValueError: shapes do not fit, fewer than two centroids, or a vector that is not finite.

    Reference:
        Deng, Wan, Yang, Quan and Wang (2023), Clustering-aware negative sampling for unsupervised sentence
        representation, Findings of ACL, arXiv 2305.09892.
    """
    if embedding.ndim != 2 or centroids.ndim != 2 or embedding.shape[1] != centroids.shape[1]:
        raise ValueError(
            f"Wanted (B, d) and (k, d), got {tuple(embedding.shape)} and {tuple(centroids.shape)}."
        )
    if len(centroids) < 2:
        raise ValueError(f"There is no neighbouring cluster among {len(centroids)}.")
    if not (embedding.is_floating_point() and centroids.is_floating_point()):
        raise TypeError(f"Vectors must be floating point, got {embedding.dtype} and {centroids.dtype}.")
    left, right = widened_alike(embedding.detach(), centroids.detach())
    cosine = normalize(left, dim=-1) @ normalize(right, dim=-1).T
    if bool(cosine.isnan().any()):
        raise ValueError("A vector holds NaN or infinite values, and is near to nothing.")
    own, neighbour = cosine.topk(2, -1).indices.unbind(-1)
    return own, neighbour


def bidirectional_margin(
    cosine: Tensor,
    cluster: Tensor,
    *,
    alpha: float,
    beta: float,
    reduction: Reduction = "mean",
) -> Tensor:
    """Keep suspected false negatives neither as near as the positive nor far off.

        d_ij = cos(x_i, x_j) - cos(x_i, x_i+)
        L_i = mean_{j in the cluster of i, j != i} relu(d_ij + alpha) + relu(-d_ij - beta)

    Zero exactly where `-beta <= d_ij <= -alpha`.

    Args:
        cosine: float, (B, B): cosine of item i and the second view of item j; its positive on the diagonal.
        cluster: int64, (B,): cluster of each item.
        alpha: least distance below the positive.
        beta: largest distance below the positive, at least `alpha`.
        reduction: "mean" over items, "sum", or "none".

    Returns:
        The penalty, a scalar or (B,) for "none"; 0 for an item alone in its cluster.

    Raises:
        ValueError: shapes do not fit, `beta` below `alpha`, an unknown reduction, or the mean over no items.

    Reference:
        Deng, Wan, Yang, Quan and Wang (2023), Clustering-aware negative sampling for unsupervised sentence
        representation, Findings of ACL, arXiv 2305.09892. Reconstructed: the mean over an item's cluster; the
        authors' code takes it over all pairs of the batch.
    """
    _check_square(cosine)
    if cluster.shape != cosine.shape[:1]:
        raise ValueError(f"cluster must be (B,) for {len(cosine)} items, got {tuple(cluster.shape)}.")
    if not alpha <= beta:
        raise ValueError(f"alpha must be at most beta, got {alpha} and {beta}.")
    same = (cluster[:, None] == cluster).fill_diagonal_(False)
    gap = cosine - cosine.diagonal()[:, None]
    penalty = (relu(gap + alpha) + relu(-gap - beta)).masked_fill(~same, 0.0)
    return reduce(penalty.sum(-1) / same.sum(-1).clamp(min=1), reduction)


def clusterns(
    cosine: Tensor,
    hard_cosine: Tensor | None = None,
    cluster: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float | Tensor,
    alpha: float,
    beta: float,
    weight: float = 1.0,
    hard_log_weight: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """In-batch contrast with neighbouring centroids as hard negatives, and a penalty for false ones.

        L_i = -log( e_ii / (sum_j e_ij + sum_j mu^[i = j] h_ij) ) + weight * bidirectional_margin_i
        e_ij = exp(cos(x_i, x_j+) / t),   h_ij = exp(cos(x_i, centroid of j's neighbouring cluster) / t)

    Without clusters it is the loss of SimCSE. Clusters come from a momentum k-means over the batches, which is
    the caller's: `nearest_centroids` finds each item's own and neighbouring one.

    Args:
        cosine: float, (B, B): cosine of item i and the second view of item j; its positive on the diagonal.
        hard_cosine: float, (B, B): cosine of item i and the hard centroid of item j, not trained; or None.
        cluster: int64, (B,): cluster of each item, for the penalty; or None.
        mask: bool, broadcastable to `cosine`: True leaves an item out as a negative.
        temperature: t, above 0; a tensor receives its gradient.
        alpha: least distance of a suspected false negative below the positive.
        beta: largest distance, at least `alpha`.
        weight: weight of the penalty.
        hard_log_weight: log of mu, an extra weight of an item's own hard centroid.
        reduction: "mean" over items, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, `beta` below `alpha`, an unknown
            reduction, or the mean over no items.

    Reference:
        Deng, Wan, Yang, Quan and Wang (2023), Clustering-aware negative sampling for unsupervised sentence
        representation, Findings of ACL, arXiv 2305.09892.
    """
    _check_square(cosine)
    _check_temperature(temperature)
    itself = torch.eye(len(cosine), dtype=torch.bool, device=cosine.device)
    logits = cosine / temperature
    check_fits("mask", mask, cosine, of="cosines")
    if mask is not None:
        logits = logits.masked_fill(mask & ~itself, -math.inf)
    if hard_cosine is not None:
        if hard_cosine.shape != cosine.shape:
            raise ValueError(
                f"hard_cosine must be {tuple(cosine.shape)} as cosine is, got {tuple(hard_cosine.shape)}."
            )
        hard = hard_cosine / temperature + itself.to(cosine.dtype) * hard_log_weight
        logits = torch.cat([logits, hard], -1)
    loss = torch.logsumexp(logits, -1) - logits.diagonal()
    if cluster is not None:
        loss = loss + weight * bidirectional_margin(cosine, cluster, alpha=alpha, beta=beta, reduction="none")
    return reduce(loss, reduction)


def _check_square(cosine: Tensor) -> None:
    if cosine.ndim != 2 or cosine.shape[0] != cosine.shape[1]:
        raise ValueError(
            f"cosine must be (B, B) with the positives on its diagonal, got {tuple(cosine.shape)}."
        )


def _check_temperature(temperature: float | Tensor) -> None:
    t = torch.as_tensor(temperature).detach()
    if t.ndim > 0 or not 0 < float(t) < math.inf:
        raise ValueError(f"temperature must be one positive number, got {temperature}.")
