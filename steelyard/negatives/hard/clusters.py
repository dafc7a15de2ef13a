"""Corrupt a triple with an entity of the same cluster: negatives that are alike, drawn by a known law."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.context import Context
from steelyard.negatives.uniform import known_before
from steelyard.ragged import Ragged


def same_cluster_corruption(
    cluster: Any,
    entity: Any,
    known: Ragged,
    n: int,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Draws, Tensor]:
    """Replace the entity of each triple by others of its own cluster that make no known triple.

        q_b(j) = 1 / |C_b|      C_b = { j : cluster_j = cluster_{e_b} } minus known_b

    drawn with replacement. A triple whose cluster holds nothing else falls back to all entities but the known
    ones. Clusters of text embeddings give negatives of the right type, which random ones seldom are. With one
    cluster it is uniform corruption. What it does to the softmax: weighed by `log_expected`, the draws
    estimate the sum over the cluster, a lower bound of the one over everything; mix with a uniform proposal
    for that.

    Args:
        cluster: int64, (E,): the cluster of each entity.
        entity: int64, (B,): the one to replace in each triple.
        known: B rows, sorted: the entities that in its place make a known triple; the entity itself need not
            be among them, and is never drawn.
        n: how many for each triple.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws per triple, ids (B, n), empty where every entity is known; and which triples fell back, bool,
        (B,).

    Raises:
        TypeError: clusters or entities that are not int64, an `n` that is no integer.
        ValueError: shapes that do not fit, entities outside the clusters, a negative `n`.

    Reference:
        Rony, Alam, Ali, Lehmann & Vahdati (2022), LEMON: language model for negative sampling of knowledge
        graph embeddings, arXiv 2203.04703; uniform within a cluster is reconstructed, its probabilities and
        the way out are ours.
    """
    check_number(n)
    of_entity, true = _checked(cluster, entity, known)
    size = len(of_entity)
    rows = torch.arange(len(true))
    wanted = Ragged.from_pairs(
        torch.cat([known.row_index(), rows]), torch.cat([known.values, true]), len(true)
    )
    # Place of each entity among those of its cluster, and where the cluster starts in the order by cluster.
    order = torch.argsort(of_entity, stable=True)
    members = torch.bincount(of_entity, minlength=1)
    start = members.cumsum(0) - members
    rank = torch.empty_like(order)
    rank[order] = torch.arange(size) - start[of_entity[order]]

    own = of_entity[true]
    owner = wanted.row_index()
    alike = of_entity[wanted.values] == own[owner]
    left = members[own] - torch.bincount(owner[alike], minlength=len(true))
    fell_back = left == 0
    left = torch.where(fell_back, size - wanted.counts, left)
    taken = alike | fell_back[owner]
    place = torch.where(fell_back[owner], wanted.values, rank[wanted.values])
    out = Ragged.from_pairs(owner[taken], place[taken], len(true))

    u = torch.rand(len(true), n, generator=generator, dtype=torch.float64)
    r = torch.minimum((u * left.unsqueeze(1)).long(), (left - 1).clamp(min=0).unsqueeze(1))
    r = r + known_before(out, r, size)
    empty = (left == 0).unsqueeze(1)
    first = start[own].unsqueeze(1)
    ids = torch.where(fell_back.unsqueeze(1), r.clamp(max=size - 1), order[(first + r).clamp(max=size - 1)])
    log_left = left.double().log()
    value = ((math.log(n) if n else -math.inf) - log_left).unsqueeze(1)

    def design(asked: Tensor) -> Tensor:
        asked = asked.expand(len(true), asked.shape[-1])
        within = asked.clamp(0, size - 1)
        reach = (of_entity[within] == own.unsqueeze(1)) | fell_back.unsqueeze(1)
        hit = Context(true, wanted).mask(within)
        return torch.where(inside(asked, size) & reach & ~hit, value, -math.inf)

    drawn = value.masked_fill(empty, math.inf).expand(-1, n)
    return Draws(ids.masked_fill(empty, 0), drawn, design), fell_back


def _checked(cluster: Any, entity: Any, known: Ragged) -> tuple[Tensor, Tensor]:
    of_entity, true = torch.as_tensor(cluster), torch.as_tensor(entity)
    for name, ids in (("cluster", of_entity), ("entity", true)):
        if ids.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {ids.dtype}.")
        if ids.ndim != 1:
            raise ValueError(f"{name} must have one dimension, got {tuple(ids.shape)}.")
    if len(known) != len(true):
        raise ValueError(f"known has {len(known)} rows for {len(true)} triples.")
    if len(of_entity) == 0:
        raise ValueError("There are no entities: cluster is empty.")
    if int(of_entity.min()) < 0:
        raise ValueError(f"Clusters are numbered from 0, got {int(of_entity.min())}.")
    for name, ids in (("entity", true), ("known", known.values)):
        if not bool(inside(ids, len(of_entity)).all()):
            raise ValueError(f"{name} must lie in [0, {len(of_entity)}), the entities that have a cluster.")
    return of_entity, true
