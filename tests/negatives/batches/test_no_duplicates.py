"""No two rows of a batch share a key, no row is lost, and the batches are about as few as can be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.negatives.batches.clusters import balanced_bisection, cluster_batches
from steelyard.negatives.batches.no_duplicates import no_duplicate_batches
from steelyard.ragged import Ragged
from tests.negatives.batches.clustered import hard_share, is_epoch, planted, random_batches


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ragged(rows: list[list[int]]) -> Ragged:
    offsets = torch.tensor([0, *(len(r) for r in rows)]).cumsum(0)
    return Ragged(offsets, torch.tensor([v for r in rows for v in r], dtype=torch.int64))


@given(
    st.lists(st.lists(st.integers(0, 9) | st.sampled_from([2**40, 2**63 - 1]), max_size=4), max_size=40),
    st.integers(1, 6),
    st.integers(0, 9),
)
def test_no_batch_holds_a_key_twice_and_no_row_is_lost(rows: list[list[int]], size: int, seed: int) -> None:
    batches = no_duplicate_batches(ragged(rows), size, generator=generator(seed))
    assert is_epoch(batches, len(rows))
    for b in range(len(batches)):
        keys = [k for i in batches.row(b).tolist() for k in set(rows[i])]
        assert len(set(keys)) == len(keys)
        assert 1 <= len(batches.row(b)) <= size


def test_batches_are_full_where_keys_are_rare_and_as_few_as_the_commonest_key_allows() -> None:
    n = 5000
    pairs = torch.stack([torch.arange(n), torch.randint(n // 3, (n,), generator=generator()) + n], 1)
    keys = Ragged(2 * torch.arange(n + 1), pairs.flatten())
    batches = no_duplicate_batches(keys, 32, generator=generator(1))
    assert is_epoch(batches, n)
    assert len(batches) <= -(-n // 32) + 2
    pairs[:400, 1] = 7  # a text of 400 rows needs 400 batches
    batches = no_duplicate_batches(
        Ragged(2 * torch.arange(n + 1), pairs.flatten()), 32, generator=generator(1)
    )
    assert len(batches) == 400


def test_without_keys_batches_are_random_and_a_seed_repeats() -> None:
    keys = Ragged(torch.zeros(1001, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    one, same, other = (no_duplicate_batches(keys, 8, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(one.values, same.values)
    assert not torch.equal(one.values, other.values)
    assert one.counts.tolist() == [8] * 125
    assert not torch.equal(one.values, torch.arange(1000))


def test_batches_of_another_method_stay_hard_and_lose_their_duplicates() -> None:
    x, _ = planted(2000, 40)
    text = torch.randint(700, (2000,), generator=generator(4))
    hard = cluster_batches(balanced_bisection(x, 8, generator=generator()), 64, generator=generator(1))
    batches = no_duplicate_batches(Ragged(torch.arange(2001), text), 64, order=hard.values)
    assert is_epoch(batches, 2000)
    assert all(len(text[batches.row(b)].unique()) == len(batches.row(b)) for b in range(len(batches)))
    assert hard_share(batches, x) > 4 * hard_share(random_batches(2000, 64), x)
    # Where nothing is shared the order is kept.
    same = no_duplicate_batches(Ragged(torch.arange(2001), torch.arange(2000)), 64, order=hard.values)
    assert torch.equal(same.values, hard.values)


def test_wrong_input_is_refused() -> None:
    keys = ragged([[0], [1]])
    for bad, kind, said in (
        (lambda: no_duplicate_batches(keys, 0), ValueError, "at least 1"),
        (lambda: no_duplicate_batches(ragged([[-1]]), 2), ValueError, "negative"),
        (lambda: no_duplicate_batches(keys, 2, order=torch.tensor([0, 0])), ValueError, "once"),
        (lambda: no_duplicate_batches(keys, 2, order=torch.tensor([0, 2])), ValueError, "once"),
        (lambda: no_duplicate_batches(keys, 2, order=torch.tensor([0.0, 1])), TypeError, "int64"),
    ):
        with pytest.raises(kind, match=said):
            bad()
    assert len(no_duplicate_batches(ragged([]), 4)) == 0
