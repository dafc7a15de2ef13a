"""Systematic sampling: equal steps from one random start."""

import math
from typing import Any

import pytest
import torch

from steelyard.sampling.systematic import systematic
from tests.sampling.drawing import included, seeded
from tests.statistical import assert_unbiased

INF = math.inf
PI = torch.tensor([0.1, 0.9, 0.35, 0.65, 1.0, 0.2, 0.3, 0.0, 0.5], dtype=torch.float64)
R = 20_000


@pytest.mark.parametrize("order", ["given", "random"])
def test_frequencies_equal_the_probabilities_given_and_the_size_their_sum(order: Any) -> None:
    draws = systematic(PI.expand(R, 9), order=order, generator=seeded(0))
    seen = included(draws, 9)
    assert_unbiased(seen, PI)
    assert bool((seen.sum(-1) == 4).all())
    torch.testing.assert_close(draws.log_expected.exp(), PI[draws.ids])


@pytest.mark.parametrize("order", ["given", "random"])
def test_a_sum_between_two_integers_gives_one_of_them_and_an_empty_slot(order: Any) -> None:
    pi = torch.tensor([0.1, 0.9, 0.35, 0.6], dtype=torch.float64)
    draws = systematic(pi.expand(R, 4), order=order, generator=seeded(1))
    seen = included(draws, 4)
    assert_unbiased(seen, pi)
    assert set(seen.sum(-1).tolist()) == {1.0, 2.0}


def test_pairs_come_together_as_often_as_one_start_hits_both() -> None:
    """A fine grid of starts in the plainest loop gives every joint probability."""
    pi = [0.3, 0.5, 0.4, 0.8]
    starts = [(s + 0.5) / 1000 for s in range(1000)]
    joint = torch.zeros(4, 4, dtype=torch.float64)
    for u in starts:
        drawn, low = [], 0.0
        for i, p in enumerate(pi):
            if any(low < u + j <= low + p for j in range(3)):
                drawn.append(i)
            low += p
        for i in drawn:
            for j in drawn:
                joint[i, j] += 1 / 1000
    seen = included(systematic(torch.tensor(pi, dtype=torch.float64).expand(R, 4), generator=seeded(2)), 4)
    assert_unbiased(seen.unsqueeze(-1) * seen.unsqueeze(-2), joint)
    assert float(joint[0, 1]) == 0


def test_equal_probabilities_take_every_mth() -> None:
    ids = systematic(torch.full((1000,), 0.125), generator=seeded(3)).ids
    assert len(ids) == 125
    assert set(ids.diff().tolist()) == {8}
    shuffled = systematic(torch.full((1000,), 0.125), order="random", generator=seeded(3)).ids
    assert len(shuffled) == 125
    assert len(set(shuffled.diff().tolist())) > 10


def test_a_long_list_has_exactly_the_size_of_its_sum() -> None:
    w = torch.rand(300_000, generator=seeded(4), dtype=torch.float64)
    pi = 30_000 * w / w.sum()
    for seed in range(5):
        assert systematic(pi, generator=seeded(seed)).ids.shape == (30_000,)


def test_the_certain_the_impossible_one_and_none() -> None:
    assert systematic(torch.tensor([1.0, 0.0, 1.0])).ids.tolist() == [0, 2]
    assert systematic(torch.zeros(3)).ids.shape == (0,)
    assert systematic(torch.zeros(0)).ids.shape == (0,)
    asked = systematic(torch.tensor([0.5, 0.5])).log_expected_of(torch.tensor([0, 2, -1]))
    assert asked.tolist() == [pytest.approx(math.log(0.5)), -INF, -INF]
    assert systematic(torch.full((2, 3, 10), 0.5)).ids.shape == (2, 3, 5)


def test_bad_input_is_refused() -> None:
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            systematic(torch.tensor([0.5, bad]))
    with pytest.raises(ValueError, match="order must be"):
        systematic(PI, order="local")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating"):
        systematic(torch.tensor([0, 1]))
