"""What a proposal may look at: the queries of a batch and what each is known to want."""

from __future__ import annotations

from dataclasses import dataclass

import torch
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
        """The accidental hits as a bool mask, (B, n), as the losses take it."""
        mask = torch.zeros(len(self), ids.shape[-1], dtype=torch.bool)
        mask[self.hits(ids)] = True
        return mask

    def _shared_hits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Look each relevant item up among the draws, rather than each draw among the items."""
        rows, wanted = torch.arange(len(self)), self.positives
        if self.known is not None:
            rows, wanted = torch.cat([rows, self.known.row_index()]), torch.cat([wanted, self.known.values])
        if not len(ids) or not len(wanted):
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        drawn = torch.zeros(int(torch.maximum(ids.max(), wanted.max())) + 1, dtype=torch.bool)
        drawn[ids] = True
        present = drawn[wanted].nonzero().squeeze(1)
        rows, wanted = rows[present], wanted[present]
        ordered, order = ids.sort()
        first = torch.searchsorted(ordered, wanted)
        count = torch.searchsorted(ordered, wanted, right=True) - first
        ends = count.cumsum(0)
        within = torch.arange(int(ends[-1]) if len(ends) else 0) - torch.repeat_interleave(ends - count, count)
        columns = order[torch.repeat_interleave(first, count) + within]
        keys = torch.unique(torch.repeat_interleave(rows, count) * len(ids) + columns)
        return keys // len(ids), keys % len(ids)
