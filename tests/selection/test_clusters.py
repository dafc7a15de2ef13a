"""Selection by clusters: budgets spent exactly, density forgotten level by level, and junk starved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard.selection.clusters import balanced_draw, hierarchical_kmeans, refined_clusters
from tests.statistical import assert_unbiased


def long_tailed(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of eight blobs of very unequal size, and the blob of each."""
    rng = np.random.default_rng(seed)
    sizes = (n * 0.5 ** np.arange(1, 9)).astype(int) + 10
    centres = rng.normal(0, 20, (8, 3))
    points = np.concatenate([rng.normal(c, 1, (s, 3)) for c, s in zip(centres, sizes, strict=True)])
    return torch.from_numpy(points), torch.from_numpy(np.repeat(np.arange(8), sizes))


def divergence(drawn: torch.Tensor) -> float:
    share = torch.bincount(drawn, minlength=8).double() / len(drawn)
    return float((share * (share.clamp(min=1e-12) * 8).log()).sum())


def test_a_tree_of_clusters_draws_concepts_more_evenly_with_every_level() -> None:
    points, blob = long_tailed(4000, 0)
    generator = torch.Generator().manual_seed(1)
    levels = hierarchical_kmeans(points, [300, 40, 8], generator=generator)
    assert [len(level) for level in levels] == [len(points), 300, 40]
    measured = []
    for depth in (1, 2, 3):
        draws = balanced_draw(levels[:depth], 100, generator=generator)
        assert len(draws.ids.unique()) == 100
        measured.append(divergence(blob[draws.ids]))
    even = divergence(blob[torch.randperm(len(blob), generator=generator)[:100]])
    assert measured[2] < measured[1] < measured[0] < even


def test_budgets_fill_branches_evenly_up_to_their_size() -> None:
    rows = torch.tensor([0] * 50 + [1] * 2 + [2] * 10 + [3] * 30)
    tree = [rows, torch.tensor([0, 0, 1, 1])]
    drawn = balanced_draw(tree, 40, generator=torch.Generator().manual_seed(0)).ids
    assert torch.bincount(rows[drawn]).tolist() == [18, 2, 10, 10]
    everything = balanced_draw(tree, 92)
    assert everything.ids.tolist() == list(range(92))
    assert (everything.log_expected == 0).all()


def test_totals_over_a_balanced_draw_are_unbiased() -> None:
    rows = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 2, 2])
    value = torch.tensor([1.0, -2, 3, 5, 8, 1, 4, 2, 9, 0.5], dtype=torch.float64)
    tree = [rows, torch.tensor([0, 0, 1])]
    generator = torch.Generator().manual_seed(2)
    totals = []
    for _ in range(3000):
        draws = balanced_draw(tree, 5, generator=generator)
        totals.append((value[draws.ids] / draws.log_expected.exp()).sum())
        assert torch.equal(draws.log_expected_of(draws.ids), draws.log_expected)
    assert_unbiased(torch.stack(totals), float(value.sum()))


def test_one_level_is_balanced_k_means_and_bad_trees_are_refused() -> None:
    points, _ = long_tailed(200, 3)
    (level,) = hierarchical_kmeans(points, [5], resamplings=0, generator=torch.Generator().manual_seed(0))
    draws = balanced_draw([level], 30)
    sizes, taken = torch.bincount(level), torch.bincount(level[draws.ids], minlength=5)
    assert taken.sum() == 30
    assert (taken[taken < sizes].max() - taken[taken < sizes].min()) <= 1
    for sizes_wanted in ([], [0], [10, 20], [10_000]):
        with pytest.raises(ValueError, match="sizes must descend"):
            hierarchical_kmeans(points, sizes_wanted)
    with pytest.raises(ValueError, match="between 0 and"):
        balanced_draw([level], len(points) + 1)
    with pytest.raises(ValueError, match="no level"):
        balanced_draw([], 1)


def test_clusters_that_prove_useless_are_starved() -> None:
    labels = torch.arange(600) % 6
    useful = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.01])
    ids, weight = refined_clusters(
        labels, 180, lambda rows: useful[labels[rows]], rounds=6, generator=torch.Generator().manual_seed(0)
    )
    assert len(ids.unique()) == 180
    counts = torch.bincount(labels[ids])
    assert counts[5] <= 6 < 20 < counts[:5].min()
    assert weight[5] < 0.01
    assert float(weight.sum()) == pytest.approx(1)


def test_one_round_is_even_cluster_sampling_by_quality() -> None:
    labels = torch.tensor([0] * 6 + [1] * 2)
    quality = torch.log(torch.tensor([1.0, 2, 3, 4, 5, 6, 1, 3], dtype=torch.float64))
    generator = torch.Generator().manual_seed(4)
    first = torch.zeros(3000, 8, dtype=torch.float64)
    for k in range(3000):
        ids, _ = refined_clusters(
            labels, 2, lambda rows: torch.ones(len(rows)), rounds=1, log_quality=quality, generator=generator
        )
        first[k, ids] = 1
    for row, chance in ((0, 1 / 21), (5, 6 / 21), (7, 3 / 4)):
        assert_unbiased(first[:, row], chance)


def test_budgets_are_met_when_clusters_run_dry_and_bad_gains_are_refused() -> None:
    labels = torch.tensor([0] * 3 + [1] * 20)
    ids, _ = refined_clusters(labels, 20, lambda rows: 1.0 + 9 * (labels[rows] == 0).double(), rounds=4)
    assert len(ids.unique()) == 20
    with pytest.raises(ValueError, match="finite numbers"):
        refined_clusters(labels, 4, lambda rows: torch.full((len(rows),), -1.0))
    with pytest.raises(ValueError, match="All gains are 0"):
        refined_clusters(labels, 4, lambda rows: torch.zeros(len(rows)))
    with pytest.raises(ValueError, match="between 0 and the 23"):
        refined_clusters(labels, 24, lambda rows: torch.ones(len(rows)))
