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


@dataclass(frozen=True)
class Context:
    """The queries of one batch.

    Args:
        positives: int64, (B,): the positive of each query.
        known: items known to be relevant to each query, B rows, sorted; None where nothing but the
            positive is known.

    Raises:
        ValueError: `known` has another number of rows than there are positives.
    """

    positives: Tensor
    known: Ragged | None = None

    def __post_init__(self) -> None:
        if self.positives.ndim != 1 or self.positives.dtype != torch.int64:
            raise ValueError(
                f"positives must be int64 (B,), got {self.positives.dtype} {tuple(self.positives.shape)}."
            )
        if self.known is not None and len(self.known) != len(self.positives):
            raise ValueError(f"known has {len(self.known)} rows for {len(self.positives)} positives.")

    def __len__(self) -> int:
        return len(self.positives)

    def hits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The (query, draw) pairs in which a draw is relevant to its query: accidental hits.

        Args:
            ids: int64, (n,) shared by the batch, or (B, n) drawn per query.

        Returns:
            Rows and columns, int64, (h,) each, ordered by row.

        Raises:
            ValueError: `ids` has another shape.
        """
        if ids.ndim == 1:
            return self._shared_hits(ids)
        if ids.ndim != 2 or len(ids) != len(self):
            raise ValueError(f"ids must be (n,) or ({len(self)}, n), got {tuple(ids.shape)}.")
        found = ids == self.positives.unsqueeze(1)
        if self.known is not None and len(self.known.values) and ids.numel():
            width = int(torch.maximum(self.known.values.max(), ids.max())) + 1
            keys = self.known.row_index() * width + self.known.values
            asked = torch.arange(len(self)).unsqueeze(1) * width + ids
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
            ValueError: `ids` has another shape.
        """
        mask = torch.zeros(len(self), ids.shape[-1], dtype=torch.bool)
        mask[self.hits(ids)] = True
        return mask

    def _shared_hits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        known = self.known or Ragged(torch.arange(len(self) + 1), self.positives)
        rows, columns = _look_up(
            self.positives.numpy(), known.offsets.numpy(), known.values.numpy(), ids.numpy()
        )
        return torch.from_numpy(rows), torch.from_numpy(columns)


@numba.njit(cache=True)
def _look_up(
    positives: NDArray[np.int64],
    offsets: NDArray[np.int64],
    wanted: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> Any:
    """Chain the draws of each item, then follow the chain of each item that a query wants.

    A query wants few items, and most of those were not drawn: one look at a small table says so.
    """
    top = -1
    for j in ids:
        top = max(top, j)
    first = np.full(top + 1, -1, np.int32)
    following = np.empty(len(ids), np.int32)
    for column in range(len(ids) - 1, -1, -1):
        following[column] = first[ids[column]]
        first[ids[column]] = column
    rows, columns = np.empty(64, np.int64), np.empty(64, np.int64)
    found = 0
    for row in range(len(positives)):
        apart = True
        for i in range(offsets[row], offsets[row + 1] + 1):
            last = i == offsets[row + 1]  # the positive, unless it was among the known
            item = wanted[i] if not last else positives[row] if apart else top + 1
            if item > top or first[item] < 0:
                continue
            apart = apart and item != positives[row]
            column = first[item]
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
