"""Accidental hits: every draw that the query is known to want, and no other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.negatives import Context
from steelyard.negatives.context import MULTIPLIER
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
    with pytest.raises(ValueError, match="int64"):
        Context(torch.tensor([1, 2])).hits(torch.zeros(3))
    for ids in ([3, -1], [[3, 1], [2, -1]]):
        with pytest.raises(ValueError, match="must not be negative, got -1"):
            Context(torch.tensor([1, 2])).hits(torch.tensor(ids))


def plain_hits(context: Context, drawn: list[list[int]]) -> list[tuple[int, int]]:
    return [
        (r, c)
        for r, mine in enumerate(drawn)
        for c, v in enumerate(mine)
        if v == int(context.positives[r]) or v in context.known.row(r).tolist()
    ]


@given(
    st.lists(st.integers(0, 5), max_size=6, unique=True),
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.booleans(),
)
def test_ids_that_share_a_place_in_the_hash_table_are_kept_apart(
    known: list[int], drawn: list[int], at_the_end: bool
) -> None:
    """Ids whose hashes all fall into the first place of the table, or all into its last."""
    inverse, mass = pow(int(MULTIPLIER), -1, 2**64), range(1, 40)
    hashes = [2**64 - h for h in mass] if at_the_end else list(mass)
    crowd = [i for h in hashes if (i := h * inverse % 2**64) < 2**63][:6]
    values = sorted(crowd[k] for k in known)
    context = Context(
        torch.tensor([crowd[0]]), Ragged(torch.tensor([0, len(values)]), torch.tensor(values).long())
    )
    ids = [crowd[d] for d in drawn]
    rows, columns = context.hits(torch.tensor(ids))
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == plain_hits(context, [ids])


def test_the_cost_of_hits_does_not_know_the_largest_id() -> None:
    """A table as long as the largest id would ask for 2^62 numbers."""
    far = 2**62
    context = Context(torch.tensor([far, 3]), Ragged(torch.tensor([0, 2, 3]), torch.tensor([1, far - 1, 5])))
    drawn = [far, 1, 5, far - 1, 3, far]
    want = plain_hits(context, [drawn, drawn])
    for ids in (torch.tensor(drawn), torch.tensor([drawn, drawn])):
        assert sorted(zip(*(t.tolist() for t in context.hits(ids)), strict=True)) == want


def test_two_ids_of_different_rows_do_not_meet_in_a_key() -> None:
    context = Context(torch.tensor([0, 0]), Ragged(torch.tensor([0, 0, 1]), torch.tensor([4])))
    rows, _ = context.hits(torch.tensor([[10, 9, 6, 5], [10, 9, 6, 5]]))
    assert rows.tolist() == []


def test_no_draws_have_no_hits() -> None:
    context = Context(torch.tensor([1, 2]), Ragged(torch.tensor([0, 1, 1]), torch.tensor([1])))
    for ids in (torch.zeros(0, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64)):
        assert [len(t) for t in context.hits(ids)] == [0, 0]


def test_queries_with_many_positives_mask_all_that_is_known_and_nothing_else() -> None:
    known = Ragged.from_pairs(torch.tensor([0, 0, 0, 1]), torch.tensor([4, 2, 7, 3]), 2)
    context = Context(torch.tensor([2, 4, 3]), known, torch.tensor([0, 0, 1]))
    assert len(context) == 2
    ids = torch.tensor([2, 3, 7, 5, 0])
    want = [[True, False, True, False, False], [False, True, False, False, False]]
    assert context.mask(ids).tolist() == want
    assert context.mask(ids.expand(2, -1)).tolist() == want


def test_queries_with_many_positives_need_what_is_known_and_an_owner_for_each() -> None:
    with pytest.raises(ValueError, match="need known"):
        Context(torch.tensor([2, 4]), None, torch.tensor([0, 0]))
    known = Ragged.from_pairs(torch.tensor([0, 0]), torch.tensor([4, 2]), 1)
    with pytest.raises(ValueError, match="owner must be"):
        Context(torch.tensor([2, 4]), known, torch.tensor([0]))
