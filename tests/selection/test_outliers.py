"""Outliers: one a cluster, the hardest of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard.selection.outliers import diverse_outliers


def kinds(sizes: list[int], seed: int) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = 5 * np.eye(len(sizes))
    x = np.concatenate([rng.normal(c, 0.3, (s, len(sizes))) for c, s in zip(centres, sizes, strict=True)])
    return torch.from_numpy(x), np.repeat(np.arange(len(sizes)), sizes)


def test_each_kind_gives_its_hardest_outlier() -> None:
    x, kind = kinds([200, 20, 10, 5], 0)
    absence = torch.rand(len(x), generator=torch.Generator().manual_seed(0))
    found = diverse_outliers(x, absence, 4, generator=torch.Generator().manual_seed(1))
    expected = [int(np.flatnonzero(kind == c)[absence.numpy()[kind == c].argmin()]) for c in range(4)]
    assert found.tolist() == sorted(expected)


def test_one_cluster_gives_the_hardest_of_all_and_as_many_clusters_as_rows_give_everything() -> None:
    x, _ = kinds([6, 5], 1)
    absence = torch.rand(11, generator=torch.Generator().manual_seed(2))
    assert diverse_outliers(x, absence, 1).tolist() == [int(absence.argmin())]
    assert diverse_outliers(x, absence, 11).tolist() == list(range(11))


def test_turning_the_space_changes_nothing() -> None:
    x, _ = kinds([30, 30, 30], 3)
    absence = torch.rand(90, generator=torch.Generator().manual_seed(3))
    turn = torch.linalg.qr(
        torch.randn(3, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    )[0]
    found = [
        diverse_outliers(v, absence, 3, generator=torch.Generator().manual_seed(5)) for v in (x, x @ turn)
    ]
    assert torch.equal(*found)


def test_a_skewed_pool_is_covered_better_than_by_uncertainty_alone() -> None:
    x, kind = kinds([400, 10, 10, 10, 10], 6)
    absence = torch.from_numpy(np.where(kind == 0, 0.2, 0.6)) + 0.1 * torch.rand(
        440, generator=torch.Generator().manual_seed(0)
    )
    chosen = diverse_outliers(x, absence, 5, generator=torch.Generator().manual_seed(0))
    assert len(set(kind[chosen])) == 5
    assert len(set(kind[absence.argsort()[:5]])) == 1


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, _ = kinds([4, 4], 7)
    with pytest.raises(ValueError, match="absence must hold"):
        diverse_outliers(x, torch.rand(3), 2)
    for k in (0, 9):
        with pytest.raises(ValueError, match="k must lie"):
            diverse_outliers(x, torch.rand(8), k)
