"""Noisy grades: the confusion that was planted is found again, and repairing with it helps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard.selection.score_transitions import (
    ScoreTransitions,
    best_and_rarest,
    correct_grades,
    fit_transitions,
    nearest_rows,
)

PLANTED = torch.tensor(
    [[0.8, 0.15, 0.05, 0.0], [0.1, 0.7, 0.2, 0.0], [0.0, 0.25, 0.6, 0.15], [0.05, 0.0, 0.1, 0.85]],
    dtype=torch.float64,
)


def graded(
    n: int, seed: int, transition: torch.Tensor = PLANTED
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Vectors in clusters of one true grade each, true grades, and grades confused by the matrix."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(4, n // 10, p=[0.4, 0.3, 0.2, 0.1])
    centres = rng.normal(0, 1, (len(truth), 16))
    vectors = np.repeat(centres, 10, 0) + rng.normal(0, 0.02, (len(truth) * 10, 16))
    true = np.repeat(truth, 10)
    given = np.array([rng.choice(4, p=transition[t].numpy()) for t in true])
    return torch.from_numpy(vectors), torch.from_numpy(true), torch.from_numpy(given)


def test_a_planted_confusion_is_recovered_and_repaired() -> None:
    vectors, true, given = graded(8000, 0)
    _, near = nearest_rows(vectors, 6)
    found = fit_transitions(given, near, 4)
    assert (found.transition - PLANTED).abs().max() < 0.08
    assert (found.prior - torch.bincount(true).double() / len(true)).abs().max() < 0.05
    repaired, confidence = correct_grades(given, near, found)
    before, after = (given != true).double().mean(), (repaired != true).double().mean()
    assert after < before / 4
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert (repaired != true)[confidence > 0.99].double().mean() < 0.02


def test_grades_without_confusion_stay_as_they_are() -> None:
    vectors, true, _ = graded(800, 1)
    _, near = nearest_rows(vectors, 4)
    exact = ScoreTransitions(torch.eye(4, dtype=torch.float64), torch.full((4,), 0.25, dtype=torch.float64))
    assert torch.equal(correct_grades(true, near, exact)[0], true)
    found = fit_transitions(true, near, 4)
    assert torch.equal(correct_grades(true, near, found)[0], true)
    assert (found.transition.diagonal() > 0.9).all()


def test_the_posterior_is_bayes_rule_by_plain_loops() -> None:
    prior = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    transitions = ScoreTransitions(PLANTED, prior)
    for given in range(4):
        joint = [float(prior[k] * PLANTED[k, given]) for k in range(4)]
        expected = torch.tensor([j / sum(joint) for j in joint], dtype=torch.float64)
        torch.testing.assert_close(transitions.posterior()[given], expected)
    grades, near = torch.tensor([1, 2, 2, 0]), torch.tensor([[1, 2], [0, 2], [0, 1], [1, 2]])
    found, chance = correct_grades(grades, near, transitions, confidence=0.0)
    for i in range(4):
        joint = []
        for k in range(4):
            p = float(prior[k] * PLANTED[k, grades[i]])
            for j in near[i]:
                p *= float(PLANTED[k, grades[j]])
            joint.append(p)
        assert int(found[i]) == int(np.argmax(joint))
        assert float(chance[i]) == pytest.approx(max(joint) / sum(joint), rel=1e-6)


def test_neighbours_are_those_of_all_cosines() -> None:
    vectors = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    cosine = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=2)
    cosine.fill_diagonal_(-2)
    value, ids = nearest_rows(vectors, 3)
    torch.testing.assert_close(value, cosine.topk(3).values)
    assert torch.equal(ids, cosine.topk(3).indices)


def test_whole_grades_come_first_and_then_the_rarest() -> None:
    grades, rarity = [3, 5, 3, 4, 3, 5], [0.1, 0.2, 0.9, 0.3, 0.5, 0.8]
    assert best_and_rarest(grades, rarity, 5).tolist() == [5, 1, 3, 2, 4]


def test_grades_and_neighbours_that_do_not_fit_are_refused() -> None:
    near = torch.tensor([[1, 2], [0, 2], [0, 1]])
    for grades, neighbours, words in (
        ([0, 1, 4], near, "from 0 to 3"),
        ([0.0, 1.0, 2.0], near, "integers"),
        ([0, 1], near, "ids of rows"),
        ([0, 1, 2], near + 1, "ids of rows"),
        ([0, 1, 2], near[:, :1], "2 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            fit_transitions(grades, neighbours, 4)
    with pytest.raises(ValueError, match="between 1 and 2"):
        nearest_rows(torch.randn(3, 2), 3)
    with pytest.raises(ValueError, match="between 0 and"):
        best_and_rarest([1, 2], [0.0, 0.0], 3)
