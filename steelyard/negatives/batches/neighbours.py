"""Batches around anchors: each brings its neighbours, on the map at first and by similarity later."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.negatives.batches.packing import as_labels, below, check_batch_size, of_sizes
from steelyard.negatives.lloyd import finite_matrix
from steelyard.ragged import Ragged
from steelyard.sampling.successive import draw_seeds, njit

CHUNK = 2**24  # similarities held at once


def neighbour_batches(
    neighbours: ArrayLike | Tensor,
    batch_size: int,
    select: int,
    *,
    location: ArrayLike | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Ragged:
    """An epoch of batches of anchors with their neighbours: the sampling of Sample4Geo.

        anchor:  the next row in random order that is not used yet
        with it: the floor(select / 2) nearest of its neighbours, and as many of the others at random
                 as far as they are not used yet and their location is not in the batch

    Give geographic neighbours in the first epochs (`great_circle_neighbours`), which need no model, and the
    most similar rows afterwards (`similar_neighbours`), found anew every few epochs. Random ones among the
    near keep a pair of rows from meeting in every epoch. Rows of one location would be false negatives of
    each other: a row that is next while its location is in the batch waits for a later one. None is lost, so
    that batches at the end may be short where a location has many rows. Takes O(n K) time and O(n) memory
    beside the neighbours.

    Args:
        neighbours: int64, (n, K): for each row K others, the nearest first; -1 where there are fewer.
        batch_size: rows of a batch.
        select: how many neighbours an anchor brings at most, 0 to K; the paper has 64 of 128.
        location: int, (n,): rows of one location share a number; each its own where None.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, one row a batch in the order of training; each of the n once.

    Raises:
        TypeError: numbers or tensors that are not integers.
        ValueError: neighbours that are not (n, K), or outside -1 .. n - 1; a batch size below 1; `select`
            outside 0 to K; a location not for each row.

    Reference:
        Deuser, Habel and Oswald (2023), Sample4Geo: Hard negative sampling for cross-view geo-localisation,
        ICCV, arXiv 2303.11851, and its code. Rows that wait in place of rows left out are ours.
    """
    check_batch_size(batch_size)
    table = torch.as_tensor(neighbours).detach()
    if table.is_floating_point() or table.dtype == torch.bool:
        raise TypeError(f"neighbours must be integers, got {table.dtype}.")
    if table.ndim != 2:
        raise ValueError(f"neighbours must be (n, K), got {tuple(table.shape)}.")
    n, width = table.shape
    if table.numel() and not (int(table.min()) >= -1 and int(table.max()) < n):
        raise ValueError(
            f"neighbours must lie in -1 .. {n - 1}, got {int(table.min())} to {int(table.max())}."
        )
    if select != 0:
        check_batch_size(select, "select")
    if select > width:
        raise ValueError(f"select must be at most the {width} neighbours given, got {select}.")
    place = torch.arange(n)
    if location is not None:
        place = torch.unique(as_labels(location, "location"), return_inverse=True)[1]
    if len(place) != n:
        raise ValueError(f"Give a location for each of the {n} rows, got {len(place)}.")
    order = torch.randperm(n, generator=generator)
    rows, sizes = np.empty(n, np.int64), np.zeros(n, np.int64)
    seed = draw_seeds(generator, 1)[0, 0]
    used = _gather_around(
        table.contiguous().numpy(), order.numpy(), place.numpy(), batch_size, select // 2, seed, rows, sizes
    )
    return of_sizes(torch.from_numpy(rows), torch.from_numpy(sizes[:used]))


def great_circle_neighbours(
    latitude: ArrayLike | Tensor, longitude: ArrayLike | Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k nearest other places of each place on the globe, across the poles and the date line too.

        angle = 2 arcsin(chord / 2),   chord = the distance of the unit vectors

    The chord rises with the angle, so a tree over points in space finds them exactly, in about O(n log n),
    and keeps the digits of near ones, which the cosine loses.

    Args:
        latitude: (n,), degrees in -90 .. 90.
        longitude: (n,), degrees, any turn.
        k: how many, 1 to n - 1.

    Returns:
        int64 (n, k), the nearest first, and their angles in radians, float64; times 6371 for kilometres.

    Raises:
        TypeError: `k` is not an integer.
        ValueError: places that are not finite (n,), a latitude outside its range, `k` outside 1 to n - 1.

    Reference:
        Deuser, Habel and Oswald (2023), Sample4Geo, ICCV, arXiv 2303.11851 (neighbours by great-circle
        distance).
    """
    from scipy.spatial import cKDTree

    check_batch_size(k, "k")
    lat, lon = (torch.as_tensor(a).detach().double() for a in (latitude, longitude))
    if lat.ndim != 1 or lat.shape != lon.shape:
        raise ValueError(
            f"Latitude and longitude must be (n,), got {tuple(lat.shape)} and {tuple(lon.shape)}."
        )
    if not bool((lat.isfinite() & lon.isfinite() & (lat.abs() <= 90)).all()):
        raise ValueError(
            "Places must be finite, with a latitude in -90 .. 90 degrees; are the two exchanged?"
        )
    if k >= len(lat):
        raise ValueError(f"k must be at most the {len(lat) - 1} other places, got {k}.")
    lat, lon = lat.deg2rad(), lon.deg2rad()
    points = torch.stack([lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()], 1).numpy()
    chord, found = cKDTree(points).query(points, k + 1)
    ids, angle = torch.from_numpy(found).long(), 2 * (torch.from_numpy(chord) / 2).clamp(max=1).arcsin()
    own = ids == torch.arange(len(ids)).unsqueeze(1)
    own[:, -1] |= ~own.any(1)  # among many of one place it may not have found itself: then the last goes
    return ids[~own].view(-1, k), angle[~own].view(-1, k)


def similar_neighbours(query: ArrayLike | Tensor, reference: ArrayLike | Tensor, k: int) -> Tensor:
    """The k references most similar to each query, its own left out, by inner product.

    Takes O(n^2 d) time in chunks; for many millions of rows give `neighbour_batches` what an index finds.

    Args:
        query: (n, d), finite, unit vectors for cosines: one view of each row.
        reference: (n, d), finite: the other view of each row, in the same order.
        k: how many, 1 to n - 1.

    Returns:
        int64, (n, k), the most similar first.

    Raises:
        TypeError: `k` is not an integer.
        ValueError: views that are not finite or differ in shape, `k` outside 1 to n - 1.

    Reference:
        Deuser, Habel and Oswald (2023), Sample4Geo, ICCV, arXiv 2303.11851 (dynamic similarity sampling).
    """
    check_batch_size(k, "k")
    one, other = finite_matrix(query, "query"), finite_matrix(reference, "reference")
    if one.shape != other.shape:
        raise ValueError(f"Both views must have one shape, got {tuple(one.shape)} and {tuple(other.shape)}.")
    n = len(one)
    if k >= n:
        raise ValueError(f"k must be at most the {n - 1} other rows, got {k}.")
    found = torch.empty(n, k, dtype=torch.int64)
    step = max(1, CHUNK // n)
    for low in range(0, n, step):
        score = one[low : low + step].to(other.dtype) @ other.T
        rows = torch.arange(len(score))
        score[rows, rows + low] = -math.inf
        found[low : low + step] = score.topk(k, 1).indices
    return found


@njit
def _gather_around(
    neighbours: Any, order: Any, place: Any, batch_size: int, half: int, seed: Any, rows: Any, sizes: Any
) -> int:
    """Fill batches; how many there are.

    A row whose place is taken waits in the list of that place. When a batch closes, one row of each of its
    places is free to come, and only one, since the next batch could hold no two. It can be sent back only by
    a row of the same place, so that each turn is paid for by a row that found its batch.
    """
    n, width = neighbours.shape
    used = np.zeros(n, np.bool_)
    seen = np.full(n, -1, np.int64)  # the last batch that holds a place
    waiting, following = np.full(n, -1, np.int64), np.empty(n, np.int64)
    ready, n_ready = np.empty(n, np.int64), 0
    near = np.empty(width, np.int64)
    done, batch, first, at, counter = 0, 0, 0, 0, 0
    while done < n:
        row = -1
        if n_ready > 0:
            n_ready -= 1
            row = ready[n_ready]
        elif at < n:
            row = order[at]
            at += 1
        if row >= 0 and not used[row] and seen[place[row]] == batch:
            following[row], waiting[place[row]] = waiting[place[row]], row
        elif row >= 0 and not used[row]:
            used[row], seen[place[row]], rows[done] = True, batch, row
            done += 1
            near[:] = neighbours[row]
            for i in range(min(2 * half, width)):
                if i >= half:
                    other = i + below(seed, counter, width - i)
                    counter += 1
                    near[i], near[other] = near[other], near[i]
                if done - first == batch_size:
                    break
                if near[i] >= 0 and not used[near[i]] and seen[place[near[i]]] != batch:
                    used[near[i]], seen[place[near[i]]], rows[done] = True, batch, near[i]
                    done += 1
        if done - first == batch_size or done == n or (n_ready == 0 and at == n):
            sizes[batch] = done - first
            for i in range(first, done):
                free = waiting[place[rows[i]]]
                while free >= 0 and used[free]:
                    free = following[free]
                if free >= 0:
                    waiting[place[rows[i]]] = following[free]
                    ready[n_ready] = free
                    n_ready += 1
                else:
                    waiting[place[rows[i]]] = -1
            batch += 1
            first = done
    return batch
