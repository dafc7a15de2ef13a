"""Scores by gradients: directional derivatives, noisy rows, and phases that turn the sign."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steelyard.selection.influence import (
    mimic_keep,
    mimic_score,
    mimic_weights,
    presence_weights,
    self_influence,
)


def quadratic(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, targets and the reference weights of a linear model; the last tenth of the targets is wrong."""
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(5, generator=generator, dtype=torch.float64)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = x @ reference
    y[-n // 10 :] = -y[-n // 10 :]
    return x, y, reference


def test_the_score_is_a_directional_derivative_and_clean_rows_outrank_wrong_ones() -> None:
    x, y, reference = quadratic(200, 0)
    theta = torch.zeros(5, dtype=torch.float64)
    gradients = (x @ theta - y).unsqueeze(1) * x
    direction = reference - theta
    score = mimic_score(gradients, direction)
    step = 1e-6 * direction / direction.norm()
    change = ((x @ (theta + step) - y) ** 2 / 2 - (x @ (theta - step) - y) ** 2 / 2) / 2e-6
    torch.testing.assert_close(score, -change, atol=1e-6, rtol=1e-6)
    assert (score[:180] >= 0).all()
    assert (score[180:] <= 0).all()


def test_weights_are_a_softmax_that_heat_makes_even() -> None:
    score = torch.tensor([1.0, 2.0, -1.0])
    torch.testing.assert_close(mimic_weights(score, temperature=0.5), (score * 2).softmax(0))
    assert mimic_weights(score, temperature=1e9).tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(ValueError, match="temperature"):
        mimic_weights(score, temperature=0)


def test_rows_are_kept_by_their_mean_standing_over_steps() -> None:
    nan = math.nan
    scores = [[1.0, 2, 3, nan, nan], [100.0, 200, nan, 300, nan], [1.0, 1, 1, 1, nan]]
    assert mimic_keep(scores, 0.4).tolist() == [2, 3]
    assert mimic_keep(scores, 0.8).tolist() == [0, 1, 2, 3]
    assert mimic_keep(scores, 1.0).tolist() == [0, 1, 2, 3, 4]
    for share in (0.0, 1.2):
        with pytest.raises(ValueError, match="share"):
            mimic_keep(scores, share)


def test_directions_and_gradients_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        mimic_score(torch.ones(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match="do not fit"):
        mimic_score(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="finite"):
        mimic_score(torch.full((2, 3), math.inf), torch.ones(3))


def test_self_influence_is_the_squared_gradient_of_the_last_layer() -> None:
    generator = torch.Generator().manual_seed(1)
    h, y = torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    layer = torch.nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    found = self_influence(layer(h), y, h)
    for i in range(6):
        layer.zero_grad()
        torch.nn.functional.cross_entropy(layer(h[i : i + 1]), y[i : i + 1]).backward()
        expected = layer.weight.grad.square().sum() + layer.bias.grad.square().sum()
        torch.testing.assert_close(found[i], expected)


def test_two_class_self_influence_is_that_of_logistic_regression_up_to_its_two_rows() -> None:
    x, score = (
        torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0.3, -2.0, 1.0, 0.0, 4.0]),
    )
    labels = torch.tensor([1, 0, 0, 1, 1])
    logits = torch.stack([torch.zeros(5), score], 1)
    expected = 2 * (score.sigmoid() - labels) ** 2 * x.square().sum(1)
    torch.testing.assert_close(self_influence(logits, labels, x, bias=False), expected)


def test_planted_noise_has_the_highest_self_influence_and_the_second_phase_shuns_it() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 300)
    x = torch.from_numpy(rng.normal(0, 1, (300, 2)) + 3 * np.stack([truth, -truth], 1))
    labels = torch.from_numpy(np.where(np.arange(300) < 15, 1 - truth, truth))
    logits = torch.stack([torch.zeros(300), (x[:, 0] - x[:, 1] - 3) * 1.5], 1)
    si = self_influence(logits, labels, x)
    assert (si.topk(15).indices < 15).double().mean() > 0.6
    first, second = (presence_weights(si, temperature=float(si.std()), phase=p) for p in (1, 2))
    assert float(first.sum()) == pytest.approx(1)
    assert float(second.sum()) == pytest.approx(1)
    assert first[:15].mean() > first[15:].mean()
    assert second[:15].mean() < second[15:].mean()
    torch.testing.assert_close(
        presence_weights(si, temperature=1e12, phase=1), torch.full_like(si, 1 / 300), rtol=1e-6, atol=0
    )


def test_phases_and_temperatures_outside_their_range_are_refused() -> None:
    for influence, settings in (
        ([1.0], {"phase": 3, "temperature": 1.0}),
        ([1.0], {"phase": 1, "temperature": 0.0}),
        ([-1.0], {"phase": 1, "temperature": 1.0}),
        ([math.nan], {"phase": 1, "temperature": 1.0}),
    ):
        with pytest.raises(ValueError, match=r"phase|Self-influence"):
            presence_weights(influence, **settings)  # type: ignore[arg-type]
