"""Spreading embeddings by the length of their minimum spanning tree."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.losses.pairs import check_number, widened


def spanning_tree(embedding: Tensor) -> Tensor:
    """Edges of a minimum spanning tree of points, by Euclidean distance.

    Prim's algorithm: time B^2 d, memory B. Equal points are joined by edges of length 0, which sparse formats
    of graph libraries take for no edge at all.

    Args:
        embedding: float, (B, d), finite.

    Returns:
        int64, (B - 1, 2), in the order in which points join; (0, 2) for one point or none.

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: another shape, or a value that is not finite.

    Reference:
        Prim (1957), Shortest connection networks and some generalizations, Bell System Technical Journal
        36(6).
    """
    if not embedding.is_floating_point():
        raise TypeError(f"Embeddings must be floating point, got {embedding.dtype}.")
    if embedding.ndim != 2:
        raise ValueError(f"Embeddings must be (B, d), got {tuple(embedding.shape)}.")
    points = embedding.detach().cpu().double().numpy()
    if not np.isfinite(points).all():
        raise ValueError("Embeddings must be finite.")
    return torch.from_numpy(_prim(np.ascontiguousarray(points))).to(embedding.device)


def tree_spread(embedding: Tensor, *, length_weight: float = 1.0, sphere_weight: float = 1.0) -> Tensor:
    """The longer the tree, the lower the loss; the sphere keeps it from growing by scale (T-REG).

        L = -g / B sum over edges |z_a - z_b|  +  l / B sum_i (|z_i| - 1)^2

    The tree is that of the present points, and the gradient runs through its edges. Collapse to a point or a
    subspace makes the tree short; on a circle equal steps are best. Add it for each view to a loss that draws
    views together, such as their mean squared distance (T-REGS).

    Args:
        embedding: float, (B, d), not normalised.
        length_weight: g, at least 0.
        sphere_weight: l, at least 0.

    Returns:
        A scalar, in float32 at least. The slope of an edge of length 0 is taken as 0.

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: another shape, a value that is not finite, no embedding, or a negative weight.

    Reference:
        Mordacq, Loiseaux, Kalogeiton and Oudot (2025), T-REGS: minimum spanning tree regularization for
        self-supervised learning, NeurIPS, arXiv 2510.23484. Reconstructed: the weights' scaling by B.
    """
    for name, value in (("length_weight", length_weight), ("sphere_weight", sphere_weight)):
        check_number(name, value, least=0)
    edges = spanning_tree(embedding)
    size = len(embedding)
    if size == 0:
        raise ValueError("A tree needs points, and there is none.")
    z = widened(embedding)
    length = _norm(z[edges[:, 0]] - z[edges[:, 1]]).sum()
    off = (_norm(z) - 1).square().sum()
    return (sphere_weight * off - length_weight * length) / size


def _norm(vectors: Tensor) -> Tensor:
    squared = vectors.square().sum(1)
    some = squared > 0
    return torch.where(some, torch.where(some, squared, 1.0).sqrt(), 0.0)


@numba.njit(cache=True)
def _prim(points: Any) -> Any:
    n, d = points.shape
    edges = np.zeros((max(n - 1, 0), 2), np.int64)
    nearest = np.full(n, np.inf)
    link = np.zeros(n, np.int64)
    inside = np.zeros(n, np.bool_)
    at = 0
    for e in range(n - 1):
        inside[at] = True
        best = -1
        for j in range(n):
            if inside[j]:
                continue
            distance = 0.0
            for k in range(d):
                distance += (points[at, k] - points[j, k]) ** 2
            if distance < nearest[j]:
                nearest[j] = distance
                link[j] = at
            if best < 0 or nearest[j] < nearest[best]:
                best = j
        edges[e, 0] = link[best]
        edges[e, 1] = best
        at = best
    return edges
