"""What a proposal may look at: the queries of a batch and what each is known to want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.ragged import Ragged

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplicative hashing


@dataclass(frozen=True)
class Context:
    """The queries of one batch.

    Args:
        positives: int64, (P,): the positives, one a query (P = B) unless `owner` says otherwise.
        known: items known to be relevant to each query, B rows, sorted; None where nothing but the
            positive is known. With `owner` it is needed, and holds each query's positives.
        owner: int64, (P,): the query of each positive, where a query may have many.
        vectors: float, (B, d): the queries' vectors, for proposals that adapt to the query.

    Raises:
        ValueError: `known` is missing, or it or `vectors` has another number of rows than there are queries.
    """

    positives: Tensor
    known: Ragged | None = None
    owner: Tensor | None = None
    vectors: Tensor | None = None

    def __post_init__(self) -> None:
        if self.positives.ndim != 1 or self.positives.dtype != torch.int64:
            raise ValueError(
                f"positives must be int64 (B,), got {self.positives.dtype} {tuple(self.positives.shape)}."
            )
        if self.owner is not None:
            if self.known is None:
                raise ValueError("Queries with many positives need known: the items each is known to want.")
            if self.owner.dtype != torch.int64 or self.owner.shape != self.positives.shape:
                raise ValueError(
                    f"owner must be int64 ({len(self.positives)},), got {self.owner.dtype} "
                    f"{tuple(self.owner.shape)}."
                )
        elif self.known is not None and len(self.known) != len(self.positives):
            raise ValueError(f"known has {len(self.known)} rows for {len(self.positives)} positives.")
        if self.vectors is not None and (self.vectors.ndim != 2 or len(self.vectors) != len(self)):
            raise ValueError(f"vectors must be ({len(self)}, d), got {tuple(self.vectors.shape)}.")

    def __len__(self) -> int:
        return len(self.positives) if self.known is None else len(self.known)

    def hits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The (query, draw) pairs in which a draw is relevant to its query: accidental hits.

        Args:
            ids: int64, (n,) shared by the batch, or (B, n) drawn per query.

        Returns:
            Rows and columns, int64, (h,) each, ordered by row.

        Raises:
            ValueError: `ids` has another shape or dtype, or a negative id.
        """
        if ids.dtype != torch.int64:
            raise ValueError(f"ids must be int64, got {ids.dtype}.")
        if ids.numel() and int(ids.min()) < 0:
            raise ValueError(f"ids must not be negative, got {int(ids.min())}: leave out what is no item.")
        if ids.ndim == 1:
            return self._shared_hits(ids)
        if ids.ndim != 2 or len(ids) != len(self):
            raise ValueError(f"ids must be (n,) or ({len(self)}, n), got {tuple(ids.shape)}.")
        found = torch.zeros_like(ids, dtype=torch.bool)
        if self.owner is None:
            found = ids == self.positives.unsqueeze(1)
        if self.known is not None and len(self.known.values) and ids.numel():
            width = int(self.known.values.max()) + 2  # one place for all ids that nobody is known to want
            keys = self.known.row_index() * width + self.known.values
            asked = torch.arange(len(self)).unsqueeze(1) * width + ids.clamp(max=width - 1)
            place = torch.searchsorted(keys, asked).clamp_(max=len(keys) - 1)
            found |= keys[place] == asked
        rows, columns = found.nonzero(as_tuple=True)
        return rows, columns

    def mask(self, ids: Tensor) -> Tensor:
        """The accidental hits as a bool mask, as `sampled_softmax` takes it.

        Args:
            ids: int64, (n,) shared by the batch, or (B, n) drawn per query.

        Returns:
            bool, (B, n), True at a hit.

        Raises:
            ValueError: `ids` has another shape or dtype, or a negative id.
        """
        mask = torch.zeros(len(self), ids.shape[-1], dtype=torch.bool)
        mask[self.hits(ids)] = True
        return mask

    def _shared_hits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        known = self.known or Ragged(torch.arange(len(self) + 1), self.positives)
        # With many positives all are among the known; -1 is no item.
        positives = self.positives if self.owner is None else torch.full((len(self),), -1)
        rows, columns = _look_up(positives.numpy(), known.offsets.numpy(), known.values.numpy(), ids.numpy())
        return torch.from_numpy(rows), torch.from_numpy(columns)


def among(rows: Ragged, asked: Tensor) -> Tensor:
    """Which ids stand in their row.

    Args:
        rows: B rows, each sorted.
        asked: int64, not negative, (n,) for all rows or (B, n).

    Returns:
        bool, (B, n).
    """
    nothing = torch.zeros(0, dtype=torch.int64)
    return Context(nothing, rows, nothing).mask(asked)


@numba.njit(cache=True)
def _look_up(
    positives: NDArray[np.int64],
    offsets: NDArray[np.int64],
    wanted: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> Any:
    """Chain the draws of each item, then follow the chain of each item that a query wants.

    The chains start in a hash table of the draws, so that the cost does not know the size of the
    catalogue. A query wants few items, and most of those were not drawn: one look at the marks of the
    occupied places, which stay in cache, says so for 15 of 16.
    """
    bits = 4
    while 1 << bits < 16 * len(ids):
        bits += 1
    shift, last_place = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
    occupied = np.zeros(1 << bits, np.bool_)
    keys, first = np.empty(1 << bits, np.int64), np.empty(1 << bits, np.int32)
    following = np.empty(len(ids), np.int32)
    for column in range(len(ids) - 1, -1, -1):
        item = ids[column]
        place = (np.uint64(item) * MULTIPLIER) >> shift
        while occupied[place] and keys[place] != item:
            place = (place + np.uint64(1)) & last_place
        following[column] = first[place] if occupied[place] else -1
        occupied[place], keys[place], first[place] = True, item, column
    rows, columns = np.empty(64, np.int64), np.empty(64, np.int64)
    found = 0
    for row in range(len(positives)):
        apart = True
        end = offsets[row + 1]
        for i in range(offsets[row], end + 1):
            item = wanted[i] if i < end else positives[row]
            place = (np.uint64(item) * MULTIPLIER) >> shift
            while occupied[place] and keys[place] != item:
                place = (place + np.uint64(1)) & last_place
            if not occupied[place] or (i == end and not apart):
                continue  # not drawn, or the positive again, which was among the known
            apart = apart and item != positives[row]
            column = first[place]
            while column >= 0:
                if found == len(rows):
                    rows, columns = (
                        np.append(rows, np.empty_like(rows)),
                        np.append(columns, np.empty_like(columns)),
                    )
                rows[found], columns[found] = row, column
                found += 1
                column = following[column]
    return rows[:found].copy(), columns[:found].copy()
