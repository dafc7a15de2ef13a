"""Soft projection, the simplification loss and matching of point clouds."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from steelyard.sampling.farthest_point import farthest_point
from steelyard.sampling.soft_projection import (
    SoftProjection,
    match_points,
    nearest_neighbours,
    simplification_loss,
    soft_projection,
)


def clouds(*lead: int, m: int = 5, n: int = 12, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    queries = torch.randn(*lead, m, d, generator=g, dtype=torch.float64)
    return queries, torch.randn(*lead, n, d, generator=g, dtype=torch.float64) ** 3


def order_of(q: list[float], points: list[list[float]]) -> list[int]:
    return sorted(range(len(points)), key=lambda i: math.dist(q, points[i]))


def test_it_equals_the_plain_sum_over_the_nearest() -> None:
    queries, points = clouds(2)
    out = soft_projection(queries, points, 4, -0.7)
    for b in range(2):
        cloud = points[b].tolist()
        for q, r in zip(queries[b].tolist(), out[b].tolist(), strict=True):
            near = order_of(q, cloud)[:4]
            w = [math.exp(-(math.dist(q, cloud[i]) ** 2) / 0.49) for i in near]
            mean = [sum(a * cloud[i][c] for a, i in zip(w, near, strict=True)) / sum(w) for c in range(3)]
            assert r == pytest.approx(mean, abs=1e-12)
    assert torch.equal(out[1], soft_projection(queries[1], points[1], 4, 0.7))
    shared = soft_projection(queries, points[0], 4, 0.7)
    assert torch.equal(shared[0], out[0])


def test_a_cold_temperature_or_one_neighbour_gives_the_nearest_input_point() -> None:
    queries, points = clouds()
    nearest = points[[order_of(q, points.tolist())[0] for q in queries.tolist()]]
    assert torch.equal(soft_projection(queries, points, 1, 5.0), nearest)
    for t in (1e-3, 1e-8, 1e-150):
        cold = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        out = soft_projection(queries, points, 6, cold)
        assert torch.equal(out, nearest)
        out.sum().backward()
        assert float(cold.grad or 0.0) == 0.0
    assert torch.allclose(soft_projection(queries.float(), points.float(), 6, 1e-15), nearest.float())


def test_the_result_lies_in_the_convex_hull_of_the_neighbours() -> None:
    queries, points = clouds(seed=3)
    for q, r in zip(queries, soft_projection(queries, points, 4, 1.3), strict=True):
        near = points[order_of(q.tolist(), points.tolist())[:4]].numpy()
        _, residual = nnls(np.vstack([near.T, np.ones(4)]), np.append(r.numpy(), 1.0))
        assert residual < 1e-9


def test_gradients_match_finite_differences() -> None:
    queries, points = clouds(2, m=3, n=6)
    t = torch.tensor(0.8, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (queries, points, t)]
    assert torch.autograd.gradcheck(lambda q, p, s: soft_projection(q, p, 3, s), inputs)
    assert torch.autograd.gradcheck(lambda q, p: simplification_loss(q, p, delta=0.1), inputs[:2])


def test_the_loss_equals_its_plain_loops_and_ignores_points_on_the_input() -> None:
    generated, points = clouds(2)
    loss = simplification_loss(generated, points, beta=0.5, gamma=2.0, delta=0.25)
    for b in range(2):
        g, p = generated[b].tolist(), points[b].tolist()
        there = [min(math.dist(x, y) ** 2 for y in p) for x in g]
        back = [min(math.dist(x, y) ** 2 for y in g) for x in p]
        wanted = sum(there) / 5 + 0.5 * max(there) + (2.0 + 0.25 * 5) * sum(back) / 12
        assert float(loss[b]) == pytest.approx(wanted, rel=1e-12)
    subset = points[:, [3, 1, 7]]
    assert torch.equal(simplification_loss(subset, points, gamma=0.0), torch.zeros(2, dtype=torch.float64))


def test_matching_gives_the_nearest_once_each_and_fills_up_with_the_farthest() -> None:
    generated, points = clouds(3, m=6, n=9, seed=1)
    ids = match_points(generated, points)
    for b in range(3):
        cloud = points[b].tolist()
        wanted = list(dict.fromkeys(order_of(g, cloud)[0] for g in generated[b].tolist()))
        matched = len(wanted)
        while len(wanted) < 6:
            far = {i: min(math.dist(cloud[i], cloud[j]) for j in wanted) for i in range(9) if i not in wanted}
            wanted.append(max(far, key=far.__getitem__))
        assert ids[b].tolist() == wanted
        assert matched < 6  # or nothing was filled up
    assert torch.equal(match_points(generated[2], points[2]), ids[2])
    copies = torch.ones(4, 2)
    assert match_points(copies, copies).sort().values.tolist() == [0, 1, 2, 3]


def test_from_one_match_the_radius_is_at_most_twice_the_best_of_all_sets() -> None:
    for seed in range(10):
        _, points = clouds(n=11, d=2, seed=seed)
        start = int(match_points(points.new_zeros(1, 2), points)[0])
        ids = match_points(points.new_zeros(3, 2), points)
        assert torch.equal(ids, farthest_point(points, 3, first=start))
        radius = [
            float(torch.cdist(points, points[list(s)]).amin(1).max())
            for s in [ids.tolist(), *itertools.combinations(range(11), 3)]
        ]
        assert radius[0] <= 2 * min(radius[1:]) + 1e-12


def test_the_module_learns_its_temperature_and_matches_when_evaluated() -> None:
    queries, points = clouds(2)
    module = SoftProjection(3, 0.5)
    (module(queries, points).sum() + module.projection_loss()).backward()
    assert module.temperature.grad is not None
    assert module.projection_loss().item() == 0.25
    ids = match_points(queries, points)
    assert torch.equal(module.eval()(queries, points)[1], points[1][ids[1]])


def test_neighbours_in_blocks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, points = clouds(2, m=9)
    whole = nearest_neighbours(queries, points, 4)
    monkeypatch.setattr(sys.modules[nearest_neighbours.__module__], "_CHUNK", 50)
    assert torch.equal(nearest_neighbours(queries, points, 4), whole)


def test_bad_input_is_refused() -> None:
    queries, points = clouds()
    for k in (0, 13):
        with pytest.raises(ValueError, match="between 1 and the 12 points"):
            soft_projection(queries, points, k, 1.0)
    for t in (0.0, math.nan, 1e-200):
        with pytest.raises(ValueError, match="temperature must be above 0"):
            soft_projection(queries, points, 2, t)
    with pytest.raises(ValueError, match="finite"):
        soft_projection(queries * math.nan, points, 2, 1.0)
    with pytest.raises(ValueError, match="not empty"):
        simplification_loss(queries[:0], points)
    with pytest.raises(ValueError, match=r"\(\.\.\., n, d\)"):
        simplification_loss(queries[:, :2], points)
    with pytest.raises(ValueError, match="do not broadcast"):
        match_points(queries.expand(2, -1, -1), points.expand(3, -1, -1))
    with pytest.raises(TypeError, match="floating point"):
        match_points(queries.long(), points.long())
    with pytest.raises(ValueError, match="without repeats"):
        match_points(points, queries)
    with pytest.raises(ValueError, match="positive"):
        SoftProjection(2, 0.0)
