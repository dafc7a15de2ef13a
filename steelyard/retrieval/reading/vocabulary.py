"""Ids to row numbers and back, and which of repeated pairs to keep, without a Python object a row."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_SPARE = 1_000_000


def learn(ids: pl.Series) -> tuple[pl.Series, Ints]:
    """The distinct ids in rising order (text by its bytes), and the row number of each id.

    Args:
        ids: Int64 or String, (n,), no null.

    Returns:
        The vocabulary, (v,), and int64 row numbers into it, (n,).
    """
    if ids.dtype == pl.Int64 and len(ids):
        values = ids.to_numpy()
        low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if span <= 4 * len(ids) + _SPARE:
            present = np.zeros(span, bool)
            present[values - low] = True
            distinct = np.flatnonzero(present) + low
            row_of = np.cumsum(present) - 1
            return pl.Series(ids.name, distinct), row_of[values - low]
    vocabulary = ids.unique().sort()
    return vocabulary, look_up(ids, vocabulary)


def look_up(ids: pl.Series, vocabulary: pl.Series) -> Ints:
    """The row number of each id, -1 for an id that the vocabulary does not hold.

    Args:
        ids: Int64 or String, (n,).
        vocabulary: the same type, (v,), distinct.

    Returns:
        int64, (n,).
    """
    table = pl.DataFrame({"id": vocabulary}).with_row_index("row")
    rows = pl.DataFrame({"id": ids}).join(table, on="id", how="left", maintain_order="left")["row"]
    return rows.cast(pl.Int64).fill_null(-1).to_numpy()


def as_type_of(ids: pl.Series, vocabulary: pl.Series, noun: str) -> pl.Series:
    """Ids in the type of a vocabulary; text that is no integer becomes null, which no vocabulary holds.

    Args:
        ids: Int64 or String.
        vocabulary: Int64 or String.
        noun: "user" or "item", for the message.

    Raises:
        ValueError: not one id can be written in the type of the vocabulary.
    """
    if ids.dtype == vocabulary.dtype or len(ids) == 0:
        return ids.cast(vocabulary.dtype)
    if vocabulary.dtype == pl.String:
        return ids.cast(pl.String)
    numbers = ids.cast(pl.Int64, strict=False)
    same = (numbers.cast(pl.String) == ids).fill_null(False)
    if not same.any():
        raise ValueError(
            f"The {noun} ids of the test are text such as {ids[0]!r}, those of the training data integers "
            f"such as {vocabulary[0]}. Write both in the same way."
        )
    return numbers.set(~same, None)


def first_of_each(keys: Ints, times: NDArray[np.int64] | NDArray[np.float64] | None) -> NDArray[np.bool_]:
    """Mark one of each key: the earliest if there are times, and the first of these in the given order.

    Args:
        keys: int64, (n,).
        times: (n,) or None.

    Returns:
        bool, (n,); all True, at the cost of one sort, when no key is repeated.
    """
    ordered = np.sort(keys)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    keep = np.ones(len(keys), bool)
    if len(repeated) == 0:
        return keep
    place = np.minimum(np.searchsorted(repeated, keys), len(repeated) - 1)
    rows = np.flatnonzero(repeated[place] == keys)
    keep[rows] = False
    if times is not None:
        rows = rows[np.argsort(times[rows], kind="stable")]
    keep[rows[pl.Series(keys[rows]).is_first_distinct().to_numpy()]] = True
    return keep
