"""Exact nearest items by inner product, in bounded memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.ragged import Ragged

CHUNK_BYTES = 64 << 20


def top_k(queries: Tensor, items: Tensor, k: int, *, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
    """The `k` items with the largest inner product to each query, best first; ties by the lower row.

    Scores are made in blocks of at most 64 MiB of queries by items and merged, so the full matrix is
    never held.

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
    width = min(len(items), 1 << 16)
    height = max(1, CHUNK_BYTES // (4 * width))
    scores, rows = [torch.empty(0, k)], [torch.empty(0, k, dtype=torch.int64)]
    for start in range(0, len(queries), height):
        block = slice(start, min(start + height, len(queries)))
        out = None if exclude is None else exclude.take(torch.arange(block.start, block.stop))
        best, found = _block(queries[block], items, k, width, out)
        scores.append(best)
        rows.append(torch.where(best == -math.inf, -1, found))
    return torch.cat(scores), torch.cat(rows)


def _block(queries: Tensor, items: Tensor, k: int, width: int, out: Ragged | None) -> tuple[Tensor, Tensor]:
    best, found = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(items), width):
        scores = queries @ items[start : start + width].T
        if out is not None:
            inside = (out.values >= start) & (out.values < start + scores.shape[1])
            scores[out.row_index()[inside], out.values[inside] - start] = -math.inf
        top, where = _top(scores, min(k, scores.shape[1]))
        best, found = torch.cat([best, top], 1), torch.cat([found, where + start], 1)
    # A stable sort by score of candidates ordered by row breaks ties by the lower row.
    by_row = found.argsort(1)
    best, found = best.gather(1, by_row), found.gather(1, by_row)
    best, order = best.sort(dim=1, descending=True, stable=True)
    return best[:, :k], found.gather(1, order[:, :k])


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk` takes any of the items that tie for the last place; those rows are picked anew, lowest first."""
    best, where = scores.topk(k, dim=1)
    tied = (scores >= best[:, -1:]).sum(1) > k
    if bool(tied.any()):
        # Float bits that sort as integers, over the column counted backwards: one key, no two alike.
        bits = (scores[tied] + 0.0).view(torch.int32)
        ordered = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).long()
        keys = (ordered << 32) + (2**32 - 1 - torch.arange(scores.shape[1]))
        where[tied] = keys.topk(k, dim=1).indices
        best[tied] = scores[tied].gather(1, where[tied])
    return best, where
