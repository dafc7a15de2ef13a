"""Trees: as long as SciPy's, right for equal points, and a spread that descent increases."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from steelyard.losses.spanning_tree import spanning_tree, tree_spread


def points(n: int = 30, d: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64) * torch.tensor([3.0, 1.0, 0.2])[:d]


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_spans_and_is_as_long_as_scipys(seed: int) -> None:
    x = points(seed=seed)
    edges = spanning_tree(x)
    assert edges.shape == (29, 2)
    reached = {0}
    for a, b in edges.tolist():
        assert a in reached
        assert b not in reached
        reached.add(b)
    assert len(reached) == 30
    length = float((x[edges[:, 0]] - x[edges[:, 1]]).norm(dim=1).sum())
    assert length == pytest.approx(minimum_spanning_tree(torch.cdist(x, x).numpy()).sum(), abs=1e-9)


def test_equal_points_stay_in_the_tree() -> None:
    x = torch.tensor([[0.0, 0], [0, 0], [1, 0], [1, 0], [5, 0]])
    edges = spanning_tree(x)
    lengths = (x[edges[:, 0]] - x[edges[:, 1]]).norm(dim=1)
    assert sorted(lengths.tolist()) == [0, 0, 1, 4]


def test_the_loss_equals_its_formula() -> None:
    x = points(12)
    length = minimum_spanning_tree(torch.cdist(x, x).numpy()).sum()
    off = sum((float(z.norm()) - 1) ** 2 for z in x)
    got = tree_spread(x, length_weight=0.7, sphere_weight=0.3)
    assert float(got) == pytest.approx((0.3 * off - 0.7 * length) / 12, abs=1e-10)


def test_gradients_agree_with_finite_differences() -> None:
    x = points(10).requires_grad_()
    assert torch.autograd.gradcheck(tree_spread, (x,))


def test_collapse_has_a_tree_of_no_length_and_finite_gradients() -> None:
    x = torch.ones(6, 2, requires_grad=True)
    loss = tree_spread(x, sphere_weight=0.0)
    assert float(loss.detach()) == 0
    assert torch.autograd.grad(loss, x)[0].isfinite().all()
    zero = torch.zeros(3, 2, requires_grad=True)
    assert torch.autograd.grad(tree_spread(zero), zero)[0].isfinite().all()


def test_descent_spaces_points_of_a_circle_evenly() -> None:
    g = torch.Generator().manual_seed(1)
    angle = (torch.rand(8, generator=g, dtype=torch.float64) * 1.5).requires_grad_()
    rate = 0.3
    for _ in range(2000):
        z = torch.stack([angle.cos(), angle.sin()], 1)
        (slope,) = torch.autograd.grad(tree_spread(z, sphere_weight=0.0), angle)
        angle = (angle - rate * slope).detach().requires_grad_()
        rate *= 0.997
    turns = np.sort(angle.detach().numpy() % (2 * math.pi))
    steps = np.append(np.diff(turns), turns[0] + 2 * math.pi - turns[-1])
    assert np.abs(steps - math.pi / 4).max() < 0.05


def test_a_spread_in_every_direction_is_better_than_one_in_a_plane() -> None:
    g = torch.Generator().manual_seed(2)
    full = torch.nn.functional.normalize(torch.randn(200, 6, generator=g), dim=1)
    flat = torch.nn.functional.normalize(torch.randn(200, 2, generator=g), dim=1)
    flat = torch.nn.functional.pad(flat, (0, 4))
    assert float(tree_spread(full)) < float(tree_spread(flat))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_and_one_point(dtype: torch.dtype) -> None:
    low = points(12).to(dtype).requires_grad_()
    loss = tree_spread(low)
    assert torch.autograd.grad(loss, low)[0].isfinite().all()
    assert float(loss.detach()) == pytest.approx(float(tree_spread(low.detach().double())), rel=1e-5)
    assert float(tree_spread(torch.tensor([[3.0, 4.0]], dtype=dtype))) == 16
    assert spanning_tree(torch.zeros(0, 2)).shape == (0, 2)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="none"):
        tree_spread(torch.zeros(0, 2))
    with pytest.raises(ValueError, match="finite"):
        tree_spread(torch.full((3, 2), math.nan))
    with pytest.raises(ValueError, match=r"\(B, d\)"):
        spanning_tree(torch.zeros(3))
    with pytest.raises(ValueError, match="length_weight"):
        tree_spread(torch.zeros(3, 2), length_weight=-1.0)
    with pytest.raises(TypeError, match="floating"):
        spanning_tree(torch.zeros(3, 2, dtype=torch.long))
