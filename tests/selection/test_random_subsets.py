"""Fresh subsets every epoch: each row as often as every other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard.selection.random_subsets import random_subsets, total_steps


def test_a_walk_sees_every_row_once_before_any_twice() -> None:
    subsets = list(random_subsets(40, 0.25, 8, generator=torch.Generator().manual_seed(0)))
    assert [len(s) for s in subsets] == [10] * 8
    for start in (0, 4):
        assert sorted(torch.cat(subsets[start : start + 4]).tolist()) == list(range(40))


@pytest.mark.parametrize("replacement", [False, True])
def test_no_epoch_has_a_row_twice_and_all_rows_come_alike(replacement: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    seen = np.zeros(13)
    for subset in random_subsets(13, 0.4, 4000, replacement=replacement, generator=generator):
        assert len(subset.unique()) == len(subset) == 5
        seen[subset] += 1
    expected = 4000 * 5 / 13
    assert ((seen - expected) ** 2).sum() / expected < 40  # 12 degrees: above once in ten thousand
    if not replacement:
        assert seen.max() - seen.min() <= 2


def test_gradients_of_subsets_are_unbiased_and_a_fixed_subset_is_not() -> None:
    rng = np.random.default_rng(0)
    gradient = rng.normal(0, 1, 60)
    subsets = list(random_subsets(60, 0.2, 50, generator=torch.Generator().manual_seed(0)))
    means = [gradient[s].mean() for s in subsets]
    assert np.mean(means) == pytest.approx(gradient.mean(), abs=1e-12)  # ten whole walks
    assert abs(gradient[subsets[0]].mean() - gradient.mean()) > 0.01


def test_fresh_subsets_fit_better_than_one_kept_subset_at_equal_steps() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(0, 1, 20)
    x = rng.normal(0, 1, (400, 20))
    y = x @ truth + rng.normal(0, 1, 400)
    test = rng.normal(0, 1, (2000, 20))

    def error(subsets: list[torch.Tensor]) -> float:
        w, last = np.zeros(20), total_steps(400, 0.1, len(subsets), 40)
        for step, subset in enumerate(subsets):
            rows = subset.numpy()
            rate = 0.1 * (1 - step / last)
            w += rate * x[rows].T @ (y[rows] - x[rows] @ w) / len(rows)
        return float(((test @ (w - truth)) ** 2).mean())

    fresh = list(random_subsets(400, 0.1, 200, generator=torch.Generator().manual_seed(0)))
    assert error(fresh) < error([fresh[0]] * 200) / 2


def test_steps_and_bad_settings() -> None:
    assert total_steps(1000, 0.1, 5, 32) == 5 * 4
    for settings in ((0, 0.5, 1), (10, 0.0, 1), (10, 1.5, 1), (10, 0.5, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            next(random_subsets(*settings))
    with pytest.raises(ValueError, match="at least 1"):
        total_steps(10, 0.5, 1, 0)
