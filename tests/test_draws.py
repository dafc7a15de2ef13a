"""Draws, weighted samples and estimates."""

import math

import pytest
import torch

from steelyard.draws import Draws, Estimate, Proposal, Weighted
from steelyard.negatives import Context, Everything, InBatch, Mixture, Popularity, Uniform
from tests.statistical import assert_coverage

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
    assert float(weighted.log_normalizer.exp()) == pytest.approx(2 * (math.exp(0.3) + math.exp(3.5)))


def test_bad_draws_are_refused() -> None:
    ids = torch.tensor([1, 2])
    design = lambda asked: torch.zeros(asked.shape)  # noqa: E731
    with pytest.raises(TypeError, match="int64"):
        Draws(ids.int(), torch.zeros(2), design)
    with pytest.raises(ValueError, match="NaN"):
        Draws(ids, torch.tensor([0.0, math.nan]), design)
    with pytest.raises(ValueError, match="broadcast"):
        Draws(ids, torch.zeros(3), design)
    with pytest.raises(ValueError, match="at least one"):
        Draws.merge([])


def test_an_empty_slot_weighs_nothing_and_stays_empty_in_a_merge() -> None:
    short = Draws(
        torch.tensor([[3, 0], [1, 2]]), torch.tensor([[0.0, math.inf], [0.0, 0.0]]), lambda ids: 0.0 * ids
    )
    assert short.weigh(SCORE[short.ids]).log_weight[0].tolist() == [3.5, -math.inf]
    merged = Draws.merge([short, constant(0.0, [0])])
    assert merged.log_expected.exp().tolist() == [[2, math.inf, 2], [2, 2, 2]]
    assert merged.log_expected_of(torch.tensor([0])).exp().tolist() == pytest.approx([2])


def test_dead_particles_are_counted_and_nan_is_refused() -> None:
    assert int(Weighted("abc", torch.tensor([-math.inf, 0.0, -math.inf])).dead) == 2
    with pytest.raises(ValueError, match="-inf"):
        Weighted("a", torch.tensor([math.nan]))


def test_an_estimate_says_when_not_to_trust_it() -> None:
    good = Estimate(2.0, 0.5, ess=100)
    assert good.reliable
    assert good.interval(0.95) == pytest.approx((2 - 0.979982, 2 + 0.979982), abs=1e-5)
    assert str(good) == "2 (95% 1.02 to 2.98, 100 effective draws)"
    reasons = {
        "rests on 3 effective draws (want 10)": Estimate(2, 0.5, ess=3),
        "too heavy (k-hat 0.90 above 0.7)": Estimate(2, 0.5, 100, khat=0.9),
        "too heavy (k-hat 0.60 above 0.5)": Estimate(2, 0.5, 100, khat=0.6, khat_limit=0.5),
        "too few draws lie in the weights' tail": Estimate(2, 0.5, 100, khat=math.inf),
        "the estimate is not finite": Estimate(math.nan, 1, 50),
        "standard error is unknown": Estimate(1, math.inf, 50),
        "rests on nan effective": Estimate(1, 1, math.nan),
    }
    for reason, doubtful in reasons.items():
        assert doubtful.reliable is False
        assert "do not trust this" in str(doubtful)
        assert reason in str(doubtful)
        assert len(doubtful.doubts()) == 1
    assert Estimate(1e300, 1e290, 50, khat=-math.inf).reliable is True
    with pytest.raises(ValueError, match="between 0 and 1"):
        good.interval(1.0)


def test_a_single_estimate_holds_floats_whatever_it_was_made_of() -> None:
    made = Estimate(torch.tensor(2.0), 1, torch.tensor(100), torch.tensor(0.25))
    assert [type(v) for v in (made.value, made.stderr, made.ess, made.khat)] == [float] * 4
    assert made == Estimate(2.0, 1.0, 100.0, 0.25)
    assert made.shape == ()
    assert made.reliable is True
    with pytest.raises(TypeError, match="single"):
        made[0]


def test_many_estimates_are_held_judged_and_printed_at_once() -> None:
    value = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, math.nan]])
    many = Estimate(value, 0.5, torch.tensor([100.0, 3.0, 50.0]), torch.tensor([[0.1], [0.9]]))
    assert many.shape == (2, 3)
    assert torch.as_tensor(many.stderr).shape == (2, 3)
    assert torch.as_tensor(many.reliable).tolist() == [[True, False, True], [False] * 3]
    assert many[0, 1].value == 2
    assert many[1, 0].khat == pytest.approx(0.9)
    assert many[1].shape == (3,)
    low, high = many.interval()
    assert torch.as_tensor(low).shape == torch.as_tensor(high).shape == (2, 3)
    assert float(torch.as_tensor(high)[0, 2]) == pytest.approx(3.979982)
    assert [doubt.split(":")[0] for doubt in many.doubts()] == ["1 of 6", "2 of 6", "3 of 6"]
    lines = str(many).split("\n")
    assert lines[0] == "[0, 0] 1 (95% 0.02002 to 1.98, 100 effective draws)"
    assert [("do not trust" in line) for line in lines] == [False, True, False, True, True, True]
    assert (
        str(Estimate(torch.zeros(200), 1, 5)).split("\n")[-1] == "and 190 more; do not trust 200 of the 200"
    )
    assert str(Estimate(torch.zeros(0), 1, 5)) == "and 0 more; do not trust 0 of the 0"
    assert [estimate.value for estimate in many[0]] == [1, 2, 3]
    with pytest.raises(ValueError, match="broadcast"):
        Estimate(torch.zeros(2), torch.zeros(3), 1.0)


def test_replicates_show_the_error_of_their_mean() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    found = Estimate.from_replicates(values, dim=1)
    assert torch.as_tensor(found.value).tolist() == [3, 4]
    assert torch.as_tensor(found.stderr).tolist() == pytest.approx([math.sqrt(14 / 6), 0])
    assert found[0].ess == 3
    g = torch.Generator().manual_seed(0)
    low, high = Estimate.from_replicates(torch.rand(30, 3000, generator=g)).interval()
    assert_coverage((low < 0.5) & (high > 0.5), 0.95)  # type: ignore[operator]
    with pytest.raises(ValueError, match="two replicates"):
        Estimate.from_replicates(values[:1])


ROWS = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(9))


def per_row(ids: torch.Tensor) -> torch.Tensor:
    """A design of its own for each of 2 x 3 rows."""
    return ROWS.gather(-1, ids.expand(2, 3, ids.shape[-1]))


BATCH = Draws(
    torch.randint(6, (2, 3, 4), generator=torch.Generator().manual_seed(2)), torch.zeros(()), per_row
)
INDICES = {
    "a number": 1,
    "two numbers": (1, 2),
    "the last": -1,
    "a slice": (slice(None), slice(1, None)),
    "a mask": torch.tensor([[True, False, True], [False, False, True]]),
    "rows twice and out of order": torch.tensor([1, 0, 1, 1]),
    "pairs twice": (torch.tensor([1, 0, 1]), torch.tensor([2, 0, 2])),
    "none": slice(0, 0),
    "an ellipsis": (..., 1),
}


@pytest.mark.parametrize("name", INDICES)
def test_some_rows_of_a_batch_keep_their_draws_and_their_design(name: str) -> None:
    index = INDICES[name]
    some = BATCH[index]
    rows = torch.arange(6).view(2, 3)[index]
    table, lead = ROWS.view(6, 6)[rows], rows.shape
    assert torch.equal(some.ids, BATCH.ids.view(6, 4)[rows])
    assert torch.equal(some.log_expected, BATCH.log_expected.reshape(6, 4)[rows])
    g = torch.Generator().manual_seed(0)
    for shape in ((*lead, 5), (7,), (2, *lead, 3), (*lead, 0), (*[1] * len(lead), 2)):
        asked = torch.randint(6, shape, generator=g)
        wide = torch.broadcast_shapes(shape[:-1], lead)
        expected = table.expand(*wide, 6).gather(-1, asked.expand(*wide, shape[-1]))
        assert torch.equal(some.log_expected_of(asked), expected)


def test_rows_of_merged_draws_of_proposals_answer_as_before() -> None:
    proposal = Mixture([Uniform(6, per_query=True), Popularity(COUNTS)])
    draws = proposal.sample(CONTEXT, 5, generator=torch.Generator().manual_seed(0))
    asked = torch.arange(6)
    whole = draws.log_expected_of(asked.expand(3, 6))
    for i, row in enumerate(draws):
        assert torch.equal(row.ids, draws.ids[i])
        torch.testing.assert_close(row.log_expected_of(asked), whole[i])
    with pytest.raises(TypeError, match="one row"):
        constant(0.0, [1, 2])[0]
    with pytest.raises(IndexError):
        draws[3]
    with pytest.raises(IndexError):
        draws[0, 0]


def test_draws_moved_to_a_device_answer_there() -> None:
    moved = BATCH.to("cpu")
    assert torch.equal(moved.ids, BATCH.ids)
    assert torch.equal(moved.log_expected_of(BATCH.ids), per_row(BATCH.ids))
    assert torch.equal(moved[1, 2].log_expected_of(BATCH.ids[1, 2]), ROWS[1, 2, BATCH.ids[1, 2]])


def test_the_proposals_satisfy_the_protocol() -> None:
    for proposal in (Uniform(3), Popularity(COUNTS), InBatch(COUNTS), Mixture([Uniform(3)]), Everything(2)):
        assert isinstance(proposal, Proposal)


def test_a_finite_log_expected_count_is_taken_however_large_its_exponential() -> None:
    draws = Draws(torch.tensor([1, 2, 3]), torch.tensor([89.0, 3e38, -math.inf]), lambda asked: asked.float())
    assert draws.log_expected.tolist() == pytest.approx([89.0, 3e38, -math.inf])
    assert Draws(torch.zeros(0, dtype=torch.int64), torch.zeros(0), draws.design).ids.tolist() == []
