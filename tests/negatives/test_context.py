"""Accidental hits: every draw that the query is known to want, and no other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.negatives import Context
from steelyard.ragged import Ragged

ids = st.integers(0, 8)


@given(
    st.lists(st.tuples(ids, st.sets(ids, max_size=6)), min_size=1, max_size=6),
    st.lists(ids, max_size=12),
    st.booleans(),
)
def test_hits_equal_a_plain_loop(rows: list[tuple[int, set[int]]], drawn: list[int], shared: bool) -> None:
    known = [(r, v) for r, (_, items) in enumerate(rows) for v in items]
    table = torch.tensor(known, dtype=torch.int64).view(-1, 2)
    context = Context(
        torch.tensor([p for p, _ in rows]), Ragged.from_pairs(table[:, 0], table[:, 1], len(rows))
    )
    draws = torch.tensor(drawn, dtype=torch.int64)
    if not shared:
        draws = torch.stack([draws.roll(r) for r in range(len(rows))])
    want = []
    for r, (positive, items) in enumerate(rows):
        mine = draws if shared else draws[r]
        want += [(r, c) for c, v in enumerate(mine.tolist()) if v == positive or v in items]
    got = context.hits(draws)
    assert got[0].tolist() == [r for r, _ in want]
    assert sorted(zip(*(t.tolist() for t in got), strict=True)) == want
    assert context.mask(draws).nonzero().tolist() == [list(pair) for pair in want]


def test_without_known_items_only_the_positive_is_a_hit() -> None:
    rows, columns = Context(torch.tensor([4, 2])).hits(torch.tensor([2, 4, 4]))
    assert (rows.tolist(), columns.tolist()) == ([0, 0, 1], [1, 2, 0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="int64"):
        Context(torch.zeros(2))
    with pytest.raises(ValueError, match="rows"):
        Context(torch.tensor([1]), Ragged.from_pairs(torch.tensor([0]), torch.tensor([0]), 2))
    with pytest.raises(ValueError, match="ids must be"):
        Context(torch.tensor([1, 2])).hits(torch.zeros(3, 2, dtype=torch.int64))
