"""Leverage scores and l_p sensitivities against brute force; the designs that use them against their laws."""

import math

import numpy as np
import pytest
import torch

from steelyard.sampling.leverage import (
    leverage_sampling,
    leverage_scores,
    lp_sensitivities,
    orthonormal_basis,
    root_leverage_scores,
    tree_order,
    weighted_least_squares,
)
from steelyard.sampling.poisson import poisson
from tests.statistical import assert_unbiased


def spiky(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3


def polynomials(points: torch.Tensor, degree: int) -> torch.Tensor:
    """Legendre products of total degree up to `degree` on points in the square."""
    legendre = np.polynomial.legendre.legvander(points.numpy(), degree)
    terms = [legendre[:, 0, i] * legendre[:, 1, j] for i in range(degree + 1) for j in range(degree + 1 - i)]
    return torch.from_numpy(np.stack(terms, 1))


def test_leverage_is_the_diagonal_of_the_hat_matrix_and_sums_to_the_rank() -> None:
    a = spiky(30, 4)
    hat = a @ torch.linalg.inv(a.T @ a) @ a.T
    torch.testing.assert_close(leverage_scores(a), hat.diagonal())
    assert float(leverage_scores(a).sum()) == pytest.approx(4)
    dependent = torch.cat([a, a[:, :1] * 2 - a[:, 1:2], torch.zeros(30, 1)], 1)
    torch.testing.assert_close(leverage_scores(dependent), hat.diagonal())
    badly_scaled = a * torch.tensor([1e-200, 1.0, 1e150, 1e-9], dtype=torch.float64)
    torch.testing.assert_close(leverage_scores(badly_scaled), hat.diagonal())
    basis = orthonormal_basis(dependent)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4).double())
    assert leverage_scores(torch.tensor([[0], [3], [4]])).tolist() == pytest.approx([0, 0.36, 0.64])
    assert leverage_scores(torch.eye(3).bfloat16()).tolist() == [1, 1, 1]
    assert leverage_scores(torch.zeros(3, 2)).tolist() == [0, 0, 0]
    assert leverage_scores(torch.ones(1, 5)).tolist() == [1]


def test_root_leverage_scores_are_their_power() -> None:
    a = spiky(30, 4)
    for p in (1, 1.5, 2):
        torch.testing.assert_close(root_leverage_scores(a, p), leverage_scores(a) ** (p / 2))
    for p in (0.5, 3):
        with pytest.raises(ValueError, match="from 1 to 2"):
            root_leverage_scores(a, p)


@pytest.mark.parametrize("p", [1.0, 1.3, 2.0, 3.0, 6.0])
def test_sensitivities_are_the_largest_shares_over_all_directions(p: float) -> None:
    a = spiky(25, 2)
    angle = torch.linspace(0, math.pi, 40_001, dtype=torch.float64)
    share = (a @ torch.stack([angle.cos(), angle.sin()])).abs() ** p
    largest = (share / share.sum(0)).amax(1)
    found = lp_sensitivities(a, p, rtol=1e-3)
    assert bool((found >= largest * (1 - 1e-9)).all())
    assert bool((found <= largest * (1 + 2e-3)).all())
    if p == 2:
        torch.testing.assert_close(found, leverage_scores(a))


def test_sensitivities_obey_their_bounds_and_ignore_scale_and_dependence() -> None:
    for n, d in ((200, 6), (40, 12), (5, 5), (1, 3)):
        a = spiky(n, d, seed=n)
        for p in (1.0, 1.5, 4.0):
            s = lp_sensitivities(a, p)
            rank = min(n, d)
            assert bool(((s > 0) & (s <= 1)).all())
            assert float(s.sum()) <= rank ** max(1, p / 2) * 1.01
            # A direction from least squares is one of those over which the maximum goes.
            share = (a @ torch.linalg.pinv(a)).abs() ** p
            assert bool((s >= (share / share.sum(0)).amax(1) * (1 - 1e-9)).all())
    a = spiky(30, 3)
    twice = torch.cat([a * torch.tensor([1e-30, 1.0, 1e30]), a[:, :1]], 1)
    torch.testing.assert_close(lp_sensitivities(twice, 1.5), lp_sensitivities(a, 1.5), rtol=1e-2, atol=0)
    with_zeros = torch.cat([a, torch.zeros(2, 3)])
    assert lp_sensitivities(with_zeros, 3)[30:].tolist() == [0, 0]


def test_sampled_rows_keep_every_lp_norm_in_mean_and_ever_closer() -> None:
    p, a = 1.0, torch.cat([spiky(400, 3), torch.tensor([[0.0, 0, 900], [0, 500, 0]])])
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, generator=g, dtype=torch.float64)
    norms = (a @ x).abs().sum(0)

    def ratios(weights: torch.Tensor, m: int, repeats: int) -> torch.Tensor:
        out = []
        for _ in range(repeats):
            draws = poisson(weights.log(), m, generator=g)
            scaled = a[draws.ids] * (draws.log_expected / -p).exp()[:, None]  # rows times q^(-1/p)
            out.append((scaled @ x).abs().sum(0) / norms)
        return torch.stack(out)

    scores = {"sensitivity": lp_sensitivities(a, p), "root": root_leverage_scores(a, p)}
    for weights in scores.values():
        few, many = ratios(weights, 20, 400), ratios(weights, 180, 100)
        assert_unbiased(few, 1.0)
        distortion = [float((r - 1).abs().amax(1).mean()) for r in (few, many)]
        assert distortion[1] < 0.5 * distortion[0]
        uniform = ratios(torch.ones(len(a)).double(), 20, 400)
        assert distortion[0] < 0.7 * float((uniform - 1).abs().amax(1).mean())


def test_the_tree_halves_at_the_median_of_the_first_principal_component() -> None:
    def plain(ids: list[int], x: np.ndarray) -> list[set[int]]:
        """The sets of all nodes, as a plain recursion finds them."""
        if len(ids) < 2:
            return [set(ids)]
        points = x[ids] - x[ids].mean(0)
        main = np.linalg.svd(points)[2][0]
        order = [ids[i] for i in np.argsort(points @ main)]
        half = (len(ids) + 1) // 2
        options = [(order[:half], order[half:]), (order[::-1][:half], order[::-1][half:])]  # the sign is free
        left, right = next(o for o in options if any(set(o[0]) == set(found[a:b]) for a, b in spans))
        return [set(ids), *plain(left, x), *plain(right, x)]

    for n, d in ((1, 2), (2, 1), (37, 2), (64, 5), (50, 60)):
        x = spiky(n, d, seed=d)
        found = tree_order(x).tolist()
        assert sorted(found) == list(range(n))
        spans, level = [], [(0, n)]
        while level:
            spans += level
            level = [s for a, b in level if b - a > 1 for s in ((a, (a + b + 1) // 2), ((a + b + 1) // 2, b))]
        assert sorted(map(sorted, plain(list(range(n)), x.numpy()))) == sorted(
            sorted(found[a:b]) for a, b in spans
        )
    assert sorted(tree_order(torch.zeros(9, 2)).tolist()) == list(range(9))
    assert tree_order(torch.zeros(0, 2)).tolist() == []


@pytest.mark.parametrize("design", ["pivotal", "poisson"])
def test_rows_come_with_their_probabilities_and_totals_are_unbiased(design: str) -> None:
    a = torch.cat([spiky(20, 3), torch.zeros(1, 3)])
    g = torch.Generator().manual_seed(0)
    f = torch.randn(21, generator=g, dtype=torch.float64) + 1
    f[20] = 0
    taken, totals = torch.zeros(600, 21), []
    for row in taken:
        draws = leverage_sampling(a, 8, design=design, generator=g)  # type: ignore[arg-type]
        assert design == "poisson" or len(draws.ids) == 8
        assert bool((draws.ids.diff() > 0).all())
        row[draws.ids] = 1
        totals.append(float((f[draws.ids] / draws.log_expected.exp()).sum()))
        torch.testing.assert_close(draws.log_expected_of(draws.ids), draws.log_expected)
    inclusion = draws.log_expected_of(torch.arange(21)).exp()
    open_rows = inclusion < 1
    assert 0 < int((~open_rows).sum()) < 8  # the capped case is met
    ratio = (inclusion / leverage_scores(a))[open_rows & (inclusion > 0)]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    assert float(inclusion.sum()) == pytest.approx(8)
    assert_unbiased(taken, inclusion)
    assert_unbiased(totals, float(f.sum()))
    assert draws.log_expected_of(torch.tensor([-1, 20, 21])).tolist() == [-math.inf] * 3


def test_rows_spread_in_space_fit_polynomials_better_than_independent_ones() -> None:
    axis = torch.linspace(-1, 1, 25, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    a = polynomials(points, 6)
    y = (4 * points[:, 0] * points[:, 1]).sin() + (points[:, 0] - 0.3).abs()
    g = torch.Generator().manual_seed(0)
    error: dict[str, list[float]] = {"pivotal": [], "poisson": []}
    for design, found in error.items():
        for _ in range(40):
            draws = leverage_sampling(a, 50, design=design, x=points, generator=g)  # type: ignore[arg-type]
            fit = weighted_least_squares(a[draws.ids], y[draws.ids], draws.log_expected)
            found.append(float((a @ fit - y).square().sum()))
    assert np.median(error["pivotal"]) < 0.7 * np.median(error["poisson"])


def test_weighted_least_squares_solves_the_weighted_normal_equations() -> None:
    a, y = spiky(12, 3), spiky(12, 2, seed=1)
    log_expected = torch.linspace(-3, 1, 12).double()
    w = torch.diag((-log_expected).exp())
    plain = torch.linalg.inv(a.T @ w @ a) @ a.T @ w @ y
    torch.testing.assert_close(weighted_least_squares(a, y, log_expected), plain)
    torch.testing.assert_close(weighted_least_squares(a, y[:, 0], log_expected), plain[:, 0])
    empty = torch.cat([log_expected, torch.tensor([math.inf])])
    longer = (torch.cat([a, a[:1]]), torch.cat([y, y[:1] + 100]))
    torch.testing.assert_close(weighted_least_squares(*longer, empty), plain)
    few = weighted_least_squares(a[:1], y[:1, 0], log_expected[:1])
    torch.testing.assert_close(few, torch.linalg.pinv(a[:1]) @ y[:1, 0])


def test_the_seed_decides() -> None:
    a = spiky(50, 3)
    draws = [leverage_sampling(a, 9, generator=torch.Generator().manual_seed(1)).ids for _ in range(2)]
    assert torch.equal(*draws)


def test_bad_input_is_refused() -> None:
    a = spiky(6, 2)
    for function in (leverage_scores, lambda m: lp_sensitivities(m, 1), orthonormal_basis):
        for bad in (torch.zeros(3), torch.zeros(0, 2), torch.zeros(2, 0)):
            with pytest.raises(ValueError, match=r"\(n, d\)"):
                function(bad)
        with pytest.raises(ValueError, match="row 1"):
            function(torch.tensor([[1.0], [math.nan]]))
    for p in (0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match="p must be at least 1"):
            lp_sensitivities(a, p)
    with pytest.raises(ValueError, match="rtol"):
        lp_sensitivities(a, 1, rtol=0)
    with pytest.raises(ArithmeticError, match="larger"):
        lp_sensitivities(spiky(60, 4), 1, rtol=1e-9)
    with pytest.raises(ValueError, match="design"):
        leverage_sampling(a, 3, design="greedy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected=7"):
        leverage_sampling(a, 7)
    with pytest.raises(ValueError, match="one point for each row"):
        leverage_sampling(a, 3, x=torch.zeros(5, 2))
    for bad in (torch.zeros(3), torch.full((2, 2), math.nan)):
        with pytest.raises(ValueError, match=r"\(n, d\)|finite"):
            tree_order(bad)
    with pytest.raises(ValueError, match="must share s"):
        weighted_least_squares(a, torch.zeros(5), torch.zeros(6))
    with pytest.raises(ValueError, match="finite"):
        weighted_least_squares(a, torch.zeros(6), torch.full((6,), -math.inf))


def test_no_row_of_zeros_is_sensitive() -> None:
    assert lp_sensitivities(torch.zeros(5, 2), 1.0).tolist() == [0.0] * 5


def test_order_of_huge_points_is_that_of_small_ones() -> None:
    x = spiky(60, 3)
    assert tree_order(x * 2.0**660).tolist() == tree_order(x).tolist()
    assert len(leverage_sampling(x * 1e200, 10).ids) == 10


def test_points_without_coordinates_have_no_order() -> None:
    with pytest.raises(ValueError, match="d at least 1"):
        tree_order(torch.zeros(4, 0))


def test_least_squares_takes_lists() -> None:
    assert weighted_least_squares([[1.0], [2]], [2.0, 4], [0.0, 0]).tolist() == pytest.approx([2])
