"""Exact nearest items by inner product, in bounded memory."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.sampling.successive import select

CHUNK_BYTES = 16 << 20
WIDTH = 8192
LANES = 32


def top_k(queries: Tensor, items: Tensor, k: int, *, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
    """The `k` items with the largest inner product to each query, best first; ties by the lower row.

    Scores are made in blocks that stay in cache, and only those above a query's k-th best so far leave the
    block: O(n I d) multiplications, one look at each score, and no sort but of k items. Memory: a block of
    16 MiB and O(k) a query of it.

    Args:
        queries: float, (n, d).
        items: float, (I, d).
        k: how many; at most I are found.
        exclude: items to leave out, one row a query.

    Returns:
        Scores, (n, min(k, I)), and item rows, int64; where fewer items are left than asked, the rest
        has score -inf and row -1.

    Raises:
        ValueError: `k` below 1, no items, or `exclude` with another number of rows.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    if len(items) == 0:
        raise ValueError("There is no item to find.")
    if exclude is not None and len(exclude) != len(queries):
        raise ValueError(f"exclude has {len(exclude)} rows for {len(queries)} queries.")
    k = min(k, len(items))
    queries, items = queries.detach().float(), items.detach().float()
    scores = torch.full((len(queries), k), -math.inf)
    rows = torch.full((len(queries), k), -1, dtype=torch.int64)
    width = min(len(items), WIDTH)
    height = max(1, min(len(queries), CHUNK_BYTES // (4 * width)))
    room = 2 * k + 2 * LANES
    buffer = torch.empty(height, width)
    found = np.empty((height, room), np.float32), np.empty((height, room), np.int32)
    for start in range(0, len(queries), height):
        block = slice(start, min(start + height, len(queries)))
        n = block.stop - start
        out = None if exclude is None else exclude.take(torch.arange(start, block.stop))
        out_row = None if out is None else out.row_index()
        count = np.zeros(n, np.int64)
        limit = np.full(n, -np.inf, np.float32)
        for first in range(0, len(items), width):
            chunk = items[first : first + width]
            made = torch.mm(queries[block], chunk.T, out=buffer[:n, : len(chunk)])
            if out is not None and out_row is not None:
                inside = (out.values >= first) & (out.values < first + len(chunk))
                made[out_row[inside], out.values[inside] - first] = -math.inf
            _keep_above(made.numpy(), first, k, *found, count, limit)
        _finish(k, *found, count, scores[block].numpy(), rows[block].numpy())
    return scores, rows


@numba.njit(cache=True, parallel=True, fastmath={"nnan"})
def _keep_above(scores: Any, first: int, k: int, best: Any, ids: Any, count: Any, limit: Any) -> None:
    """Append the scores of a chunk that exceed a row's limit; when its room is full, keep the k best."""
    n, width = scores.shape
    for b in numba.prange(n):
        row, bar, held = scores[b], limit[b], count[b]
        for start in range(0, width, LANES):
            stop = min(start + LANES, width)
            top = row[start]
            for j in range(start + 1, stop):
                top = max(top, row[j])
            if top <= bar:
                continue
            for j in range(start, stop):
                if row[j] > bar:
                    best[b, held], ids[b, held] = row[j], first + j
                    held += 1
            if held > best.shape[1] - LANES:
                bar = _compact(best[b], ids[b], held, k)
                held = k
        count[b], limit[b] = held, bar


@numba.njit(cache=True)
def _compact(best: Any, ids: Any, held: int, k: int) -> Any:
    """Move the k best to the front, the earlier of equal ones; gives the least of them."""
    bar = select(best[:held].copy(), held - k)
    above = 0
    for j in range(held):
        above += best[j] > bar
    equal, at = k - above, 0
    for j in range(held):
        if best[j] > bar or (best[j] == bar and equal > 0):
            equal -= best[j] == bar
            best[at], ids[at] = best[j], ids[j]
            at += 1
    return bar


@numba.njit(cache=True, parallel=True)
def _finish(k: int, best: Any, ids: Any, count: Any, scores: Any, rows: Any) -> None:
    for b in numba.prange(len(count)):
        held = count[b]
        if held > k:
            _compact(best[b], ids[b], held, k)
            held = k
        # Entries stand in the order of their rows, and a stable sort keeps it among equals.
        order = np.argsort(-best[b, :held], kind="mergesort")
        for j in range(held):
            scores[b, j], rows[b, j] = best[b, order[j]], ids[b, order[j]]
