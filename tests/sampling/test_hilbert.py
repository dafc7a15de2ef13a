"""Hilbert order: a walk through neighbours, which lowers the variance of resampling."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steelyard.sampling.hilbert import hilbert_order
from steelyard.sampling.resampling import Scheme, resample
from tests.sampling.drawing import seeded


def grid(side: int, d: int) -> Tensor:
    """All points of a cube, shuffled."""
    points = torch.tensor(list(itertools.product(range(side), repeat=d)), dtype=torch.float64)
    return points[torch.randperm(len(points), generator=seeded(0))]


@pytest.mark.parametrize(("side", "d"), [(2, 2), (32, 2), (8, 3), (4, 4), (2, 6)])
def test_the_curve_visits_every_cell_of_a_cube_by_unit_steps(side: int, d: int) -> None:
    points = grid(side, d)
    walk = points[hilbert_order(points)]
    assert set(walk.diff(dim=0).abs().sum(1).tolist()) == {1.0}
    assert len(walk.unique(dim=0)) == side**d
    assert walk[0].tolist() == [0] * d


def quarters(side: int) -> list[tuple[int, int]]:
    """The plane curve by its definition: four smaller ones, the first transposed, the last anti-transposed."""
    if side == 1:
        return [(0, 0)]
    small, half = quarters(side // 2), side // 2
    return [
        *((y, x) for x, y in small),
        *((x, y + half) for x, y in small),
        *((x + half, y + half) for x, y in small),
        *((side - 1 - y, half - 1 - x) for x, y in small),
    ]


@pytest.mark.parametrize("side", [2, 4, 16])
def test_in_the_plane_it_is_the_curve_of_four_smaller_ones(side: int) -> None:
    points = grid(side, 2)
    walk = [(int(x), int(y)) for x, y in points[hilbert_order(points)]]
    assert walk in (quarters(side), [(y, x) for x, y in quarters(side)])


def test_cells_are_the_scaled_numbers_of_smaller_values() -> None:
    """Formula and curve in the plainest loops, with many ties at the bottom."""
    n = side = 64
    x = torch.randn(n, 2, generator=seeded(4)).clamp(min=0.3)
    cells = [tuple(sum(other < v for other in x[:, c]) * side // n for c, v in enumerate(row)) for row in x]
    for curve in (quarters(side), [(b, a) for a, b in quarters(side)]):
        places = [curve.index((int(a), int(b))) for a, b in cells]
        if hilbert_order(x).tolist() == sorted(range(n), key=places.__getitem__):
            return
    raise AssertionError("neither the curve nor its mirror image")


def test_keys_of_all_64_bits_sort_as_unsigned_numbers() -> None:
    """With one bit a coordinate the curve is the Gray code."""
    x = torch.rand(100, 64, generator=seeded(5)).argsort(0) % 2
    places = [list(itertools.accumulate(row, int.__xor__)) for row in x.tolist()]
    assert hilbert_order(x).tolist() == sorted(range(100), key=places.__getitem__)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 40, 64])
def test_it_orders_all_points_whatever_the_units(d: int) -> None:
    x = torch.randn(500, d, generator=seeded(1), dtype=torch.float64)
    order = hilbert_order(x)
    assert order.sort().values.tolist() == list(range(500))
    scaled = (x * 3 - 5).exp() * torch.logspace(-9, 9, d, dtype=torch.float64)
    assert torch.equal(hilbert_order(scaled), order)


def test_one_coordinate_is_a_stable_sort() -> None:
    x = torch.tensor([3.0, -0.0, math.inf, 0.0, -math.inf, 3.0, -1.5])
    assert hilbert_order(x[:, None]).tolist() == [4, 6, 1, 3, 0, 5, 2]


def test_equal_points_stand_together_in_the_order_given() -> None:
    x = torch.randint(3, (400, 2), generator=seeded(2)).double()
    order = hilbert_order(x)
    walk = x[order]
    new = (walk[1:] != walk[:-1]).any(1)
    assert int(new.sum()) == 8
    for block in torch.tensor_split(order, (new.nonzero()[:, 0] + 1)):
        assert block.tolist() == sorted(block.tolist())


def test_batches_are_ordered_one_by_one_and_inputs_stay_as_they_were() -> None:
    x = torch.randn(2, 3, 60, 2, generator=seeded(3))
    kept = x.clone()
    order = hilbert_order(x)
    assert order.shape == (2, 3, 60)
    assert torch.equal(order[1, 2], hilbert_order(x[1, 2]))
    assert torch.equal(x, kept)
    assert torch.equal(hilbert_order(x[0, 0].numpy()), order[0, 0])


def errors(scheme: Scheme, n: int, d: int, in_order: bool, repeats: int) -> Tensor:
    """Squared errors of resampled means of a smooth function, (repeats,), each of n new points."""
    g = seeded(n + d)
    x = torch.randn(repeats, n, d, generator=g, dtype=torch.float64)
    log_w = x.sum(-1) / math.sqrt(d)
    f = x.tanh().sum(-1) + x[..., 0].cos()
    if in_order:
        order = hilbert_order(x)
        log_w, f = log_w.gather(1, order), f.gather(1, order)
    ids = resample(log_w, n, scheme=scheme, generator=g).ids
    return (f.gather(1, ids).mean(1) - (log_w.softmax(1) * f).sum(1)).square()


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("scheme", ["systematic", "stratified", "ssp"])
def test_resampling_in_this_order_has_a_far_smaller_variance(scheme: Scheme, d: int) -> None:
    """More than three times smaller, at 4 standard errors."""
    plain, ordered = errors(scheme, 500, d, False, 600), errors(scheme, 500, d, True, 600)
    gap = float(plain.mean() - 3 * ordered.mean())
    assert gap > 4 * float(torch.sqrt((plain.var() + 9 * ordered.var()) / 600))


def test_multinomial_resampling_does_not_care_for_the_order() -> None:
    plain, ordered = errors("multinomial", 500, 2, False, 300), errors("multinomial", 500, 2, True, 300)
    assert abs(float(plain.mean() - ordered.mean())) < 4 * float(
        torch.sqrt((plain.var() + ordered.var()) / 300)
    )


def test_the_variance_of_ordered_stratified_resampling_falls_faster_than_one_over_n() -> None:
    """In the plane like n^-3/2 or faster: 16 times the points, 64 times less; at least 32 is asked."""
    few, many = (
        errors("stratified", 128, 2, True, 600).mean(),
        errors("stratified", 2048, 2, True, 300).mean(),
    )
    assert float(few / many) > 32


def test_bad_points_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        hilbert_order(torch.tensor([[0.0, math.nan]]))
    with pytest.raises(ValueError, match=r"shape \(\.\.\., n, d\)"):
        hilbert_order(torch.zeros(5))
    for d in (0, 65):
        with pytest.raises(ValueError, match="between 1 and 64"):
            hilbert_order(torch.zeros(5, d))
    with pytest.raises(TypeError, match="real"):
        hilbert_order(torch.zeros(5, 2, dtype=torch.complex64))
    assert hilbert_order(torch.zeros(0, 2)).shape == (0,)
    assert hilbert_order(np.zeros((1, 3))).tolist() == [0]
