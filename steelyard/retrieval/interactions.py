"""Who took what: interactions of users with items, or of query texts with documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.ragged import Ragged

_HASH_ROWS = 1_000_000


@dataclass(frozen=True)
class Reading:
    """What was read and what was dropped, and why.

    Args:
        files: paths that were read, in order.
        format: "csv", "tsv", "parquet", "jsonl", "adjacency", "sessions", or "memory".
        columns: role -> name of the column it was read from.
        rows: (user, item) rows found in the files.
        kept: rows left.
        dropped: reason -> rows dropped for it; `rows == kept + sum(dropped.values())`.
        notes: what was guessed or is worth knowing, one sentence each.

    Raises:
        ValueError: the dropped rows do not account for the difference between `rows` and `kept`.
    """

    files: list[str]
    format: str
    columns: dict[str, str]
    rows: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rows != self.kept + sum(self.dropped.values()):
            raise ValueError(
                f"{self.rows} rows read are not {self.kept} kept and {sum(self.dropped.values())} dropped."
            )

    def __str__(self) -> str:
        many = len(self.files) > 3
        where = f"{len(self.files)} files from {self.files[0]} on" if many else ", ".join(self.files)
        lines = [f"Read {self.rows:,} rows of {self.format} from {where}."]
        if self.columns:
            lines.append(
                "Columns: " + ", ".join(f"{role} = {name}" for role, name in self.columns.items()) + "."
            )
        if self.dropped:
            why = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            lines.append(f"Dropped {self.rows - self.kept:,} rows: {why}. Kept {self.kept:,}.")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """The same as plain lists, numbers and strings, for JSON."""
        return {
            "files": list(self.files),
            "format": self.format,
            "columns": dict(self.columns),
            "rows": self.rows,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Interactions:
    """Pairs (user, item) as row numbers into two vocabularies.

    For text data a user is a distinct query text and an item is a document.

    Args:
        users: int64, (n,), row numbers into `user_ids`.
        items: int64, (n,), row numbers into `item_ids`.
        user_ids: Int64 or String, (n_users,), distinct, as the person wrote them.
        item_ids: Int64 or String, (n_items,), distinct.
        weights: float32, (n,), not negative, or None.
        times: int64 or float64, (n,), in the unit of the file, or None: then the order of the
            pairs is their order in time, if they have one.
        item_texts: String, (n_items,), the document of each item, or None.
        reading: what was read and dropped.

    Raises:
        ValueError: lengths, dtypes or row numbers do not fit together.
    """

    users: Tensor
    items: Tensor
    user_ids: pl.Series
    item_ids: pl.Series
    weights: Tensor | None
    times: Tensor | None
    item_texts: pl.Series | None
    reading: Reading

    def __post_init__(self) -> None:
        for name, rows, size in (("users", self.users, self.n_users), ("items", self.items, self.n_items)):
            if rows.dtype != torch.int64 or rows.shape != (len(self.users),):
                got = f"{rows.dtype} {tuple(rows.shape)}"
                raise ValueError(f"{name} must be int64 of shape ({len(self.users)},), got {got}.")
            if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= size):
                raise ValueError(
                    f"{name} must lie in [0, {size}), got {int(rows.min())} to {int(rows.max())}."
                )
        _check_values("weights", self.weights, len(self.users), (torch.float32,))
        _check_values("times", self.times, len(self.users), (torch.int64, torch.float64))
        if self.item_texts is not None and len(self.item_texts) != self.n_items:
            raise ValueError(f"{len(self.item_texts)} item texts for {self.n_items} items.")

    def __len__(self) -> int:
        return len(self.users)

    @property
    def n_users(self) -> int:
        """Number of users in the vocabulary."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Number of items in the vocabulary: the size of the catalogue."""
        return len(self.item_ids)

    @property
    def is_text(self) -> bool:
        """Whether users are query texts and items are documents."""
        return self.item_texts is not None

    def known(self) -> Ragged:
        """The items of each user, sorted, each once; (n_users,) rows."""
        return Ragged.from_pairs(self.users, self.items, self.n_users)

    def item_counts(self) -> Tensor:
        """How many pairs name each item, int64, (n_items,)."""
        return torch.bincount(self.items, minlength=self.n_items)

    def select(self, rows: Tensor) -> Interactions:
        """Some of the pairs, with the same vocabularies.

        Args:
            rows: bool mask of shape (n,), or int64 positions in the order wanted.

        Returns:
            The chosen pairs. `reading` stays that of the files.

        Raises:
            ValueError: `rows` is neither.
        """
        if rows.ndim != 1 or rows.dtype not in (torch.bool, torch.int64):
            raise ValueError(
                f"Expected a bool mask or int64 positions, got {rows.dtype} {tuple(rows.shape)}."
            )
        if rows.dtype == torch.bool and len(rows) != len(self):
            raise ValueError(f"The mask has {len(rows)} entries for {len(self)} pairs.")
        return Interactions(
            self.users[rows],
            self.items[rows],
            self.user_ids,
            self.item_ids,
            None if self.weights is None else self.weights[rows],
            None if self.times is None else self.times[rows],
            self.item_texts,
            self.reading,
        )

    def fingerprint(self) -> str:
        """A hash of the content: pairs in their order, values and vocabularies; not of file names.

        Returns:
            32 hexadecimal digits.
        """
        digest = hashlib.blake2b(digest_size=16)
        for name in ("users", "items", "weights", "times"):
            values: Tensor | None = getattr(self, name)
            digest.update(f"{name}:{None if values is None else (values.dtype, len(values))};".encode())
            if values is not None:
                digest.update(values.contiguous().numpy().data)
        for name in ("user_ids", "item_ids", "item_texts"):
            series: pl.Series | None = getattr(self, name)
            digest.update(f"{name}:{None if series is None else (str(series.dtype), len(series))};".encode())
            for block in byte_blocks(series):
                digest.update(block)
        return digest.hexdigest()


def _check_values(name: str, values: Tensor | None, n: int, dtypes: tuple[torch.dtype, ...]) -> None:
    if values is None:
        return
    if values.dtype not in dtypes or values.shape != (n,):
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"{name} must be {allowed} of shape ({n},), got {values.dtype} {tuple(values.shape)}."
        )


def byte_blocks(series: pl.Series | None) -> Iterator[bytes | memoryview]:
    """The bytes of an id column; strings as their lengths and then their text, so that no two lists agree."""
    if series is None:
        return
    for start in range(0, len(series), _HASH_ROWS):
        part = series.slice(start, _HASH_ROWS)
        if part.dtype == pl.String:
            yield part.str.len_bytes().cast(pl.Int64).to_numpy().data
            yield str(part.str.join("").item()).encode()
        else:
            yield part.to_numpy().data
