"""Totals and means: intervals that cover under each design, and the formulas in plain loops."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from steelyard.draws import Draws, Estimate
from steelyard.sampling.conditional_poisson import conditional_poisson, conditional_poisson_joint
from steelyard.sampling.pivotal import pivotal
from steelyard.sampling.poisson import poisson, proportional_inclusion
from steelyard.sampling.successive import without_replacement
from steelyard.sampling.systematic import systematic
from steelyard.sampling.totals import hajek, horvitz_thompson
from tests.sampling.drawing import seeded
from tests.statistical import assert_coverage, assert_unbiased

INF = math.inf
N, K, RUNS = 300, 60, 1500


LOG_P = torch.randn(N, generator=seeded(0), dtype=torch.float64) * 0.5
VALUES = 3 + torch.randn(N, generator=seeded(1), dtype=torch.float64) + LOG_P.exp()
TOTAL, MEAN = float(VALUES.sum()), float(VALUES.mean())


def with_replacement(rows: int, n: int, generator: torch.Generator) -> Draws:
    ids = torch.multinomial(LOG_P.exp(), rows * n, replacement=True, generator=generator).reshape(rows, n)
    table = LOG_P.log_softmax(-1) + math.log(n)
    return Draws(ids, table[ids], lambda asked: table[asked])


DRAW: dict[str, Callable[[torch.Generator], Draws]] = {
    "poisson": lambda g: poisson(LOG_P.expand(RUNS, N), K, generator=g),
    "successive": lambda g: without_replacement(LOG_P.expand(RUNS, N), K, generator=g),
    "conditional_poisson": lambda g: conditional_poisson(LOG_P.expand(RUNS, N), K, generator=g),
    "with_replacement": lambda g: with_replacement(RUNS, K, g),
}


def each(draws: Draws) -> list[Draws]:
    return [Draws(i, e, draws.design) for i, e in zip(draws.ids, draws.log_expected, strict=True)]


def covers(estimate: Estimate, truth: float) -> bool:
    low, high = estimate.interval(0.95)
    return low <= truth <= high


@pytest.mark.parametrize("design", list(DRAW))
def test_intervals_cover_and_totals_are_unbiased(design: Any) -> None:
    draws = each(DRAW[design](seeded(2)))
    ht = [horvitz_thompson(VALUES[d.ids], d, design=design) for d in draws]
    assert_unbiased([e.value for e in ht], TOTAL)
    assert_coverage([covers(e, TOTAL) for e in ht], 0.95)
    ratio = [hajek(VALUES[d.ids], d, design=design) for d in draws]
    assert_coverage([covers(e, MEAN) for e in ratio], 0.95)
    assert all(e.reliable for e in ht + ratio)


@pytest.mark.parametrize("design", ["poisson", "successive", "with_replacement"])
def test_the_variance_is_unbiased(design: Any) -> None:
    draws = each(DRAW[design](seeded(3)))
    found = [horvitz_thompson(VALUES[d.ids], d, design=design) for d in draws]
    squared_error = [(e.value - TOTAL) ** 2 for e in found]
    assert_unbiased([e.stderr**2 - s for e, s in zip(found, squared_error, strict=True)], 0.0)


def test_sen_yates_grundy_is_exactly_unbiased_and_the_approximation_is_near() -> None:
    """Over every set of 3 of 6, weighed by its probability."""
    log_w = torch.tensor([0.3, 1.0, -1.0, 1.5, 0.0, 0.6], dtype=torch.float64)
    values = torch.tensor([1.0, -2.0, 3.0, 0.5, 4.0, 2.0], dtype=torch.float64)
    joint = conditional_poisson_joint(log_w, 3)
    log_pi = joint.diag().log()
    sets = [torch.tensor(s) for s in itertools.combinations(range(6), 3)]
    chance = torch.stack([log_w[s].sum() for s in sets]).softmax(0)
    found = [
        horvitz_thompson(
            values[s],
            Draws(s, log_pi[s], lambda i: log_pi[i]),
            design="conditional_poisson",
            joint=joint[s][:, s],
        )
        for s in sets
    ]
    value = torch.tensor([e.value for e in found], dtype=torch.float64)
    assert float(chance @ value) == pytest.approx(8.5)
    true_variance = float(chance @ (value - 8.5).square())
    assert float(chance @ torch.tensor([e.stderr**2 for e in found], dtype=torch.float64)) == pytest.approx(
        true_variance
    )
    large = conditional_poisson(LOG_P, K, generator=seeded(4))
    exact = horvitz_thompson(
        VALUES[large.ids],
        large,
        design="conditional_poisson",
        joint=conditional_poisson_joint(LOG_P, K, large.ids),
    )
    near = horvitz_thompson(VALUES[large.ids], large, design="conditional_poisson")
    assert near.stderr == pytest.approx(exact.stderr, rel=0.03)


def test_with_equal_weights_every_formula_is_the_classical_one() -> None:
    n, size = 12, 40
    values = torch.randn(size, generator=seeded(5), dtype=torch.float64)
    draws = conditional_poisson(torch.zeros(size, dtype=torch.float64), n, generator=seeded(6))
    f = values[draws.ids]
    classical = size**2 * (1 - n / size) * float(f.var()) / n
    approximate = horvitz_thompson(f, draws, design="conditional_poisson")
    assert approximate.stderr**2 == pytest.approx(classical)
    joint = conditional_poisson_joint(torch.zeros(size, dtype=torch.float64), n, draws.ids)
    assert horvitz_thompson(f, draws, design="conditional_poisson", joint=joint).stderr ** 2 == pytest.approx(
        classical
    )
    ratio = hajek(f, draws, design="conditional_poisson", population=size)
    assert (ratio.value, ratio.stderr) == (
        pytest.approx(approximate.value),
        pytest.approx(approximate.stderr),
    )
    mean = horvitz_thompson(f, draws, design="conditional_poisson", population=size)
    assert (mean.value, mean.stderr) == (
        pytest.approx(float(f.mean())),
        pytest.approx(approximate.stderr / size),
    )


def test_the_formulas_in_plain_loops() -> None:
    values, pi = [2.0, -1.0, 5.0], [0.5, 0.2, 1.0]
    draws = Draws(torch.arange(3), torch.tensor(pi, dtype=torch.float64).log(), lambda i: 0.0 * i)
    f = torch.tensor(values, dtype=torch.float64)
    t = [v / p for v, p in zip(values, pi, strict=True)]
    poisson_variance = sum((1 - p) * x * x for p, x in zip(pi, t, strict=True))
    for design in ("poisson", "successive"):
        assert horvitz_thompson(f, draws, design=design).stderr ** 2 == pytest.approx(poisson_variance)  # type: ignore[arg-type]
    hansen = sum((x - sum(t) / 3) ** 2 for x in t) * 3 / 2
    assert horvitz_thompson(f, draws, design="with_replacement").stderr ** 2 == pytest.approx(hansen)
    weight = sum(1 / p for p in pi)
    mean = sum(t) / weight
    assert hajek(f, draws, design="poisson").value == pytest.approx(mean)
    linear = sum((1 - p) * ((v - mean) / p / weight) ** 2 for v, p in zip(values, pi, strict=True))
    assert hajek(f, draws, design="poisson").stderr ** 2 == pytest.approx(linear)
    assert hajek(f, draws, design="poisson", population=10).stderr ** 2 == pytest.approx(100 * linear)
    assert horvitz_thompson(f, draws, design="poisson").ess == pytest.approx(
        weight**2 / sum(p**-2 for p in pi)
    )


@pytest.mark.parametrize("method", [pivotal, systematic])
def test_replicates_give_honest_intervals_to_designs_whose_draws_depend_on_each_other(method: Any) -> None:
    """A trend along the list: the formula for independent draws is far too wide there."""
    replicates, runs = 40, 600
    f = VALUES.sort().values
    pi = proportional_inclusion(LOG_P, 15).exp()
    draws = method(pi.expand(runs * replicates, N), order="given", generator=seeded(7))
    ids, log_expected = (a.reshape(runs, replicates, -1) for a in (draws.ids, draws.log_expected))
    some = [Draws(i, e, draws.design) for i, e in zip(ids, log_expected, strict=True)]
    ht = [horvitz_thompson(f[d.ids], d, design="replicates") for d in some]
    assert_unbiased([e.value for e in ht], TOTAL)
    assert_coverage([covers(e, TOTAL) for e in ht], 0.95, band=0.03)
    ratio = [hajek(f[d.ids], d, design="replicates") for d in some]
    assert_coverage([covers(e, MEAN) for e in ratio], 0.95, band=0.03)
    assert ht[0].ess == replicates
    single = [Draws(i[0], e[0], draws.design) for i, e in zip(ids, log_expected, strict=True)]
    wrong = [horvitz_thompson(f[d.ids], d, design="poisson") for d in single]
    with pytest.raises(AssertionError, match="intervals cover"):
        assert_coverage([covers(e, TOTAL) for e in wrong], 0.95, band=0.03)


def test_replicates_in_plain_loops() -> None:
    f = torch.tensor([[1.0, 2.0], [4.0, 9.0], [3.0, 1.0]], dtype=torch.float64)
    log_expected = torch.tensor([[0.5, 0.25], [0.5, INF], [1.0, 0.5]], dtype=torch.float64).log()
    draws = Draws(torch.zeros(3, 2, dtype=torch.int64), log_expected, lambda i: 0.0 * i)
    each_total = [1 / 0.5 + 2 / 0.25, 4 / 0.5, 3 + 2.0]
    mean = sum(each_total) / 3
    found = horvitz_thompson(f, draws, design="replicates")
    assert found.value == pytest.approx(mean)
    assert found.stderr**2 == pytest.approx(sum((x - mean) ** 2 for x in each_total) / 6)
    ratio = sum(each_total) / (2 + 4 + 2 + 1 + 2)
    parts = [2 * (1 - ratio) + 4 * (2 - ratio), 2 * (4 - ratio), (3 - ratio) + 2 * (1 - ratio)]
    found = hajek(f, draws, design="replicates")
    assert found.value == pytest.approx(ratio)
    assert found.stderr**2 == pytest.approx(3 / 2 * sum(x * x for x in parts) / 11**2)


def test_empty_slots_are_not_looked_at() -> None:
    draws = Draws(torch.tensor([2, 0]), torch.tensor([-0.5, INF]), lambda i: 0.0 * i)
    full = Draws(torch.tensor([2]), torch.tensor([-0.5]), lambda i: 0.0 * i)
    for method in (horvitz_thompson, hajek):
        a = method(torch.tensor([3.0, math.nan]), draws, design="poisson")
        b = method(torch.tensor([3.0]), full, design="poisson")
        assert (a.value, a.stderr, a.ess) == (b.value, b.stderr, b.ess)


def test_too_few_draws_are_said_to_be_too_few() -> None:
    one = Draws(torch.tensor([2]), torch.tensor([-0.5]), lambda i: 0.0 * i)
    for design in ("with_replacement", "conditional_poisson"):
        assert horvitz_thompson(torch.tensor([3.0]), one, design=design).stderr == INF  # type: ignore[arg-type]
    none = Draws(torch.zeros(0, dtype=torch.int64), torch.zeros(0), lambda i: 0.0 * i)
    empty = horvitz_thompson(torch.zeros(0), none, design="poisson")
    assert (empty.value, empty.stderr, empty.ess, empty.reliable) == (0, INF, 0, False)
    with pytest.raises(ValueError, match="Nothing was drawn"):
        hajek(torch.zeros(0), none, design="poisson")
    single = Draws(one.ids[None], one.log_expected[None], one.design)
    assert horvitz_thompson(torch.tensor([[3.0]]), single, design="replicates").stderr == INF
    sure = Draws(torch.arange(3), torch.zeros(3), lambda i: 0.0 * i)
    for design in ("poisson", "conditional_poisson"):
        assert horvitz_thompson(torch.tensor([1.0, 2, 3]), sure, design=design).stderr == 0  # type: ignore[arg-type]


def test_bad_input_is_refused() -> None:
    f = torch.ones(3)
    draws = Draws(torch.arange(3), torch.full((3,), -1.0), lambda i: 0.0 * i)
    many = Draws(torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 3), -1.0), lambda i: 0.0 * i)
    for method in (horvitz_thompson, hajek):
        with pytest.raises(ValueError, match="design must be one of"):
            method(f, draws, design="srs")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="R independent draws"):
            method(f, draws, design="replicates")
        with pytest.raises(ValueError, match="a single draw"):
            method(f, many, design="poisson")
        with pytest.raises(ValueError, match="joint of shape"):
            method(f, draws, design="poisson", joint=torch.ones(3, 3))
        with pytest.raises(ValueError, match="joint of shape"):
            method(f, draws, design="conditional_poisson", joint=torch.ones(2, 2))
        with pytest.raises(ValueError, match="NaN or an infinite"):
            method(torch.tensor([1.0, math.nan, 0.0]), draws, design="poisson")
        with pytest.raises(ValueError, match="population"):
            method(f, draws, design="poisson", population=0)
        with pytest.raises(TypeError, match="real"):
            method(torch.ones(3, dtype=torch.complex64), draws, design="poisson")
        never: Tensor = torch.full((3,), -INF)
        with pytest.raises(ValueError, match="expected count is 0"):
            method(f, Draws(torch.arange(3), never, lambda i: 0.0 * i), design="poisson")
