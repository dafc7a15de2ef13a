"""Farthest-point selection: the greedy rows, found with fewer distances."""

import itertools
import math

import pytest
import torch

from steelyard.sampling.farthest_point import farthest_point


def greedy(x: torch.Tensor, k: int, first: int) -> list[int]:
    rows, chosen = x.double().tolist(), [first]
    while len(chosen) < k:
        far = [
            -1.0 if i in chosen else min(math.dist(r, rows[c]) for c in chosen) for i, r in enumerate(rows)
        ]
        chosen.append(far.index(max(far)))
    return chosen


def radius(x: torch.Tensor, ids: list[int]) -> float:
    return float(torch.cdist(x, x[ids]).amin(1).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_equal_those_of_a_pass_for_each(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    for n, d, k in ((1, 1, 1), (2, 3, 2), (40, 2, 40), (300, 3, 60)):
        x = torch.randn(n, d, generator=g, dtype=dtype) ** 3
        kept = x.clone()
        assert farthest_point(x, k, first=n // 2).tolist() == greedy(x, k, n // 2)
        assert torch.equal(x, kept)


def test_ties_go_to_the_lowest_row_and_copies_come_last() -> None:
    grid = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).repeat(2, 1)
    assert farthest_point(grid, 32, first=5).tolist() == greedy(grid, 32, 5)
    assert farthest_point(torch.ones(4, 2), 4, first=2).tolist() == [2, 0, 1, 3]


def test_the_radius_is_at_most_twice_the_best_of_all_sets() -> None:
    g = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(11, 2, generator=g, dtype=torch.float64) ** 3
        best = min(radius(x, list(ids)) for ids in itertools.combinations(range(11), 3))
        for first in range(11):
            assert radius(x, farthest_point(x, 3, first=first).tolist()) <= 2 * best + 1e-12


def test_the_first_row_is_uniform_and_decided_by_the_generator() -> None:
    x = torch.tensor([[0.0], [1.0], [50.0]])
    g = torch.Generator().manual_seed(0)
    firsts = torch.tensor([int(farthest_point(x, 2, generator=g)[0]) for _ in range(600)]).bincount()
    assert firsts.min() > 140
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(farthest_point(x, 3, generator=seeds[0]), farthest_point(x, 3, generator=seeds[1]))


def test_huge_tiny_and_half_precision_rows_are_told_apart() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    for rows in (x * 2.0**100, x * 2.0**-100, x.bfloat16(), (x * 100).int()):
        assert farthest_point(rows, 10, first=0).tolist() == greedy(rows, 10, 0)


def test_bad_input_is_refused() -> None:
    for k in (0, 4):
        with pytest.raises(ValueError, match="between 1 and the number of rows 3"):
            farthest_point(torch.eye(3), k)
    for first in (-1, 3):
        with pytest.raises(ValueError, match="row number from 0 to 2"):
            farthest_point(torch.eye(3), 2, first=first)
    with pytest.raises(ValueError, match="finite"):
        farthest_point(torch.tensor([[0.0], [math.nan]]), 1)
    with pytest.raises(ValueError, match=r"\(n, d\)"):
        farthest_point(torch.ones(3), 1)


def test_one_far_row_leaves_the_order_of_the_others_as_in_float64() -> None:
    x = torch.cat([torch.randn(50, 2, generator=torch.Generator().manual_seed(1)), torch.full((1, 2), 1e9)])
    for first in (0, 50):
        assert (
            farthest_point(x, 8, first=first).tolist() == farthest_point(x.double(), 8, first=first).tolist()
        )


def test_fractions_of_rows_are_refused() -> None:
    x = torch.arange(10.0)[:, None]
    with pytest.raises(TypeError, match="integer"):
        farthest_point(x, 2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        farthest_point(x, 2, first=1.5)  # type: ignore[arg-type]
