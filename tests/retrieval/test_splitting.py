"""Splits: what is held out, of whom, and that nothing is lost or decided by anything but the seed."""

from __future__ import annotations

from collections import defaultdict

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.retrieval.interactions import Interactions, Reading
from steelyard.retrieval.splitting import split


def make(
    pairs: list[tuple[int, int]],
    user_ids: pl.Series,
    item_ids: pl.Series,
    times: torch.Tensor | None = None,
    item_texts: pl.Series | None = None,
) -> Interactions:
    rows = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    users, items = rows[:, 0].contiguous(), rows[:, 1].contiguous()
    reading = Reading([], "memory", {}, len(pairs), len(pairs))
    return Interactions(users, items, user_ids, item_ids, None, times, item_texts, reading)


def few(pairs: list[tuple[int, int]], times: torch.Tensor | None = None, text: bool = False) -> Interactions:
    """Pairs of up to 20 users (or queries) and four items."""
    names = pl.Series(list("abcd"))
    return make(pairs, pl.Series([f"query {i}" for i in range(20)]), names, times, names if text else None)


def history(counts: list[int], times: list[float] | None = None, seed: int = 3) -> Interactions:
    """Users with that many interactions each, in shuffled order; item numbers tell the pairs apart."""
    users = [user for user, count in enumerate(counts) for _ in range(count)]
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(seed)).tolist()
    pairs = [(users[place], item) for item, place in enumerate(order)]
    return make(
        pairs,
        user_ids=pl.Series(range(len(counts)), dtype=pl.Int64),
        item_ids=pl.Series(range(len(users)), dtype=pl.Int64),
        times=None if times is None else torch.tensor(times, dtype=torch.float64),
    )


def pairs_of(part: Interactions) -> set[tuple[int, int]]:
    return set(zip(part.users.tolist(), part.items.tolist(), strict=True))


def count_by_user(part: Interactions) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for user in part.users.tolist():
        counts[user] += 1
    return counts


COUNTS = [1, 2, 3, 10, 25, 0, 104, 1]


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(lambda counts: max(counts) >= 3),
    how=st.sampled_from(["random", "leave-last-out"]),
    fraction=st.floats(0.01, 0.99),
    users=st.none() | st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_no_pair_is_lost_and_none_is_in_both_parts(
    counts: list[int], how: str, fraction: float, users: int | None, seed: int
) -> None:
    whole = history(counts)
    kept, held = split(whole, how, fraction=fraction, users=users, seed=seed)
    assert pairs_of(kept) | pairs_of(held) == pairs_of(whole)
    assert len(kept) + len(held) == len(whole)
    assert 0 < len(held) < len(whole)
    assert set(held.users.tolist()) <= set(kept.users.tolist())
    if users is not None:
        assert len(set(held.users.tolist())) <= users


def test_random_holds_out_a_share_of_each_user_at_least_one_and_never_all() -> None:
    kept, held = split(history(COUNTS), "random", fraction=0.3, seed=1)
    expected = {user: min(max(1, round(0.3 * n)), n - 1) for user, n in enumerate(COUNTS) if n >= 2}
    assert count_by_user(held) == expected
    assert count_by_user(kept)[0] == 1
    almost_all, _ = split(history(COUNTS), "random", fraction=0.99, seed=1)
    assert all(count_by_user(almost_all)[user] >= 1 for user, n in enumerate(COUNTS) if n)


def test_random_picks_every_interaction_of_a_user_equally_often() -> None:
    # 2 of 5 held out, 4000 seeds: each interaction 1600 times, standard deviation 31; 5 of these is p < 1e-6.
    whole = history([5])
    times_held = torch.zeros(5)
    for seed in range(4000):
        _, held = split(whole, "random", fraction=0.4, seed=seed)
        times_held[held.items] += 1
    assert (times_held - 1600).abs().max() < 155


def test_a_limit_on_users_picks_users_at_random_and_holds_out_of_no_others() -> None:
    whole = history([4] * 40)
    chosen = [frozenset(split(whole, "random", users=5, seed=seed)[1].users.tolist()) for seed in range(5)]
    assert {len(users) for users in chosen} == {5}
    assert len(set(chosen)) == 5
    _, all_of_them = split(whole, "random", users=400, seed=0)
    assert len(set(all_of_them.users.tolist())) == 40


@pytest.mark.parametrize("how", ["random", "leave-last-out"])
def test_the_seed_alone_decides(how: str) -> None:
    whole = history([7] * 30)
    torch.manual_seed(1)
    first = split(whole, how, users=9, seed=5)[1]
    torch.manual_seed(2)
    torch.rand(100)
    again, other = split(whole, how, users=9, seed=5)[1], split(whole, how, users=9, seed=6)[1]
    assert pairs_of(first) == pairs_of(again)
    assert pairs_of(first) != pairs_of(other)


def test_leave_last_out_takes_the_latest_of_users_with_three_or_more() -> None:
    times = torch.randperm(sum(COUNTS), generator=torch.Generator().manual_seed(9)).double().tolist()
    whole = history(COUNTS, times)
    _, held = split(whole, "leave-last-out", seed=0)
    latest: dict[int, tuple[float, int]] = {}
    for user, item, time in zip(whole.users.tolist(), whole.items.tolist(), times, strict=True):
        latest[user] = max(latest.get(user, (-1.0, -1)), (time, item))
    assert pairs_of(held) == {(user, latest[user][1]) for user, n in enumerate(COUNTS) if n >= 3}


def test_leave_last_out_goes_by_the_order_of_rows_without_times_and_where_times_are_equal() -> None:
    pairs = [(0, 3), (1, 0), (0, 1), (1, 3), (0, 2), (1, 1)]
    for times in (None, torch.zeros(6, dtype=torch.int64)):
        kept, held = split(few(pairs, times), "leave-last-out", seed=0)
        assert pairs_of(held) == {(0, 2), (1, 1)}
        assert kept.items.tolist() == [3, 0, 1, 3]


def test_the_held_out_part_says_how_many_and_by_which_order() -> None:
    _, held = split(history([3, 3, 2]), "leave-last-out", seed=0)
    assert held.reading.notes[-1] == (
        "Held out 2 of 8 pairs (leave-last-out, by the order of the rows since there are no times), "
        "of 2 users."
    )


def test_time_cuts_at_one_moment_and_never_parts_equal_times() -> None:
    times = [1.0, 2, 3, 4, 5, 6, 7, 7, 7, 10]
    whole = history([10], times)
    kept, held = split(whole, "time", fraction=0.2, seed=0)
    assert kept.times.tolist() == [1, 2, 3, 4, 5, 6]
    assert held.times.tolist() == [7, 7, 7, 10]


def test_time_holds_out_about_the_fraction_when_times_differ() -> None:
    whole = history(
        [500, 500], torch.randperm(1000, generator=torch.Generator().manual_seed(0)).double().tolist()
    )
    for fraction in (0.05, 0.1, 0.5):
        assert abs(len(split(whole, "time", fraction=fraction, seed=0)[1]) - 1000 * fraction) <= 1


def test_time_keeps_something_when_the_earliest_time_fills_nearly_everything() -> None:
    kept, held = split(history([4], [1.0, 1, 1, 2]), "time", fraction=0.9, seed=0)
    assert (len(kept), len(held)) == (3, 1)


def test_text_is_split_by_whole_queries() -> None:
    pairs = [(query, document) for query in range(20) for document in range(1 + query % 3)]
    whole = few(pairs, text=True)
    kept, held = split(whole, "random", fraction=0.25, seed=0)
    assert len(set(held.users.tolist())) == 5
    assert not set(held.users.tolist()) & set(kept.users.tolist())
    assert len(set(split(whole, "random", fraction=0.25, users=2, seed=0)[1].users.tolist())) == 2


@pytest.mark.parametrize(
    ("whole", "arguments", "message"),
    [
        (history([3]), {"how": "halves"}, "random, leave-last-out and time"),
        (history([3]), {"fraction": 0.0}, "strictly between 0 and 1"),
        (history([3]), {"fraction": 1.0}, "strictly between 0 and 1"),
        (history([3]), {"users": 0}, "at least 1"),
        (history([1, 1, 1]), {}, "No user has two interactions"),
        (history([2, 2]), {"how": "leave-last-out"}, "No user has 3 interactions"),
        (history([3]), {"how": "time"}, "needs a time column"),
        (history([3], [1.0, 2, 3]), {"how": "time", "users": 2}, "future"),
        (history([3], [5.0, 5, 5]), {"how": "time"}, "one and the same time"),
        (few([(0, 1), (0, 2)], text=True), {}, "one query only"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(
    whole: Interactions, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        split(whole, seed=0, **arguments)  # type: ignore[arg-type]
