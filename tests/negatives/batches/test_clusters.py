"""Unions of small clusters hold each row once, beside its nearest ones."""

import math

import pytest
import torch

from steelyard.negatives.batches.clusters import balanced_bisection, cluster_batches
from steelyard.ragged import Ragged
from tests.negatives.batches.clustered import hard_share, is_epoch, planted, random_batches
from tests.statistical import assert_unbiased


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def within(clusters: Ragged, x: torch.Tensor) -> float:
    """Sum of squares within clusters."""
    rows = (x[clusters.row(c)].double() for c in range(len(clusters)))
    return sum(float((r - r.mean(0)).square().sum()) for r in rows)


@pytest.mark.parametrize(("n", "size"), [(1, 1), (1, 4), (7, 1), (64, 8), (61, 8), (9, 8), (8, 8), (130, 3)])
def test_clusters_hold_each_row_once_and_are_full_but_the_last(n: int, size: int) -> None:
    clusters = balanced_bisection(torch.randn(n, 3, generator=generator(1)), size, generator=generator())
    assert is_epoch(clusters, n)
    assert len(clusters) == math.ceil(n / size)
    assert bool((clusters.counts[:-1] == size).all())
    assert int(clusters.counts[-1]) == n - size * (len(clusters) - 1)


def test_one_split_is_the_best_of_all_balanced_splits() -> None:
    import itertools

    x = torch.tensor([[0.0, 0], [0.2, 0.1], [1.0, 0.3], [4, 4], [4.5, 3], [3, 5.0], [0.1, 0.7], [4.2, 3.9]])
    parts = [(list(a), [i for i in range(8) if i not in a]) for a in itertools.combinations(range(8), 4)]
    best = min(within(Ragged(torch.tensor([0, 4, 8]), torch.tensor(a + b)), x) for a, b in parts)
    assert within(balanced_bisection(x, 4, generator=generator()), x) == pytest.approx(best)


def test_iterations_lower_the_sum_of_squares() -> None:
    x, _ = planted(1000, 30)
    sums = [
        sum(within(balanced_bisection(x, 8, iterations=i, generator=generator(s)), x) for s in range(3))
        for i in (1, 2, 8)
    ]
    assert sums[0] > 1.05 * sums[1] > 1.05 * sums[2]
    assert sums[2] < 0.2 * sum(within(random_batches(1000, 8, s), x) for s in range(3))


def test_equal_rows_far_rows_and_types_make_no_difference() -> None:
    assert is_epoch(balanced_bisection(torch.ones(1001, 2), 8, generator=generator()), 1001)
    x = torch.tensor([[0.0], [1], [100000], [100001], [2], [100002], [3], [100003]])
    for values in (x, x.double(), x.long(), x.numpy()):
        clusters = balanced_bisection(values, 4, generator=generator())
        assert sorted(sorted(clusters.row(c).tolist()) for c in range(2)) == [[0, 1, 4, 6], [2, 3, 5, 7]]


def test_batches_are_unions_of_clusters_and_hold_each_row_once() -> None:
    x, _ = planted(1003, 30)
    clusters = balanced_bisection(x, 8, generator=generator())
    batches = cluster_batches(clusters, 64, generator=generator(1))
    assert is_epoch(batches, 1003)
    assert int(batches.counts.max()) == 64
    assert len(batches) <= 17
    home = torch.empty(1003, dtype=torch.int64)
    home[batches.values] = batches.row_index()
    assert all(len(home[clusters.row(c)].unique()) == 1 for c in range(len(clusters)))


def test_batches_hold_more_hard_negatives_than_random_ones() -> None:
    x, _ = planted(2000, 40)
    batches = cluster_batches(balanced_bisection(x, 8, generator=generator()), 64, generator=generator(1))
    assert hard_share(batches, x) > 8 * hard_share(random_batches(2000, 64), x)


def test_clusters_of_one_row_make_random_batches() -> None:
    pairs = [(i, j) for i in range(6) for j in range(i)]
    x = torch.tensor([[0.0], [0.1], [5], [5.1], [9], [9.1]])
    source, together = generator(), []
    for _ in range(4000):
        batches = cluster_batches(balanced_bisection(x, 1, generator=source), 2, generator=source)
        home = torch.empty(6, dtype=torch.int64)
        home[batches.values] = batches.row_index()
        together.append([float(home[i] == home[j]) for i, j in pairs])
    assert_unbiased(together, [1 / 5] * len(pairs))


def test_shuffling_again_joins_other_clusters_and_a_seed_repeats() -> None:
    clusters = balanced_bisection(planted(400, 9)[0], 4, generator=generator())
    one, same, other = (cluster_batches(clusters, 16, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(one.values, same.values)
    assert not torch.equal(one.values, other.values)
    assert torch.equal(
        clusters.values, balanced_bisection(planted(400, 9)[0], 4, generator=generator()).values
    )


def test_wrong_input_is_refused() -> None:
    x = torch.randn(6, 2)
    for bad, kind, said in (
        (lambda: balanced_bisection(x, 0), ValueError, "size must be at least 1"),
        (lambda: balanced_bisection(x, 2.0), TypeError, "size must be an integer"),  # type: ignore[arg-type]
        (lambda: balanced_bisection(x / 0, 2), ValueError, "finite"),
        (lambda: balanced_bisection(x, 2, iterations=0), ValueError, "iterations"),
        (lambda: cluster_batches(balanced_bisection(x, 3), 2), ValueError, "largest cluster"),
        (lambda: cluster_batches(Ragged(torch.tensor([0, 2]), torch.tensor([0, 0])), 2), ValueError, "once"),
        (lambda: cluster_batches(Ragged(torch.tensor([0, 2]), torch.tensor([0, -1])), 2), ValueError, "once"),
        (lambda: cluster_batches(Ragged(torch.tensor([0, 2]), torch.tensor([0, 5])), 2), ValueError, "once"),
    ):
        with pytest.raises(kind, match=said):
            bad()
    assert len(cluster_batches(Ragged(torch.tensor([0]), torch.zeros(0).long()), 4)) == 0
