"""The queue forgets the oldest, counts what it holds, and survives a checkpoint."""

import math
from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.draws import Proposal
from steelyard.negatives.queue import Queue
from tests.statistical import assert_unbiased

COUNTS = torch.tensor([1, 10, 0, 2, 5, 9])
OCCURS = [0, 1, 3, 4, 5]


@given(st.integers(1, 7), st.lists(st.lists(st.sampled_from(OCCURS), max_size=12), max_size=6))
def test_the_oldest_leave_first(capacity: int, batches: list[list[int]]) -> None:
    queue, plain = Queue(capacity, COUNTS), deque[int](maxlen=capacity)
    for batch in batches:
        queue.push(torch.tensor(batch, dtype=torch.int64))
        plain.extend(batch)
        assert queue.ids.tolist() == list(plain)
        assert len(queue) == len(plain)


def test_expected_counts_are_slots_times_shares() -> None:
    queue = Queue(4, COUNTS)
    assert isinstance(queue, Proposal)
    queue.push(torch.tensor([1, 1, 5]))
    everything = torch.arange(6)
    for n, m in ((2, 2), (3, 3), (100, 3)):
        draws = queue.sample(None, n)
        assert len(draws.ids) == m
        want = [m * c / 27 for c in COUNTS.tolist()]
        assert draws.log_expected_of(everything).exp().tolist() == pytest.approx(want)
        torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    assert draws.ids.tolist() == [1, 1, 5]
    queue.push(torch.tensor([0, 0]))
    assert draws.log_expected_of(everything).exp().tolist() == pytest.approx(want)  # of the draws as made
    assert draws.ids.tolist() == [1, 1, 5]


@pytest.mark.parametrize("n", [3, 100])
def test_the_sum_over_everything_is_unbiased_on_independent_batches(n: int) -> None:
    generator, score = torch.Generator().manual_seed(4), torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0, -0.5])
    queue, seen = Queue(8, COUNTS), []
    for _ in range(1500):
        for _ in range(3):  # the whole queue is new, so that replications are independent
            queue.push(torch.multinomial(COUNTS.double(), 3, replacement=True, generator=generator))
        draws = queue.sample(None, n, generator=generator)
        seen.append(float((score[draws.ids] - draws.log_expected).exp().sum()))
    assert_unbiased(seen, float(score.exp()[OCCURS].sum()))


def test_a_checkpoint_goes_on_as_if_nothing_had_happened() -> None:
    queue, other = Queue(4, COUNTS), Queue(4, COUNTS)
    other.push(torch.tensor([5, 5, 5]))
    for batch in ([0, 1, 3], [4, 5, 5], [1]):
        queue.push(torch.tensor(batch))
        state = queue.state_dict()
        other.load_state_dict(state)
        assert other.ids.tolist() == queue.ids.tolist()
    queue.push(torch.tensor([3, 3]))
    assert state["ids"].tolist() == [4, 5, 5, 1]  # a copy
    other.push(torch.tensor([3, 3]))
    assert other.ids.tolist() == queue.ids.tolist() == [5, 1, 3, 3]
    with pytest.raises(ValueError, match="capacity"):
        Queue(5, COUNTS).load_state_dict(state)
    with pytest.raises(ValueError, match="never occurs"):
        other.load_state_dict({"capacity": 4, "ids": torch.tensor([2])})
    assert other.ids.tolist() == [5, 1, 3, 3]


def test_an_empty_queue_has_no_candidates() -> None:
    queue = Queue(4, COUNTS)
    for n in (0, 3):
        draws = queue.sample(None, n)
        assert draws.ids.tolist() == []
        assert draws.log_expected_of(torch.tensor([1, 5])).tolist() == [-math.inf] * 2
    queue.push(torch.zeros(0, dtype=torch.int64))
    queue.push(torch.tensor([1]))
    assert queue.sample(None, 0).ids.tolist() == []
    outside = queue.sample(None, 1).log_expected_of(torch.tensor([-1, 6, 2**40]))
    assert outside.tolist() == [-math.inf] * 3


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        Queue(0, COUNTS)
    for bad in ([1.0, -1.0], [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="finite and not negative"):
            Queue(3, torch.tensor(bad))
    with pytest.raises(ValueError, match="positive for at least one"):
        Queue(3, torch.zeros(2))
    queue = Queue(3, COUNTS)
    with pytest.raises(TypeError, match="int64"):
        queue.push(torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"\(b,\)"):
        queue.push(torch.tensor([[1]]))
    for never in (2, -1, 6):
        with pytest.raises(ValueError, match=f"Item {never} never occurs"):
            queue.push(torch.tensor([1, never]))
    assert len(queue) == 0
    with pytest.raises(TypeError, match="integer"):
        queue.sample(None, True)
