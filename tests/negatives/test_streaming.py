"""Gaps of a stream estimate its frequencies, with the bias and variance that the recursion has."""

import math

import numpy as np
import pytest
import torch

from steelyard.draws import Proposal
from steelyard.negatives.context import Context
from steelyard.negatives.streaming import StreamingFrequency
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased

P = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


def stream(n: int, seed: int) -> torch.Tensor:
    return torch.multinomial(P, n, replacement=True, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("start", [None, 3.0])
def test_the_recursion_is_that_of_the_paper(start: float | None) -> None:
    ids = stream(60, 0).tolist()
    made = StreamingFrequency(10_000, 2, alpha=0.2, initial_gap=start)
    made.update(torch.tensor(ids[:25]))
    made.update(torch.tensor(ids[25:]).view(5, 7))
    last = dict.fromkeys(range(4), 0)
    gap = {} if start is None else dict.fromkeys(range(4), start)
    for t, j in enumerate(ids, 1):
        gap[j] = 0.8 * gap[j] + 0.2 * (t - last[j]) if j in gap else t - last[j]
        last[j] = t
    got = made.log_probability(torch.arange(4))
    assert got.tolist() == pytest.approx([-math.log(gap[j]) for j in range(4)], rel=1e-5)
    assert got.dtype == torch.float32


@pytest.mark.parametrize("start", [None, 20.0])
def test_bias_and_variance_of_the_gap_are_as_stated(start: float | None) -> None:
    """Many streams at once: the mean by z-test, the variance within 0.15 (6 standard errors or more)."""
    alpha, visits, q, streams = 0.1, 12, 0.25, 8_000
    gaps = np.random.default_rng(1).geometric(q, (streams, visits))
    seen = []
    for row in gaps.tolist():
        made = StreamingFrequency(64, alpha=alpha, initial_gap=start)
        ids = np.full(sum(row), 1)
        ids[np.cumsum(row) - 1] = 0  # the item 0 at its visits, another between them
        made.update(torch.from_numpy(ids))
        seen.append(math.exp(-float(made.log_probability(torch.tensor([0])))))
    keep, spread = (1 - alpha) ** visits, (1 - q) / q**2
    if start is None:
        mean, keep = 1 / q, (1 - alpha) ** (visits - 1)
        variance = spread * (keep**2 + alpha * (1 - keep**2) / (2 - alpha))
    else:
        mean, variance = 1 / q + keep * (start - 1 / q), spread * alpha * (1 - keep**2) / (2 - alpha)
    assert_unbiased(seen, mean)
    assert np.var(seen) == pytest.approx(variance, rel=0.15)


def test_a_small_learning_rate_has_the_smaller_variance_on_a_long_stream() -> None:
    error = {}
    for alpha in (0.3, 0.003):
        made = StreamingFrequency(10_000, 3, alpha=alpha)
        made.update(stream(100_000, 3))
        error[alpha] = float((made.log_probability(torch.arange(4)).exp().double() / P - 1).abs().max())
    assert error[0.003] < 0.2
    assert error[0.003] < error[0.3]


def test_it_follows_a_stream_that_changes() -> None:
    made = StreamingFrequency(1000, alpha=0.05)
    made.update(torch.tensor([0, 1, 1, 1]).repeat(500))
    made.update(torch.tensor([1, 0, 0, 0]).repeat(500))
    assert float(made.log_probability(torch.tensor([1])).exp()) == pytest.approx(0.25, rel=0.05)


def test_collisions_shorten_gaps_and_more_hash_functions_undo_it() -> None:
    weights = 1 / torch.arange(1, 301, dtype=torch.float64)
    ids = torch.multinomial(weights, 30_000, replacement=True, generator=torch.Generator().manual_seed(5))
    rare = torch.arange(100, 300)
    rare = rare[torch.isin(rare, ids)]
    truth = (weights / weights.sum())[rare].log()
    excess = []
    for n_hash in (1, 4):
        made = StreamingFrequency(400, n_hash, alpha=0.05)
        made.update(ids)
        excess.append(float((made.log_probability(rare).double() - truth).mean()))
    assert excess[0] > 0.5
    assert abs(excess[1]) < 0.2


def test_in_batch_sums_are_unbiased_with_estimated_frequencies() -> None:
    """The others of query 0's batch, weighed by gaps, sum to everything but its own item."""
    score = torch.tensor([0.5, -1.0, 1.0, 0.3])
    generator, seen = torch.Generator().manual_seed(6), []
    for _ in range(1000):
        made = StreamingFrequency(1000, alpha=0.1)
        made.update(torch.multinomial(P, 400, replacement=True, generator=generator))
        others = torch.multinomial(P, 5, replacement=True, generator=generator)
        context = Context(torch.cat([torch.tensor([1]), others]))
        draws = made.sample(context, 4, generator=generator)  # gaps up to here do not know the batch
        weight = (score[draws.ids] - draws.log_expected).exp().masked_fill(context.mask(draws.ids)[0], 0)
        seen.append(float(weight.sum()))
    assert_unbiased(seen, float(score.exp()[[0, 2, 3]].sum()))


@pytest.mark.parametrize("n", [4, 100])
def test_sums_are_unbiased_where_queries_have_many_positives(n: int) -> None:
    """Heavy queries like other items than light ones; query 0 has item 1, the sum is over all others."""
    kinds = [[0, 2, 3], [1], [0], [0, 1], [2, 1, 0], [3, 0]]
    pairs = Ragged.from_pairs(
        torch.tensor([r for r, items in enumerate(kinds) for _ in items]),
        torch.tensor([j for items in kinds for j in items]),
        len(kinds),
    )
    score, g, seen = torch.tensor([0.5, -1.0, 1.0, 0.3]), torch.Generator().manual_seed(8), []
    for _ in range(1500):
        made = StreamingFrequency(1000, alpha=0.05)
        stream_of = torch.randint(len(kinds), (250,), generator=g)
        made.update(pairs.take(stream_of).values, n_queries=250)
        # gaps up to here do not know the batch
        taken = pairs.take(torch.cat([torch.tensor([1]), torch.randint(len(kinds), (3,), generator=g)]))
        context = Context(taken.values, taken, taken.row_index())
        draws = made.sample(context, n, generator=g)
        weight = (score[draws.ids] - draws.log_expected).exp().masked_fill(context.mask(draws.ids)[0], 0)
        seen.append(float(weight.sum()))
    assert_unbiased(seen, float(score.exp()[[0, 2, 3]].sum()))


def test_many_positives_count_by_their_average_and_one_each_is_as_before() -> None:
    pairs = Ragged.from_pairs(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 0]), 2)
    many = Context(pairs.values, pairs, pairs.row_index())
    made = StreamingFrequency(1000, alpha=0.5)
    made.update(torch.tensor([0, 1, 2, 0]), n_queries=2)
    made.update(torch.tensor([0, 1, 2, 0]), n_queries=2)
    draws = made.sample(many, 10)
    assert draws.ids.tolist() == [0, 1, 2, 0]
    gap = made.log_probability(torch.arange(3)).neg()
    torch.testing.assert_close(draws.log_expected_of(torch.arange(3)), math.log(2) - gap)
    few = made.sample(many, 1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(few.log_expected_of(torch.arange(3)), math.log(1 / 4 * 2) - gap)
    single = Ragged.from_pairs(torch.arange(3), torch.arange(3), 3)
    other = StreamingFrequency(1000, alpha=0.5)
    other.update(torch.tensor([0, 1, 2, 1]))
    one, same = (
        other.sample(context, 5)
        for context in (Context(single.values), Context(single.values, single, single.row_index()))
    )
    assert torch.equal(one.ids, same.ids)
    torch.testing.assert_close(one.log_expected, same.log_expected)


def test_it_takes_the_batch_at_its_estimated_counts() -> None:
    made = StreamingFrequency(1000, alpha=0.5)
    assert isinstance(made, Proposal)
    made.update(torch.tensor([0, 1, 0, 1]))
    draws = made.sample(Context(torch.tensor([1, 0, 1])), 10)
    assert draws.ids.tolist() == [1, 0, 1]
    assert draws.log_expected.exp().tolist() == pytest.approx([2 / 2, 2 / 1.5, 2 / 2])
    asked = torch.tensor([[0, 7], [-1, 2**40]])
    assert draws.log_expected_of(asked).exp().flatten().tolist() == pytest.approx([2 / 1.5, 0, 0, 0])
    assert made.sample(Context(torch.tensor([1, 0, 1])), 1).log_expected.exp().sum() <= 2 / 3 / 1.5 + 1e-6
    made.update(torch.tensor([1]))
    with pytest.raises(RuntimeError, match="before the next update"):
        draws.log_expected_of(asked)


def test_no_others_are_no_candidates() -> None:
    made = StreamingFrequency(100)
    made.update(torch.tensor([3]))
    for context, n in (
        (Context(torch.tensor([3])), 5),
        (Context(torch.tensor([3, 3])), 0),
        (Context(torch.zeros(0, dtype=torch.int64)), 2),
    ):
        draws = made.sample(context, n)
        assert draws.ids.tolist() == []
        assert draws.log_expected_of(torch.tensor([3])).tolist() == [-math.inf]


def test_a_checkpoint_goes_on_as_if_nothing_had_happened() -> None:
    ids, asked = stream(300, 7), torch.arange(5)
    made, other = (StreamingFrequency(50, 2, seed=9) for _ in range(2))
    made.update(ids[:100], n_queries=40)
    state = made.state_dict()
    made.update(ids[100:])
    other.load_state_dict(state)
    other.update(ids[100:])
    assert other.log_probability(asked).tolist() == made.log_probability(asked).tolist()
    assert other.state_dict()["queries"] == 240
    for wrong in (StreamingFrequency(50, 2, seed=8), StreamingFrequency(51, 2, seed=9)):
        with pytest.raises(ValueError, match="same n_cells"):
            wrong.load_state_dict(state)


def test_bad_input_is_refused() -> None:
    for bad in ({"n_cells": 0}, {"n_cells": 4, "n_hash": 0}):
        with pytest.raises(ValueError, match="at least one cell"):
            StreamingFrequency(**bad)
    for alpha in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            StreamingFrequency(4, alpha=alpha)
    for gap in (0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match="initial_gap"):
            StreamingFrequency(4, initial_gap=gap)
    made = StreamingFrequency(4)
    with pytest.raises(TypeError, match="int64"):
        made.update(torch.tensor([1.0]))
    with pytest.raises(ValueError, match="not be negative"):
        made.update(torch.tensor([1, -1]))
    with pytest.raises(ValueError, match="one query or more"):
        made.update(torch.tensor([1]), n_queries=0)
    with pytest.raises(TypeError):
        made.update(torch.tensor([1]), n_queries=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="call update"):
        made.sample(Context(torch.tensor([1, 2])), 3)
