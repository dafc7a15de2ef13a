"""Farthest-point selection: rows that cover the data with a small radius."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.sampling.kmeans_plus_plus import centered_rows, squared_distance
from steelyard.sampling.successive import njit


def farthest_point(
    x: ArrayLike | Tensor, k: int, *, first: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Choose k rows greedily, each the farthest from those chosen before.

        next = argmax_i min_{c in chosen} |x_i - c|,    the lowest row number where several are as far

    The largest distance of a row to its nearest chosen one is at most twice the least that any k rows reach.
    A distance measured against the first few rows is an upper bound once more are chosen, so the bounds stand
    in a heap and only those at its top are brought up to date: the same rows as by k passes over the data,
    commonly after a small part of their distances. Takes O(nd) memory and O(n d) time at best, O(n k d) at worst.

    After the first row nothing is random and the law of the set is unknown: these are plain row numbers, not
    `Draws`; do not weigh by them. Outliers come first: it covers the data, it does not represent them.

    Args:
        x: (n, d), finite. float64 stays float64; other floats are computed in float32, integers in float64.
        k: number of rows, 1 to n.
        first: the row to start with; uniform where None.
        generator: source of randomness for the first row; torch's own where None.

    Returns:
        Row numbers in the order in which they were chosen, int64, (k,), each once. Where x has fewer than k
        distinct rows, copies follow in the order of their numbers.

    Raises:
        ValueError: not two-dimensional, not finite, k outside 1 to n or `first` outside 0 to n - 1.
        TypeError: k or `first` is no integer.

    Reference:
        Gonzalez (1985), Clustering to minimize the maximum intercluster distance, Theoretical Computer
        Science 38. The heap of outdated bounds is ours.
    """
    k = operator.index(k)
    rows = centered_rows(x, k)
    if first is None:
        first = int(torch.randint(len(rows), (1,), generator=generator))
    first = operator.index(first)
    if not 0 <= first < len(rows):
        raise ValueError(f"first must be a row number from 0 to {len(rows) - 1}, got {first}.")
    return torch.from_numpy(_traverse(rows, k, first))


@njit
def _traverse(x: NDArray[Any], k: int, first: int) -> Any:
    n = len(x)
    chosen = np.empty(k, np.int64)
    chosen[0] = first
    far = np.empty(n, x.dtype)
    for i in range(n):
        far[i] = squared_distance(x[i], x[first])
    known = np.ones(n, np.int64)  # how many of the chosen rows `far` accounts for
    heap = np.delete(np.arange(n), first)
    size = n - 1
    for root in range(size // 2 - 1, -1, -1):
        _sift(heap, far, root, size)
    for t in range(1, k):
        top = heap[0]
        while known[top] < t:
            # The newest first: it is the likeliest to be near to what was the farthest.
            for c in range(t - 1, known[top] - 1, -1):
                far[top] = min(far[top], squared_distance(x[top], x[chosen[c]]))
            known[top] = t
            _sift(heap, far, 0, size)
            top = heap[0]
        chosen[t] = top
        size -= 1
        heap[0] = heap[size]
        _sift(heap, far, 0, size)
    return chosen


@njit
def _sift(heap: NDArray[np.int64], far: NDArray[Any], root: int, size: int) -> None:
    """Let the entry at `root` sink below all that are farther, or as far with a lower number."""
    i = heap[root]
    while 2 * root + 1 < size:
        child = 2 * root + 1
        j = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if far[other] > far[j] or (far[other] == far[j] and other < j):
                child, j = child + 1, other
        if far[i] > far[j] or (far[i] == far[j] and i < j):
            break
        heap[root] = j
        root = child
    heap[root] = i
