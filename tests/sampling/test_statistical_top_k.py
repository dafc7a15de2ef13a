"""Top-k by mean and spread."""

import math
import statistics

import pytest
import torch
from scipy import stats

from steelyard.sampling.statistical_top_k import statistical_threshold, statistical_top_k
from tests.statistical import assert_unbiased


def survivors(d: int, k: float, rows: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (statistical_top_k(x, k) > 0).sum(1).double()


def test_it_equals_its_plain_formula() -> None:
    x = torch.tensor([[0.1, 4.0, -2.0, 0.5, 9.0], [1.0, 1.0, 2.0, 3.0, 5.0]], dtype=torch.float64)
    for row, y in zip(x.tolist(), statistical_top_k(x, 1.5).tolist(), strict=True):
        theta = statistics.fmean(row) + statistics.pstdev(row) * float(stats.norm.ppf(1 - 1.5 / 5))
        assert y == pytest.approx([max(v - theta, 0.0) for v in row], abs=1e-12)
    assert torch.equal(statistical_top_k(x.T, 1.5, dim=0), statistical_top_k(x, 1.5).T)


def test_normal_entries_leave_k_on_average() -> None:
    # (x_1 - mean) / std is sqrt(d - 1) times a correlation, whose square is Beta(1/2, (d - 2)/2).
    for d, k in ((12, 3.0), (4096, 327.0)):
        z = stats.norm.ppf(1 - k / d)
        expected = d * stats.beta.sf(z * z / (d - 1), 0.5, (d - 2) / 2) / 2
        assert expected == pytest.approx(k, rel=0.06 if d < 100 else 1e-3)
        assert_unbiased(survivors(d, k, 20_000 if d < 100 else 400), expected)


def test_the_spread_of_their_number_is_of_the_order_of_its_root() -> None:
    for d in (1000, 4000):
        assert 0.4 < float(survivors(d, d / 10, 400).std()) / math.sqrt(d / 10) < 1.0


def test_the_survivors_are_the_largest_as_many_as_they_are() -> None:
    x = torch.randn(50, 200, generator=torch.Generator().manual_seed(1)) ** 3
    for row, y in zip(x, statistical_top_k(x, 20), strict=True):
        kept = set(y.nonzero().squeeze(1).tolist())
        assert kept == set(row.topk(len(kept)).indices.tolist())
        assert 0 < len(kept) < 40


def test_an_affine_map_leaves_the_set_unchanged() -> None:
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(statistical_top_k(x, 7) > 0, statistical_top_k(300 * x - 5000, 7) > 0)


def test_gradients_go_through_the_threshold() -> None:
    x = torch.randn(3, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: statistical_top_k(v, 2.5), [x])
    level = torch.ones(4, requires_grad=True)
    statistical_top_k(level, 1).sum().backward()
    assert bool(level.grad.isfinite().all())


def test_short_types_are_summed_in_float32_and_constant_rows_leave_nothing() -> None:
    x = torch.randn(2, 3000, generator=torch.Generator().manual_seed(4)).bfloat16() + 50
    out = statistical_top_k(x, 300)
    assert out.dtype == torch.bfloat16
    assert statistical_threshold(x, 300).dtype == torch.float32
    assert torch.allclose(out.double(), statistical_top_k(x.double(), 300), atol=0.02)
    assert torch.equal(statistical_top_k(torch.full((2, 8), 3.0), 2), torch.zeros(2, 8))


def test_bad_input_is_refused() -> None:
    x = torch.randn(2, 8)
    for k in (0, 8, -1, math.nan):
        with pytest.raises(ValueError, match="strictly between 0 and the 8 entries"):
            statistical_top_k(x, k)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="must be finite"):
            statistical_top_k(x.clone().index_fill_(1, torch.tensor([3]), bad), 2)
    with pytest.raises(TypeError, match="floating point"):
        statistical_top_k(torch.arange(8), 2)
    with pytest.raises(ValueError, match="single number"):
        statistical_top_k(torch.tensor(1.0), 1)
