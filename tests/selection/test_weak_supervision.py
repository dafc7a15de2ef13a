"""Rows by the doubts of a surrogate: the stated probabilities, and a case where bias wins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steelyard.selection.weak_supervision import unsure_rows
from tests.statistical import assert_unbiased


def test_probabilities_follow_the_power_of_the_variance_and_cap_at_one() -> None:
    p = torch.tensor([0.5, 0.9, 0.99, 0.3, 0.0])
    draws = unsure_rows(p, 2.0, alpha=1.5)
    pi = draws.log_expected_of(torch.arange(5)).exp()
    w = (p.double() * (1 - p.double())) ** 0.75
    torch.testing.assert_close(pi, 2.0 * w / w.sum(), atol=1e-6, rtol=1e-6)
    assert pi[4] == 0
    capped = unsure_rows(p, 3.5, alpha=4.0).log_expected_of(torch.arange(5)).exp()
    assert capped[0] == pytest.approx(1)
    assert float(capped.sum()) == pytest.approx(3.5)
    even = unsure_rows(p, 2.0, alpha=0.0).log_expected_of(torch.arange(5)).exp()
    assert even.tolist() == pytest.approx([0.4] * 5)


def test_the_weighted_gradient_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(0)
    p, gradient = torch.rand(30, generator=generator), torch.randn(30, generator=generator)
    totals = []
    for _ in range(3000):
        draws = unsure_rows(p, 10.0, generator=generator)
        totals.append((gradient[draws.ids] * (-draws.log_expected).exp()).sum())
    assert_unbiased(torch.stack(totals).double(), float(gradient.sum()))


@pytest.mark.slow
def test_unweighed_doubtful_rows_can_test_better_than_weighed_ones() -> None:
    """Logistic regression with Gaussian features and an exact surrogate, as in the paper's first example."""
    rng = np.random.default_rng(0)
    theta = np.full(10, 0.8)
    test = rng.normal(0, 1, (4000, 10))

    def fit(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        beta = np.zeros(10)
        for _ in range(25):
            mu = 1 / (1 + np.exp(-x @ beta))
            hessian = (x * (w * mu * (1 - mu))[:, None]).T @ x + 0.1 * np.eye(10)
            beta += np.linalg.solve(hessian, x.T @ (w * (y - mu)) - 0.1 * beta)
        return beta

    errors: dict[str, list[float]] = {"weighed": [], "unweighed": []}
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        x = rng.normal(0, 1, (1500, 10))
        p = 1 / (1 + np.exp(-x @ theta))
        y = (rng.random(1500) < p).astype(float)
        draws = unsure_rows(p, 120.0, alpha=1.0, generator=generator)
        rows = draws.ids.numpy()
        for name, w in (("weighed", np.exp(-draws.log_expected.numpy())), ("unweighed", np.ones(len(rows)))):
            w = w / w.mean()
            beta = fit(x[rows], y[rows], w)
            mu = 1 / (1 + np.exp(-test @ theta))
            loss = np.logaddexp(0, -test @ beta) * mu + np.logaddexp(0, test @ beta) * (1 - mu)
            errors[name].append(float(loss.mean()))
    assert np.mean(errors["unweighed"]) < np.mean(errors["weighed"])


def test_probabilities_that_are_none_are_refused() -> None:
    for p, alpha in (([0.5, 1.5], 1.0), ([0.5, math.nan], 1.0), ([0.5, 1.0], -1.0), ([0.5, 0.4], math.inf)):
        with pytest.raises(ValueError, match=r"probabilities|alpha"):
            unsure_rows(p, 1.0, alpha=alpha)
    with pytest.raises(ValueError, match="above -inf"):
        unsure_rows([0.5, 1.0], 2.0)
