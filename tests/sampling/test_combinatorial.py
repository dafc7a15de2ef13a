"""Expected costs of independent coins, and coins fixed one by one."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from steelyard.sampling.combinatorial import (
    derandomize,
    expected_cardinality_gap,
    expected_conflicts,
    expected_minimum,
    expected_uncovered,
    poisson_binomial,
)


def coins(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2


def enumerated(p: Tensor, cost: Callable[[list[int]], float]) -> float:
    total = 0.0
    for bits in itertools.product((0, 1), repeat=len(p)):
        chance = math.prod(float(q) if b else 1 - float(q) for q, b in zip(p, bits, strict=True))
        total += chance * cost([i for i, b in enumerate(bits) if b])
    return total


def graph(n: int, seed: int, density: float = 0.5) -> Tensor:
    upper = (torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < density).triu(1)
    return upper | upper.T


def test_the_law_of_the_number_equals_enumeration() -> None:
    for n in (1, 2, 3, 5, 8):
        p = coins(n)
        law = poisson_binomial(p)
        wanted = [enumerated(p, lambda s, k=k: float(len(s) == k)) for k in range(n + 1)]
        assert law.tolist() == pytest.approx(wanted, abs=1e-15)
    batch = torch.stack([coins(5, 1), coins(5, 2)])
    assert torch.allclose(poisson_binomial(batch)[1], poisson_binomial(batch[1]), atol=1e-15)
    certain = poisson_binomial(torch.tensor([1.0, 0.0, 1.0, 0.5]))
    assert certain.tolist() == pytest.approx([0, 0, 0.5, 0.5, 0], abs=1e-15)
    assert torch.autograd.gradcheck(poisson_binomial, [coins(6).requires_grad_()])


def test_many_coins_keep_sum_and_mean() -> None:
    p = coins(3000)
    law = poisson_binomial(p)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(law @ torch.arange(3001.0).double()) == pytest.approx(float(p.sum()), rel=1e-12)
    assert float(law.min()) > -1e-15


def test_expected_costs_equal_enumeration() -> None:
    p, g = coins(6, 3), torch.Generator().manual_seed(4)
    p[2] = 1.0
    for allowed in ([2], [0, 4, 5], range(3), [9]):
        wanted = enumerated(p, lambda s, a=allowed: min(abs(len(s) - c) for c in a))
        assert float(expected_cardinality_gap(p, allowed)) == pytest.approx(wanted, abs=1e-13)
    p[2] = 0.2
    cost = torch.randn(3, 6, generator=g, dtype=torch.float64)
    cost[0, 1] = cost[0, 4]
    for empty in (None, 7.0):
        for row, out in zip(cost.tolist(), expected_minimum(p, cost, empty=empty).tolist(), strict=True):
            none = max(row) if empty is None else empty
            assert out == pytest.approx(
                enumerated(p, lambda s, r=row, e=none: min((r[i] for i in s), default=e))
            )
    covers = torch.rand(4, 6, generator=g) < 0.5
    covers[3] = False
    for row, out in zip(covers.tolist(), expected_uncovered(p, covers).tolist(), strict=True):
        assert out == pytest.approx(enumerated(p, lambda s, r=row: float(not any(r[i] for i in s))))
    conflict = graph(6, 5) * torch.ones(6, 6).double().cumsum(0).add(torch.ones(6, 6).double().cumsum(1))
    wanted = enumerated(p, lambda s: sum(float(conflict[a, b]) for a, b in itertools.combinations(s, 2)))
    assert float(expected_conflicts(p, conflict)) == pytest.approx(wanted)


def test_batches_are_rows_and_gradients_are_exact_at_corners() -> None:
    p = torch.stack([coins(5, 1), torch.tensor([1.0, 0, 1, 0, 0], dtype=torch.float64)])
    cost, covers, conflict = torch.randn(2, 5).double(), torch.rand(3, 5) < 0.5, graph(5, 0)
    terms = (
        lambda q: expected_cardinality_gap(q, [2]),
        lambda q: expected_minimum(q, cost).sum(-1),
        lambda q: expected_uncovered(q, covers).sum(-1),
        lambda q: expected_conflicts(q, conflict),
    )
    for f in terms:
        assert torch.allclose(f(p)[1], f(p[1]))
        leaf = p.clone().requires_grad_()
        (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
        for i in range(5):
            up, down = p.clone(), p.clone()
            up[:, i], down[:, i] = 1.0, 0.0
            assert torch.allclose(slope[:, i], f(up) - f(down), atol=1e-12)


def test_the_result_costs_no_more_than_the_expectation_and_no_flip_lowers_it() -> None:
    g = torch.Generator().manual_seed(7)
    for seed in range(15):
        cost = torch.rand(6, 8, generator=g, dtype=torch.float64)
        conflict = graph(8, seed)

        def f(p: Tensor, cost: Tensor = cost, conflict: Tensor = conflict) -> Tensor:
            size = expected_cardinality_gap(p, [3])
            return expected_minimum(p, cost).sum(-1) + 0.3 * expected_conflicts(p, conflict) + 0.5 * size

        starts = torch.rand(5, 8, generator=g, dtype=torch.float64)
        x = derandomize(f, starts)
        assert bool((f(x.double()) <= f(starts) + 1e-12).all())
        for i in range(8):
            flipped = x.clone()
            flipped[:, i] = ~flipped[:, i]
            assert bool((f(flipped.double()) >= f(x.double()) - 1e-12).all())
        assert torch.equal(derandomize(f, starts[2]), x[2])


def test_the_first_coin_fixed_is_the_one_that_lowers_the_cost_most() -> None:
    p, conflict = coins(6, 1).clamp(0.1, 0.9), graph(6, 2)
    visited = []

    def f(q: Tensor) -> Tensor:
        visited.append(q.detach().clone())
        return expected_conflicts(q, conflict) - 0.7 * q.sum(-1)

    derandomize(f, p)
    values = {}
    for i, bit in itertools.product(range(6), (0.0, 1.0)):
        q = p.clone()
        q[i] = bit
        values[i, bit] = float(expected_conflicts(q, conflict) - 0.7 * q.sum())
    i, bit = min(values, key=values.__getitem__)
    assert visited[1][i] == bit
    assert int((visited[1] != p).sum()) == 1


def test_small_covers_are_feasible_and_nearly_always_smallest() -> None:
    smallest = 0
    for seed in range(20):
        covers = torch.rand(8, 7, generator=torch.Generator().manual_seed(seed)) < 0.35
        covers[~covers.any(1), 0] = True
        x = derandomize(
            lambda p, c=covers: p.sum(-1) + 1.5 * expected_uncovered(p, c).sum(-1), torch.full((7,), 0.5)
        )
        assert bool(covers[:, x].any(1).all())
        sets = (s for k in range(8) for s in itertools.combinations(range(7), k))
        best = next(len(s) for s in sets if bool(covers[:, list(s)].any(1).all()))
        assert int(x.sum()) >= best
        smallest += int(x.sum()) == best
    assert smallest >= 17


def test_small_cliques_are_cliques_and_mostly_largest() -> None:
    largest = 0
    for seed in range(20):
        edges = graph(9, seed)
        conflict = ~edges
        x = derandomize(
            lambda p, c=conflict: 1.5 * expected_conflicts(p, c) - p.sum(-1), torch.full((9,), 0.5)
        )
        chosen = x.nonzero().squeeze(1).tolist()
        assert all(bool(edges[a, b]) for a, b in itertools.combinations(chosen, 2))
        sets = (s for k in range(9, 0, -1) for s in itertools.combinations(range(9), k))
        best = next(len(s) for s in sets if all(bool(edges[a, b]) for a, b in itertools.combinations(s, 2)))
        assert len(chosen) <= best
        largest += len(chosen) == best
    assert largest >= 14


def test_fixed_coins_are_turned_again_where_that_lowers_the_cost() -> None:
    covers = torch.tensor([[True, True, False], [False, True, True]])

    def f(p: Tensor) -> Tensor:
        return p.sum(-1) + 1.5 * expected_uncovered(p, covers).sum(-1)

    corners = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1, 0, 1]])
    assert derandomize(f, corners).long().tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_a_coin_without_effect_is_not_chosen_and_decided_coins_stay() -> None:
    assert derandomize(lambda p: p[..., 0] - p[..., 1], torch.full((3,), 0.5)).tolist() == [
        False,
        True,
        False,
    ]
    assert derandomize(lambda p: 0 * p.sum(-1), torch.tensor([1.0, 0.0])).tolist() == [True, False]


def test_bad_input_is_refused() -> None:
    p = torch.full((3,), 0.5)
    for bad in (p * 3, -p, p * math.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            poisson_binomial(bad)
    with pytest.raises(ValueError, match="not empty"):
        poisson_binomial(p[:0])
    with pytest.raises(ValueError, match="at least one allowed"):
        expected_cardinality_gap(p, [])
    with pytest.raises(ValueError, match="3 columns"):
        expected_minimum(p, torch.ones(2, 4))
    with pytest.raises(ValueError, match="finite"):
        expected_minimum(p, torch.full((2, 3), math.inf))
    with pytest.raises(ValueError, match="symmetric"):
        expected_conflicts(p, torch.ones(3, 3).triu(1))
    with pytest.raises(ValueError, match="not linear in each"):
        derandomize(lambda q: (q - 0.3).square().sum(-1), p)
    with pytest.raises(ValueError, match=r"must map \(3,\) to \(\)"):
        derandomize(lambda q: q, p)
    with pytest.raises(ValueError, match="must be finite"):
        derandomize(lambda q: q.sum(-1) * math.nan, p)
