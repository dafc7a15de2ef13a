"""Batches of many small clusters: each row meets its nearest ones, and the rest of the batch is varied."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.negatives.batches.packing import below, check_batch_size, in_random_order, of_sizes
from steelyard.negatives.lloyd import finite_matrix
from steelyard.ragged import Ragged
from steelyard.sampling.successive import draw_seeds, njit


def balanced_bisection(
    vectors: ArrayLike | Tensor, size: int, *, iterations: int = 8, generator: torch.Generator | None = None
) -> Ragged:
    """Cluster rows into groups of equal size, halving again and again by balanced 2-means.

        front <- the h rows with the largest x . (m_1 - m_2);   m_1, m_2 <- means of the front and of the rest
        h = size * ceil(g / 2),   g = ceil(rows / size)   clusters are left to make of these rows

    For given means this is the best split into parts of these sizes, and for a given split the means are
    best, so no iteration raises the sum of squares within the parts. The parts are whole multiples of `size`,
    so that every cluster but one has exactly that many rows. Takes O(n d log(n / size)) time an iteration and
    O(n) memory beside the vectors.

    Args:
        vectors: (n, d), finite; unit vectors for clusters by angle.
        size: rows of a cluster, 1 or more.
        iterations: of each split, at most; fewer where no row changes sides.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, one row a cluster, ceil(n / size) of them: all of `size` but the last, which has what is
        left. Clusters side by side came from the same parts.

    Raises:
        TypeError: a size or iterations that are not integers.
        ValueError: vectors that are not finite (n, d), a size or iterations below 1.

    Reference:
        Dahiya et al. (2023), NGAME: Negative mining-aware mini-batching for extreme classification, WSDM,
        arXiv 2207.04452 (balanced bisecting clustering). Parts in multiples of `size` in place of halves, and
        means that are not rescaled to unit length, are ours.
    """
    check_batch_size(size, "size")
    check_batch_size(iterations, "iterations")
    x = finite_matrix(vectors, "vectors").contiguous().numpy()
    order = torch.randperm(len(x), generator=generator)
    if size > 1:  # alone in its cluster a row has no neighbour to find
        _bisect(x, size, iterations, draw_seeds(generator, 1)[0, 0], order.numpy())
    offsets = torch.arange(-(-len(x) // size) + 1) * size
    return Ragged(offsets.clamp(max=len(x)), order)


def cluster_batches(clusters: Ragged, batch_size: int, *, generator: torch.Generator | None = None) -> Ragged:
    """An epoch of batches that are each a union of random clusters: NGAME.

    The negatives of a row are then what the others in its batch want, and those of its own cluster are hard.
    Clusters of one row make plain random batches. Embeddings move: cluster them again every few epochs, as
    `balanced_bisection` does, and shuffle the same clusters in the epochs between. Takes O(n).

    Args:
        clusters: row numbers, one row a cluster, each of 0 .. n - 1 once.
        batch_size: rows of a batch at most; a multiple of the size of the clusters fills every batch but
            one or two.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, one row a batch; each of the n once. A batch is closed where the next cluster would not
        fit, since clusters stay whole.

    Raises:
        TypeError: a batch size that is not an integer.
        ValueError: a batch size below 1 or below the largest cluster, clusters that do not hold each row
            once.

    Reference:
        Dahiya et al. (2023), NGAME: Negative mining-aware mini-batching for extreme classification, WSDM,
        arXiv 2207.04452.
    """
    check_batch_size(batch_size)
    counts, n = clusters.counts, len(clusters.values)
    if n and int(counts.max()) > batch_size:
        raise ValueError(
            f"batch_size must be at least the {int(counts.max())} rows of the largest cluster, got {batch_size}; "
            "cluster with a smaller size."
        )
    if n and not (int(clusters.values.min()) >= 0 and int(clusters.values.max()) < n):
        raise ValueError(f"Clusters of {n} rows must hold each of 0 .. {n - 1} once.")
    if bool((torch.bincount(clusters.values, minlength=n) != 1).any()):
        raise ValueError(f"Clusters of {n} rows must hold each of 0 .. {n - 1} once.")
    shuffled = in_random_order(clusters, generator)
    sizes = np.zeros(len(clusters), np.int64)
    used = _pack(shuffled.counts.numpy(), batch_size, sizes)
    return of_sizes(shuffled.values, torch.from_numpy(sizes[:used]))


@njit
def _pack(counts: Any, batch_size: int, sizes: Any) -> int:
    """Put whole clusters side by side until the next does not fit; how many batches that makes."""
    batch = -1
    for count in counts:
        if count == 0:
            continue
        if batch < 0 or sizes[batch] + count > batch_size:
            batch += 1
        sizes[batch] += count
    return batch + 1


@njit
def _bisect(x: Any, size: int, iterations: int, seed: Any, order: Any) -> None:
    """Order the rows so that each `size` of them are a cluster. Parts that wait are kept on a stack."""
    n, d = x.shape
    score, front = np.empty(n), np.zeros(n, np.bool_)
    direction, sums = np.empty(d), np.empty((2, d))
    stack = np.empty((128, 2), np.int64)  # parts at least halve in clusters: 64 deep would be 2^64 rows
    stack[0, 0], stack[0, 1] = 0, n
    waiting, counter = 1, 0
    while waiting > 0:
        waiting -= 1
        low, high = stack[waiting, 0], stack[waiting, 1]
        count = high - low
        if count <= size:
            continue
        middle = low + (-(-count // size) + 1) // 2 * size
        one = below(seed, counter, count)
        two = (one + 1 + below(seed, counter + 1, count - 1)) % count
        counter += 2
        for j in range(d):
            direction[j] = x[order[low + one], j] - x[order[low + two], j]
        for turn in range(iterations):
            _project(x, direction, order, low, high, score)
            _largest_first(order, score, low, high, middle)
            changed = turn == 0
            sums[:] = 0.0
            for i in range(low, high):
                row, part = order[i], 0 if i < middle else 1
                changed = changed or front[row] != (part == 0)
                front[row] = part == 0
                for j in range(d):
                    sums[part, j] += x[row, j]
            if not changed:
                break
            for j in range(d):
                direction[j] = sums[0, j] / (middle - low) - sums[1, j] / (high - middle)
        stack[waiting, 0], stack[waiting, 1] = middle, high
        stack[waiting + 1, 0], stack[waiting + 1, 1] = low, middle
        waiting += 2


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # or the sum is no vector sum
def _project(x: Any, direction: Any, order: Any, low: int, high: int, score: Any) -> None:
    for i in range(low, high):
        row, total = order[i], 0.0
        for j in range(len(direction)):
            total += x[row, j] * direction[j]
        score[i] = total


@njit
def _largest_first(order: Any, score: Any, low: int, high: int, middle: int) -> None:
    """Move the rows of the largest scores before `middle`: quickselect, equal scores set apart at once."""
    high -= 1
    while low < high:
        a, b, c = score[low], score[(low + high) // 2], score[high]
        pivot = max(min(a, b), min(max(a, b), c))
        above, i, under = low, low, high
        while i <= under:
            if score[i] > pivot:
                _swap(order, score, i, above)
                above += 1
                i += 1
            elif score[i] < pivot:
                _swap(order, score, i, under)
                under -= 1
            else:
                i += 1
        if middle < above:
            high = above - 1
        elif middle > under + 1:
            low = under + 1
        else:
            return


@njit
def _swap(order: Any, score: Any, i: int, j: int) -> None:
    order[i], order[j] = order[j], order[i]
    score[i], score[j] = score[j], score[i]
