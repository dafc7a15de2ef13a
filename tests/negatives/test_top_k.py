"""Hard negatives with certainty leave the sum unbiased; SimANS draws near the positive's score."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.draws import Draws, Proposal
from steelyard.negatives.context import Context
from steelyard.negatives.mixture import Mixture
from steelyard.negatives.top_k import SimANS, TopK, simans_weights
from steelyard.negatives.uniform import Uniform
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased

SCORES = torch.tensor([[5.0, 0.2, -1.0, 4.0, 0.5, 3.0, 0.0, -0.3], [0.1, 2.0, 4.5, -1.0, 0.3, 0.0, 3.5, 1.0]])
BATCH = Context(torch.tensor([0, 2]), Ragged.from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 4, 2]), 2))


def fixed(answer: torch.Tensor) -> Any:
    """What a model says of BATCH, or of BATCH many times over."""
    return lambda context: answer.repeat(max(1, len(context) // 2), 1)


def again(replications: int) -> Context:
    """BATCH many times over: draws per query are independent, so each copy is a replication."""
    rows = torch.arange(2).repeat(replications)
    return Context(BATCH.positives[rows], BATCH.known.take(rows))


def others() -> torch.Tensor:
    """The sums over all that each query is not known to want."""
    return SCORES.exp().masked_fill(BATCH.mask(torch.arange(8)), 0).sum(1)


def weighed(draws: Draws, context: Context) -> torch.Tensor:
    """The estimated sums, (replications, 2), accidental hits left out."""
    score = SCORES.repeat(len(context) // 2, 1).gather(1, draws.ids)
    log_weight = (score - draws.log_expected).masked_fill(context.mask(draws.ids), -math.inf)
    return torch.logsumexp(log_weight, 1).exp().view(-1, 2)


def estimates(made: Proposal, n: int) -> torch.Tensor:
    context = again(4000)
    return weighed(made.sample(context, n, generator=torch.Generator().manual_seed(1)), context)


@pytest.mark.parametrize("n", [3, 6])
def test_hard_negatives_leave_the_sum_unbiased_with_less_variance_than_uniform(n: int) -> None:
    hard = estimates(TopK(8, 2, fixed(SCORES)), n)
    even = estimates(Uniform(8, per_query=True), n)
    assert_unbiased(hard, others())
    assert bool((20 * hard.var(0) < even.var(0)).all())


def test_stale_scores_cost_variance_only() -> None:
    assert_unbiased(estimates(TopK(8, 2, fixed(SCORES.flip(1))), 4), others())
    assert_unbiased(estimates(TopK(8, 3, top=fixed(torch.tensor([[0, 1, -1], [5, 2, 6]]))), 5), others())


def test_a_mixture_with_hard_negatives_alone_is_unbiased() -> None:
    made = Mixture([TopK(8, 2, fixed(SCORES)), Uniform(8, per_query=True)])
    assert_unbiased(estimates(made, 4), others())


def test_expected_counts_are_those_of_the_strata() -> None:
    draws = TopK(8, 2, fixed(SCORES)).sample(BATCH, 5)
    assert draws.ids[:, :2].tolist() == [[3, 5], [6, 1]]
    want = [[0, 3 / 4, 3 / 4, 1, 0, 1, 3 / 4, 3 / 4], [3 / 5, 1, 0, 3 / 5, 3 / 5, 3 / 5, 1, 3 / 5]]
    got = draws.log_expected_of(torch.arange(8)).exp()
    assert got.tolist() == [pytest.approx(row) for row in want]
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    assert bool((draws.log_expected_of(torch.tensor([-1, 8, 2**40])) == -math.inf).all())


def test_known_items_in_given_tops_leave_their_slot_empty() -> None:
    draws = TopK(8, 2, top=fixed(torch.tensor([[4, 3], [-1, 7]]))).sample(BATCH, 4)
    assert draws.ids[:, :2].tolist() == [[0, 3], [0, 7]]
    assert draws.log_expected[:, :2].tolist() == [[math.inf, 0], [math.inf, 0]]
    got = draws.log_expected_of(torch.arange(8)).exp()
    assert got[0].tolist() == pytest.approx([0, 0.4, 0.4, 1, 0, 0.4, 0.4, 0.4])
    assert got.sum(1).tolist() == pytest.approx([3, 3])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_strata_are_a_partition_of_what_is_not_known(data: st.DataObject) -> None:
    n_items = data.draw(st.integers(1, 6))
    size = data.draw(st.integers(1, 3))
    items = st.integers(0, n_items - 1)
    positives = data.draw(st.lists(items, min_size=size, max_size=size))
    known = [set(data.draw(st.lists(items))) for _ in range(size)]
    pairs = torch.tensor([(r, v) for r, k in enumerate(known) for v in k] or [(0, positives[0])])
    context = Context(torch.tensor(positives), Ragged.from_pairs(pairs[:, 0], pairs[:, 1], size))
    # Few distinct scores, -inf among them, so that there are ties.
    value = st.sampled_from([-math.inf, 0.0, 1.0])
    rows = [data.draw(st.lists(value, min_size=n_items, max_size=n_items)) for _ in range(size)]
    k, more = data.draw(st.integers(1, n_items)), data.draw(st.integers(0, 5))
    draws = TopK(n_items, k, fixed(torch.tensor(rows))).sample(context, k + more)
    answer = draws.log_expected_of(torch.arange(n_items).expand(size, n_items))
    wanted = context.mask(torch.arange(n_items).expand(size, n_items))
    for r in range(size):
        wanted[r, positives[r]] = True
        full = draws.log_expected[r] < math.inf
        drawn = draws.ids[r][full]
        assert not bool(wanted[r, drawn].any())
        torch.testing.assert_close(draws.log_expected[r][full], answer[r, drawn])
        assert bool((answer[r][wanted[r]] == -math.inf).all())
        free = n_items - int(wanted[r].sum())
        certain = int(full[:k].sum())
        assert certain == k or certain <= free
        left = free - certain
        assert float(answer[r].exp().sum()) == pytest.approx(certain + (more if left else 0))
        assert int(full[k:].sum()) == (more if left else 0)


def test_no_draws_are_no_draws_and_too_few_are_refused() -> None:
    made = TopK(8, 3, fixed(SCORES))
    assert isinstance(made, Proposal)
    assert made.sample(BATCH, 0).ids.shape == (2, 0)
    assert made.sample(BATCH, 0).log_expected_of(torch.tensor([1])).tolist() == [-math.inf]
    with pytest.raises(ValueError, match="at least k=3"):
        made.sample(BATCH, 2)
    alone = made.sample(BATCH, 3).log_expected_of(torch.arange(8)).exp()
    assert alone.sum(1).tolist() == [3, 3]


def test_bad_scores_and_ids_are_refused() -> None:
    for arguments in ({}, {"score": fixed(SCORES), "top": fixed(SCORES)}):
        with pytest.raises(ValueError, match="either score or top"):
            TopK(8, 2, **arguments)
    for k in (0, 9):
        with pytest.raises(ValueError, match="k must lie"):
            TopK(8, k, fixed(SCORES))
    with pytest.raises(ValueError, match="NaN"):
        TopK(8, 2, fixed(SCORES.log())).sample(BATCH, 3)
    with pytest.raises(ValueError, match=r"\(2, 7\)"):
        TopK(7, 2, fixed(SCORES)).sample(BATCH, 3)
    with pytest.raises(TypeError, match="floating"):
        TopK(8, 2, fixed(SCORES.long())).sample(BATCH, 3)
    for bad, said in (
        ([[0, 8], [1, 2]], "ids in"),
        ([[3, 3], [1, 2]], "twice"),
        ([[1], [2]], r"\(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=said):
            TopK(8, 2, top=fixed(torch.tensor(bad))).sample(BATCH, 3)
    with pytest.raises(TypeError, match="int64"):
        TopK(8, 2, top=fixed(SCORES[:, :2])).sample(BATCH, 3)
    with pytest.raises(ValueError, match="positives and known"):
        TopK(8, 2, fixed(SCORES)).sample(Context(torch.tensor([1, 8])), 3)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.5, -1.5), (0.0, 2.0)])
def test_simans_weights_equal_the_formula(a: float, b: float) -> None:
    positive = [2.0, -1.0]
    got = simans_weights(SCORES, torch.tensor(positive), a, b).exp()
    for row, p, answer in zip(SCORES.tolist(), positive, got.tolist(), strict=True):
        plain = [math.exp(-a * (s - p - b) ** 2) for s in row]
        assert answer == pytest.approx([w / sum(plain) for w in plain])


def test_simans_weights_hold_at_the_edges() -> None:
    scores = torch.tensor([[1e6, 1e6 + 1, -math.inf], [-math.inf] * 3, [0.0, 1e30, 5.0]])
    got = simans_weights(scores, torch.tensor([0.0, 0.0, 0.0]), 1e-3, 0.0)
    assert not bool(got.isnan().any())
    assert got[0].exp().tolist() == pytest.approx([1, 0, 0])
    assert got[1].tolist() == [-math.inf] * 3
    assert float(got[2, 1].exp()) == 0
    assert simans_weights(scores[:1], torch.zeros(1), 0.0).exp().tolist() == [[0.5, 0.5, 0]]
    nearest = simans_weights(SCORES, torch.tensor([2.9, 0.9]), 1e6)
    assert nearest.argmax(1).tolist() == [5, 7]
    for bad in ({"a": -1.0}, {"a": math.inf}, {"b": math.nan}):
        with pytest.raises(ValueError, match="a must be finite"):
            simans_weights(SCORES, torch.zeros(2), **bad)
    with pytest.raises(ValueError, match="NaN"):
        simans_weights(torch.tensor([math.nan]), torch.tensor(0.0))
    with pytest.raises(ValueError, match="positives must be finite"):
        simans_weights(SCORES, torch.tensor([math.inf, 0.0]))
    with pytest.raises(TypeError, match="floating"):
        simans_weights(torch.tensor([1]), torch.tensor(0.0))


def test_simans_draws_its_candidates_by_its_law() -> None:
    """One draw a query, so the law is that of the weights; and the sum over the candidates is unbiased."""
    made = SimANS(8, 4, fixed(SCORES), a=0.3, b=-1.0)
    assert isinstance(made, Proposal)
    candidates = [[3, 5, 1, 6], [6, 1, 7, 4]]
    generator, context = torch.Generator().manual_seed(3), again(10_000)
    one = made.sample(context, 1, generator=generator)
    hits = torch.zeros(20_000, 8).scatter_(1, one.ids, 1.0).view(-1, 2, 8)
    law = torch.zeros(2, 8, dtype=torch.float64)
    for r, row in enumerate(candidates):
        law[r, row] = simans_weights(SCORES[r, row], SCORES[r, BATCH.positives[r]], 0.3, -1.0).exp()
    assert_unbiased(hits, law)
    sums = weighed(made.sample(context, 2, generator=generator), context)
    assert_unbiased(sums, SCORES.gather(1, torch.tensor(candidates)).exp().sum(1))


def test_simans_has_no_support_outside_its_candidates() -> None:
    draws = SimANS(8, 3, fixed(SCORES)).sample(BATCH, 100)
    assert draws.ids.tolist() == [[1, 3, 5], [1, 6, 7]]
    assert draws.log_expected.tolist() == [[0, 0, 0]] * 2
    answer = draws.log_expected_of(torch.tensor([-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2**40])).exp()
    assert answer.tolist() == [[0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0]]
    mixed = Draws.merge([draws, Uniform(8).sample(BATCH, 8)]).log_expected_of(torch.arange(8)).exp()
    assert mixed[0].tolist() == pytest.approx([1, 2, 1, 2, 1, 2, 1, 1])


def test_simans_leaves_slots_empty_where_candidates_are_few() -> None:
    pairs = torch.tensor([(0, j) for j in range(7)] + [(1, j) for j in range(8)])
    context = Context(torch.tensor([0, 2]), Ragged.from_pairs(pairs[:, 0], pairs[:, 1], 2))
    draws = SimANS(8, 3, fixed(SCORES)).sample(context, 2)
    assert draws.ids.tolist() == [[7, 0], [0, 0]]
    assert draws.log_expected.tolist() == [[0, math.inf], [math.inf, math.inf]]
    assert draws.log_expected_of(torch.arange(8)).exp().sum(1).tolist() == [1, 0]
    assert SimANS(8, 3, fixed(SCORES)).sample(context, 0).ids.shape == (2, 0)


def test_simans_compares_many_positives_by_the_lowest_and_excludes_them_all() -> None:
    pairs = Ragged.from_pairs(torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 3, 1, 2, 7]), 2)
    order = torch.tensor([3, 1, 0, 4, 2])  # positives need not come by query
    many = Context(pairs.values[order], pairs, pairs.row_index()[order])
    lowest = Context(torch.tensor([3, 7]), pairs)
    made = SimANS(8, 4, fixed(SCORES), a=0.3, b=-1.0)
    for asked in (torch.arange(8), torch.tensor([5, 1])):
        got, want = (
            made.sample(context, 2, generator=torch.Generator().manual_seed(4)) for context in (many, lowest)
        )
        assert torch.equal(got.ids, want.ids)
        assert torch.equal(got.log_expected_of(asked), want.log_expected_of(asked))
    assert bool((got.log_expected_of(pairs.row(1))[1] == -math.inf).all())
    candidates = torch.tensor([[5, 4, 1, 6], [6, 4, 5, 0]])
    law = torch.zeros(2, 8, dtype=torch.float64)
    for r, row in enumerate(candidates):
        law[r, row] = simans_weights(SCORES[r, row], SCORES[r, [3, 7][r]], 0.3, -1.0).exp()
    rows = torch.arange(2).repeat(4000)
    taken = pairs.take(rows)
    one = made.sample(
        Context(taken.values, taken, taken.row_index()), 1, generator=torch.Generator().manual_seed(3)
    )
    assert_unbiased(torch.zeros(8000, 8).scatter_(1, one.ids, 1.0).view(-1, 2, 8), law)


def test_simans_refuses_what_it_cannot_compare() -> None:
    pairs = Ragged.from_pairs(torch.tensor([0, 1]), torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match="query 1 has none"):
        SimANS(8, 3, fixed(SCORES)).sample(Context(torch.tensor([0]), pairs, torch.tensor([0])), 2)
    with pytest.raises(ValueError, match="positives must be finite"):
        SimANS(8, 3, fixed(SCORES.masked_fill(SCORES > 4.4, math.inf))).sample(
            Context(torch.tensor([0, 1, 2]), pairs, torch.tensor([0, 0, 1])), 2
        )
    with pytest.raises(ValueError, match="positives must be finite"):
        SimANS(8, 3, fixed(SCORES.masked_fill(SCORES > 4.4, -math.inf))).sample(BATCH, 2)
    with pytest.raises(ValueError, match="positives and known"):
        SimANS(8, 3, fixed(SCORES)).sample(Context(torch.tensor([-1, 2])), 2)
    with pytest.raises(ValueError, match="a must be finite"):
        SimANS(8, 3, fixed(SCORES), a=-1.0)
    with pytest.raises(ValueError, match="k must lie"):
        SimANS(8, 9, fixed(SCORES))
