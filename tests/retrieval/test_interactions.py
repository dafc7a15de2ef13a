"""Interactions: what the type promises to those who train and evaluate on it."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
import torch

from steelyard.retrieval.interactions import Interactions, Reading


def make(
    pairs: list[tuple[int, int]],
    user_ids: pl.Series | None = None,
    item_ids: pl.Series | None = None,
    weights: torch.Tensor | None = None,
    times: torch.Tensor | None = None,
    item_texts: pl.Series | None = None,
) -> Interactions:
    rows = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return Interactions(
        rows[:, 0].contiguous(),
        rows[:, 1].contiguous(),
        pl.Series([10, 20, 30]) if user_ids is None else user_ids,
        pl.Series(["a", "b", "c", "d"]) if item_ids is None else item_ids,
        weights,
        times,
        item_texts,
        Reading([], "memory", {}, len(pairs), len(pairs)),
    )


PAIRS = [(2, 3), (0, 1), (2, 0), (2, 1), (0, 3)]


def test_known_lists_the_sorted_items_of_every_user_even_of_one_without_items() -> None:
    known = make(PAIRS).known()
    assert [known.row(user).tolist() for user in range(3)] == [[1, 3], [], [0, 1, 3]]


def test_item_counts_cover_the_whole_catalogue() -> None:
    assert make(PAIRS).item_counts().tolist() == [1, 2, 0, 2]


def test_sizes_are_those_of_the_vocabularies_and_not_of_the_pairs() -> None:
    some = make([(0, 0)])
    assert (len(some), some.n_users, some.n_items, some.is_text) == (1, 3, 4, False)


def test_select_by_mask_and_by_position_take_all_columns_along() -> None:
    whole = make(PAIRS, weights=torch.arange(5.0), times=torch.arange(5) * 10)
    mask = torch.tensor([True, False, False, True, True])
    by_mask, by_place = whole.select(mask), whole.select(torch.tensor([4, 0]))
    assert by_mask.items.tolist() == [3, 1, 3]
    assert by_mask.weights.tolist() == [0, 3, 4]
    assert by_place.users.tolist() == [0, 2]
    assert by_place.times.tolist() == [40, 0]
    assert by_place.n_items == whole.n_items


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([True, False]),
        torch.tensor([0.5]),
        torch.tensor([[0, 1]]),
        torch.tensor([0], dtype=torch.int32),
    ],
)
def test_select_refuses_what_is_neither_a_mask_nor_positions(rows: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="mask"):
        make(PAIRS).select(rows)


def test_the_fingerprint_is_that_of_the_content() -> None:
    assert make(PAIRS).fingerprint() == make(PAIRS).fingerprint()
    renamed = replace(make(PAIRS), reading=Reading(["elsewhere.csv"], "csv", {}, 5, 5))
    assert renamed.fingerprint() == make(PAIRS).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        make([*PAIRS[:4], (0, 2)]),
        make([PAIRS[1], PAIRS[0], *PAIRS[2:]]),
        make(PAIRS[:4]),
        make(PAIRS, user_ids=pl.Series([10, 20, 31])),
        make(PAIRS, user_ids=pl.Series(["10", "20", "30"])),
        make(PAIRS, item_ids=pl.Series(["ab", "", "c", "d"])),
        make(PAIRS, weights=torch.ones(5)),
        make(PAIRS, times=torch.zeros(5, dtype=torch.int64)),
        make(PAIRS, times=torch.zeros(5, dtype=torch.float64)),
        make(PAIRS, item_texts=pl.Series(["a", "b", "c", "d"])),
    ],
    ids=[
        "item",
        "order",
        "fewer",
        "user id",
        "id type",
        "id border",
        "weights",
        "times",
        "float times",
        "texts",
    ],
)
def test_the_fingerprint_changes_with_any_part_of_the_content(other: Interactions) -> None:
    assert other.fingerprint() != make(PAIRS).fingerprint()
    assert other.fingerprint() != make(PAIRS, times=torch.ones(5, dtype=torch.int64)).fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": torch.tensor([0, 1, 2, 3, 0])}, r"users must lie in \[0, 3\), got 0 to 3"),
        ({"items": torch.tensor([0, 1, -1, 3, 0])}, r"items must lie in \[0, 4\)"),
        ({"items": torch.tensor([0, 1])}, "items must be int64 of shape"),
        ({"users": torch.zeros(5)}, "users must be int64"),
        ({"weights": torch.ones(5, dtype=torch.float64)}, "weights must be float32"),
        ({"times": torch.ones(4, dtype=torch.int64)}, "times must be int64 or float64"),
        ({"item_texts": pl.Series(["one"])}, "1 item texts for 4 items"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(make(PAIRS), **change)  # type: ignore[arg-type]


def test_the_reading_says_what_was_dropped_and_why() -> None:
    reading = Reading(
        ["a.csv"], "csv", {"user": "uid"}, 1000, 990, {"duplicate": 7, "empty item": 3}, ["Odd."]
    )
    text = str(reading)
    assert "Read 1,000 rows of csv from a.csv" in text
    assert "user = uid" in text
    assert "Dropped 10 rows: 7 duplicate, 3 empty item. Kept 990." in text
    assert text.endswith("Note: Odd.")
    assert Reading(**json.loads(json.dumps(reading.to_dict()))) == reading


def test_many_files_are_told_by_the_first() -> None:
    text = str(Reading([f"part-{i}.csv" for i in range(50)], "csv", {}, 1, 1))
    assert "50 files from part-0.csv on" in text
    assert "part-7" not in text


def test_a_reading_must_account_for_every_row() -> None:
    with pytest.raises(ValueError, match="10 rows"):
        Reading([], "csv", {}, 10, 8, {"duplicate": 1})
