"""Few-shot losses on class prototypes and nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.losses.pairs import check_classes, check_number, label_pairs, widened, widened_alike
from steelyard.losses.softmax import Reduction, reduce


def class_prototypes(support: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Mean embedding of each class.

    Args:
        support: float, (S, d).
        labels: integers, (S,).
        n_classes: C.

    Returns:
        float, (C, d), in float32 at least.

    Raises:
        TypeError: embeddings that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, or a class without support.

    Reference:
        Snell, Swersky and Zemel (2017), Prototypical networks for few-shot learning, NeurIPS, arXiv
        1703.05175.
    """
    if not support.is_floating_point():
        raise TypeError(f"Embeddings must be floating point, got {support.dtype}.")
    if support.ndim != 2:
        raise ValueError(f"Embeddings must be (S, d), got {tuple(support.shape)}.")
    check_classes(labels, len(support), n_classes)
    count = torch.bincount(labels.long(), minlength=n_classes)
    if bool((count == 0).any()):
        raise ValueError(
            f"Class {int((count == 0).nonzero()[0])} has no support; give each class an example."
        )
    s = widened(support)
    total = s.new_zeros(n_classes, s.shape[1]).index_add(0, labels.long(), s)
    return total / count.unsqueeze(1)


def proto_triplet(
    query: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    *,
    margin: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Triplets of a query, the prototype of its class, and the nearest prototype of another.

        L_i = [ |q_i - c_y| - min_{c != y} |q_i - c| + m ]_+

    With one shot a class it is the triplet loss with the hardest negative.

    Args:
        query: float, (Q, d).
        labels: integers, (Q,): rows of `prototypes`.
        prototypes: float, (C, d), as of `class_prototypes`.
        margin: m, at least 0.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (Q,) for "none", in float32 at least. With one class there is no triplet: 0. The
        slope of a distance of 0 is taken as 0.

    Raises:
        TypeError: embeddings that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or margin out of range, an unknown reduction, or the mean over
            no queries.

    Reference:
        Mendez-Ruiz, Lopez-Zapata, Reyes-Amezcua, Flores-Araiza, Ochoa-Ruiz and Mendez-Vazquez (2023), SuSana
        Distancia is all you need: enforcing class separability in metric learning via two novel
        distance-based loss functions for few-shot image classification, arXiv 2305.09062; details as in the
        authors' code.
    """
    if not (query.is_floating_point() and prototypes.is_floating_point()):
        raise TypeError(f"Embeddings must be floating point, got {query.dtype} and {prototypes.dtype}.")
    if query.ndim != 2 or prototypes.ndim != 2 or query.shape[1] != prototypes.shape[1]:
        raise ValueError(
            f"Wanted (Q, d) queries and (C, d) prototypes, got {tuple(query.shape)} and {tuple(prototypes.shape)}."
        )
    check_classes(labels, len(query), len(prototypes))
    check_number("margin", margin, least=0)
    d = _distances(*widened_alike(query, prototypes))
    own = labels.long().unsqueeze(1)
    if d.shape[1] < 2:
        return reduce(d.sum(1) * 0, reduction)
    nearest = d.scatter(1, own, torch.inf).amin(1)
    return reduce((d.gather(1, own)[:, 0] - nearest + margin).relu(), reduction)


def icnn_score(embedding: Tensor, labels: Tensor, k: int = 4) -> Tensor:
    """How well the k nearest neighbours of each member of a batch tell its class, and by how much.

        near_i = mean over j in N_k(i) of i's class of  d_ij / max(nearest other class, farthest in N_k(i))
        far_i  = mean over j in N_k(i) of another class of  d_ij / largest such d of the batch
        score  = ( (1 - mean near + mean far) / 2 + mean share of N_k(i) that is of i's class ) / 2

    In [0, 1], 1 where classes are points of their own. Means are over members that have such neighbours; if
    none has one of its class, 1 - mean near is 0, if none has one of another, mean far is 1.

    Args:
        embedding: float, (B, d).
        labels: integers, (B,).
        k: neighbours, 1 to B - 1, as a rule the members of a class less one.

    Returns:
        A scalar with gradient through distances, not through which are neighbours; in float32 at least.

    Raises:
        TypeError: embeddings that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, or k out of range.

    Reference:
        Mendez-Ruiz et al. (2023), SuSana Distancia is all you need, arXiv 2305.09062. Reconstructed from the
        authors' code, which leaves out the paper's term of variances; the nearest other is sought in the
        whole batch.
    """
    if embedding.ndim != 2:
        raise ValueError(f"Embeddings must be (B, d), got {tuple(embedding.shape)}.")
    if not embedding.is_floating_point():
        raise TypeError(f"Embeddings must be floating point, got {embedding.dtype}.")
    if not 1 <= k < len(embedding):
        raise ValueError(f"k must lie in 1 to B - 1, got k = {k} of {len(embedding)} embeddings.")
    x = widened(embedding)
    d = _distances(x, x)
    _, other = label_pairs(d, labels)
    order = d.detach().clone().fill_diagonal_(torch.inf).topk(k, largest=False).indices
    near, foreign = d.gather(1, order), other.gather(1, order)
    nearest = d.masked_fill(~other, torch.inf).amin(1, keepdim=True)
    bound = torch.maximum(nearest, near.amax(1, keepdim=True))
    zero = near.new_zeros(())

    def mean(value: Tensor, kept: Tensor) -> Tensor:
        count = kept.sum(1)
        each = torch.where(kept, value, zero).sum(1) / count.clamp(min=1)
        return each.sum() / (count > 0).sum().clamp(min=1)

    compact = 1 - mean(near / torch.where(bound > 0, bound, 1.0), ~foreign)
    if bool(foreign.all()):
        compact = zero
    widest = torch.where(foreign, near, zero).amax()
    apart = mean(near / torch.where(widest > 0, widest, 1.0), foreign) if bool(foreign.any()) else zero + 1
    share = (~foreign).to(d.dtype).mean()
    return ((compact + apart) / 2 + share) / 2


def icnn_loss(embedding: Tensor, labels: Tensor, k: int = 4) -> Tensor:
    """Minus the log of `icnn_score`.

    Args:
        embedding: float, (B, d).
        labels: integers, (B,).
        k: neighbours, 1 to B - 1.

    Returns:
        A scalar, 0 where classes are points of their own, in float32 at least.

    Raises:
        TypeError: embeddings that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, k out of range, or a score of 0: a batch that has collapsed, and in
            which no neighbour is of one's class.

    Reference:
        Mendez-Ruiz et al. (2023), SuSana Distancia is all you need, arXiv 2305.09062.
    """
    score = icnn_score(embedding, labels, k)
    if not float(score.detach()) > 0:
        raise ValueError(
            "The score is 0 (or NaN), whose log has no gradient: all embeddings coincide, and no neighbour is of "
            "one's class; give each class two members or more."
        )
    return -score.log()


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances, with slope 0 at 0; without products, whose rounding would part equal points."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
