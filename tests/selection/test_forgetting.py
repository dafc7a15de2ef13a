"""Forgetting events and margins over the course of a training."""

import itertools
import math

import pytest
import torch

from steelyard.selection.forgetting import area_under_margin, forgetting_events


def test_events_equal_the_plain_count_over_consecutive_visits() -> None:
    g = torch.Generator().manual_seed(2)
    correct = torch.rand(12, 40, generator=g) < 0.3
    observed = torch.rand(12, 40, generator=g) < 0.6
    observed[0] |= ~observed.any(0)
    expected = []
    for i in range(40):
        visits = [bool(correct[t, i]) for t in range(12) if observed[t, i]]
        events = sum(a and not b for a, b in itertools.pairwise(visits))
        expected.append(float(events) if any(visits) else math.inf)
    assert forgetting_events(correct, observed).tolist() == expected
    assert max(e for e in expected if e < math.inf) > 1
    assert math.inf in expected


def test_a_row_never_learned_ranks_above_every_other() -> None:
    correct = torch.tensor([[1, 0, 1, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1]]).bool()
    assert forgetting_events(correct).tolist() == [2.0, math.inf, 0.0, 1.0]


def test_the_area_under_the_margin_is_the_mean_lead_of_the_label() -> None:
    g = torch.Generator().manual_seed(4)
    z = torch.randn(5, 6, 4, generator=g, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 1, 0])
    expected = [
        sum(float(z[t, i, y[i]]) - max(float(z[t, i, j]) for j in range(4) if j != y[i]) for t in range(5))
        / 5
        for i in range(6)
    ]
    torch.testing.assert_close(area_under_margin(z, y), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(area_under_margin(z[0], y), area_under_margin(z[:1], y))


def test_wrong_input_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match="bool"):
        forgetting_events(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="1 rows were never visited"):
        forgetting_events(torch.ones(2, 2).bool(), torch.tensor([[True, False], [True, False]]))
    with pytest.raises(ValueError, match="beside"):
        forgetting_events(torch.ones(2, 2).bool(), torch.ones(3, 2).bool())
    with pytest.raises(ValueError, match="two classes"):
        area_under_margin(torch.zeros(2, 1), [0, 0])
    with pytest.raises(ValueError, match="finite"):
        area_under_margin(torch.tensor([[0.0, -math.inf]]), [0])
