"""Exact nearest items by inner product, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.retrieval.bounded_search import (
    BLOCK,
    TRIALS,
    CodedItems,
    code_items,
    in_range,
    rounding,
    search_block,
)
from steelyard.retrieval.shortlist import LANES, Shortlist, pair_room, rising
from steelyard.sampling.successive import select

CHUNK_BYTES = 16 << 20
WIDTH, FIRST = 8192, 1024
WORTH_CODING = 2e10
"""Multiplications from which it pays to look whether codes of the items shorten the search."""


def top_k(
    queries: Tensor, items: Tensor, k: int, *, exclude: Ragged | None = None, coded: CodedItems | None = None
) -> tuple[Tensor, Tensor]:
    """The `k` items with the largest inner product to each query, best first; ties by the lower row.

    A product over all pairs proposes candidates, with a margin that covers its error; they alone are scored
    by one loop over both vectors, so that a pair has one score however it was found. Where the problem is
    large the product is one of 8-bit codes (see `code_items`), else of the vectors; the answer is the same.
    Memory a thread: 16 MiB and O(k) a query of a block; and the codes, at most 8 bytes and one a dimension
    for each item.

    Args:
        queries: float, (n, d).
        items: float, (I, d).
        k: how many; at most I are found.
        exclude: items to leave out, one row a query.
        coded: what `code_items` made of these items, kept from one search to the next; made here where
            None and worth it.

    Returns:
        Scores, (n, min(k, I)), and item rows, int64; where fewer items are left than asked, the rest
        has score -inf and row -1. A pair whose score is NaN is no answer.

    Raises:
        ValueError: `k` below 1, no items, `exclude` with another number of rows, or `coded` of other items.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    if len(items) == 0:
        raise ValueError("There is no item to find.")
    if exclude is not None and len(exclude) != len(queries):
        raise ValueError(f"exclude has {len(exclude)} rows for {len(queries)} queries.")
    queries, items = (x.detach().float().contiguous() for x in (queries, items))
    if coded is not None and (coded.items.data_ptr() != items.data_ptr() or coded.items.shape != items.shape):
        raise ValueError("coded is of other items than these: make it by code_items(items, queries, k).")
    exclude = None if exclude is None else rising(exclude)
    job = _Job(queries, items, min(k, len(items)), exclude)
    try:
        return job.run(coded)
    except (
        FloatingPointError
    ):  # products could overflow or vanish: a power of two mends it and costs no digit
        (queries, up), (items, more) = _scaled(queries), _scaled(items)
        job = _Job(queries, items, job.k, exclude, scaled=True)
        scores, rows = job.run(coded if more == 0 else None)
        return (scores.double() * 2.0**up * 2.0**more).float(), rows


def _scaled(x: Tensor) -> tuple[Tensor, int]:
    """The vectors with a largest entry in [1/2, 1), and the power of two that was divided out."""
    top = float(x.abs().nan_to_num(0.0, posinf=0.0).max()) if x.numel() else 0.0
    power = 0 if top == 0 or in_range(top) else math.frexp(top)[1]
    return (x, 0) if power == 0 else ((x.double() * 2.0**-power).float(), power)


@dataclass
class _Job:
    """One search: blocks of queries, each by itself, spread over threads."""

    queries: Tensor
    items: Tensor
    k: int
    exclude: Ragged | None
    scaled: bool = False
    lengths: dict[int, float] = field(default_factory=dict)

    def run(self, coded: CodedItems | None) -> tuple[Tensor, Tensor]:
        n, count, d = len(self.queries), len(self.items), self.queries.shape[1]
        scores = torch.full((n, self.k), -math.inf)
        rows = torch.full((n, self.k), -1, dtype=torch.int64)
        if coded is None and float(n) * count * d >= WORTH_CODING:
            coded = code_items(self.items, self.queries, self.k)
        if coded is not None:
            top = float(self.queries.abs().max())  # NaN and infinity are out of range too
            if not math.isfinite(top) or top == 0:
                coded = None
            elif not self.scaled and not in_range(top):
                raise FloatingPointError
        todo = torch.arange(n)
        if coded is not None:
            for trial in range(TRIALS):
                todo = self._coded(coded, todo, trial, scores, rows)
        else:
            height = max(1, min(n, CHUNK_BYTES // (4 * min(count, WIDTH))))
            _in_threads(
                lambda start: self._plain(slice(start, start + height), scores, rows), range(0, n, height)
            )
        return scores, rows

    def _coded(self, coded: CodedItems, todo: Tensor, trial: int, scores: Tensor, rows: Tensor) -> Tensor:
        """Search for the queries `todo`; gives those that need another trial."""
        again: dict[int, Tensor] = {}

        def block(start: int) -> None:
            own = todo[start : start + BLOCK]
            out = None if self.exclude is None else self.exclude.take(own)
            shape = len(own), self.k
            score, row = torch.full(shape, -math.inf), torch.full(shape, -1)
            failed = search_block(coded, self.queries[own], self.k, out, score, row, trial)
            scores[own], rows[own], again[start] = score, row, own[failed]

        _in_threads(block, range(0, len(todo), BLOCK))
        return torch.cat([again[start] for start in sorted(again)]) if again else todo

    def _plain(self, part: slice, scores: Tensor, rows: Tensor) -> None:
        """Candidates by float products of the vectors themselves."""
        queries, count = self.queries[part], len(self.items)
        n, width = len(queries), min(count, WIDTH)
        out = None if self.exclude is None else self.exclude.take(torch.arange(part.start, part.start + n))
        spare = np.zeros(n, np.int64) if out is None else out.counts.numpy()
        found = Shortlist(queries, self.items, self.k, out)
        pairs, made, cut = pair_room(width), torch.empty(n, width), np.empty(n, np.float32)
        length = _lengths(queries.numpy())
        self._check(float(length.max(initial=0)))
        first = 0
        while first < count:
            # Small at first: the bar of a few items is cheap to find, and spares most of the next ones.
            chunk = self.items[first : first + min(max(first, FIRST), width)]
            block = _product(queries, chunk, made.view(-1)[: n * len(chunk)].view(n, len(chunk)))
            if first not in self.lengths:
                self.lengths[first] = float(_lengths(chunk.numpy()).max())
                self._check(self.lengths[first])
            # Twice: the product and the score of a pair may err in opposite directions.
            slack = 2 * rounding(queries.shape[1]) * length * self.lengths[first]
            found.tighten()
            _cuts(block.numpy(), self.k + spare, found.held, found.bar, slack, cut, self.k)
            at = 0
            while at < n:
                at, size = _above(block.numpy(), cut, first, at, *pairs)
                found.push(*pairs, size)
            first += len(chunk)
        found.finish(scores[part], rows[part])

    def _check(self, length: float) -> None:
        if not self.scaled and length != 0 and not in_range(length):
            raise FloatingPointError


def _product(queries: Tensor, chunk: Tensor, made: Tensor) -> Tensor:
    return torch.mm(queries, chunk.T, out=made)


def _in_threads(block: Callable[[int], None], starts: range) -> None:
    """Do the blocks, one thread a processor, each with single-threaded products: no barrier within a block."""
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            block(start)
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            list(pool.map(block, starts))
        finally:
            torch.set_num_threads(torch.get_num_threads())


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _lengths(x: Any) -> Any:
    """Euclidean lengths, float64; 0 for a vector with NaN or infinity, which needs no margin."""
    out = np.zeros(len(x))
    for b in range(len(x)):
        total = 0.0
        for j in range(x.shape[1]):
            total += np.float64(x[b, j]) * np.float64(x[b, j])
        if total < np.inf:
            out[b] = math.sqrt(total)
    return out


@numba.njit(cache=True, nogil=True)
def _cuts(scores: Any, ranks: Any, held: Any, bar: Any, slack: Any, cut: Any, k: int) -> None:
    """What a product must exceed for its pair to be a candidate."""
    width = scores.shape[1]
    for b in range(len(scores)):
        margin = np.float32(slack[b] * 1.000001)
        limit = bar[b]
        if held[b] < k and limit == -np.inf and width > ranks[b]:
            # Nothing to compare with: the best of this tile stand in for it, less the ones left out.
            row = scores[b].copy()
            for j in range(width):
                row[j] = row[j] if row[j] == row[j] else -np.inf
            limit = select(row, width - ranks[b]) - margin
        cut[b] = np.nextafter(limit - margin, np.float32(-np.inf))


@numba.njit(cache=True, nogil=True)
def _above(scores: Any, cut: Any, first: int, start: int, pair_row: Any, pair_item: Any) -> Any:
    """Pairs above their row's cut from row `start` on, as far as the room goes: next row, number of pairs."""
    n, width = scores.shape
    size = 0
    for b in range(start, n):
        if size + width > len(pair_row):
            return b, size
        limit = cut[b]
        for at in range(0, width - width % LANES, LANES):
            part = scores[b, at : at + LANES]
            hit = np.int16(0)
            for j in range(LANES):  # one vector comparison after the other, and no branch
                hit |= np.int16(part[j] > limit)
            if hit == 0:
                continue
            for j in range(LANES):
                pair_row[size], pair_item[size] = b, first + at + j
                size += part[j] > limit
        for j in range(width - width % LANES, width):
            pair_row[size], pair_item[size] = b, first + j
            size += scores[b, j] > limit
    return n, size
