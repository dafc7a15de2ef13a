"""Pareto smoothing: against ArviZ's stored results, the formulas in a plain loop, and where nothing is to fit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.weights import khat_threshold, normalize, pareto_khat, pareto_smooth

INF = math.inf

# arviz 0.23.4, psislw(log_w): k-hat, and the normalised log-weights of the largest, second and tenth raw ones.
ARVIZ = [
    (100, "pareto 0.3", 0.39931243700389774, [-3.367112616335589, -3.6530411087461587, -4.261753925224891]),
    (100, "pareto 0.7", 0.6305359508146533, [-2.098963504927013, -2.8010348588107408, -4.007201155328671]),
    (100, "pareto 1.2", 0.9172823012998672, [-1.2002849848545576, -2.2248951611616654, -4.044614063512689]),
    (100, "bounded", -0.9562252136350883, [-4.313230777205884, -4.313230777205884, -4.3170837658235355]),
    (100, "wide", INF, [0.0, -1315561.749642849, -9016994.374947637]),
    (100, "half dead", 0.5349969010153316, [-2.1877970202523893, -2.771179172948301, -3.7422905115622944]),
    (2000, "pareto 0.3", 0.3114461958115806, [-5.502480069548267, -5.782236890430723, -6.348477677229633]),
    (2000, "pareto 0.7", 0.669468673049701, [-3.0541719680346993, -3.7908986474928574, -5.0324555629476055]),
    (2000, "pareto 1.2", 1.117145727247685, [-1.1558598799725341, -2.3835770396098566, -4.449595173778768]),
    (2000, "bounded", -1.6303211362235195, [-7.308985919393904, -7.308985919393904, -7.308985919393904]),
    (2000, "wide", INF, [0.0, -45310.385371521115, -429186.13047504425]),
    (2000, "half dead", 0.502358913888207, [-3.786236396703806, -4.337710173383481, -5.263452439933102]),
]


def ratios(n: int, tail: str) -> torch.Tensor:
    u = (torch.arange(1, n + 1, dtype=torch.float64) * 0.6180339887498949) % 1.0
    if tail.startswith("pareto"):
        return -float(tail.split()[1]) * u.log()
    if tail == "half dead":
        return torch.where(torch.arange(n) % 2 == 0, -0.5 * u.log(), -INF)
    return -u.square() if tail == "bounded" else 1e8 * u


def plainly(log_w: list[float]) -> tuple[list[float], float]:
    """The formulas of the paper and of Zhang and Stephens as they stand, after a full sort."""
    s, top = len(log_w), max(log_w)
    r = [math.exp(v - top) for v in log_w]
    rank = sorted(range(s), key=lambda i: r[i])
    m = math.ceil(min(s / 5, 3 * math.sqrt(s)))
    u = max(r[rank[-m - 1]], np.finfo(float).tiny)
    tail = [i for i in rank if r[i] > u]
    y, m = [r[i] - u for i in tail], len(tail)
    grid = 30 + int(math.sqrt(m))
    quartile = y[math.floor(m / 4 + 0.5) - 1]
    b = [1 / y[-1] + (1 - math.sqrt(grid / (j - 0.5))) / (3 * quartile) for j in range(1, grid + 1)]
    k = [sum(math.log1p(-t * v) for v in y) / m for t in b]
    length = [m * (math.log(-t / v) - v - 1) for t, v in zip(b, k, strict=True)]
    share = [1 / sum(math.exp(min(other - this, 700)) for other in length) for this in length]
    share = [v if v >= 10 * np.finfo(float).eps else 0 for v in share]
    mean = sum(v * t for v, t in zip(share, b, strict=True)) / sum(share)
    shape = sum(math.log1p(-mean * v) for v in y) / m
    sigma = -shape / mean
    shape = (m * shape + 5) / (m + 10)
    for i, place in enumerate(tail):
        z = (i + 0.5) / m
        r[place] = min(u + sigma * ((1 - z) ** -shape - 1) / shape, 1.0)
    return [math.log(v) + top if v > 0 else log_w[i] for i, v in enumerate(r)], shape


@pytest.mark.parametrize(("n", "tail", "khat", "largest"), ARVIZ)
def test_results_are_those_of_arviz(n: int, tail: str, khat: float, largest: list[float]) -> None:
    log_w = ratios(n, tail)
    smoothed, found = pareto_smooth(log_w)
    assert float(found) == pytest.approx(khat, abs=1e-6)
    order = log_w.argsort(descending=True)
    assert normalize(smoothed)[order[[0, 1, 9]]].tolist() == pytest.approx(largest, abs=1e-6, rel=1e-9)


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 20.0])
def test_results_are_those_of_the_formulas_in_a_plain_loop(spread: float) -> None:
    rows = spread * torch.randn(4, 321, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    smoothed, khat = pareto_smooth(rows + 40)
    for row, found, k in zip(rows.tolist(), smoothed.tolist(), khat.tolist(), strict=True):
        expected, shape = plainly(row)
        assert k == pytest.approx(shape, abs=1e-9)
        assert found == pytest.approx([v + 40 for v in expected], abs=1e-9)


def test_khat_finds_the_shape_of_a_pareto_tail() -> None:
    """u^-k has shape k. The prior of ten draws at 1/2 is taken out; 400 means are then good to about 0.005."""
    g = torch.Generator().manual_seed(8)
    for k in (0.2, 0.5, 1.0):
        log_w = -k * torch.rand(400, 10_000, generator=g, dtype=torch.float64).log()
        m = 300
        raw = (pareto_khat(log_w) * (m + 10) - 5) / m
        assert float(raw.mean()) == pytest.approx(k, abs=0.025)


def test_smoothing_brings_a_heavy_mean_closer_to_the_truth() -> None:
    log_w = (
        -0.7 * torch.rand(2000, 400, generator=torch.Generator().manual_seed(3), dtype=torch.float64).log()
    )
    means = [v.exp().mean(-1) for v in (log_w, pareto_smooth(log_w)[0])]
    error = [float((m - 1 / 0.3).square().mean().sqrt()) for m in means]
    assert error[1] < 0.7 * error[0]


def test_only_the_tail_changes_and_no_weight_rises_above_the_largest() -> None:
    log_w = ratios(2000, "pareto 0.7")
    smoothed, _ = pareto_smooth(log_w)
    changed = smoothed != log_w
    tail = math.ceil(3 * math.sqrt(2000))
    assert set(changed.nonzero()[:, 0].tolist()) <= set(log_w.topk(tail).indices.tolist())
    assert int(changed.sum()) > tail - 3
    assert bool((smoothed <= log_w.max()).all())
    assert torch.equal(smoothed.argsort(), log_w.argsort())


def test_rows_dimensions_dtypes_and_order_do_not_matter() -> None:
    rows = torch.stack([ratios(500, "pareto 0.3"), ratios(500, "bounded"), ratios(500, "half dead")])
    smoothed, khat = pareto_smooth(rows)
    one = [pareto_smooth(row) for row in rows]
    assert torch.equal(smoothed, torch.stack([s for s, _ in one]))
    assert torch.equal(khat, torch.stack([k for _, k in one]))
    assert torch.equal(pareto_khat(rows), khat)
    cube, k = pareto_smooth(rows.T.reshape(250, 2, 3).transpose(0, 2), 2)
    assert cube.shape == (3, 2, 250)
    assert k.shape == (3, 2)
    columns, k = pareto_smooth(rows.T, 0)
    assert torch.equal(columns, smoothed.T)
    assert torch.equal(k, khat)
    single, k = pareto_smooth(rows.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), smoothed, rtol=1e-5, atol=1e-5)
    assert pareto_smooth(rows.bfloat16())[0].dtype == torch.bfloat16
    for order in (rows[0].argsort(), rows[0].argsort(descending=True)):
        back, k = pareto_smooth(rows[0, order])
        assert float(k) == pytest.approx(float(khat[0]), abs=1e-12)
        torch.testing.assert_close(back, smoothed[0, order])
    before = rows.clone()
    assert pareto_smooth(rows.numpy())[0].shape == rows.shape
    assert torch.equal(rows, before)
    assert pareto_smooth(torch.zeros(0, 5))[1].shape == (0,)


@given(st.integers(0, 2**32 - 1), st.integers(26, 700), st.integers(1, 40))
def test_the_cut_off_is_found_however_the_draws_are_ordered_and_tied(seed: int, n: int, levels: int) -> None:
    g = np.random.default_rng(seed)
    log_w = np.sort(g.integers(0, levels, n) / 4.0)[:: g.choice([-1, 1])].copy()
    log_w[: n // 3] = g.permutation(log_w[: n // 3])
    m = math.ceil(min(n / 5, 3 * math.sqrt(n)))
    smoothed, khat = pareto_smooth(log_w)
    u = np.sort(log_w)[-m - 1]
    body = log_w <= u
    assert np.array_equal(smoothed.numpy()[body], log_w[body])
    if 0 < (~body).sum() < 5:
        assert float(khat) == INF
    elif len(set(log_w[~body])) <= 1:
        assert float(khat) == -INF
    else:
        assert math.isfinite(float(khat))


def test_draws_of_equal_weight_stay_equal_and_keep_their_sum() -> None:
    distinct = ratios(400, "pareto 0.7")
    tied = (distinct * 4).round() / 4
    smoothed, _ = pareto_smooth(tied)
    for level in tied.unique():
        assert len(smoothed[tied == level].unique()) == 1
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pareto_smooth(tied[order])[0], smoothed[order])
    expected, _ = plainly(tied.tolist())
    assert float(smoothed.exp().sum()) == pytest.approx(sum(math.exp(v) for v in expected))


NO_TAIL = {
    "all equal": (torch.zeros(1000), -INF),
    "all equal and large": (torch.full((100,), 1e8), -INF),
    "the largest is that of half": (torch.cat([torch.zeros(500), torch.full((500,), -3.0)]), -INF),
    "the largest is that of the tail": (torch.cat([torch.full((95,), 2.0), torch.arange(905) / -905]), -INF),
    "one draw": (torch.tensor([3.0]), INF),
    "four equal": (torch.zeros(4), -INF),
    "all dead": (torch.full((50,), -INF), INF),
    "one alive": (torch.cat([torch.zeros(1), torch.full((99,), -INF)]), INF),
    "one beside nothing": (torch.cat([torch.zeros(1), torch.full((99,), -2e8)]), INF),
    "three above many ties": (torch.cat([torch.arange(3.0), torch.full((997,), -1.0)]), INF),
    "four draws": (torch.arange(4.0), INF),
    "a tail of four": (torch.arange(20.0), INF),
}


@pytest.mark.parametrize("case", NO_TAIL)
def test_where_there_is_no_tail_to_fit_nothing_is_smoothed_and_khat_says_why(case: str) -> None:
    log_w, khat = NO_TAIL[case]
    for dtype in (torch.float32, torch.float64):
        smoothed, found = pareto_smooth(log_w.to(dtype))
        assert float(found) == khat
        assert torch.equal(smoothed, log_w.to(dtype))


def test_twenty_one_draws_are_enough_and_extreme_ranges_give_numbers() -> None:
    assert math.isfinite(float(pareto_khat(torch.arange(21.0).square() / 50)))
    g = torch.Generator().manual_seed(0)
    for scale in (1e-12, 1e-3, 1e2, 1e4, 1e8):
        smoothed, khat = pareto_smooth(scale * torch.randn(1000, generator=g, dtype=torch.float64))
        assert not bool(smoothed.isnan().any())
        assert not math.isnan(float(khat))
    # Rounding at size 1e8 ties draws, no more.
    near = 1e8 + torch.randn(1000, generator=g, dtype=torch.float64)
    assert float(pareto_khat(near)) == pytest.approx(float(pareto_khat(near - 1e8)), abs=1e-6)


def test_dependent_draws_take_a_larger_tail() -> None:
    log_w = ratios(2000, "pareto 0.7")
    smoothed, _ = pareto_smooth(log_w, relative_efficiency=0.25)
    assert int((smoothed != log_w).sum()) > math.ceil(3 * math.sqrt(2000 / 0.25)) - 3
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="efficiency"):
            pareto_smooth(log_w, relative_efficiency=bad)


def test_the_threshold_grows_with_the_number_of_draws_to_seven_tenths() -> None:
    assert float(khat_threshold(100)) == pytest.approx(0.5)
    assert khat_threshold(torch.tensor([10, 1000, 10**9])).tolist() == pytest.approx([0, 2 / 3, 0.7])
    assert float(khat_threshold(1)) == -INF
    with pytest.raises(ValueError, match="at least one"):
        khat_threshold(0)


def test_an_infinite_efficiency_is_refused() -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        pareto_khat(torch.zeros(100), relative_efficiency=INF)
