"""Coverage-centric selection: strata, budgets, exact inclusion probabilities, cuts at the hard end."""

import math

import pytest
import torch

from steelyard.selection.coverage import coverage_centric, drop_hardest, stratum_budgets
from tests.statistical import assert_unbiased


def test_budgets_follow_a_hand_worked_case_and_the_remainder_goes_to_the_largest() -> None:
    assert stratum_budgets([0, 2, 50, 9, 40], 23).tolist() == [0, 2, 7, 7, 7]
    assert stratum_budgets([30, 31, 32], 10).tolist() == [3, 3, 4]
    assert stratum_budgets([3, 1, 2], 6).tolist() == [3, 1, 2]


def test_the_budget_is_spent_exactly_for_any_sizes() -> None:
    g = torch.Generator().manual_seed(1)
    for _ in range(200):
        sizes = torch.randint(12, (int(torch.randint(1, 8, (1,), generator=g)),), generator=g)
        budget = int(torch.randint(int(sizes.sum()) + 1, (1,), generator=g))
        got = stratum_budgets(sizes, budget)
        assert int(got.sum()) == budget
        assert bool(((got >= 0) & (got <= sizes)).all())


@pytest.mark.parametrize("offset", [5.0, -5.0])
def test_draws_have_the_probabilities_of_their_strata_whatever_the_sign(offset: float) -> None:
    score = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.9, 1.0, 1.1, 1.9, 2.0, 40.0]) + offset
    g = torch.Generator().manual_seed(7)
    # beta cuts the row at 40; the strata of width 0.5 hold rows 0 to 3, 4, 5 and 6, 7 and 8.
    expected = torch.tensor([2 / 4] * 4 + [1.0] + [2 / 2] * 2 + [2 / 2] * 2 + [0.0], dtype=torch.float64)
    hits = torch.zeros(3000, 10, dtype=torch.float64)
    for row in hits:
        draws = coverage_centric(score, 7, beta=0.1, strata=4, generator=g)
        assert draws.ids.tolist() == sorted(set(draws.ids.tolist()))
        assert len(draws.ids) == 7
        row[draws.ids] = 1
    torch.testing.assert_close(draws.log_expected_of(torch.arange(10)).exp(), expected)
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    assert draws.log_expected_of(torch.tensor([-1, 9, 10])).tolist() == [-math.inf] * 3
    assert_unbiased(hits, expected)


def test_a_horvitz_thompson_sum_over_the_rows_left_is_unbiased() -> None:
    g = torch.Generator().manual_seed(11)
    score = torch.rand(200, generator=g) ** 3
    value = score.double() * 3 + 1
    kept = drop_hardest(score, 0.1)
    sums = []
    for _ in range(2000):
        draws = coverage_centric(score, 40, beta=0.1, strata=6, generator=g)
        sums.append(float((value[draws.ids] / draws.log_expected.exp()).sum()))
    assert_unbiased(sums, float(value[kept].sum()))


def test_one_stratum_and_no_cut_is_uniform_sampling() -> None:
    draws = coverage_centric(torch.arange(20), 5, strata=1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        draws.log_expected_of(torch.arange(20)).exp(), torch.full((20,), 0.25).double()
    )
    torch.testing.assert_close(
        coverage_centric([3.0, 3.0, 3.0], 2).log_expected.exp(), torch.full((2,), 2 / 3).double()
    )


def test_at_ninety_percent_pruning_no_row_is_as_far_from_a_kept_one_as_under_the_top_scores() -> None:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(500, 2, generator=g)
    score = x.norm(dim=1)  # hard rows lie outside
    kept = coverage_centric(score, 50, strata=10, generator=g).ids
    radius = [float(torch.cdist(x, x[ids]).amin(1).max()) for ids in (kept, score.topk(50).indices)]
    assert radius[0] < radius[1] / 1.3


def test_dropping_the_hardest_counts_exactly_with_ties_and_infinities() -> None:
    assert drop_hardest([0.0, math.inf, 2.0, 2.0, 2.0], 0.4).tolist() == [0, 3, 4]
    assert drop_hardest(torch.arange(100), 0.29).tolist() == list(range(71))
    assert drop_hardest([1.0], 0.5).tolist() == [0]
    assert drop_hardest([], 0.5).tolist() == []


def test_the_same_generator_gives_the_same_rows_and_the_edges_work() -> None:
    score = torch.rand(50, generator=torch.Generator().manual_seed(0))
    first, again = (
        coverage_centric(score, 9, generator=torch.Generator().manual_seed(4)).ids for _ in range(2)
    )
    assert torch.equal(first, again)
    assert coverage_centric(score, 0).ids.shape == (0,)
    assert coverage_centric(score, 50).ids.tolist() == list(range(50))
    assert coverage_centric([], 0).ids.shape == (0,)
    assert coverage_centric(torch.tensor([-1e308, 0.0, 1e308], dtype=torch.float64), 3).ids.tolist() == [
        0,
        1,
        2,
    ]


def test_wrong_input_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="raise beta"):
        coverage_centric([0.0, 1.0, math.inf], 1)
    assert coverage_centric([0.0, 1.0, math.inf], 2, beta=0.34).ids.tolist() == [0, 1]
    with pytest.raises(ValueError, match="NaN"):
        coverage_centric([0.0, math.nan], 1)
    with pytest.raises(ValueError, match="k must lie"):
        coverage_centric([0.0, 1.0], 2, beta=0.5)
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        drop_hardest([0.0], 1.0)
    with pytest.raises(TypeError, match="real numbers"):
        drop_hardest(torch.tensor([True]), 0.5)
    with pytest.raises(ValueError, match="budget must lie"):
        stratum_budgets([1, 2], 4)
    with pytest.raises(ValueError, match="strata"):
        coverage_centric([0.0], 1, strata=0)
