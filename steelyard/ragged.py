"""Rows of unequal length: the sets of items that queries are known to want, stored flat."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """A list of integer rows of unequal length, stored as one flat tensor.

    Row `r` is `values[offsets[r] : offsets[r + 1]]`. Rows made by `from_pairs` are sorted and
    hold no value twice, which is what the samplers and the ranking metrics rely on.

    Args:
        offsets: int64, (rows + 1,), starting at 0 and never falling.
        values: int64, (offsets[-1],).

    Raises:
        ValueError: the offsets do not describe the values.
    """

    offsets: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        offsets, values = self.offsets, self.values
        if offsets.dtype != torch.int64 or values.dtype != torch.int64:
            raise ValueError(
                f"Ragged wants int64 tensors, got offsets {offsets.dtype}, values {values.dtype}."
            )
        if offsets.ndim != 1 or values.ndim != 1 or len(offsets) == 0:
            raise ValueError("Ragged wants one-dimensional tensors and at least one offset.")
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(values) or bool((offsets.diff() < 0).any()):
            raise ValueError(f"Ragged offsets must rise from 0 to the number of values ({len(values)}).")

    @classmethod
    def from_pairs(cls, rows: Tensor, values: Tensor, n_rows: int) -> Ragged:
        """Group `(row, value)` pairs into sorted rows without repeats.

        Args:
            rows: int64, (n,), each in `[0, n_rows)`.
            values: int64, (n,), each non-negative.
            n_rows: number of rows of the result; rows that no pair names are empty.

        Returns:
            The rows, each rising.

        Raises:
            ValueError: a row outside `[0, n_rows)` or a negative value.
        """
        if len(rows) == 0:
            return cls(torch.zeros(n_rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        if int(rows.min()) < 0 or int(rows.max()) >= n_rows:
            raise ValueError(f"Rows must lie in [0, {n_rows}), got {int(rows.min())} to {int(rows.max())}.")
        if int(values.min()) < 0:
            raise ValueError(f"Values must not be negative, got {int(values.min())}.")
        width = int(values.max()) + 1
        if n_rows > (2**63 - 1) // width:
            raise ValueError(f"{n_rows} rows of values up to {width - 1} do not fit one 64-bit key.")
        keys = torch.unique(rows * width + values)
        counts = torch.bincount(keys // width, minlength=n_rows)
        offsets = torch.zeros(n_rows + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
        return cls(offsets, keys % width)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Tensor:
        """Length of each row, int64, (rows,)."""
        return self.offsets.diff()

    def row(self, index: int) -> Tensor:
        """One row as a view.

        Args:
            index: which row.
        """
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def take(self, rows: Tensor) -> Ragged:
        """The named rows, in that order, repeats allowed.

        Args:
            rows: int64, (m,).
        """
        offsets = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(self.counts[rows], 0, out=offsets[1:])
        values = torch.empty(int(offsets[-1]), dtype=torch.int64)
        _copy_rows(self.offsets.numpy(), self.values.numpy(), rows.numpy(), values.numpy())
        return Ragged(offsets, values)

    def row_index(self) -> Tensor:
        """The row of each value, int64, same shape as `values`."""
        return torch.repeat_interleave(torch.arange(len(self)), self.counts)


@numba.njit(cache=True)
def _copy_rows(
    offsets: NDArray[np.int64], values: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[np.int64]
) -> None:
    at = 0
    for row in rows:
        for i in range(offsets[row], offsets[row + 1]):
            out[at] = values[i]
            at += 1
