"""Rows of ids into interactions: what is dropped is counted under its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from steelyard.retrieval.interactions import Interactions, Reading
from steelyard.retrieval.reading.vocabulary import Ints, as_type_of, first_of_each, learn, look_up

NEW_USERS = (
    "training knows no user of these rows: they are new histories, asked at each position but the first."
)


@dataclass(frozen=True)
class Rows:
    """Rows on their way into interactions.

    Args:
        frame: one column a role.
        files: as in `Reading`.
        format: as in `Reading`.
        columns: as in `Reading`.
        read: rows that the files held.
        dropped: reason -> rows dropped so far.
        notes: as in `Reading`.
    """

    frame: pl.DataFrame
    files: list[str]
    format: str
    columns: dict[str, str]
    read: int
    dropped: dict[str, int]
    notes: list[str]

    def without(self, reason: str, where: pl.Series) -> Rows:
        """Drop the rows where a mask holds, counted under a reason."""
        count = int(where.sum())
        if count == 0:
            return self
        dropped = self.dropped | {reason: self.dropped.get(reason, 0) + count}
        return replace(self, frame=self.frame.filter(~where), dropped=dropped)

    def without_empty(self, first: str, second: str) -> Rows:
        """Drop the rows that lack one or both sides of the pair."""
        absent = [_empty(self.frame[role]) for role in (first, second)]
        if not (absent[0].any() or absent[1].any()):
            return self
        rows = self.without("empty row", absent[0] & absent[1])
        rows = rows.without(f"empty {first}", _empty(rows.frame[first]))
        return rows.without(f"empty {second}", _empty(rows.frame[second]))

    def reading(self, notes: Sequence[str] = ()) -> Reading:
        """The account of what was read and dropped."""
        kept, notes = len(self.frame), [*self.notes, *notes]
        return Reading(self.files, self.format, self.columns, self.read, kept, self.dropped, notes)


def from_ids(
    rows: Rows, train: Interactions | None, *, own_users: bool = False, repeats: bool = False
) -> Interactions:
    """Interactions of users with items, in vocabularies of their own or in those of `train`.

    Args:
        rows: with the roles user, item, and weight and time where there are any.
        train: the training data if these rows are a test.
        own_users: the users of the test are new; items alone must be known.
        repeats: keep pairs that come again.

    Raises:
        ValueError: no row is known to `train`, or its ids are of another type.
    """
    if train is None:
        user_ids, users = learn(rows.frame["user"])
        rows = replace(rows, frame=rows.frame.with_columns(pl.Series("user", users)))
        item_ids, items = learn(rows.frame["item"])
        rows = replace(rows, frame=rows.frame.with_columns(pl.Series("item", items)))
    elif own_users:
        item_ids, rows = train.item_ids, _known(rows, "item", "item", train.item_ids)
        user_ids, users = learn(rows.frame["user"])
        rows = replace(rows, frame=rows.frame.with_columns(pl.Series("user", users)))
    else:
        user_ids, item_ids = train.user_ids, train.item_ids
        rows = _known(rows, "user", "user", user_ids)
        rows = _known(rows, "item", "item", item_ids)
    users, items = rows.frame["user"].to_numpy(), rows.frame["item"].to_numpy()
    if repeats:
        users, items = users.copy(), items.copy()
    else:
        rows, users, items = _once(rows, users, items, len(item_ids))
    weights = rows.frame["weight"].cast(pl.Float32).to_numpy() if "weight" in rows.frame.columns else None
    times = rows.frame["time"].to_numpy() if "time" in rows.frame.columns else None
    if weights is not None and np.isinf(weights).any():
        raise ValueError(
            f"{', '.join(rows.files)}: a weight is above the largest 32-bit float, 3.4e38. Scale them."
        )
    return Interactions(
        torch.from_numpy(users),
        torch.from_numpy(items),
        user_ids.alias("user"),
        item_ids.alias("item"),
        None if weights is None else torch.from_numpy(weights.copy()),
        None if times is None else torch.from_numpy(times.copy()),
        None,
        rows.reading([NEW_USERS] if own_users else _seen_before(users, items, train)),
    )


def from_texts(rows: Rows, train: Interactions | None) -> Interactions:
    """Interactions of distinct query texts with documents; the catalogue is their own or that of `train`.

    Args:
        rows: with the roles query, document, and item where documents have ids.
        train: the training data if these rows are a test.

    Raises:
        ValueError: no document is known to `train`.
    """
    key = "item" if "item" in rows.frame.columns else "document"
    notes: list[str] = []
    if train is None:
        item_ids, items = learn(rows.frame[key])
        texts: pl.Series | None = item_ids
        if key == "item":
            texts = _first_texts(rows.frame["document"], items, len(item_ids), notes)
        rows = replace(rows, frame=rows.frame.with_columns(pl.Series(key, items)))
    else:
        item_ids, texts = train.item_ids, train.item_texts
        rows = _known(rows, key, "item" if key == "item" else "document", item_ids)
    user_ids, users = learn(rows.frame["query"])
    rows, users, items = _once(rows, users, rows.frame[key].to_numpy(), len(item_ids))
    return Interactions(
        torch.from_numpy(users),
        torch.from_numpy(items),
        user_ids.alias("query"),
        item_ids.alias("item"),
        None,
        None,
        None if texts is None else texts.alias("document"),
        rows.reading(notes),
    )


def _empty(ids: pl.Series) -> pl.Series:
    return ids.is_null() | (ids == "").fill_null(False) if ids.dtype == pl.String else ids.is_null()


def _known(rows: Rows, role: str, noun: str, vocabulary: pl.Series) -> Rows:
    """The rows whose id a vocabulary holds, the id replaced by its row number."""
    found = look_up(as_type_of(rows.frame[role], vocabulary, noun), vocabulary)
    numbered = replace(rows, frame=rows.frame.with_columns(pl.Series(role, found)))
    left = numbered.without(f"unknown {noun}", numbered.frame[role] < 0)
    if len(left.frame) == 0:
        raise ValueError(
            f"{', '.join(rows.files)}: none of {len(rows.frame):,} rows has {'an' if noun == 'item' else 'a'} {noun} of the training data: "
            f"it has {rows.frame[role].head(1).to_list()}, that has {vocabulary.head(3).to_list()}. "
            "Is this the test file of another data set?"
        )
    return left


def all_new(rows: Rows, user_ids: pl.Series) -> bool:
    """Whether a vocabulary knows none of the rows' users, however numbers are written."""
    asked = rows.frame["user"].unique().cast(pl.String)
    return not asked.is_in(user_ids.cast(pl.String).implode()).any()


def _once(rows: Rows, users: Ints, items: Ints, n_items: int) -> tuple[Rows, Ints, Ints]:
    """Each pair once."""
    times = rows.frame["time"].to_numpy() if "time" in rows.frame.columns else None
    keep = first_of_each(users * n_items + items, times)
    if keep.all():
        return rows, users.copy(), items.copy()
    return rows.without("duplicate", pl.Series(~keep)), users[keep], items[keep]


def _first_texts(documents: pl.Series, items: Ints, n_items: int, notes: list[str]) -> pl.Series:
    """The first text of each item, and a note if some items have several."""
    first = np.empty(n_items, np.int64)
    first[items[::-1]] = np.arange(len(items))[::-1]
    texts = documents[first]
    differing = items[(documents != texts[items]).to_numpy()]
    if len(differing):
        notes.append(f"{len(np.unique(differing)):,} items have more than one text; the first was taken.")
    return texts


def _seen_before(users: Ints, items: Ints, train: Interactions | None) -> list[str]:
    if train is None:
        return []
    seen = np.isin(users * train.n_items + items, train.users.numpy() * train.n_items + train.items.numpy())
    count = int(seen.sum())
    if not count:
        return []
    return [
        f"{count:,} test pairs stand in the training data too; they cannot be found if seen items are hidden."
    ]
