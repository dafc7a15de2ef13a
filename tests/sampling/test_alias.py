"""Alias tables draw each category as often as its weight says."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from steelyard.sampling.alias import AliasTable, cell_of
from tests.statistical import assert_unbiased


def probabilities(table: AliasTable) -> np.ndarray:
    """The law of the table, read off its cells: what a cell keeps plus what others give it."""
    share = table._cells["share"].astype(np.float64)
    keep = np.where(np.signbit(share), 1 + share, share)
    gives = np.where(np.signbit(share), -share, 1 - share)
    return (np.bincount(table._cells["alias"], gives, len(keep)) + keep) / len(keep)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda w: sum(w) > 0))
def test_the_cells_hold_exactly_the_probabilities(weights: list[float]) -> None:
    """To the last digit of a float32, and however small they are."""
    want = np.array(weights) / sum(weights)
    np.testing.assert_allclose(probabilities(AliasTable(weights)), want, rtol=1.2e-7, atol=1e-38)


@pytest.mark.parametrize("gap", [1e-6, 1e-3, 0.4])
def test_gifts_keep_their_digits_however_small_they_are(gap: float) -> None:
    """A million categories just below the mean, and one that lives on what they give away."""
    low = np.full(1_000_000, 1 - gap)
    low[7] = 1 + (len(low) - 1) * gap
    np.testing.assert_allclose(probabilities(AliasTable(low)) * len(low), low, rtol=1.2e-7)


def test_rare_categories_keep_their_digits() -> None:
    rare = np.geomspace(1e-15, 1, 1000)
    np.testing.assert_allclose(probabilities(AliasTable(rare)), rare / rare.sum(), rtol=1.2e-7)


@pytest.mark.parametrize("n", [1, 3, 1000, 2**24 + 5, 2**32 - 1, 2**32])
def test_a_word_falls_on_a_cell_and_into_it_as_its_96_bit_product_says(n: int) -> None:
    words = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15, 0xDEADBEEF12345678]
    for word in words:
        cell, into = cell_of.py_func(np.uint64(word), np.uint64(n))
        assert (int(cell) << 64) + int(into) == ((word >> 32) * n << 32) + (word & 0xFFFFFFFF) * n
    assert int(cell_of.py_func(np.uint64(2**64 - 1), np.uint64(n))[0]) == n - 1


def test_neighbouring_draws_are_independent() -> None:
    """Chi-square of pairs at lags 1 and 512, the size of a block, at significance 1e-5 each."""
    weights = np.array([3, 1, 2, 0.5])
    draws = AliasTable(weights).sample(400_000, generator=torch.Generator().manual_seed(9)).numpy()
    p = weights / weights.sum()
    for lag in (1, 512):
        pair = draws[:-lag] * 4 + draws[lag:]
        counts = np.bincount(pair[:: lag + 1], minlength=16)  # pairs that share no draw
        assert chisquare(counts, np.outer(p, p).ravel() * counts.sum()).pvalue > 1e-5


def test_what_is_drawn_does_not_depend_on_the_number_of_threads() -> None:
    table, before = AliasTable(np.arange(1, 5000)), torch.get_num_threads()
    n = 2 * 2**20 + 77
    try:
        torch.set_num_threads(1)
        alone = table.sample(n, generator=torch.Generator().manual_seed(4))
        torch.set_num_threads(2)
        together = table.sample(n, generator=torch.Generator().manual_seed(4))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
    few = table.sample(1000, generator=torch.Generator().manual_seed(4))
    assert torch.equal(alone[:1000], few)


def test_draws_know_how_often_every_category_was_to_be_expected() -> None:
    weights = np.array([5, 0.01, 1, 0, 3, 0.5])
    draws = AliasTable(weights).draws((20_000, 7), generator=torch.Generator().manual_seed(2))
    want = torch.from_numpy(7 * weights / weights.sum())
    torch.testing.assert_close(draws.log_expected.exp(), want[draws.ids])
    torch.testing.assert_close(draws.log_expected_of(torch.arange(6)).exp(), want)
    assert draws.log_expected_of(torch.tensor([-1, 6, 3])).tolist() == [-math.inf] * 3
    f = torch.tensor([1.0, -3, 2, 100, 0.5, 4], dtype=torch.float64)
    assert_unbiased((f[draws.ids] / draws.log_expected.exp()).sum(-1), float(f.sum() - f[3]))
    assert AliasTable(weights).draws(0).ids.shape == (0,)


def test_a_shape_is_one_integer_or_several() -> None:
    table = AliasTable([1, 2])
    assert table.sample(np.int64(3)).shape == (3,)  # type: ignore[arg-type]
    assert table.sample(torch.Size([2, 0])).shape == (2, 0)
    assert table.sample(()).shape == ()
    with pytest.raises(ValueError, match="negative"):
        table.sample((-1, -1))
    with pytest.raises(TypeError, match="integer"):
        table.sample(2.0)  # type: ignore[arg-type]


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


def test_more_categories_than_a_cell_can_name_are_refused() -> None:
    with pytest.raises(ValueError, match="At most 2\\^32"):
        AliasTable(np.broadcast_to(np.float64(1), (2**32 + 1,)))


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
