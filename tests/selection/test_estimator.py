"""The scikit-learn door: its contract, and selections that are those of the functions behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'steelyard[sklearn]'")

from sklearn.utils.estimator_checks import parametrize_with_checks

from steelyard.selection.estimator import METHODS, RowSelector


@parametrize_with_checks([RowSelector(method, random_state=0) for method in METHODS])
def test_it_keeps_the_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 600)
    return rng.normal(0, 1, (600, 4)) + 3 * np.eye(4)[y], y


@pytest.mark.parametrize("method", METHODS)
def test_as_many_rows_as_asked_are_kept_with_weights_that_add_up(method: str) -> None:
    x, y = blobs(0)
    weights = []
    for seed in range(10):
        selector = RowSelector(method, 0.2, random_state=seed)
        kept, labels = selector.fit_resample(x, y)
        assert (kept == x[selector.indices_]).all()
        assert (labels == y[selector.indices_]).all()
        assert len(selector.indices_) == 120
        weights.append(selector.sample_weight_.sum())
    assert np.mean(weights) == pytest.approx(120 if method == "hardest" else 600, rel=0.02)


def test_mislabelled_rows_are_the_hardest_and_beta_cuts_them_off() -> None:
    x, y = blobs(1)
    wrong = np.arange(30)
    y[wrong] = (y[wrong] + 1) % 3
    hardest = RowSelector("hardest", 0.05, random_state=0).fit(x, y).indices_
    assert np.isin(hardest, wrong).mean() > 0.7
    covered = RowSelector("coverage", 0.5, beta=0.08, random_state=0).fit(x, y).indices_
    assert np.isin(wrong, covered).mean() < 0.2


def test_settings_outside_their_range_are_refused() -> None:
    x, y = blobs(2)
    for settings in ({"method": "best"}, {"share": 0.0}, {"share": 1.5}):
        with pytest.raises(ValueError, match=r"method|share"):
            RowSelector(**settings).fit(x, y)
    with pytest.raises(ValueError, match="one class only"):
        RowSelector().fit(x, np.zeros(600, int))
