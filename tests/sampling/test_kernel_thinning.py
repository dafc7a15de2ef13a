"""Kernel thinning: halving and swapping as in plain loops, and a discrepancy that falls faster."""

import importlib
import math

import numpy as np
import pytest
import torch
from scipy import special

from steelyard.sampling.kernel_thinning import (
    GaussianKernel,
    MaternKernel,
    kernel_thinning,
    kt_split,
    kt_swap,
    mmd,
)
from tests.statistical import assert_unbiased

module = importlib.import_module("steelyard.sampling.kernel_thinning")  # the package's name is the function
GAUSS = GaussianKernel(1.3)


def skewed(n: int, d: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(n, d, generator=g, dtype=torch.float64).exp() + 3).to(dtype)


def plain_split(k: np.ndarray, m: int, delta: float, generator: torch.Generator) -> list[list[int]]:
    """Algorithm 1a of the paper, one set after the other, sums over sets written out."""
    n, sets = len(k), [list(range(len(k) >> m << m))]
    for j in range(m):
        coins, children = (
            torch.rand(len(sets), len(sets[0]) // 2, generator=generator, dtype=torch.float64),
            [],
        )
        for s, parent in enumerate(sets):
            left, right, sigma2 = [], [], 0.0
            for i in range(len(parent) // 2):
                x, y = parent[2 * i], parent[2 * i + 1]
                b2 = k[x, x] + k[y, y] - 2 * k[x, y]
                a = max(math.sqrt(sigma2 * b2 * 2 * math.log(2 * n * m / delta / 2**j)), b2)
                if a > 0:
                    sigma2 += b2 * max(1 + (b2 - 2 * a) * sigma2 / a**2, 0)
                alpha = sum(k[z, x] - k[z, y] for z in parent[: 2 * i]) - 2 * sum(
                    k[z, x] - k[z, y] for z in left
                )
                if float(coins[s, i]) < min(1, max(0.5 * (1 - alpha / (a or 1)), 0)):
                    x, y = y, x
                left.append(x)
                right.append(y)
            children += [left, right]
        sets = children
    return sets


def plain_swap(k: np.ndarray, mean: np.ndarray, sets: list[list[int]], unique: bool) -> list[int]:
    """Algorithm 1b of the paper: every candidate's discrepancy from scratch."""
    n, size = len(k), len(sets[0])

    def loss(ids: list[int]) -> float:
        return float(k[np.ix_(ids, ids)].mean() - 2 * mean[ids].mean())

    best = min([list(range(n - 1, -1, -(n // size)))[:size][::-1], *sets], key=loss)
    for position in range(size):
        rest = best[:position] + best[position + 1 :]
        open_rows = [i for i in range(n) if not unique or i not in rest]
        best = min(([*best[:position], i, *best[position + 1 :]] for i in open_rows), key=loss)
    return best


@pytest.mark.parametrize(
    ("n", "m", "block"), [(40, 2, 512), (41, 3, 8), (64, 1, 16), (90, 4, 16), (7, 2, 512)]
)
def test_splitting_equals_a_plain_loop_whatever_the_blocks(
    n: int, m: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "TILE", block * 4)
    x = skewed(n)
    k = GAUSS(x, x).numpy()
    sums = torch.zeros(n, dtype=torch.float64)
    for seed in range(5):
        found = kt_split(x, m, GAUSS, 0.9, torch.Generator().manual_seed(seed), sums.zero_())
        assert found.tolist() == plain_split(k, m, 0.9, torch.Generator().manual_seed(seed))
        if n > block and n % 2**m == 0:
            torch.testing.assert_close(sums, torch.from_numpy(k.sum(1)))


@pytest.mark.parametrize("unique", [False, True])
def test_swapping_equals_a_plain_loop_and_never_raises_the_discrepancy(unique: bool) -> None:
    for seed in range(4):
        x = skewed(48, seed=seed)
        k = GAUSS(x, x).numpy()
        mean = k.mean(1)
        sets = kt_split(x, 3, GAUSS, 0.5, torch.Generator().manual_seed(seed))
        found = kt_swap(x, sets, GAUSS, torch.from_numpy(mean), unique)
        assert found.tolist() == plain_swap(k, mean, sets.tolist(), unique)
        assert mmd(x, found, GAUSS) <= min(mmd(x, s, GAUSS) for s in sets)
        assert not unique or len(set(found.tolist())) == 6


def test_the_whole_is_the_split_then_the_swap() -> None:
    x = skewed(70)
    k = GAUSS(x, x).numpy()
    for m in (2, 3):  # the two halves of one halving tie
        found = kernel_thinning(x, m, GAUSS, generator=torch.Generator().manual_seed(2))
        sets = plain_split(k, m, 0.5, torch.Generator().manual_seed(2))
        assert found.tolist() == plain_swap(k, k.mean(1), sets, False)
    power = GAUSS.power(0.7, 2)
    both = lambda a, b: GAUSS(a, b) + power(a, b)  # noqa: E731
    for split, kernel in (("plus", both), ("root", GAUSS.power(0.5, 2)), ("target", GAUSS)):
        options = {"alpha": 0.7} if split == "plus" else {}
        named = kernel_thinning(
            x, 2, GAUSS, split=split, generator=torch.Generator().manual_seed(0), **options
        )  # type: ignore[arg-type]
        given = kernel_thinning(x, 2, GAUSS, split=kernel, generator=torch.Generator().manual_seed(0))
        assert torch.equal(named, given)


def test_the_discrepancy_is_the_double_sum() -> None:
    x, ids = skewed(30), torch.tensor([3, 3, 17, 29])
    for kernel in (GAUSS, MaternKernel(1.5, 2.0)):
        k = [[float(kernel(a[None], b[None])) for b in x] for a in x]
        w = [ids.tolist().count(i) / 4 - 1 / 30 for i in range(30)]
        square = sum(w[i] * w[j] * k[i][j] for i in range(30) for j in range(30))
        assert mmd(x, ids, kernel) == pytest.approx(math.sqrt(square))
    assert mmd(x, torch.arange(30), GAUSS) == pytest.approx(0, abs=1e-7)


def test_halving_is_exact_and_every_row_is_as_likely_to_stay() -> None:
    for n, m in ((64, 3), (37, 2), (1, 0), (2, 1), (1500, 1)):
        sets = kt_split(skewed(n), m, GAUSS, 0.5, None)
        assert sets.shape == (2**m, n >> m)
        assert len(set(sets.flatten().tolist())) == n >> m << m
    x, g = skewed(12), torch.Generator().manual_seed(0)
    kept = torch.zeros(2000, 12)
    for row in kept:
        row[kernel_thinning(x, 2, GAUSS, swap=False, generator=g)] = 1
    assert_unbiased(kept, 0.25)


def test_the_discrepancy_of_root_n_rows_falls_with_n_as_no_independent_rows_can() -> None:
    g = torch.Generator().manual_seed(0)

    def average(n: int, m: int, split: str) -> float:
        rows = [torch.randn(n, 2, generator=g, dtype=torch.float64) for _ in range(6)]
        return float(
            np.mean([mmd(x, kernel_thinning(x, m, GAUSS, split=split, generator=g), GAUSS) for x in rows])
        )

    for split in ("target", "root", "plus"):
        few, many = average(64, 3, split), average(1024, 5, split)
        assert few / many > 3  # n^(-1/2) gives 4; n^(-1/4), that of independent rows, gives 2
        independent = np.mean(
            [mmd(x, torch.arange(32), GAUSS) for x in torch.randn(20, 1024, 2, generator=g)]
        )
        assert many < 0.3 * independent


def test_the_power_of_a_kernel_is_the_power_of_its_spectrum() -> None:
    grid = torch.linspace(-60, 60, 24_001, dtype=torch.float64)[:, None]
    frequency = torch.tensor([0.0, 0.3, 0.8, 1.5, 2.0], dtype=torch.float64)
    wave = torch.cos(frequency[:, None] * grid[:, 0])

    def spectrum(kernel: object) -> torch.Tensor:
        density = wave @ kernel(grid, torch.zeros(1, 1, dtype=torch.float64))[:, 0]  # type: ignore[operator]
        return density / density[0]

    for kernel in (
        GaussianKernel(0.8),
        MaternKernel(2.5, 1.2),
        MaternKernel(0.5, 2.0),
        MaternKernel(0.8, 1.0),
    ):
        for alpha in (0.6, 0.9):
            torch.testing.assert_close(
                spectrum(kernel.power(alpha, 1)), spectrum(kernel) ** alpha, rtol=5e-3, atol=1e-4
            )
    assert GaussianKernel(2.0).power(0.5, 7).bandwidth == pytest.approx(math.sqrt(2))
    root = MaternKernel(1.5, 2.0).power(0.75, 3)
    assert (root.smoothness, root.bandwidth) == (0.75, pytest.approx(math.sqrt(2)))
    with pytest.raises(ValueError, match=r"alpha must exceed 0\.6667"):
        MaternKernel(0.5, 1.0).power(0.6, 2)


def test_kernels_equal_their_formulas_near_and_far_from_the_origin() -> None:
    for shift in (0.0, 1000.0):
        a, b = skewed(5, 3) + shift, skewed(4, 3, seed=1) + shift
        r = np.sqrt(((a[:, None] - b).numpy() ** 2).sum(-1))
        np.testing.assert_allclose(GaussianKernel(0.9)(a, b), np.exp(-(r**2) / (2 * 0.81)), rtol=1e-9)
        for s in (0.5, 1.5, 2.5, 0.7, 3.5):
            z = math.sqrt(2 * s) * r / 1.7
            formula = 2 ** (1 - s) / math.gamma(s) * z**s * special.kv(s, z)
            np.testing.assert_allclose(MaternKernel(s, 1.7)(a, b), formula, rtol=1e-6)
            torch.testing.assert_close(MaternKernel(s, 1.7)(a, a).diagonal(), torch.ones(5).double())
        low = GaussianKernel(0.9)(a.float(), b.float())
        np.testing.assert_allclose(low, np.exp(-(r**2) / (2 * 0.81)), atol=1e-3 if shift else 1e-5)
        batched = GaussianKernel(0.9)(a[:, None], a[:, None])
        torch.testing.assert_close(batched.flatten(), torch.ones(5).double())


def test_copies_a_given_mean_types_and_seeds() -> None:
    x = torch.ones(64, 2)
    assert kernel_thinning(x, 3, GAUSS).shape == (8,)
    assert mmd(x, kernel_thinning(x, 3, GAUSS, unique=True), GAUSS) == pytest.approx(0, abs=1e-3)
    rows = skewed(64)
    kept = rows.clone()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        draws = [
            kernel_thinning(rows.to(dtype), 3, GAUSS, generator=torch.Generator().manual_seed(7))
            for _ in "ab"
        ]
        assert torch.equal(*draws)
        assert mmd(rows, draws[0], GAUSS) < 0.6 * mmd(rows, torch.arange(8), GAUSS)
    assert torch.equal(rows, kept)
    assert torch.equal(kernel_thinning(rows, 0, GAUSS), torch.arange(64))
    assert kernel_thinning(rows.numpy(), 6, GAUSS).shape == (1,)
    # To the zero measure the best rows of a positive kernel are far apart, not near the mean.
    apart = kernel_thinning(rows, 4, GAUSS, mean=torch.zeros(64))
    assert (
        float(GAUSS(rows[apart], rows[apart]).mean()) < 0.26
    )  # 1/4 for four rows out of sight of each other
    shared = kernel_thinning(
        rows, 3, GAUSS, mean=GAUSS(rows, rows).mean(1), generator=torch.Generator().manual_seed(7)
    )
    assert torch.equal(shared, kernel_thinning(rows, 3, GAUSS, generator=torch.Generator().manual_seed(7)))


def test_bad_input_is_refused() -> None:
    x = skewed(16)
    for m in (-1, 5):
        with pytest.raises(ValueError, match="between 0 and 4"):
            kernel_thinning(x, m, GAUSS)
    for options, message in (
        ({"delta": 0.0}, "delta"),
        ({"split": "best"}, "'target', 'root', 'plus'"),
        ({"split": "plus", "alpha": 1.0}, "alpha"),
        ({"mean": torch.zeros(3)}, "one value for each of 16 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel_thinning(x, 2, GAUSS, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a GaussianKernel"):
        kernel_thinning(x, 2, lambda a, b: a @ b.mT, split="root")
    for bad in (torch.zeros(3), torch.zeros(0, 2), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match=r"\(n, d\)"):
            kernel_thinning(bad, 0, GAUSS)
    with pytest.raises(ValueError, match="row 1"):
        kernel_thinning(torch.tensor([[0.0], [math.nan]]), 1, GAUSS)
    for bandwidth in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="bandwidth"):
            GaussianKernel(bandwidth)
    with pytest.raises(ValueError, match="smoothness"):
        MaternKernel(0.0, 1.0)
    with pytest.raises(ValueError, match="non-empty"):
        mmd(x, torch.zeros(0, dtype=torch.int64), GAUSS)


def test_values_that_overflow_and_rows_that_do_not_exist_are_refused() -> None:
    x = skewed(64, dtype=torch.float32)
    for swap in (True, False):
        with pytest.raises(ValueError, match="Kernel values are not finite"):
            kernel_thinning(x * 1e30, 2, GAUSS, swap=swap)
    with pytest.raises(ValueError, match="Kernel values are not finite"):
        mmd(x * 1e30, [0], GAUSS)
    with pytest.raises(ValueError, match="mean must be finite"):
        kernel_thinning(x, 2, GAUSS, mean=torch.full((64,), math.nan))
    for ids in ([-1], [99], [0.5]):
        with pytest.raises(ValueError, match="from 0 to 63"):
            mmd(x, ids, GAUSS)


def test_lists_serve_as_tensors() -> None:
    x = skewed(64)
    assert mmd(x, [3, 5], GAUSS) == mmd(x, torch.tensor([3, 5]), GAUSS)
    assert len(kernel_thinning(x, 2, GAUSS, mean=[0.5] * 64)) == 16
