"""Scores kept and the rest explored: no loss is left out on average."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from steelyard.selection.exploration import top_and_explore
from tests.statistical import assert_unbiased


def test_the_weighted_loss_over_all_draws_is_the_loss_over_all_rows() -> None:
    """By enumeration: 2 of 6 certain, 2 of the other 4 at random, weight 2."""
    score, loss = np.array([0.1, 5, 0.3, 4, 0.2, 0.9]), np.array([1.0, 2, 30, 4, -5, 6])
    totals = [
        loss[[1, 3]].sum() + 2 * loss[list(pair)].sum() for pair in itertools.combinations([0, 2, 4, 5], 2)
    ]
    assert np.mean(totals) == pytest.approx(loss.sum())
    seen = set()
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(3000):
        draws = top_and_explore(score, 4, explore=0.5, generator=generator)
        seen.add(tuple(draws.ids.tolist()))
        values.append((torch.from_numpy(loss)[draws.ids] * (-draws.log_expected).exp()).sum())
    assert len(seen) == 6
    assert all({1, 3} <= set(each) for each in seen)
    assert_unbiased(torch.stack(values), float(loss.sum()))
    pruned = loss[np.argsort(-score)[:4]].sum() * 6 / 4
    assert abs(pruned - loss.sum()) > 10


def test_the_ends_are_an_even_draw_and_everything() -> None:
    draws = top_and_explore(torch.arange(10.0), 4, explore=1.0)
    assert draws.log_expected.exp().tolist() == pytest.approx([0.4] * 4)
    assert draws.log_expected_of(torch.arange(10)).exp().tolist() == pytest.approx([0.4] * 10)
    everything = top_and_explore(torch.arange(5.0), 5, explore=0.0)
    assert everything.ids.tolist() == list(range(5))
    assert (everything.log_expected == 0).all()


def test_calibrated_draws_beat_pruning_where_little_is_kept() -> None:
    """Fitting a mean: the score is the distance from it, so that pruning keeps the extremes of a skewed set."""
    rng = np.random.default_rng(0)
    x = rng.exponential(1, 2000)
    score = np.abs(x - np.median(x))
    generator = torch.Generator().manual_seed(0)
    errors: dict[str, list[float]] = {"pruned": [], "explored": []}
    for _ in range(30):
        draws = top_and_explore(score, 100, explore=0.5, generator=generator)
        w = (-draws.log_expected).exp().numpy()
        errors["explored"].append(abs(np.average(x[draws.ids], weights=w) - x.mean()))
        errors["pruned"].append(abs(x[np.argsort(-score)[:100]].mean() - x.mean()))
    assert np.mean(errors["explored"]) < np.mean(errors["pruned"]) / 5


def test_rows_without_a_chance_and_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="no chance to be drawn"):
        top_and_explore([1.0, 2.0, 3.0], 2, explore=0.0)
    with pytest.raises(ValueError, match="between 0 and the 3"):
        top_and_explore([1.0, 2.0, 3.0], 4)
    with pytest.raises(ValueError, match="explore must lie"):
        top_and_explore([1.0, 2.0, 3.0], 2, explore=1.5)
    with pytest.raises(ValueError, match="NaN"):
        top_and_explore([1.0, math.nan, 3.0], 2)
