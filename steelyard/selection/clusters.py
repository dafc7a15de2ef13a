"""Selection by clusters: a tree of centroids cut evenly from the top, and cluster weights learnt round by round."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.lloyd import finite_matrix, lloyd
from steelyard.sampling.successive import without_replacement
from steelyard.selection.designs import quotas


def hierarchical_kmeans(
    vectors: ArrayLike | Tensor,
    sizes: Sequence[int],
    *,
    resamplings: int = 2,
    nearest: int = 3,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Cluster rows, then the centroids, then theirs, so that upper levels know density less and less.

        level 1: k-means of the rows;  level t: k-means of the centroids of level t - 1
        after each: take the `nearest` members closest to every centroid, k-means of those, reassign; repeat

    Plain k-means puts many centroids where rows are many. Centroids of centroids, refitted on as many members of
    each cluster, come closer to an even cover of the region that the rows fill.

    Args:
        vectors: (n, d), finite.
        sizes: clusters of each level, descending, the first at most n.
        resamplings: how often each level is refitted.
        nearest: members of each cluster that a refit looks at.
        generator: source of randomness of the seeding.

    Returns:
        One tensor a level, int64: the cluster of each row, then the cluster of each cluster of the level before.

    Raises:
        ValueError: sizes that do not descend or exceed the rows; no resample members; vectors that are not finite.

    Reference:
        Vo, Khalidov, Darcet, Moutakanni, Smetanin, Szafraniec, Touvron, Couprie, Oquab, Joulin, Jégou, Labatut
        and Bojanowski (2024), Automatic data curation for self-supervised learning: a clustering-based approach,
        arXiv 2405.15613.
    """
    points = finite_matrix(vectors, "vectors")
    bounds = [len(points), *map(operator.index, sizes)]
    if len(bounds) < 2 or any(not 1 <= b <= a for a, b in itertools.pairwise(bounds)):
        raise ValueError(
            f"sizes must descend from at most the {len(points)} rows to at least 1, got {list(sizes)}."
        )
    if nearest < 1 or resamplings < 0:
        raise ValueError(
            f"nearest must be at least 1 and resamplings not negative, got {nearest}, {resamplings}."
        )
    levels = []
    for k in bounds[1:]:
        centroids, assignment = lloyd(points, k, generator=generator)
        for _ in range(resamplings):
            distance = (points - centroids[assignment]).square().sum(1)
            order = torch.argsort(distance, stable=True)
            order = order[torch.argsort(assignment[order], stable=True)]
            counts = torch.bincount(assignment, minlength=k)
            place = torch.arange(len(points)) - (counts.cumsum(0) - counts)[assignment[order]]
            sample = points[order[place < nearest]]
            if len(sample) < k:
                break
            centroids, _ = lloyd(sample, k, generator=generator)
            assignment = _nearest_rows(points, centroids)
        levels.append(assignment)
        points = centroids
    return levels


def _nearest_rows(points: Tensor, centroids: Tensor) -> Tensor:
    half = centroids.square().sum(1) / 2
    found = [
        (part @ centroids.T - half).argmax(1) for part in torch.split(points, max(1, 2**22 // len(centroids)))
    ]
    return torch.cat(found)


def balanced_draw(levels: Sequence[Tensor], n: int, *, generator: torch.Generator | None = None) -> Draws:
    """Draw n rows from a tree of clusters, each branch as many as its siblings where it has them.

        at every node: shares n_c of its budget with  n_c = min(m, size_c),  m such that they sum to the budget

    Among siblings the rest of a division goes to a random one. Within a cluster of the lowest level rows are drawn
    evenly without replacement: a row's inclusion probability given the shares is `n_c / size_c`.

    Args:
        levels: as `hierarchical_kmeans` gave them; one level alone is balanced cluster sampling.
        n: rows to draw, at most as many as there are.
        generator: source of randomness.

    Returns:
        Draws with ids (n,), ascending.

    Raises:
        ValueError: no level, or more rows wanted than there are.

    Reference:
        Vo et al. (2024), arXiv 2405.15613, section 3.3.
    """
    if not len(levels):
        raise ValueError("There is no level of clusters.")
    rows = len(levels[0])
    if not 0 <= n <= rows:
        raise ValueError(f"n must lie between 0 and the {rows} rows, got {n}.")
    shares = np.array([n])
    parents = [*levels[1:], torch.zeros(int(levels[-1].max()) + 1, dtype=torch.int64)]
    sizes = [torch.bincount(levels[0], minlength=len(parents[0])).numpy()]
    for level in levels[1:]:
        sizes.append(np.bincount(level.numpy(), sizes[-1], minlength=int(level.max()) + 1).astype(np.int64))
    for parent, size in zip(reversed(parents), reversed(sizes), strict=True):
        below = np.zeros(len(size), np.int64)
        for node in np.flatnonzero(shares):
            members = np.flatnonzero(parent.numpy() == node)
            members = members[torch.randperm(len(members), generator=generator).numpy()]
            below[members] = quotas(size[members], int(shares[node]))
        shares = below
    budget = torch.from_numpy(shares)
    order = torch.randperm(rows, generator=generator)
    order = order[torch.argsort(levels[0][order], stable=True)]
    first = torch.from_numpy(sizes[0]).cumsum(0) - torch.from_numpy(sizes[0])
    place = torch.arange(rows) - first[levels[0][order]]
    ids = order[place < budget[levels[0][order]]].sort().values
    log_chance = budget.double().log() - torch.from_numpy(sizes[0]).double().log()
    return Draws(ids, log_chance[levels[0][ids]], lambda asked: log_chance[levels[0][asked]])


def refined_clusters(
    clusters: ArrayLike | Tensor,
    n: int,
    gain: Callable[[Tensor], ArrayLike | Tensor],
    *,
    rounds: int = 3,
    log_quality: ArrayLike | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Select rows in rounds, and give more of the next round to clusters whose rows proved useful.

        round t: n / rounds rows, by cluster in proportion to w_c, within it without replacement by quality
        s_c = mean gain of the rows just drawn from c;   w_c <- w_c s_c / sum w s

    The weights of clusters from which nothing was drawn stay as they are before they are normalised, their score
    being the mean of the others.

    Args:
        clusters: cluster of each row, int64 (N,), as `steelyard.negatives` or k-means gives.
        n: rows in all, at most N.
        gain: called with the ids of each round's rows, returns how useful each was, not negative: in the paper
            what a model trained on the rows so far leaves to learn, by a reward model.
        rounds: how many, at least 1.
        log_quality: log-weights of the rows within their cluster, (N,); all alike where None.
        generator: source of randomness.

    Returns:
        Ids in the order of selection, (n,), and the final weights of the clusters, (C,), which sum to 1.

    Raises:
        ValueError: more rows wanted than there are, gains that are negative or not finite, no round.

    Reference:
        Yu, Chen, Ahmadian and Fadaee (2024), Diversify and conquer: diversity-centric data selection with
        iterative refinement, arXiv 2409.11378. Reconstructed from its abstract and description.
    """
    labels = torch.as_tensor(clusters).long()
    total = len(labels)
    if not 0 <= n <= total or rounds < 1:
        raise ValueError(
            f"n must lie between 0 and the {total} rows and rounds be at least 1, got {n}, {rounds}."
        )
    quality = torch.zeros(total) if log_quality is None else torch.as_tensor(log_quality)
    left = torch.ones(total, dtype=torch.bool)
    counts = torch.bincount(labels).double()
    weight = (counts > 0).double() / (counts > 0).sum().clamp(min=1)
    chosen: list[Tensor] = []
    for budget in [n // rounds + (t < n % rounds) for t in range(rounds)]:
        remaining = torch.bincount(labels[left], minlength=len(weight))
        share = _shares(weight, remaining, budget)
        drawn = []
        for c in share.nonzero().squeeze(1):
            rows = (left & (labels == c)).nonzero().squeeze(1)
            picked = without_replacement(quality[rows].double(), int(share[c]), generator=generator).ids
            drawn.append(rows[picked])
        ids = torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.int64)
        left[ids] = False
        chosen.append(ids)
        if not len(ids):
            continue
        gained = torch.as_tensor(gain(ids)).double()
        if gained.shape != ids.shape or not bool((torch.isfinite(gained) & (gained >= 0)).all()):
            raise ValueError(f"gain must return {len(ids)} finite numbers of at least 0, got {gained}.")
        drawn_from = torch.bincount(labels[ids], minlength=len(weight))
        score = torch.zeros_like(weight).index_add_(0, labels[ids], gained) / drawn_from.clamp(min=1)
        score[drawn_from == 0] = gained.mean()
        weight = weight * score
        if not bool(weight.sum() > 0):
            raise ValueError("All gains are 0: no cluster is worth another round.")
        weight = weight / weight.sum()
    return torch.cat(chosen), weight


def _shares(weight: Tensor, available: Tensor, budget: int) -> Tensor:
    """Whole numbers that sum to a budget, in proportion to weights, none above what is available.

    What weighty clusters have not goes to the others in proportion; last of all to those without weight.
    """
    share = torch.zeros_like(available)
    while (rest := budget - int(share.sum())) > 0:
        open_ = share < available
        w = torch.where(open_, weight, 0.0)
        w = w if bool(w.sum() > 0) else open_.double()
        ideal = rest * w / w.sum()
        whole = ideal.floor().long()
        missing = rest - int(whole.sum())
        whole[torch.argsort(whole - ideal, stable=True)[:missing]] += 1
        share = torch.minimum(share + whole, available)
    return share
