"""Alias tables draw each category as often as its weight says."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from steelyard.sampling import AliasTable


def probabilities(table: AliasTable) -> np.ndarray:
    """The law of the table, read off its cells: what a cell keeps plus what others give it."""
    keep, alias = table._keep.numpy(), table._alias.numpy()
    return (np.bincount(alias, 1 - keep, len(keep)) + keep) / len(keep)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda w: sum(w) > 0))
def test_the_cells_hold_exactly_the_probabilities(weights: list[float]) -> None:
    want = np.array(weights) / sum(weights)
    np.testing.assert_allclose(probabilities(AliasTable(weights)), want, atol=1e-12)


def test_frequencies_equal_probabilities() -> None:
    """Chi-square at significance 1e-5 on 200,000 seeded draws."""
    weights = np.array([5, 0.01, 1, 0, 3, 0.5])
    draws = AliasTable(weights).sample(200_000, generator=torch.Generator().manual_seed(3))
    counts = np.bincount(draws.numpy(), minlength=6)
    live = weights > 0
    assert counts[~live].sum() == 0
    assert chisquare(counts[live], weights[live] / weights.sum() * 200_000).pvalue > 1e-5


def test_log_probability_is_normalised_and_minus_infinity_where_nothing_is_drawn() -> None:
    table = AliasTable([1, 0, 3])
    assert table.log_probability.exp().tolist() == pytest.approx([0.25, 0, 0.75])
    assert float(table.log_probability[1]) == -math.inf


@pytest.mark.slow
def test_more_than_2_to_the_24_categories_are_all_within_reach() -> None:
    n = 2**24 + 5
    weights = torch.zeros(n, dtype=torch.float64)
    weights[-3:] = torch.tensor([1.0, 2, 1])
    draws = AliasTable(weights).sample(1000, generator=torch.Generator().manual_seed(0))
    assert set(draws.tolist()) == {n - 3, n - 2, n - 1}


def test_the_same_seed_gives_the_same_draws_of_any_shape() -> None:
    table = AliasTable([1, 2, 3])
    a = table.sample((2, 3, 4), generator=torch.Generator().manual_seed(5))
    b = table.sample(24, generator=torch.Generator().manual_seed(5))
    assert a.shape == (2, 3, 4)
    assert a.flatten().tolist() == b.tolist()


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([], "non-empty"),
        ([[1.0]], "non-empty"),
        ([0, 0], "positive"),
        ([1, -1], "weight 1 is -1"),
        ([math.nan], "finite"),
    ],
)
def test_bad_weights_are_refused(weights: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AliasTable(weights)


def test_weights_are_not_changed() -> None:
    weights = np.array([1.0, 2, 3])
    AliasTable(weights)
    assert weights.tolist() == [1, 2, 3]


@pytest.mark.parametrize("weights", [[5e-324, 1.0, 1e308], [1e-320, 3e-320], [1e-300] * 3 + [1e300]])
def test_shares_too_small_for_a_float_warn_nobody(weights: list[float]) -> None:
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        table = AliasTable(weights)
    assert probabilities(table).sum() == pytest.approx(1)
    assert not table.log_probability.isnan().any()


def test_a_sum_beyond_every_float_is_refused_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="finite sum"):
            AliasTable([1e308, 1e308])
