"""Non-edges that are surely none: nodes far, in the fuzzy rough sense, from each other's neighbours."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.negatives.hard.asked import all_finite, check_count


def fuzzy_similarity(features: Any) -> Tensor:
    """Fuzzy tolerance of nodes: the worst agreement over their features.

        R(u, v) = min_f ( 1 - |x_uf - x_vf| / range_f )

    Reflexive and symmetric, in [0, 1]; features of two values make it equality of all. A constant feature
    agrees always. Features are gone through one by one: memory is V^2.

    Args:
        features: float, (V, F), finite.

    Returns:
        float, (V, V), without gradient; all ones without features.

    Raises:
        TypeError: features that are not floating point.
        ValueError: another shape, or features that are not finite.

    Reference:
        Jensen & Shen (2009), New approaches to fuzzy-rough feature selection, IEEE TFS 17(4).
    """
    x = all_finite("features", features).detach()
    if x.ndim != 2:
        raise ValueError(f"features must be (V, F), got {tuple(x.shape)}.")
    similarity = x.new_ones(len(x), len(x))
    for column in x.T if len(x) else ():
        reach = column.max() - column.min()
        if reach > 0:
            torch.minimum(similarity, 1 - (column.unsqueeze(1) - column).abs() / reach, out=similarity)
    return similarity


def fuzzy_rough_negatives(similarity: Any, edges: Any, n: int, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """The n non-edges of highest quality: whose ends most surely do not belong together.

        q(u, v) = share low(u, v) + (1 - share) low(v, u)
        low(u, v) = min over neighbours w of v of  1 - R(u, w)        (1 where v has none)

    low is the fuzzy lower approximation of "not linked to v" at u: how surely nothing like u is linked to v.
    What it does to the softmax: the best are taken with certainty and weigh nothing else, so a loss over them
    estimates no sum over the non-edges; that they are easy rather than hard keeps missing links out.

    Args:
        similarity: float, (V, V), in [0, 1], symmetric (`fuzzy_similarity`).
        edges: int64, (2, E), taken as undirected; repeats and both directions do no harm.
        n: how many non-edges.
        share: of the first direction for u < v, in [0, 1].

    Returns:
        Pairs, int64, (m, 2) with u < v, the best first, m = min(n, number of non-edges); and their qualities,
        (m,).

    Raises:
        TypeError: similarities that are not floating point, edges that are not int64.
        ValueError: shapes that do not fit, similarities outside [0, 1], nodes out of range, a negative `n`, a
            share outside [0, 1].

    Reference:
        Xing, Xing, Xue & Luo (2025), Enhancing link prediction with fuzzy graph attention networks and
        dynamic negative sampling (FGAT), arXiv 2411.07482; the decision class "not linked to v" is
        reconstructed.
    """
    check_count("n", n, 0)
    r, e = all_finite("similarity", similarity).detach(), torch.as_tensor(edges)
    nodes = len(r)
    if r.shape != (nodes, nodes) or (r.numel() and not (float(r.min()) >= 0 and float(r.max()) <= 1)):
        raise ValueError(f"similarity must be (V, V) in [0, 1], got {tuple(r.shape)}.")
    if e.dtype != torch.int64:
        raise TypeError(f"edges must be int64, got {e.dtype}.")
    if e.ndim != 2 or len(e) != 2 or (e.numel() and not (int(e.min()) >= 0 and int(e.max()) < nodes)):
        raise ValueError(f"edges must be (2, E) of nodes in [0, {nodes}), got {tuple(e.shape)}.")
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in [0, 1], got {share}.")
    linked = torch.zeros(nodes, nodes, dtype=torch.bool)
    linked[e[0], e[1]] = linked[e[1], e[0]] = True
    low = r.new_ones(nodes, nodes)
    for v in range(nodes):
        neighbours = linked[v].nonzero().squeeze(1)
        if len(neighbours):
            low[:, v] = 1 - r[:, neighbours].amax(1)
    upper = torch.ones_like(linked).triu(1) & ~linked
    quality = (share * low + (1 - share) * low.T).masked_fill(~upper, -math.inf).flatten()
    best, place = quality.topk(min(n, int(upper.sum())))
    return torch.stack([place // max(nodes, 1), place % max(nodes, 1)], 1), best
