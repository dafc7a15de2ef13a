"""The statistical assertions pass right methods and fail wrong ones."""

import numpy as np
import pytest

from tests.statistical import assert_coverage, assert_unbiased


def test_a_right_mean_passes_and_a_shifted_one_fails():
    samples = np.random.default_rng(0).exponential(2.0, 2000)
    assert_unbiased(samples, 2.0)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_unbiased(samples + 0.3, 2.0)


def test_one_wrong_component_of_many_fails():
    samples = np.random.default_rng(1).normal(size=(500, 3, 4))
    assert_unbiased(samples, 0.0)
    samples[:, 1, 2] += 0.4
    with pytest.raises(AssertionError, match="component 6"):
        assert_unbiased(samples, np.zeros((3, 4)))


def test_more_components_widen_the_limit():
    column = np.linspace(-1, 1, 101) + 0.23
    with pytest.raises(AssertionError):
        assert_unbiased(column, 0.0)
    assert_unbiased(np.repeat(column[:, None], 1000, axis=1), 0.0)


def test_right_means_fail_about_as_often_as_stated():
    generator = np.random.default_rng(2)
    failures = 0
    for _ in range(2000):
        try:
            assert_unbiased(generator.normal(size=200), 0.0, significance=0.05)
        except AssertionError:
            failures += 1
    assert 60 < failures < 145


def test_a_constant_must_equal_its_truth():
    assert_unbiased(np.full(40, 0.1), 0.1)
    with pytest.raises(AssertionError):
        assert_unbiased(np.full(40, 0.1), 0.1001)


def test_infinite_samples_fail_and_few_are_refused():
    with pytest.raises(AssertionError, match="finite"):
        assert_unbiased([np.nan] * 40, 0.0)
    with pytest.raises(ValueError, match="30"):
        assert_unbiased([0.0] * 5, 0.0)


def test_coverage_inside_the_band_passes_and_outside_fails():
    draws = np.random.default_rng(3).random(3000)
    assert_coverage(draws < 0.95, 0.95, band=0.0)
    assert_coverage(draws < 0.94, 0.95)
    for wrong in (0.85, 1.0):
        with pytest.raises(AssertionError, match="cover"):
            assert_coverage(draws < wrong, 0.95)


def test_too_few_replications_are_refused():
    with pytest.raises(ValueError, match="give more"):
        assert_coverage([False, False], 0.9)
