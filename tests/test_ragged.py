"""Rows of unequal length."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.ragged import Ragged

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=40)


@given(pairs, st.lists(st.integers(0, 6), max_size=12))
def test_it_groups_pairs_into_sorted_sets_and_takes_rows(
    given_pairs: list[tuple[int, int]], rows: list[int]
) -> None:
    sets: list[set[int]] = [set() for _ in range(7)]
    for row, value in given_pairs:
        sets[row].add(value)
    table = torch.tensor(given_pairs, dtype=torch.int64).view(-1, 2)
    ragged = Ragged.from_pairs(table[:, 0], table[:, 1], 7)
    assert len(ragged) == 7
    assert [ragged.row(r).tolist() for r in range(7)] == [sorted(s) for s in sets]
    taken = ragged.take(torch.tensor(rows, dtype=torch.int64))
    assert [taken.row(r).tolist() for r in range(len(rows))] == [sorted(sets[r]) for r in rows]
    assert taken.row_index().tolist() == [i for i, r in enumerate(rows) for _ in sets[r]]


def test_what_does_not_describe_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="rise from 0"):
        Ragged(torch.tensor([0, 3]), torch.tensor([1]))
    with pytest.raises(ValueError, match="int64"):
        Ragged(torch.tensor([0, 1]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"\[0, 2\)"):
        Ragged.from_pairs(torch.tensor([2]), torch.tensor([0]), 2)
    with pytest.raises(ValueError, match="negative"):
        Ragged.from_pairs(torch.tensor([1]), torch.tensor([-1]), 2)
