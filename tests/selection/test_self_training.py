"""Self-generated data: weights by entropy, attempts spent on the tail, drift from a validation set."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steelyard.selection.self_training import (
    answer_entropy_weights,
    balanced_attempts,
    drift,
    loss_ratio_weights,
    mean_matching_weights,
)


def test_weights_have_mean_one_and_follow_the_entropy_of_answers() -> None:
    answers = [["4", "4", "4"], ["1", "2", "3"], ["7", "7", "8", "9"], ["a", "b"]]
    weights, entropy = answer_entropy_weights(answers, sharpness=2)
    expected = [0.0, math.log(3), 0.5 * math.log(2) + 0.5 * math.log(4), math.log(2)]
    torch.testing.assert_close(entropy, torch.tensor(expected, dtype=torch.float64))
    plain = np.array(expected) ** 2
    torch.testing.assert_close(weights, torch.from_numpy(plain * 4 / plain.sum()))
    assert float(weights.mean()) == pytest.approx(1)
    assert answer_entropy_weights(answers, sharpness=0)[0].tolist() == [1.0] * 4
    order = answer_entropy_weights(answers, sharpness=0.5)[0].argsort()
    assert torch.equal(order, entropy.argsort())


def test_entropies_that_give_no_weights_are_refused() -> None:
    for answers, sharpness in (([["a"]], 1.0), ([["a"], ["a", "b"]], -1.0), ([["a", "b"]], math.inf)):
        with pytest.raises(ValueError, match="No weights follow"):
            answer_entropy_weights(answers, sharpness=sharpness)
    for answers in ([], [[]]):
        with pytest.raises(ValueError, match="an answer to each"):
            answer_entropy_weights(answers)


def gini(x: np.ndarray) -> float:
    ordered = np.sort(x)
    n = len(x)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * max(ordered.sum(), 1)))


def test_guided_attempts_flatten_the_tail_for_fewer_draws_than_brute_force() -> None:
    chance = np.array([0.9] * 20 + [0.3] * 10 + [0.02] * 10)

    def tries(gain: float, seed: int) -> object:
        rng = np.random.default_rng(seed)

        def attempt(question: int, hint: bool) -> bool:
            return bool(rng.random() < min(1.0, chance[question] + gain * hint))

        return balanced_attempts(attempt, 40, wanted=4, first=4, budget=1200)

    guided, brute = tries(0.5, 0), tries(0.0, 0)
    assert gini(guided.solved.numpy()) < gini(brute.solved.numpy()) / 2  # type: ignore[attr-defined]
    assert int(guided.tried.sum()) < int(brute.tried.sum()) / 2  # type: ignore[attr-defined]
    assert (guided.solved <= 4).all()  # type: ignore[attr-defined]
    assert (guided.guided[:20] <= guided.guided[30:].min()).all()  # type: ignore[attr-defined]


def test_a_budget_is_never_exceeded_and_ends_early_when_all_is_solved() -> None:
    never = balanced_attempts(lambda *_: False, 7, wanted=2, first=3, budget=40)
    assert int(never.tried.sum()) == 40
    assert int(never.guided.sum()) == 19
    always = balanced_attempts(lambda *_: True, 7, wanted=2, first=3, budget=400)
    assert int(always.tried.sum()) == 21
    assert always.solved.tolist() == [2] * 7
    with pytest.raises(ValueError, match="does not cover"):
        balanced_attempts(lambda *_: True, 7, wanted=2, first=3, budget=20)
    with pytest.raises(ValueError, match="at least 1"):
        balanced_attempts(lambda *_: True, 0, wanted=2, first=3, budget=20)


def test_the_same_distribution_drifts_little_and_a_shifted_cluster_most() -> None:
    rng = np.random.default_rng(0)
    same, valid = rng.normal(1, 0.5, 400), rng.normal(1, 0.5, 200)
    plain = drift(mean_matching_weights(same, valid))
    assert plain.median() < 1.6
    shifted = np.concatenate([same, rng.normal(6, 0.3, 40)])
    found = drift(mean_matching_weights(shifted, valid))
    assert (found.argsort(descending=True)[:40] >= 400).sum() >= 38


def test_mean_matching_is_at_the_optimum_of_its_problem() -> None:
    rng = np.random.default_rng(1)
    x, v = rng.normal(0, 1, 12), rng.normal(0.7, 0.6, 30)
    b = mean_matching_weights(x, v, bandwidth=0.8, bound=5.0, iterations=5000).numpy()

    def objective(b: np.ndarray) -> float:
        k = np.exp(-((x[:, None] - x) ** 2) / (2 * 0.64))
        r = np.exp(-((x[:, None] - v) ** 2) / (2 * 0.64)).mean(1)
        return float(b @ k @ b / (2 * 12**2) - r @ b / 12)

    assert (b >= 0).all()
    assert (b <= 5).all()
    for _ in range(500):
        moved = np.clip(b + rng.normal(0, 0.05, 12), 0, 5)
        if 0 <= moved.sum() <= 24:
            assert objective(moved) >= objective(b) - 1e-6


def test_loss_ratios_are_those_of_the_mean_validation_loss() -> None:
    found = loss_ratio_weights([0.5, 1.0, 4.0, 0.1], [1.5, 0.5])
    assert found.tolist() == [2.0, 1.0, 0.25, 2.0]
    for wrong in ([0.0], [-1.0], [], [math.inf]):
        with pytest.raises(ValueError, match="positive and finite"):
            loss_ratio_weights(wrong, [1.0])


def test_drift_is_symmetric_in_inverse_weights_and_refuses_negative_ones() -> None:
    w = torch.tensor([0.25, 1.0, 4.0, 0.0])
    assert drift(w).tolist() == [4.0, 1.0, 4.0, math.inf]
    assert torch.equal(drift(w[:3]), drift(1 / w[:3]))
    with pytest.raises(ValueError, match="negative"):
        drift([-1.0])
    with pytest.raises(ValueError, match="finite"):
        mean_matching_weights([math.nan], [1.0])
    with pytest.raises(ValueError, match="hold a loss"):
        mean_matching_weights([], [1.0])
