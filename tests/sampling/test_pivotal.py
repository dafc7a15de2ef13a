"""Pivotal sampling: exact inclusion probabilities, a fixed size, and duels between those who are near."""

import math
from typing import Any

import pytest
import torch

from steelyard.sampling.pivotal import pivotal
from tests.sampling.drawing import included, seeded
from tests.statistical import assert_unbiased

INF = math.inf
PI = torch.tensor([0.1, 0.9, 0.35, 0.65, 1.0, 0.2, 0.3, 0.0, 0.5], dtype=torch.float64)
R = 20_000


def chain_law(pi: tuple[float, ...]) -> dict[tuple[float, ...], float]:
    """Every way a chain of duels in the order given can end, and its probability."""
    open_ones = [i for i, p in enumerate(pi) if 1e-12 < p < 1 - 1e-12]
    if not open_ones:
        return {tuple(round(p) for p in pi): 1.0}
    if len(open_ones) == 1:
        i = open_ones[0]
        ends = [((*pi[:i], 1.0, *pi[i + 1 :]), pi[i]), ((*pi[:i], 0.0, *pi[i + 1 :]), 1 - pi[i])]
    else:
        i, j = open_ones[:2]
        a, b = pi[i], pi[j]
        if a + b < 1:
            pairs = [(a + b, 0.0, a / (a + b)), (0.0, a + b, b / (a + b))]
        else:
            pairs = [(1.0, a + b - 1, (1 - b) / (2 - a - b)), (a + b - 1, 1.0, (1 - a) / (2 - a - b))]
        ends = [((*pi[:i], x, *pi[i + 1 : j], y, *pi[j + 1 :]), chance) for x, y, chance in pairs]
    law: dict[tuple[float, ...], float] = {}
    for state, chance in ends:
        for end, more in chain_law(state).items():
            law[end] = law.get(end, 0.0) + chance * more
    return law


@pytest.mark.parametrize("kind", ["random", "given", "local"])
def test_frequencies_equal_the_probabilities_given_and_the_size_their_sum(kind: Any) -> None:
    x = torch.rand(9, 2, generator=seeded(0)) if kind == "local" else None
    draws = pivotal(PI.expand(R, 9), order=kind, x=x, generator=seeded(1))
    seen = included(draws, 9)
    assert_unbiased(seen, PI)
    assert bool((seen.sum(-1) == 4).all())
    assert draws.ids.shape == (R, 4)
    torch.testing.assert_close(draws.log_expected.exp(), PI[draws.ids])


@pytest.mark.parametrize("kind", ["random", "given", "local"])
def test_a_sum_between_two_integers_gives_one_of_them_and_an_empty_slot(kind: Any) -> None:
    pi = torch.tensor([0.1, 0.9, 0.35, 0.6], dtype=torch.float64)
    x = torch.rand(4, 1, generator=seeded(2)) if kind == "local" else None
    draws = pivotal(pi.expand(R, 4), order=kind, x=x, generator=seeded(3))
    seen = included(draws, 4)
    assert_unbiased(seen, pi)
    assert set(seen.sum(-1).tolist()) == {1.0, 2.0}
    assert bool(((draws.log_expected[:, 1] == INF) == (seen.sum(-1) == 1)).all())


def test_the_chain_in_order_has_the_law_of_its_duels() -> None:
    pi = (0.3, 0.8, 0.45, 0.25, 0.2)
    law = chain_law(pi)
    assert len(law) > 4
    draws = pivotal(torch.tensor(pi, dtype=torch.float64).expand(R, 5), order="given", generator=seeded(4))
    seen = included(draws, 5)
    as_said = torch.stack([(seen == torch.tensor(s, dtype=torch.float64)).all(-1) for s in law], -1)
    assert_unbiased(as_said.double(), list(law.values()))


def test_a_random_order_lets_neighbours_be_drawn_together_and_the_order_given_does_not() -> None:
    pi = torch.full((6,), 0.5, dtype=torch.float64)
    pair = {
        kind: included(pivotal(pi.expand(R, 6), order=kind, generator=seeded(5)), 6)[:, :2].sum(-1)
        for kind in ("given", "random")
    }
    assert bool((pair["given"] == 1).all())
    assert_unbiased((pair["random"] == 2).double(), 0.2)  # 3 of 6, all orders alike: simple random sampling


def test_local_duels_are_between_nearest_neighbours() -> None:
    """Pairs of points far from other pairs, in a shuffled list: of each pair exactly one is drawn."""
    centre = torch.rand(400, 3, generator=seeded(6), dtype=torch.float64) * 100
    x = torch.cat([centre, centre + 1e-4])
    shuffle = torch.randperm(800, generator=seeded(7))
    for seed in range(5):
        draws = pivotal(torch.full((800,), 0.5), order="local", x=x[shuffle], generator=seeded(seed))
        assert sorted((shuffle[draws.ids] % 400).tolist()) == list(range(400))


def test_local_draws_spread_over_space() -> None:
    """The mean of a smooth function varies far less than with a random order."""
    x = torch.rand(500, 2, generator=seeded(8), dtype=torch.float64)
    f = (x[:, 0] + 2 * x[:, 1]).sin()
    pi = torch.full((300, 500), 0.1, dtype=torch.float64)
    variance = {}
    for kind, points in (("local", x), ("random", None)):
        draws = pivotal(pi, order=kind, x=points, generator=seeded(9))  # type: ignore[arg-type]
        mean = f[draws.ids].mean(-1)
        assert_unbiased(mean, float(f.mean()))
        variance[kind] = float(mean.var())
    assert variance["local"] < variance["random"] / 5


def test_equal_points_and_ties_on_a_grid_keep_the_probabilities() -> None:
    grid = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0)).repeat(4, 1)
    draws = pivotal(torch.full((5000, 100), 0.3), order="local", x=grid, generator=seeded(10))
    assert_unbiased(included(draws, 100), 0.3, 1e-4)
    assert draws.ids.shape == (5000, 30)
    same = pivotal(torch.full((2000,), 0.25), order="local", x=torch.zeros(2000, 2), generator=seeded(11))
    assert same.ids.shape == (500,)


def test_coordinates_may_differ_by_row() -> None:
    x = torch.rand(2, 3, 10, 2)
    assert pivotal(torch.full((2, 3, 10), 0.5), order="local", x=x).ids.shape == (2, 3, 5)


def test_the_certain_the_impossible_one_and_none() -> None:
    assert pivotal(torch.tensor([1.0, 0.0, 1.0])).ids.tolist() == [0, 2]
    assert pivotal(torch.tensor([1.0])).log_expected.tolist() == [0.0]
    assert pivotal(torch.zeros(3)).ids.shape == (0,)
    assert pivotal(torch.zeros(0)).ids.shape == (0,)
    assert pivotal(torch.tensor([1.0, 0.0]), order="local", x=torch.zeros(2, 1)).ids.tolist() == [0]
    asked = pivotal(torch.tensor([0.5, 0.5])).log_expected_of(torch.tensor([0, 2, -1]))
    assert asked.tolist() == [pytest.approx(math.log(0.5)), -INF, -INF]


def test_the_input_is_not_changed_and_a_seed_repeats_the_draw() -> None:
    pi = PI.clone()
    a, b = (pivotal(pi, generator=seeded(12)).ids.tolist() for _ in range(2))
    assert a == b
    assert pi.tolist() == PI.tolist()
    assert pivotal(PI.float()).log_expected.dtype == torch.float32


def test_bad_input_is_refused() -> None:
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            pivotal(torch.tensor([0.5, bad]))
    with pytest.raises(TypeError, match="floating"):
        pivotal(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="order must be"):
        pivotal(PI, order="sorted")  # type: ignore[arg-type]
    for order, x in (("local", None), ("random", torch.zeros(9, 1))):
        with pytest.raises(ValueError, match="come together"):
            pivotal(PI, order=order, x=x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must have shape"):
        pivotal(PI, order="local", x=torch.zeros(8, 2))
    with pytest.raises(ValueError, match="NaN"):
        pivotal(PI, order="local", x=torch.full((9, 2), math.nan))
    with pytest.raises(TypeError, match="Coordinates"):
        pivotal(PI, order="local", x=torch.zeros(9, 2, dtype=torch.int64))
