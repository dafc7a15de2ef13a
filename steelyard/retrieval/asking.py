"""What a person asks a retriever with: lists, ids, texts and numbers, checked, with a hint where one is unknown."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import polars as pl
import torch
from torch import Tensor

CLOSE_MATCHES = 20_000


def listed(given: object, what: str) -> list[Any]:
    """The elements of what is meant as a list; a single text would be taken letter by letter."""
    if hasattr(given, "tolist"):  # tensors, arrays, pandas
        given = given.tolist()
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"Give a list of {what}s, such as [{given!r}], not {given!r} alone.")
    return list(given)


def whole_number(k: object) -> int:
    """k, if it is one."""
    if isinstance(k, bool) or not isinstance(k, SupportsIndex):
        raise TypeError(f"k must be a whole number such as 10, got {k!r}.")
    return operator.index(k)


def checked_texts(texts: list[Any]) -> pl.Series:
    """Texts to search for, one at least and none empty."""
    if not texts:
        raise ValueError("No text was given.")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(
                f"Texts must be strings, got {text!r}; write it as {str(text)!r} if that is meant."
            )
        if not text.strip():
            raise ValueError("An empty text has nothing to search for.")
    return pl.Series("query", texts, dtype=pl.String)


def rows_of(ids: list[Any], vocabulary: pl.Series, kind: str) -> Tensor:
    """Row numbers of ids, compared as they are written: "007" is not 7."""
    if not ids:
        raise ValueError(f"No {kind} was given.")
    asked = pl.Series("id", [None if x is None else str(x) for x in ids], dtype=pl.String)
    table = pl.DataFrame({"id": vocabulary.cast(pl.String)}).with_row_index("row")
    rows = pl.DataFrame({"id": asked}).join(table, on="id", how="left", maintain_order="left")["row"]
    if rows.null_count():
        missing = ids[rows.is_null().arg_true()[0]]
        if missing == "":
            raise ValueError(f"An empty {kind} was given.")
        close = _close(str(missing), vocabulary)
        hint = f"; close to it: {', '.join(close)}" if close else ""
        raise ValueError(f"Unknown {kind} {missing!r} among {len(vocabulary):,}{hint}.")
    return torch.from_numpy(rows.cast(pl.Int64).to_numpy().copy())


def _close(wanted: str, vocabulary: pl.Series) -> list[str]:
    """Ids that look alike, from those that begin alike where the vocabulary is large."""
    words = vocabulary.cast(pl.String)
    for length in (0, 1, 2, 3, 4):
        if len(words) <= CLOSE_MATCHES:
            break
        words = words.filter(words.str.starts_with(wanted[:length]))
    return difflib.get_close_matches(wanted, words.head(CLOSE_MATCHES).to_list(), n=3)
