"""Draws, weighted samples and estimates."""

import math

import pytest
import torch

from steelyard.draws import Draws, Estimate, Proposal, Weighted
from steelyard.negatives import Context, Everything, InBatch, Mixture, Popularity, Uniform

SCORE = torch.tensor([0.3, 2.0, -1.0, 3.5, 0.0, 1.0], dtype=torch.float64)
COUNTS = torch.tensor([1, 10, 3, 2, 5, 9])
CONTEXT = Context(torch.tensor([3, 1, 1]))


def constant(value: float, ids: list[int]) -> Draws:
    return Draws(torch.tensor(ids), torch.tensor(value), lambda asked: torch.full(asked.shape, value))


def test_a_merge_sums_expected_counts_over_all_designs() -> None:
    a, b = constant(math.log(0.5), [0, 1]), constant(math.log(2.0), [1])
    merged = Draws.merge([a, b])
    assert merged.ids.tolist() == [0, 1, 1]
    assert merged.log_expected.exp().tolist() == pytest.approx([2.5] * 3)
    assert merged.log_expected_of(torch.tensor([[7]])).exp().tolist() == [[pytest.approx(2.5)]]


def test_what_one_design_never_draws_keeps_the_count_of_the_other() -> None:
    never = Draws(torch.tensor([0]), torch.tensor(0.0), lambda ids: torch.where(ids == 0, 0.0, -math.inf))
    merged = Draws.merge([never, constant(math.log(3.0), [0, 4])])
    assert merged.log_expected.exp().tolist() == pytest.approx([4, 4, 3])


def test_shared_and_per_query_draws_merge_by_broadcasting() -> None:
    per_query = Draws(torch.tensor([[0], [2]]), torch.zeros(2, 1), lambda ids: torch.zeros(ids.shape))
    merged = Draws.merge([constant(0.0, [1, 1]), per_query])
    assert merged.ids.tolist() == [[1, 1, 0], [1, 1, 2]]
    with pytest.raises(ValueError, match="broadcast"):
        Draws.merge(
            [per_query, Draws(torch.zeros(3, 1, dtype=torch.int64), torch.zeros(()), per_query.design)]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "proposal",
    [
        Uniform(6),
        Uniform(6, per_query=True),
        Popularity(COUNTS, 0.75),
        Mixture([Uniform(6), Popularity(COUNTS)], [3, 1]),
        Mixture([Everything(6), Popularity(COUNTS), Uniform(6)]),
        Mixture([Uniform(6, per_query=True), Popularity(COUNTS)]),
    ],
    ids=lambda p: type(p).__name__,
)
def test_every_proposal_estimates_the_sum_over_everything_it_can_draw(proposal: Proposal) -> None:
    """z-test over 4,000 seeded repetitions, significance 1e-5."""
    g = torch.Generator().manual_seed(2)
    one = Context(torch.tensor([3]))
    sums = []
    for _ in range(4000):
        draws = proposal.sample(one, 12, generator=g)
        log_weight = SCORE[draws.ids] - draws.log_expected
        if draws.ids.ndim == 1:
            log_weight = log_weight[None]
        log_weight = log_weight.masked_fill(one.mask(draws.ids), -math.inf)
        sums.append(float(log_weight.exp().sum()))
    sample = torch.tensor(sums, dtype=torch.float64)
    truth = float(SCORE.exp().sum() - SCORE[3].exp())
    z = (sample.mean() - truth) / (sample.std() / math.sqrt(len(sample)))
    assert abs(float(z)) < 4.42


@pytest.mark.slow
def test_in_batch_counts_are_those_of_a_shuffled_epoch() -> None:
    """z-test of the mean count of each item beside a query's own pair, significance 1e-5 with Bonferroni."""
    data = torch.repeat_interleave(torch.arange(6), COUNTS)
    g = torch.Generator().manual_seed(4)
    proposal, runs, b = InBatch(COUNTS), 20_000, 5
    seen = torch.zeros(runs, 6, dtype=torch.float64)
    for r in range(runs):
        others = torch.randperm(len(data) - 1, generator=g)[: b - 1]
        pool = torch.cat([data[:12], data[13:]])  # the query's own pair is number 12, of item 2
        batch = torch.cat([data[12:13], pool[others]])
        draws = proposal.sample(Context(batch), 3, generator=g)
        kept = draws.ids[draws.ids != 2]
        seen[r] = torch.bincount(kept, minlength=6)
    expected = (
        proposal.sample(Context(torch.tensor([2, 1, 1, 1, 1])), 3, generator=g)
        .log_expected_of(torch.arange(6))
        .exp()
    )
    others = torch.tensor([0, 1, 3, 4, 5])
    z = (seen.mean(0) - expected) / (seen.std(0) / math.sqrt(runs))
    assert float(z[others].abs().max()) < 4.75


def test_weighing_gives_log_weights_and_the_log_of_their_sum() -> None:
    weighted = constant(math.log(0.5), [0, 3]).weigh(SCORE[[0, 3]])
    assert weighted.log_normalizer is not None
    assert float(weighted.log_normalizer.exp()) == pytest.approx(2 * (math.exp(0.3) + math.exp(3.5)))


def test_bad_draws_are_refused() -> None:
    ids = torch.tensor([1, 2])
    design = lambda asked: torch.zeros(asked.shape)  # noqa: E731
    with pytest.raises(TypeError, match="int64"):
        Draws(ids.int(), torch.zeros(2), design)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="NaN"):
            Draws(ids, torch.tensor([0.0, bad]), design)
    with pytest.raises(ValueError, match="broadcast"):
        Draws(ids, torch.zeros(3), design)
    with pytest.raises(ValueError, match="at least one"):
        Draws.merge([])


def test_dead_particles_are_counted_and_nan_is_refused() -> None:
    assert int(Weighted("abc", torch.tensor([-math.inf, 0.0, -math.inf])).dead) == 2
    with pytest.raises(ValueError, match="-inf"):
        Weighted("a", torch.tensor([math.nan]))


def test_an_estimate_says_when_not_to_trust_it() -> None:
    good = Estimate(2.0, 0.5, ess=100)
    assert good.reliable
    assert good.interval(0.95) == pytest.approx((2 - 0.979982, 2 + 0.979982), abs=1e-5)
    assert "do not trust" not in str(good)
    for doubtful in (Estimate(2, 0.5, ess=3), Estimate(2, 0.5, 100, khat=0.9), Estimate(math.nan, 1, 50)):
        assert not doubtful.reliable
        assert "do not trust this" in str(doubtful)
    with pytest.raises(ValueError, match="between 0 and 1"):
        good.interval(1.0)


def test_the_proposals_satisfy_the_protocol() -> None:
    for proposal in (Uniform(3), Popularity(COUNTS), InBatch(COUNTS), Mixture([Uniform(3)]), Everything(2)):
        assert isinstance(proposal, Proposal)


def test_a_finite_log_expected_count_is_taken_however_large_its_exponential() -> None:
    draws = Draws(torch.tensor([1, 2, 3]), torch.tensor([89.0, 3e38, -math.inf]), lambda asked: asked.float())
    assert draws.log_expected.tolist() == pytest.approx([89.0, 3e38, -math.inf])
    assert Draws(torch.zeros(0, dtype=torch.int64), torch.zeros(0), draws.design).ids.tolist() == []
