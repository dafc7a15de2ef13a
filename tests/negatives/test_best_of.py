"""The best of a few uniform draws comes as often as order statistics say, ties and all."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.draws import Proposal
from steelyard.negatives.best_of import BestOf, best_of_log_probability
from steelyard.negatives.context import Context
from steelyard.ragged import Ragged
from tests.negatives.laws import assert_design_is_kept, assert_sums_are_unbiased, generator, plain_law

SCORES = torch.tensor(
    [[5.0, 0.2, -1.0, 4.0, 0.5, 3.0, 0.2, -math.inf], [0.1, 2.0, 4.5, 2.0, 2.0, 0.0, 3.5, 1.0]]
)
BATCH = Context(torch.tensor([0, 2]), Ragged.from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 4, 2]), 2))
VALUE = torch.tensor([[0.3, -1.0, 0.5, 1.0, 0.2, -0.4, 0.7, 0.1], [1.0, 0.2, 0.3, -0.5, 0.9, 0.0, 0.4, -1.0]])


def fixed(answer: torch.Tensor) -> Any:
    return lambda context: answer.repeat(-(-len(context) // len(answer)), 1)[: len(context)]


def enumerated(scores: list[float], m: int, n_best: int) -> list[Fraction]:
    """All L^m draws; among equal scores every item is as likely to be among the best."""
    law = [Fraction(0)] * len(scores)
    for draw in itertools.product(range(len(scores)), repeat=m):
        ordered = sorted((scores[j] for j in draw), reverse=True)
        for level in set(ordered[:n_best]):
            mine = [j for j in draw if scores[j] == level]
            for j in mine:
                law[j] += Fraction(ordered[:n_best].count(level), n_best * len(mine) * len(scores) ** m)
    return law


def counted(scores: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """How many scores are above, and equal to, each."""
    return tuple(
        torch.tensor([f(s) for s in scores]) for f in (lambda s: sum(t > s for t in scores), scores.count)
    )  # type: ignore[return-value]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_the_law_equals_enumeration_with_ties(scores: list[float], m: int, data: st.DataObject) -> None:
    n_best = data.draw(st.integers(1, m))
    above, equal = counted(scores)
    got = best_of_log_probability(above, equal, torch.tensor(len(scores)), m, n_best).exp()
    np.testing.assert_allclose(got, [float(p) for p in enumerated(scores, m, n_best)], rtol=1e-12)


@pytest.mark.parametrize(("m", "n_best"), [(1, 1), (4, 1), (4, 2), (3, 3)])
def test_proposals_draw_by_enumeration_among_what_is_not_known(m: int, n_best: int) -> None:
    got = plain_law(BestOf(8, m, n_best, fixed(SCORES)), BATCH, 8)
    for b, known in enumerate(([0, 4], [2])):
        free = [j for j in range(8) if j not in known]
        want = enumerated(SCORES[b, free].tolist(), m, n_best)
        assert got[b, known].tolist() == [0] * len(known)
        np.testing.assert_allclose(got[b, free], [float(p) for p in want], rtol=1e-5)


def test_one_of_one_has_the_mass_of_ranks_and_m_of_m_is_uniform() -> None:
    scores = torch.randn(1, 50, generator=generator(1)).double()
    context = Context(torch.tensor([0]))
    scores[0, 0] = -math.inf  # the positive takes no place among the best
    rank = torch.cat([torch.tensor([0.0]), scores[0, 1:].argsort(descending=True).argsort().double()])
    got = plain_law(BestOf(50, 6, 1, fixed(scores)), context, 50)[0, 1:]
    np.testing.assert_allclose(got, (((49 - rank) / 49) ** 6 - ((48 - rank) / 49) ** 6)[1:], rtol=1e-5)
    np.testing.assert_allclose(
        plain_law(BestOf(50, 6, 6, fixed(scores)), context, 50)[0, 1:], 1 / 49, rtol=1e-5
    )


@pytest.mark.parametrize(
    "made", [BestOf(8, 3, 1, fixed(SCORES)), BestOf(8, 5, 2, fixed(SCORES)), BestOf(8, 4, 4, fixed(SCORES))]
)
def test_draws_follow_the_design(made: Proposal) -> None:
    assert isinstance(made, Proposal)
    assert_design_is_kept(made, BATCH, 8)


@pytest.mark.parametrize("made", [BestOf(8, 3, 1, fixed(SCORES)), BestOf(8, 5, 3, fixed(SCORES.half()))])
def test_sums_over_everything_are_unbiased(made: Proposal) -> None:
    assert_sums_are_unbiased(made, BATCH, VALUE)


@pytest.mark.parametrize(("m", "n_best"), [(64, 1), (1000, 5), (10_000, 1), (300, 200)])
def test_the_law_keeps_its_digits_at_a_billion_items(m: int, n_best: int) -> None:
    """The density of order statistics in high precision; each item's share is nearly that times its width."""
    left = 10**9
    for above in (0, 1, 10**5, left // 2, left - 2, left - 1):
        got = float(
            best_of_log_probability(torch.tensor(above), torch.tensor(1), torch.tensor(left), m, n_best)
        )
        assert math.isfinite(got)
        # P(Bin(m, x) >= k) summed over k <= n_best, as a difference of exact rationals, where that is cheap.
        if m <= 64:
            lower, upper = Fraction(left - above - 1, left), Fraction(left - above, left)
            want = upper**m - lower**m
            assert got == pytest.approx(math.log(want.numerator) - math.log(want.denominator), rel=1e-13)
        else:
            x = (above + 0.5) / left
            log_f = math.log(m / n_best) + float(
                torch.logsumexp(
                    torch.tensor(
                        [
                            math.lgamma(m) - math.lgamma(a + 1) - math.lgamma(m - a) + a * math.log(x)
                            + (m - 1 - a) * math.log1p(-x)
                            for a in range(n_best)
                        ],
                        dtype=torch.float64,
                    ),
                    0,
                )
            )  # fmt: skip
            if above < left - 2:
                assert got == pytest.approx(log_f - math.log(left), rel=1e-6, abs=1e-4)


def test_shares_sum_to_one_over_many_ranks_and_wide_ties() -> None:
    for m, n_best in ((5, 1), (40, 7), (500, 30), (2000, 1500)):
        above = torch.arange(3000)
        total = torch.logsumexp(
            best_of_log_probability(above, torch.tensor(1), torch.tensor(3000), m, n_best), 0
        )
        assert float(total) == pytest.approx(0, abs=1e-11)
        wide = best_of_log_probability([0, 400, 2990], [400, 2590, 10], [3000], m, n_best)
        share = wide.exp() * torch.tensor([400, 2590, 10])
        assert float(share.sum()) == pytest.approx(1, abs=1e-11)


def test_the_designs_of_equal_scores_and_of_infinite_ones_are_fair() -> None:
    one = Context(torch.tensor([3]))
    for level in (0.0, math.inf, -math.inf):
        made = BestOf(4, 3, 2, fixed(torch.full((1, 4), level)))
        np.testing.assert_allclose(plain_law(made, one, 4)[0], [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)
        assert_design_is_kept(made, one, 4)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.sampled_from([-math.inf, -3e38, -1.0, -1e-40, 0.0, 1e-40, 1.0, 1.0000001, 50.0, 3e38, math.inf]),
        min_size=2,
        max_size=30,
    ),
    st.booleans(),
    st.data(),
)
def test_ranks_are_counted_whatever_the_scale_of_the_scores(
    scores: list[float], wide: bool, data: st.DataObject
) -> None:
    table = torch.tensor([scores], dtype=torch.float64 if wide else torch.float32)
    table = table * 1e269 if wide else table
    size = len(scores)
    asked = torch.tensor(data.draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=5)))
    draws = BestOf(size, 3, 2, fixed(table)).sample(Context(torch.tensor([0])), 2, generator=generator())
    others = table[0, 1:].tolist()
    above, equal = (counts[asked - 1] for counts in counted(others))
    want = best_of_log_probability(above, equal, size - 1, 3, 2) + math.log(2)
    np.testing.assert_allclose(draws.log_expected_of(asked)[0], want, rtol=1e-5, atol=1e-6)
    assert float(draws.log_expected_of(torch.arange(size)).exp().sum()) == pytest.approx(2, rel=1e-5)


def test_the_only_item_left_is_always_drawn() -> None:
    draws = BestOf(2, 5, 3, fixed(torch.tensor([[1.0, -math.inf]], dtype=torch.bfloat16))).sample(
        Context(torch.tensor([0])), 2
    )
    assert draws.ids.tolist() == [[1, 1]]
    assert draws.log_expected_of(torch.tensor([0, 1])).exp().tolist() == [pytest.approx([0, 2])]


def test_scores_are_not_changed_and_the_context_may_have_many_positives() -> None:
    scores = SCORES.clone()
    pairs = Ragged.from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 3, 2]), 2)
    draws = BestOf(8, 3, 1, fixed(scores)).sample(Context(pairs.values, pairs, pairs.row_index()), 4)
    assert torch.equal(scores, SCORES)
    assert draws.log_expected_of(torch.tensor([0, 3, 2])).exp()[0, :2].tolist() == [0, 0]


def test_bad_input_is_refused() -> None:
    for m, n_best, said in ((0, 1, "m must be"), (3, 0, "n_best"), (3, 4, "n_best")):
        with pytest.raises(ValueError, match=said):
            BestOf(8, m, n_best, fixed(SCORES))
    with pytest.raises(TypeError):
        BestOf(8, 2.0, 1, fixed(SCORES))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="score"):
        BestOf(8, 3)
    with pytest.raises(ValueError, match="at least one item"):
        BestOf(0, 3, 1, fixed(SCORES))
    made = BestOf(8, 3, 1, fixed(SCORES))
    full = Ragged.from_pairs(torch.zeros(8, dtype=torch.int64), torch.arange(8), 1)
    with pytest.raises(ValueError, match="Query 0 is known to want all 8"):
        made.sample(Context(torch.tensor([0]), full), 2)
    with pytest.raises(ValueError, match="NaN"):
        BestOf(8, 3, 1, fixed(SCORES.log())).sample(BATCH, 2)
    with pytest.raises(ValueError, match=r"\(2, 7\)"):
        BestOf(7, 3, 1, fixed(SCORES)).sample(BATCH, 2)
    with pytest.raises(TypeError, match="floating"):
        BestOf(8, 3, 1, fixed(VALUE.long())).sample(BATCH, 2)
    with pytest.raises(ValueError, match="positives and known"):
        made.sample(Context(torch.tensor([0, 8])), 2)
    with pytest.raises(ValueError, match="negative"):
        made.sample(BATCH, -1)
    for above, equal, left in ((-1, 1, 3), (0, 0, 3), (2, 2, 3)):
        with pytest.raises(ValueError, match="at most left"):
            best_of_log_probability(torch.tensor(above), torch.tensor(equal), torch.tensor(left), 2)
    with pytest.raises(ValueError, match="n_best"):
        best_of_log_probability(torch.tensor(0), torch.tensor(1), torch.tensor(3), 2, 3)
