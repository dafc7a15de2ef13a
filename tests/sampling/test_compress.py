"""Compress and Compress++: sizes, equal chances, and the discrepancy of full thinning at a part of its cost."""

import importlib
import math

import numpy as np
import pytest
import torch

from steelyard.sampling.compress import compress, compress_plus_plus
from steelyard.sampling.kernel_thinning import GaussianKernel, kernel_thinning, mmd
from tests.statistical import assert_unbiased

module = importlib.import_module("steelyard.sampling.compress")  # the package's name is the function
GAUSS = GaussianKernel(1.0)


def rows(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_sizes_follow_the_power_of_four_below_n_and_no_row_comes_twice() -> None:
    for n, used in ((1, 1), (3, 1), (4, 4), (16, 16), (63, 16), (64, 64), (300, 256), (1100, 1024)):
        for g in (0, 1, 2, 5):
            kept = compress(rows(n), GAUSS, oversampling=g)
            assert len(kept) == len(set(kept.tolist())) == min(used, 2**g * math.isqrt(used))
            assert 0 <= int(kept.min()) <= int(kept.max()) < n
            thinned = compress_plus_plus(rows(n), GAUSS, oversampling=g, unique=True)
            assert len(thinned) == len(set(thinned.tolist())) == math.isqrt(used)


def test_rows_beyond_a_power_of_four_are_passed_over_at_equal_steps_from_the_end() -> None:
    assert module._cut(7).tolist() == [1, 3, 5, 6]
    assert module._cut(16).tolist() == list(range(16))
    for n in range(1, 300):
        kept = module._cut(n)
        assert int(kept[-1]) == n - 1
        assert int(kept[0]) >= 0
        if len(kept) > 1:
            assert set(kept.diff().tolist()) <= {n // len(kept), n // len(kept) + 1}


def test_every_row_is_as_likely_to_stay() -> None:
    x, g = rows(64) ** 3, torch.Generator().manual_seed(0)
    kept = torch.zeros(2000, 64)
    for row in kept:
        row[compress(x, GAUSS, oversampling=1, generator=g)] = 1
    assert_unbiased(kept, 0.25)


def test_a_refined_half_never_has_a_larger_discrepancy_than_the_split_or_every_second_row() -> None:
    g = torch.Generator().manual_seed(0)
    for seed in range(20):
        x = rows(32, seed) ** 3
        k = GAUSS(x, x).numpy()
        side = torch.where(torch.rand(1, 32, generator=g) < 0.5, -1.0, 1.0).double()
        side[:, 1::2] = -side[:, ::2]
        before = mmd(x, (side[0] < 0).nonzero()[:, 0], GAUSS)
        refined = side.numpy().copy()
        module._exchange(k[None], refined)
        assert refined.sum() == 0
        after = mmd(x, torch.from_numpy(refined[0] < 0).nonzero()[:, 0], GAUSS)
        assert after <= min(before, mmd(x, torch.arange(1, 32, 2), GAUSS)) + 1e-12


def test_sets_too_large_for_their_kernel_matrix_are_halved_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sets = rows(700), torch.arange(700)[None]
    answers = []
    for whole in (4096, 64):
        monkeypatch.setattr(module, "WHOLE", whole)
        answers.append(module._halve(x, sets, GAUSS, 12.0, torch.Generator().manual_seed(4)).sort().values)
    assert torch.equal(*answers)


def test_the_discrepancy_is_near_that_of_full_thinning() -> None:
    g = torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {"full": [], "fast": [], "compressed": [], "first": []}
    for seed in range(6):
        x = rows(1024, seed)
        found["full"].append(mmd(x, kernel_thinning(x, 5, GAUSS, generator=g), GAUSS))
        found["fast"].append(mmd(x, compress_plus_plus(x, GAUSS, oversampling=2, generator=g), GAUSS))
        found["compressed"].append(mmd(x, compress(x, GAUSS, oversampling=2, generator=g), GAUSS))
        found["first"].append(mmd(x, torch.arange(32), GAUSS))
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    assert mean["fast"] < 1.6 * mean["full"] < 0.5 * mean["first"]
    assert mean["compressed"] < 0.3 * mean["first"]


def test_kernel_values_grow_almost_in_proportion_to_n() -> None:
    count = [0]

    def counting(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        value = GAUSS(a, b)
        count[0] += value.numel()
        return value

    spent = []
    for n in (1024, 4096, 16384):
        count[0] = 0
        compress(rows(n).float(), counting, oversampling=1)
        spent.append(count[0] / n)
    assert spent[2] - spent[1] == pytest.approx(spent[1] - spent[0])  # n log n
    assert spent[2] <= 4**2 * math.log(16384, 4)


def test_failure_probabilities_are_shared_as_the_paper_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []
    halve = module._halve

    def spy(
        x: torch.Tensor, sets: torch.Tensor, kernel: object, log_multiplier: float, generator: object
    ) -> object:
        seen.append((sets.shape[1], log_multiplier))
        return halve(x, sets, kernel, log_multiplier, generator)

    monkeypatch.setattr(module, "_halve", spy)
    n, g, delta = 1024, 1, 0.4
    compress(rows(n), GAUSS, oversampling=g, delta=delta)
    assert [length for length, _ in seen] == [16, 32, 64, 128]
    for length, log_multiplier in seen:
        share = length**2 / (n * 4 ** (g + 1) * (math.log(n, 4) - g)) * delta
        # Halving with the constant probabilities delta / length of kernel thinning.
        assert log_multiplier == pytest.approx(2 * math.log(2 * length / share))


def test_the_seed_decides_and_input_stays() -> None:
    x = rows(256).float()
    kept = x.clone()
    for function in (compress, compress_plus_plus):
        answers = [function(x.numpy(), GAUSS, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
        assert torch.equal(*answers)
    assert torch.equal(x, kept)
    assert compress_plus_plus(torch.ones(64, 1), GAUSS, oversampling=1).shape == (8,)


def test_bad_input_is_refused() -> None:
    for function in (compress, compress_plus_plus):
        with pytest.raises(ValueError, match="oversampling"):
            function(rows(16), GAUSS, oversampling=-1)
        with pytest.raises(ValueError, match="delta"):
            function(rows(16), GAUSS, delta=1.0)
        with pytest.raises(ValueError, match=r"\(n, d\)"):
            function(torch.zeros(0, 2), GAUSS)
        with pytest.raises(ValueError, match="finite"):
            function(torch.full((4, 1), math.inf), GAUSS)


def test_a_kernel_that_overflows_is_refused_and_not_thinned_by() -> None:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) * 1e30
    for method in (compress, compress_plus_plus):
        with pytest.raises(ValueError, match="not finite"):
            method(x, GaussianKernel(1.0), oversampling=1)
