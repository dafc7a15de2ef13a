"""The k best items of each query so far, by scores that do not depend on how the candidates were found."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.sampling.successive import select

LANES = 64
PAIRS = 1 << 18


class Shortlist:
    """The best `k` of what was pushed for each query of a block, and the bar that a newcomer must exceed.

    A candidate is scored here, once, by one compiled loop over its two vectors: the same pair has the same
    score whatever product proposed it, and equal vectors tie exactly. Candidates of a query must come by
    rising row: then an equal one comes too late, and ties go to the lower row.

    Args:
        queries: float32, (n, d), contiguous.
        items: float32, (I, d), contiguous.
        k: how many.
        banned: items that are never taken, n rows, each rising; or None.
        bar: float32, (n,): only scores above it count; -inf for all.
    """

    def __init__(
        self, queries: Tensor, items: Tensor, k: int, banned: Ragged | None, bar: Any | None = None
    ) -> None:
        n, room = len(queries), k + max(32, k // 2)
        self.k, self.evaluated = k, 0
        self._queries, self._items = queries.numpy(), items.numpy()
        none = np.zeros(n + 1, np.int64), np.zeros(0, np.int64)
        self._banned = none if banned is None else (banned.offsets.numpy(), banned.values.numpy())
        self._best, self._ids = np.empty((n, room), np.float32), np.empty((n, room), np.int64)
        self.held = np.zeros(n, np.int64)
        self.bar = np.full(n, -np.inf, np.float32) if bar is None else bar

    def push(self, pair_row: Any, pair_item: Any, count: int) -> None:
        """Score pairs of a query of the block and an item, and keep the better ones."""
        if count:
            self.evaluated += count
            rest: Any = (*self._banned, self.k, self._best, self._ids, self.held, self.bar)
            _push(self._queries, self._items, pair_row, pair_item, count, *rest)

    def tighten(self) -> None:
        """Raise each bar to the k-th best score so far; it is otherwise raised only when the room is full."""
        _tighten(self._best, self._ids, self.held, self.bar, self.k)

    def finish(self, scores: Tensor, rows: Tensor, into: Any | None = None) -> None:
        """Write the k best, falling, to rows of the results.

        Args:
            scores: float32, (m, k).
            rows: int64, (m, k).
            into: int64, (n,): which row of the results each query has, -1 for none; its own number where None.
        """
        at = np.arange(len(self.held)) if into is None else into
        _finish(self.k, self._best, self._ids, self.held, at, scores.numpy(), rows.numpy())


def pair_room(width: int) -> tuple[Any, Any]:
    """Arrays for the pairs that one pass over a tile finds, for tiles of up to `width` columns."""
    room = max(PAIRS, width)
    return np.empty(room, np.int32), np.empty(room, np.int32)


def rising(exclude: Ragged) -> Ragged:
    """The same rows, each rising, as the search for a banned item wants them."""
    row = exclude.row_index()
    step, same = exclude.values.diff(), row.diff() == 0
    if not bool((same & (step <= 0)).any()):
        return exclude
    return Ragged.from_pairs(row, exclude.values, len(exclude))


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _dot(query: Any, item: Any) -> Any:
    """Compiled once, so that a pair has one score whoever asks."""
    score = np.float32(0)
    for j in range(len(query)):
        score += query[j] * item[j]
    return score


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _pairs(queries: Any, items: Any, row: Any, item: Any, out: Any) -> None:
    for m in range(len(row)):
        out[m] = _dot(queries[row[m]], items[item[m]])


def pair_scores(queries: Tensor, items: Tensor, row: Tensor, item: Tensor) -> Tensor:
    """Inner products of single pairs, to the last bit those of a search.

    Args:
        queries: float, (n, d).
        items: float, (I, d).
        row: int64, (m,): rows of `queries`.
        item: int64, (m,): rows of `items`.

    Returns:
        float32, (m,).
    """
    out = torch.empty(len(row))
    asked, of = (x.detach().float().contiguous().numpy() for x in (queries, items))
    _pairs(asked, of, row.numpy(), item.numpy(), out.numpy())
    return out


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _push(
    queries: Any,
    items: Any,
    pair_row: Any,
    pair_item: Any,
    count: int,
    offsets: Any,
    banned: Any,
    k: int,
    best: Any,
    ids: Any,
    held: Any,
    bar: Any,
) -> None:
    for m in range(count):
        b, i = pair_row[m], pair_item[m]
        score = _dot(queries[b], items[i])
        if not score > bar[b]:  # NaN included
            continue
        if offsets[b + 1] > offsets[b]:
            low = offsets[b] + np.searchsorted(banned[offsets[b] : offsets[b + 1]], i)
            if low < offsets[b + 1] and banned[low] == i:
                continue
        best[b, held[b]], ids[b, held[b]] = score, i
        held[b] += 1
        if held[b] == best.shape[1]:
            bar[b] = _compact(best[b], ids[b], held[b], k)
            held[b] = k


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _tighten(best: Any, ids: Any, held: Any, bar: Any, k: int) -> None:
    for b in range(len(held)):
        if held[b] > k or (held[b] == k and bar[b] == -np.inf):
            bar[b] = _compact(best[b], ids[b], held[b], k)
            held[b] = k


@numba.njit(cache=True, nogil=True)
def _finish(k: int, best: Any, ids: Any, count: Any, into: Any, scores: Any, rows: Any) -> None:
    for b in range(len(count)):
        if into[b] < 0:
            continue
        held = count[b]
        if held > k:
            _compact(best[b], ids[b], held, k)
            held = k
        # Entries stand in the order of their rows, and a stable sort keeps it among equals.
        order = np.argsort(-best[b, :held], kind="mergesort")
        for j in range(held):
            scores[into[b], j], rows[into[b], j] = best[b, order[j]], ids[b, order[j]]
