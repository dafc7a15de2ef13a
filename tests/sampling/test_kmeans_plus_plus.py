"""k-means++ seeding: the D^2 law by enumeration, whatever way a draw is made."""

import importlib
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from steelyard.sampling.kmeans_plus_plus import METHODS, kmeans_plus_plus
from tests.statistical import assert_unbiased

module = importlib.import_module("steelyard.sampling.kmeans_plus_plus")  # the package's name is the function

# Two tight groups and strays: after a few centres almost all proposals are rejected.
SKEWED = torch.tensor([[0.0, 0], [0.01, 0], [0, 0.02], [5, 5], [5, 5.03], [-3, 4], [-3, 4.5], [9, -2]])


def squared(x: torch.Tensor) -> list[list[float]]:
    rows = x.double().tolist()
    return [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for q in rows] for p in rows]


def law_of_last(x: torch.Tensor, k: int) -> np.ndarray:
    """Probability that each row is the k-th centre, over all sequences of the plain algorithm."""
    far, n = squared(x), len(x)
    last = np.zeros(n)
    for seeds in itertools.permutations(range(n), k):
        p = 1 / n
        for t in range(1, k):
            least = [min(far[i][c] for c in seeds[:t]) for i in range(n)]
            p *= least[seeds[t]] / sum(least)
        last[seeds[-1]] += p
    return last


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    assert counts[law == 0].sum() == 0
    kept = law > 0
    return float(stats.chisquare(counts[kept], law[kept] / law[kept].sum() * counts.sum()).pvalue)


def count_last(x: torch.Tensor, k: int, repeats: int, **options: object) -> np.ndarray:
    g = torch.Generator().manual_seed(1)
    last = [int(kmeans_plus_plus(x, k, generator=g, **options)[-1]) for _ in range(repeats)]  # type: ignore[arg-type]
    return np.bincount(last, minlength=len(x))


@pytest.mark.parametrize("method", ["exact", "rejection"])
@pytest.mark.parametrize("k", [2, 5])
def test_centres_follow_the_squared_distances_whatever_was_rejected(method: str, k: int) -> None:
    counts = count_last(SKEWED, k, 2000, method=method)
    assert chi_square(counts, law_of_last(SKEWED, k)) > 1e-4


def test_outdated_bounds_leave_the_law_alone_and_are_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    refresh = module._refresh
    monkeypatch.setattr(module, "_refresh", lambda *a: (calls.append(len(a[2])), refresh(*a)))
    counts = count_last(
        SKEWED.repeat_interleave(3, 0) + 1e-4 * torch.arange(24)[:, None], 6, 2000, method="exact"
    )
    assert len(calls) > 2000 + 300  # some centres were chosen under bounds that had been refreshed
    twins = counts.reshape(8, 3).sum(1)
    law = law_of_last(SKEWED, 6)  # three near copies of each row: all but the same law
    assert chi_square(twins, law) > 1e-4


def test_the_acceptance_of_a_proposal_never_exceeds_one() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double() ** 3
    x = x - x.mean(0)
    norm, far = (x * x).sum(1), torch.cdist(x, x) ** 2
    for first in range(50):
        assert bool((far[first] <= 2 * (norm + norm[first]) * (1 + 1e-12)).all())


def test_a_cap_mixes_the_law_with_a_uniform_row() -> None:
    x, n = SKEWED.double(), len(SKEWED)
    far = np.array(squared(x))
    norm = ((x - x.mean(0)) ** 2).sum(1).numpy()
    law = np.zeros(n)
    for first in range(n):
        bound = 2 * (norm + norm[first])
        accepted = far[first] / bound.sum()  # probability that the one proposal is this row, and taken
        rest = (far[first] > 0) / (far[first] > 0).sum()
        law += (accepted + (1 - accepted.sum()) * rest) / n
    counts = count_last(x, 2, 2000, method="rejection", max_proposals=1)
    assert chi_square(counts, law) > 1e-4
    assert chi_square(counts, law_of_last(x, 2)) < 1e-4


def test_a_greedy_step_keeps_the_better_of_its_trials() -> None:
    far, n = np.array(squared(SKEWED)), len(SKEWED)
    law = np.zeros(n)
    for first in range(n):
        p = far[first] / far[first].sum()
        cost = np.minimum(far[first], far).sum(1)
        for a, b in itertools.product(range(n), repeat=2):
            law[a if cost[a] <= cost[b] else b] += p[a] * p[b] / n
    assert chi_square(count_last(SKEWED, 2, 2000, method="greedy", trials=2), law) > 1e-4
    assert chi_square(count_last(SKEWED, 5, 2000, method="greedy", trials=1), law_of_last(SKEWED, 5)) > 1e-4


def test_a_markov_chain_starts_at_its_proposal_and_ends_at_the_law() -> None:
    far, n = np.array(squared(SKEWED)), len(SKEWED)
    start = np.zeros(n)
    for first in range(n):
        q = (far[first] / far[first].sum() / 2 + 1 / (2 * n)) * (far[first] > 0)
        start += q / q.sum() / n
    assert chi_square(count_last(SKEWED, 2, 2000, method="afkmc2", chain_length=1), start) > 1e-4
    for k in (2, 4):
        counts = count_last(SKEWED, k, 2000, method="afkmc2", chain_length=200)
        assert chi_square(counts, law_of_last(SKEWED, k)) > 1e-4


def test_the_expected_cost_is_within_the_guarantee_and_greedy_costs_less() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(60, 2, generator=g) * 0.3 + m for m in (0, 4, 8, 20)])
    far = torch.cdist(x, x) ** 2

    def costs(method: str, repeats: int = 300) -> np.ndarray:
        found = [kmeans_plus_plus(x, 4, method=method, generator=g) for _ in range(repeats)]
        return np.array([float(far[:, ids].amin(1).sum()) for ids in found])

    def plain() -> float:
        ids = [int(torch.randint(240, (1,), generator=g))]
        while len(ids) < 4:
            ids.append(int(torch.multinomial(far[:, ids].amin(1), 1, generator=g)))
        return float(far[:, ids].amin(1).sum())

    reference = np.array([plain() for _ in range(300)])
    groups = x.reshape(4, 60, 2)
    optimum = float(((groups - groups.mean(1, keepdim=True)) ** 2).sum())
    for method in ("exact", "rejection"):
        found = costs(method)
        assert found.mean() < 8 * (math.log(4) + 2) * optimum
        z = (found.mean() - reference.mean()) / math.hypot(found.std(), reference.std()) * math.sqrt(300)
        assert abs(z) < 4
    assert costs("greedy").mean() < 0.9 * reference.mean()


def test_few_rows_stand_for_all_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVALUATION_ROWS", 32)
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(400, 3, generator=g) ** 3).numpy().astype(np.float64)
    bound = ((x - x[0]) ** 2).sum(1)
    cumulative = bound.cumsum()
    candidates = x[[3, 77, 200]]
    new = ((x[:, None] - candidates) ** 2).sum(-1)
    truth = (bound[:, None] - np.minimum(bound[:, None], new)).sum(0)
    product = np.empty((3, 32))
    estimates = []
    for _ in range(500):
        rows, weight, distance = module._judges(x, bound, cumulative, g)
        product[:] = candidates @ rows.T - (candidates**2).sum(1, keepdims=True) / 2
        gain = module._gains(rows, candidates, product, weight, distance)
        estimates.append(gain * cumulative[-1] / 32)
    assert_unbiased(np.array(estimates), truth)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_refreshed_distances_equal_plain_differences(dtype: type) -> None:
    r = np.random.default_rng(0)
    x = np.concatenate([r.standard_normal((3000, 7)), 1 + 1e-5 * r.standard_normal((3000, 7))]).astype(dtype)
    bound = np.full(6000, np.inf, dtype)
    for centers in (x[[5]], x[[7, 8, 4000, 4001, 5999]], x[3000:3100]):
        before = bound.copy()
        module._refresh(x, bound, centers)
        plain = ((x[:, None].astype(np.float64) - centers) ** 2).sum(-1).min(1)
        np.testing.assert_allclose(bound, np.minimum(before, plain), rtol=1e-5)
    assert bound[[5, 4000, 3050]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_rows_differ_and_neither_scale_nor_shift_nor_type_matter(method: str) -> None:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = x.clone()

    def seeds(rows: object) -> list[int]:
        g = torch.Generator().manual_seed(5)
        return kmeans_plus_plus(rows, 20, method=method, generator=g).tolist()  # type: ignore[arg-type]

    ids = seeds(x)
    assert torch.equal(x, kept)
    assert len(set(ids)) == 20
    assert ids == seeds(x) == seeds(x.numpy()) == seeds(x * 2.0**200) == seeds(x * 2.0**-300)
    wide = seeds((x * 1e30).float())
    assert len(set(wide)) == 20
    assert wide == seeds((x * 1e30).float())
    assert len(set(seeds(x.bfloat16()))) == len(set(seeds((x * 100).int()))) == 20


@pytest.mark.parametrize("method", METHODS)
def test_ties_one_row_and_all_rows(method: str) -> None:
    assert kmeans_plus_plus(torch.ones(1, 3), 1, method=method).tolist() == [0]
    assert kmeans_plus_plus(torch.ones(5, 3), 1, method=method).shape == (1,)
    x = torch.arange(6.0).repeat_interleave(4)[:, None]
    ids = kmeans_plus_plus(x, 6, method=method, max_proposals=3, chain_length=5)
    assert sorted(x[ids, 0].tolist()) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="only 6 distinct rows"):
        kmeans_plus_plus(x, 7, method=method)
    assert sorted(kmeans_plus_plus(SKEWED, 8, method=method).tolist()) == list(range(8))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(n, d\)"):
        kmeans_plus_plus(torch.ones(3), 1)
    for k in (0, 4):
        with pytest.raises(ValueError, match="between 1 and the number of rows 3"):
            kmeans_plus_plus(torch.ones(3, 2), k)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=r"finite.*row"):
            kmeans_plus_plus(torch.tensor([[0.0], [bad], [1.0]]), 2)
    with pytest.raises(ValueError, match="greedy, exact"):
        kmeans_plus_plus(torch.eye(3), 2, method="best")
    for option in ({"trials": 0}, {"max_proposals": 0}, {"chain_length": 0}):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            kmeans_plus_plus(torch.eye(3), 2, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["rejection", "afkmc2"])
def test_one_row_close_to_very_many_copies_is_found_and_missed_rows_are_reported(method: str) -> None:
    x = torch.tensor([[0.0, 0]] * 50 + [[1, 0], [0, 1e-6]])
    assert len(x[kmeans_plus_plus(x, 3, method=method)].unique(dim=0)) == 3
    with pytest.raises(ValueError, match="only 3 distinct rows"):
        kmeans_plus_plus(x, 4, method=method)


def test_out_of_budget_uniform_rows_are_still_no_centres() -> None:
    x = torch.tensor([[0.0, 0]] * 300_000 + [[1, 0], [0, 1e-6]])
    ids = kmeans_plus_plus(x, 3, method="rejection", max_proposals=2)
    assert len(x[ids].unique(dim=0)) == 3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("far", [1e9, 1e30])
def test_one_far_row_does_not_merge_the_others(method: str, far: float) -> None:
    x = torch.cat([torch.randn(50, 2, generator=torch.Generator().manual_seed(1)), torch.full((1, 2), far)])
    assert len(kmeans_plus_plus(x, 30, method=method).unique()) == 30
