"""Contrastive regression: equal to all triplets in a loop, and zero for distances that follow ratings."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from steelyard.losses.quality_triplets import quality_triplets


def case(n: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Distances of random points, and ratings with ties."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    return torch.cdist(x, x), torch.randint(1, 6, (n,), generator=g)


def plain(d: Tensor, y: Tensor, margin: float | None, width: float, active_only: bool) -> float:
    total, valid, active = 0.0, 0, 0
    n = len(y)
    for a in range(n):
        for p in range(n):
            for k in range(n):
                gp, gn = abs(float(y[a] - y[p])), abs(float(y[a] - y[k]))
                if len({a, p, k}) < 3 or gp >= gn:
                    continue
                m = margin if margin is not None else (gn - gp) / width
                loss = max(float(d[a, p] - d[a, k]) + m, 0.0)
                total, valid, active = total + loss, valid + 1, active + (loss > 0)
    return total / max(active if active_only else valid, 1)


@pytest.mark.parametrize("margin", [None, 0.0, 0.2, 5.0])
@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_all_triplets_in_a_loop(margin: float | None, active_only: bool, seed: int) -> None:
    d, y = case(seed=seed)
    got = quality_triplets(d, y, margin=margin, quality_range=3.0, active_only=active_only)
    assert float(got) == pytest.approx(plain(d, y, margin, 3.0, active_only), abs=1e-12)


def test_ties_of_distances_and_ratings_are_counted_alike_on_both_sides() -> None:
    d = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 1], [2, 1, 1, 0]], dtype=torch.float64)
    y = torch.tensor([1, 2, 3, 3])
    for margin in (None, 0.0, 1.0):
        got = quality_triplets(d, y, margin=margin, quality_range=2.0)
        assert float(got) == pytest.approx(plain(d, y, margin, 2.0, False), abs=1e-12)


def test_it_is_zero_for_distances_in_proportion_to_gaps_of_rating() -> None:
    y = torch.tensor([1.0, 1.5, 2.7, 4.0, 5.0], dtype=torch.float64)
    gap = (y[:, None] - y).abs()
    assert float(quality_triplets(gap / 4 * 1.01, y)) == 0
    assert float(quality_triplets(gap / 4 * 0.9, y)) > 0
    assert float(quality_triplets(-gap, y)) > 0


def test_gradients_agree_with_finite_differences() -> None:
    d, y = case()
    d.requires_grad_()
    for margin in (None, 0.3):
        assert torch.autograd.gradcheck(lambda v, m=margin: quality_triplets(v, y, margin=m), (d,))


def test_descent_orders_embeddings_by_rating() -> None:
    g = torch.Generator().manual_seed(2)
    y = 1 + 4 * torch.rand(24, generator=g)
    x = (0.3 * torch.randn(24, 4, generator=g)).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        quality_triplets(torch.cdist(x, x) + 0, y).backward()
        optimiser.step()
    to_worst = (x - x[y.argmin()]).norm(dim=1).detach()
    assert stats.spearmanr(to_worst, y).statistic > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_ratings_few_examples_and_low_precision(dtype: torch.dtype) -> None:
    d, y = case()
    low = d.to(dtype).requires_grad_()
    loss = quality_triplets(low, y)
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(plain(low.detach().double(), y, None, 4.0, False), rel=1e-6)
    assert torch.autograd.grad(loss, low)[0].isfinite().all()
    flat = quality_triplets(low, torch.ones(9))
    assert float(flat.detach()) == 0
    assert not torch.autograd.grad(flat, low)[0].any()
    for n in (0, 1, 2):
        assert float(quality_triplets(d[:n, :n], y[:n])) == 0


def test_what_is_wrong_is_named() -> None:
    d, y = case()
    with pytest.raises(ValueError, match="ratings"):
        quality_triplets(d, y[:3])
    with pytest.raises(ValueError, match="finite"):
        quality_triplets(d, y * math.nan)
    with pytest.raises(ValueError, match="finite"):
        quality_triplets(d / 0, y)
    with pytest.raises(ValueError, match="margin"):
        quality_triplets(d, y, margin=-1.0)
    with pytest.raises(ValueError, match="quality_range"):
        quality_triplets(d, y, quality_range=0.0)
    with pytest.raises(TypeError, match="floating"):
        quality_triplets(d.long(), y)
