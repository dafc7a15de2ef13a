"""Exact ranks of relevant items in the whole catalogue, by counting instead of sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.evaluation import counting
from steelyard.ragged import Ragged

_TILE_ROWS = 64
_TILE_ITEMS = 4096
_ROWS_AT_ONCE = 256

_Block = NDArray[Any]
_Ids = NDArray[np.int64]
_Rows = tuple[_Ids, _Ids]


@dataclass(frozen=True)
class Ranks:
    """Where each relevant item (target) stands among the candidates of its query.

    The candidates of a query are all items but those it has already seen. A target with `tied == 0`
    can be retrieved at no depth: it was filtered as seen, or is absent from the ranked list. Its
    `above` is then the number of candidates.

    Args:
        above: int64, (targets,): candidates scored strictly higher than the target.
        tied: int64, (targets,): candidates scored exactly like the target, itself included.
        candidates: int64, (queries,): candidates of each query.
    """

    above: Tensor
    tied: Tensor
    candidates: Tensor

    @property
    def unreachable(self) -> int:
        """Number of targets that no depth retrieves; they still count as relevant."""
        return int((self.tied == 0).sum())


def count_ranks(
    queries: Tensor,
    items: Tensor,
    targets: Ragged,
    seen: Ragged | None = None,
    *,
    memory_bytes: int = 64 * 2**20,
) -> Ranks:
    """Rank the targets of every query among all items, scored by inner products.

        above(u, t) = #{i not seen by u : q_u . v_i > q_u . v_t},   tied(u, t) the same with =

    Time is that of the products plus one pass over the scores of a query for each of its targets; nothing
    is sorted. Scores are computed in tiles of one fixed shape, so that items with equal vectors tie
    exactly (a plain matrix product may round its last columns otherwise) and the result does not depend
    on `memory_bytes`. If the scores of one tile of queries against all items exceed `memory_bytes`, the
    items are scored in chunks, twice: once for the targets' own scores, once to count.

    Args:
        queries: (queries, d), floating; half precisions are multiplied in float32.
        items: (items, d), floating.
        targets: row = query; values = relevant item ids, rising within a row.
        seen: row = query; values = items that are not candidates, rising within a row.
        memory_bytes: size of the block of scores held at once, in bytes; at least one tile is held.

    Returns:
        Ranks in the order of `targets.values`. Queries without targets are not scored.

    Raises:
        TypeError: `queries` or `items` is not floating.
        ValueError: shapes that do not match, ids outside the catalogue, rows that do not rise, NaN scores.

    Reference:
        Ties as in McSherry and Najork (2008), ECIR, doi:10.1007/978-3-540-78646-7_38.
    """
    queries, items = _floating(queries, "queries"), _floating(items, "items")
    if queries.ndim != 2 or items.ndim != 2 or queries.shape[1] != items.shape[1]:
        raise ValueError(
            f"Queries and items must be matrices of equal width, got {tuple(queries.shape)} "
            f"and {tuple(items.shape)}."
        )
    dtype = torch.promote_types(torch.promote_types(queries.dtype, items.dtype), torch.float32)
    tally = _Tally(len(queries), len(items), targets, seen, dtype)
    active = torch.nonzero(targets.counts)[:, 0]
    threads = torch.get_num_threads()
    rows, width = _block_shape(len(active), len(items), memory_bytes // (threads * dtype.itemsize))
    passes = (tally.gather_and_count,) if width >= len(items) else (tally.gather, tally.count)
    buffers: SimpleQueue[Tensor] = SimpleQueue()
    for _ in range(threads):
        buffers.put(torch.empty(rows, width, dtype=dtype))

    def work(ids: Tensor) -> None:
        block = buffers.get()
        for step in passes:
            for first in range(0, len(items), width):
                _score(queries, items, ids, first, block)
                step(block.numpy(), ids.numpy(), first)
        buffers.put(block)

    _run(work, _chunks(active, rows), threads)
    return tally.finish()


def ranks_from_scores(scores: Tensor, targets: Ragged, seen: Ragged | None = None) -> Ranks:
    """Rank the targets of every query in a matrix of scores.

    Args:
        scores: (queries, items), floating, infinities allowed; higher is better.
        targets: row = query; values = relevant item ids, rising within a row.
        seen: row = query; values = items that are not candidates, rising within a row.

    Returns:
        Ranks in the order of `targets.values`.

    Raises:
        TypeError: `scores` is not floating.
        ValueError: shapes that do not match, ids outside the catalogue, rows that do not rise, NaN scores.
    """
    scores = _floating(scores, "scores")
    if scores.ndim != 2:
        raise ValueError(f"Scores must be a matrix (queries, items), got {tuple(scores.shape)}.")
    dtype = torch.promote_types(scores.dtype, torch.float32)
    tally = _Tally(scores.shape[0], scores.shape[1], targets, seen, dtype)

    def work(ids: Tensor) -> None:
        block = scores[int(ids[0]) : int(ids[-1]) + 1].to(dtype).contiguous()
        tally.gather_and_count(block.numpy(), ids.numpy(), 0)

    _run(work, _chunks(torch.arange(len(scores)), _ROWS_AT_ONCE), torch.get_num_threads())
    return tally.finish()


def ranks_from_lists(lists: Tensor, targets: Ragged) -> Ranks:
    """Rank the targets of every query in its list of retrieved items, best first.

    Duplicates count once, at their first place, and -1 counts nowhere. A target that the list does not
    hold is never retrieved (`tied == 0`).

    Args:
        lists: int64, (queries, k), padded with -1.
        targets: row = query; values = relevant item ids, rising within a row.

    Returns:
        Ranks in the order of `targets.values`; the candidates are the distinct items of the list.

    Raises:
        TypeError: `lists` is not int64.
        ValueError: shapes that do not match, ids below -1, rows that do not rise.
    """
    lists = torch.as_tensor(lists)
    if lists.dtype != torch.int64:
        raise TypeError(f"Lists must hold int64 item ids, got {lists.dtype}; use .to(torch.int64).")
    if lists.ndim != 2 or (lists.numel() and int(lists.min()) < -1):
        raise ValueError(f"Lists must be (queries, k) with ids from -1 on, got {tuple(lists.shape)}.")
    _check_rows(targets, "targets", len(lists))
    first = _first_places(lists)
    place = first.cumsum(1) - 1
    candidates = first.sum(1)
    query = targets.row_index()
    above, tied = candidates[query], torch.zeros_like(query)
    if bool(first.any()) and len(query):
        width = max(int(lists.max()), int(targets.values.max())) + 1
        rows, columns = torch.nonzero(first, as_tuple=True)
        keys, order = (rows * width + lists[rows, columns]).sort()
        wanted = query * width + targets.values
        at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        found = keys[at] == wanted
        above = torch.where(found, place[rows, columns][order[at]], above)
        tied = found.to(torch.int64)
    return Ranks(above, tied, candidates)


def _first_places(lists: Tensor) -> Tensor:
    ordered, order = lists.sort(dim=1, stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(fresh).scatter_(1, order, fresh & (ordered >= 0))


class _Tally:
    """Counts that grow block by block.

    A block is C-contiguous, (at least len(ids), width): the scores of the queries `ids` for the items from
    `first` on. Columns past the last item are padding.
    """

    def __init__(
        self, n_queries: int, n_items: int, targets: Ragged, seen: Ragged | None, dtype: torch.dtype
    ) -> None:
        if seen is None:
            seen = Ragged(torch.zeros(n_queries + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        _check_rows(targets, "targets", n_queries, n_items)
        _check_rows(seen, "seen", n_queries, n_items)
        self._targets: _Rows = (targets.offsets.numpy(), targets.values.numpy())
        self._seen: _Rows = (seen.offsets.numpy(), seen.values.numpy())
        self._n_items = n_items
        self._candidates = n_items - seen.counts
        self._scores = torch.empty(len(targets.values), dtype=dtype).numpy()
        self._above = np.zeros(len(targets.values), dtype=np.int64)
        self._tied = np.zeros(len(targets.values), dtype=np.int64)

    def gather(self, block: _Block, ids: _Ids, first: int) -> None:
        width = min(block.shape[1], self._n_items - first)
        counting.gather_targets(block, width, ids, first, *self._targets, self._scores)

    def count(self, block: _Block, ids: _Ids, first: int) -> None:
        width = min(block.shape[1], self._n_items - first)
        counts = (self._scores, self._above, self._tied)
        unordered = counting.count_targets(block, width, ids, first, self._targets[0], *self._seen, *counts)
        if unordered:
            raise ValueError(
                f"{unordered} scores are NaN among queries {ids[0]} to {ids[-1]}, and NaN has no rank; "
                "look for NaN or infinite entries in the factors or scores."
            )

    def gather_and_count(self, block: _Block, ids: _Ids, first: int) -> None:
        self.gather(block, ids, first)
        self.count(block, ids, first)

    def finish(self) -> Ranks:
        candidates = self._candidates.numpy()
        counting.withdraw_seen(*self._targets, *self._seen, candidates, self._above, self._tied)
        return Ranks(torch.from_numpy(self._above), torch.from_numpy(self._tied), self._candidates)


def _run(work: Callable[[Tensor], None], blocks: Sequence[Tensor], threads: int) -> None:
    """Work on blocks of queries in parallel.

    One thread a block, instead of all threads on each product, needs no barriers and makes the rounding
    of the scores independent of the number of threads.
    """
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, blocks):
                pass
    finally:
        torch.set_num_threads(threads)


def _chunks(ids: Tensor, size: int) -> list[Tensor]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _floating(values: Tensor, name: str) -> Tensor:
    values = torch.as_tensor(values).detach().cpu()
    if not values.is_floating_point():
        raise TypeError(f"{name.capitalize()} must be floating, got {values.dtype}; use .to(torch.float32).")
    return values


def _check_rows(rows: Ragged, name: str, n_queries: int, n_items: int | None = None) -> None:
    if len(rows) != n_queries:
        raise ValueError(
            f"{name.capitalize()} have {len(rows)} rows for {n_queries} queries; give a row each."
        )
    if len(rows.values) == 0:
        return
    low, high = int(rows.values.min()), int(rows.values.max())
    if low < 0 or (n_items is not None and high >= n_items):
        raise ValueError(f"{name.capitalize()} hold items {low} to {high}; the catalogue is 0 to {n_items}.")
    same_row = rows.row_index().diff() == 0
    if bool((same_row & (rows.values.diff() <= 0)).any()):
        raise ValueError(f"{name.capitalize()} must rise within each row; build them with Ragged.from_pairs.")


def _block_shape(n_rows: int, n_items: int, budget: int) -> tuple[int, int]:
    """Whole tiles of at most `budget` scores: all items if one tile of rows allows, else fewer items."""
    width = min(-(-n_items // _TILE_ITEMS), max(1, budget // (_TILE_ROWS * _TILE_ITEMS))) * _TILE_ITEMS
    rows = min(max(1, -(-n_rows // _TILE_ROWS)), max(1, budget // (_TILE_ROWS * max(width, 1)))) * _TILE_ROWS
    return rows, width


def _score(queries: Tensor, items: Tensor, ids: Tensor, first: int, block: Tensor) -> None:
    """Fill `block` with the scores of the queries `ids` for the items from `first` on."""
    vectors = torch.zeros(block.shape[0], queries.shape[1], dtype=block.dtype)
    vectors[: len(ids)] = queries[ids]
    for start in range(first, min(first + block.shape[1], len(items)), _TILE_ITEMS):
        tile = items[start : start + _TILE_ITEMS].to(block.dtype)
        if len(tile) < _TILE_ITEMS:
            tile = torch.cat([tile, tile.new_zeros(_TILE_ITEMS - len(tile), tile.shape[1])])
        for row in range(0, len(ids), _TILE_ROWS):
            out = block[row : row + _TILE_ROWS, start - first : start - first + _TILE_ITEMS]
            torch.mm(vectors[row : row + _TILE_ROWS], tile.T, out=out)
