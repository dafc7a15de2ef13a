"""Compiled loops that count, for each target, the scores above it and level with it.

Blocks must be C-contiguous: numba compiles a second, unvectorised form for strided ones, 10 times slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Block = NDArray[Any]
_Ids = NDArray[np.int64]

_STRIP = 4096


@njit(cache=True, nogil=True)
def gather_targets(
    block: _Block, width: int, ids: _Ids, first: int, offsets: _Ids, values: _Ids, out: _Block
) -> None:
    """Write the score of each target that lies in the block to `out`, (targets,)."""
    for row in range(len(ids)):
        query = ids[row]
        for at in range(offsets[query], offsets[query + 1]):
            column = values[at] - first
            if 0 <= column < width:
                out[at] = block[row, column]


@njit(cache=True, nogil=True)
def _count_strip(strip: _Block, mine: float) -> tuple[np.int32, np.int32]:
    # The form that LLVM vectorises: a branch to an explicit 32-bit sum. Adding the comparison itself is
    # 8 times slower.
    higher, level = np.int32(0), np.int32(0)
    for at in range(len(strip)):
        if strip[at] > mine:
            higher = np.int32(higher + 1)
        if strip[at] == mine:
            level = np.int32(level + 1)
    return higher, level


@njit(cache=True, nogil=True)
def _count_nan(strip: _Block) -> np.int32:
    count = np.int32(0)
    for at in range(len(strip)):
        if strip[at] != strip[at]:
            count = np.int32(count + 1)
    return count


@njit(cache=True, nogil=True)
def count_targets(
    block: _Block,
    width: int,
    ids: _Ids,
    first: int,
    offsets: _Ids,
    seen_offsets: _Ids,
    seen_values: _Ids,
    scores: _Block,
    above: _Ids,
    tied: _Ids,
) -> int:
    """Add the counts of one block to `above` and `tied`; return the number of NaN scores.

    Seen items are counted with the rest and then taken off again, so that the scores stay untouched and a
    score of -inf keeps its meaning. A strip of scores is short enough to stay in the first cache while all
    targets of the row pass over it.
    """
    unordered = 0
    for row in range(len(ids)):
        query = ids[row]
        low, high = offsets[query], offsets[query + 1]
        for start in range(0, width, _STRIP):
            strip = block[row, start : min(start + _STRIP, width)]
            unordered += int(_count_nan(strip))
            for at in range(low, high):
                higher, level = _count_strip(strip, scores[at])
                above[at] += higher
                tied[at] += level
        for seen_at in range(seen_offsets[query], seen_offsets[query + 1]):
            column = seen_values[seen_at] - first
            if 0 <= column < width:
                score = block[row, column]
                for at in range(low, high):
                    above[at] -= score > scores[at]
                    tied[at] -= score == scores[at]
    return unordered


@njit(cache=True)
def withdraw_seen(
    offsets: _Ids,
    values: _Ids,
    seen_offsets: _Ids,
    seen_values: _Ids,
    candidates: _Ids,
    above: _Ids,
    tied: _Ids,
) -> None:
    """Put the targets that were seen behind all candidates, tied with none; both sides must rise."""
    for query in range(len(offsets) - 1):
        seen_at, seen_end = seen_offsets[query], seen_offsets[query + 1]
        for at in range(offsets[query], offsets[query + 1]):
            while seen_at < seen_end and seen_values[seen_at] < values[at]:
                seen_at += 1
            if seen_at < seen_end and seen_values[seen_at] == values[at]:
                above[at] = candidates[query]
                tied[at] = 0
