"""Averages over weighted samples: formulas, standard errors that cover, and verdicts."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steelyard.draws import Draws, Weighted
from steelyard.negatives import Context, Popularity
from steelyard.weights import (
    effective_sample_size,
    expectation,
    khat_threshold,
    log_normalizer,
    pareto_khat,
    pareto_smooth,
)
from tests.statistical import assert_coverage, assert_unbiased

INF = math.inf
F = torch.tensor([2.0, -1.0, 0.5, 4.0, 3.0, 0.0], dtype=torch.float64)
LOG_W = torch.tensor([0.1, -0.7, 1.2, -2.0, 0.4, -INF], dtype=torch.float64)
REPLICATIONS, N = 4000, 200


def shifted(seed: int, n: int = N) -> tuple[Tensor, Tensor]:
    """Draws x of N(0, 1.5^2), (REPLICATIONS, n), and exact log-weights towards N(0.3, 1)."""
    g = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(REPLICATIONS, n, generator=g, dtype=torch.float64)
    return x, math.log(1.5) - (x - 0.3).square() / 2 + x.square() / 4.5


TRUTH = 0.3 + 0.5 * (1 + 0.3**2)  # of x + x^2 / 2 under N(0.3, 1)


def skewed(x: Tensor) -> Tensor:
    return x + x.square() / 2


def test_values_and_standard_errors_are_those_of_plain_loops() -> None:
    f, w, n = F.tolist(), LOG_W.exp().tolist(), len(F)
    mean = sum(a * b for a, b in zip(w, f, strict=True)) / n
    square = sum((a * b - mean) ** 2 for a, b in zip(w, f, strict=True))
    plain = expectation(F, LOG_W, self_normalized=False)
    assert plain.value == pytest.approx(mean)
    assert plain.stderr == pytest.approx(math.sqrt(square / (n * (n - 1))))
    ratio = sum(a * b for a, b in zip(w, f, strict=True)) / sum(w)
    square = sum((a / sum(w)) ** 2 * (b - ratio) ** 2 for a, b in zip(w, f, strict=True))
    normalised = expectation(F, LOG_W + 7)
    assert normalised.value == pytest.approx(ratio)
    assert normalised.stderr == pytest.approx(math.sqrt(square * n / (n - 1)))
    assert normalised.ess == pytest.approx(sum(w) ** 2 / sum(a * a for a in w))
    assert isinstance(plain.value, float)


def test_equal_weights_give_the_mean_and_its_classical_standard_error() -> None:
    for self_normalized in (True, False):
        found = expectation(F, torch.zeros(6), self_normalized=self_normalized)
        assert found.value == pytest.approx(float(F.mean()))
        assert found.stderr == pytest.approx(float(F.std()) / math.sqrt(6))


def test_a_log_normaliser_is_the_log_of_the_mean_weight_with_its_delta_error() -> None:
    w = LOG_W.exp()
    found = log_normalizer(LOG_W)
    assert found.value == pytest.approx(float(w.mean().log()))
    assert found.stderr == pytest.approx(float(w.std() / math.sqrt(6) / w.mean()))
    assert log_normalizer(LOG_W - 1e8).value == pytest.approx(found.value - 1e8)  # type: ignore[operator]
    assert log_normalizer(LOG_W - 1e4).stderr == pytest.approx(found.stderr)


@pytest.mark.parametrize("self_normalized", [True, False])
@pytest.mark.parametrize("controls", [0, 1, 2])
def test_intervals_of_expectations_cover_at_their_level(self_normalized: bool, controls: int) -> None:
    x, log_w = shifted(1)
    control = torch.stack([x, x.square()])[:controls] if controls else None
    means = torch.tensor([0.3, 1.09])[:controls] if controls else 0.0
    found = expectation(
        torch.stack([skewed(x), (x > 1).double()]),
        log_w,
        self_normalized=self_normalized,
        control=control,
        control_mean=means,
    )
    low, high = found.interval(0.95)
    above_one = 0.5 * math.erfc(0.7 / math.sqrt(2))
    if controls < 2:  # two controls make x + x^2 / 2 exact
        assert_coverage((low[0] < TRUTH) & (high[0] > TRUTH), 0.95)  # type: ignore[index]
    assert_coverage((low[1] < above_one) & (high[1] > above_one), 0.95)  # type: ignore[index]


def test_intervals_of_a_jackknife_cover_at_their_level() -> None:
    x, log_w = shifted(2)
    low, high = expectation(skewed(x), log_w, jackknife=True).interval(0.95)
    assert_coverage((low < TRUTH) & (high > TRUTH), 0.95)  # type: ignore[operator]


def test_intervals_of_a_log_normaliser_cover_at_their_level() -> None:
    _, log_w = shifted(3)
    low, high = log_normalizer(log_w - 3).interval(0.95)
    assert_coverage((low < -3) & (high > -3), 0.95)  # type: ignore[operator]


def test_intervals_of_smoothed_weights_cover_at_their_level() -> None:
    x, log_w = shifted(4)
    low, high = expectation(skewed(x), log_w, smooth=True).interval(0.95)
    assert_coverage((low < TRUTH) & (high > TRUTH), 0.95)  # type: ignore[operator]
    log_w = 0.7 * x / 1.5 - 0.7**2 / 2  # lognormal, of mean one
    low, high = log_normalizer(log_w, smooth=True).interval(0.95)
    assert_coverage((low < 0) & (high > 0), 0.95)  # type: ignore[operator]


def test_plain_importance_sampling_is_unbiased_even_of_five_draws_and_its_variance_too() -> None:
    x, log_w = shifted(5, n=5)
    found = expectation(skewed(x), log_w, self_normalized=False)
    assert_unbiased(found.value, TRUTH)
    value = torch.as_tensor(found.value)
    assert_unbiased(torch.as_tensor(found.stderr).square(), float(value.var()), significance=1e-6)


def test_control_variates_reduce_the_error_as_their_standard_error_says() -> None:
    x, log_w = shifted(6)
    for self_normalized in (True, False):
        bare = expectation(skewed(x), log_w, self_normalized=self_normalized)
        better = expectation(skewed(x), log_w, self_normalized=self_normalized, control=x, control_mean=0.3)
        spread = [float(torch.as_tensor(e.value).std()) for e in (bare, better)]
        said = [float(torch.as_tensor(e.stderr).square().mean().sqrt()) for e in (bare, better)]
        assert spread[1] < 0.8 * spread[0]
        assert said == pytest.approx(spread, rel=0.1)


def test_control_variates_solve_the_least_squares_that_they_state() -> None:
    g = torch.Generator().manual_seed(0)
    f, c, log_w = (
        torch.randn(1, 30, generator=g),
        torch.randn(2, 30, generator=g),
        torch.randn(30, generator=g),
    )
    f, c, log_w = f[0].double().exp(), c.double(), log_w.double()
    share, w = log_w.softmax(0), log_w.exp()
    mu, means = (share * f).sum(), (share * c).sum(-1, keepdim=True)
    beta = np.linalg.lstsq((share * (c - means)).T.numpy(), (share * (f - mu)).numpy())[0]
    expected = float((share * (f - torch.from_numpy(beta) @ (c - 0.1))).sum())
    assert expectation(f, log_w, control=c, control_mean=0.1).value == pytest.approx(expected)
    design = torch.cat([torch.ones(1, 30), w * (c - 0.1)]).T.numpy()
    intercept, *_ = np.linalg.lstsq(design, (w * f).numpy())[0]
    found = expectation(f, log_w, control=c, control_mean=0.1, self_normalized=False)
    assert found.value == pytest.approx(intercept)
    rest = (w * f).numpy() - design @ np.linalg.lstsq(design, (w * f).numpy())[0]
    assert found.stderr == pytest.approx(math.sqrt((rest**2).sum() / (30 * 27)))


def test_a_constant_plus_a_multiple_of_a_control_is_known_without_error() -> None:
    x, log_w = shifted(7, n=10)
    found = expectation(2 + 3 * x[0], log_w[0], control=x[0], control_mean=0.3)
    assert found.value == pytest.approx(2.9)
    assert found.stderr == pytest.approx(0, abs=1e-12)
    twice = expectation(2 + 3 * x[0], log_w[0], control=torch.stack([x[0], 2 * x[0], 0 * x[0] + 1]), control_mean=torch.tensor([0.3, 0.6, 1.0]))  # fmt: skip
    assert twice.value == pytest.approx(2.9)


def test_the_jackknife_is_that_of_leaving_out_each_draw_in_turn() -> None:
    n = len(F)
    whole = expectation(F, LOG_W)
    left = [expectation(F[torch.arange(n) != i], LOG_W[torch.arange(n) != i]).value for i in range(n)]
    found = expectation(F, LOG_W, jackknife=True)
    assert found.value == pytest.approx(n * whole.value - (n - 1) * np.mean(left))  # type: ignore[operator]
    assert found.stderr == pytest.approx(math.sqrt((n - 1) / n * np.sum((left - np.mean(left)) ** 2)))
    with pytest.raises(ValueError, match="no bias"):
        expectation(F, LOG_W, jackknife=True, self_normalized=False)


def test_the_jackknife_removes_nearly_all_bias_of_the_ratio_by_enumeration() -> None:
    """All samples of four draws from three points, with their probabilities: exact expectations."""
    f, w, q = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.4, 1.0, 3.0]), [0.5, 0.3, 0.2]
    truth = float((torch.tensor(q) * w * f).sum() / (torch.tensor(q) * w).sum())
    samples = torch.tensor(list(itertools.product(range(3), repeat=4)))
    chance = torch.tensor([math.prod(q[i] for i in s) for s in samples.tolist()], dtype=torch.float64)
    bias = [
        float((chance * torch.as_tensor(expectation(f[samples], w.log()[samples], jackknife=j).value)).sum())
        - truth
        for j in (False, True)
    ]
    assert abs(bias[1]) < 0.35 * abs(bias[0])
    assert abs(bias[0]) > 0.1


def test_many_expectations_come_from_one_sample_by_broadcasting() -> None:
    x, log_w = (v[:3] for v in shifted(8, n=50))
    values = torch.stack([x, x.square()])
    found = expectation(values, log_w, control=x.abs(), control_mean=0.8)
    assert found.shape == (2, 3)
    one = expectation(values[1, 2], log_w[2], control=x[2].abs(), control_mean=0.8)
    assert found[1, 2].value == pytest.approx(one.value)
    assert found[1, 2].stderr == pytest.approx(one.stderr)
    assert found[1, 2].khat == pytest.approx(one.khat)
    columns = expectation(values.transpose(1, 2), log_w.T, control=x.T.abs(), control_mean=0.8, dim=-2)
    assert torch.allclose(torch.as_tensor(columns.value), torch.as_tensor(found.value))
    assert expectation(values[:, 0], log_w[0]).shape == (2,)
    assert expectation(values[0, 0].tolist(), log_w[0].numpy()).value == pytest.approx(
        expectation(values[0, 0], log_w[0]).value
    )


def test_khat_and_its_limit_are_reported_and_smoothing_uses_the_smoothed_weights() -> None:
    x, log_w = (v[0] for v in shifted(9, n=100))
    heavy = 2.5 * log_w.abs()
    raw, smooth = expectation(x, heavy), expectation(x, heavy, smooth=True)
    assert raw.khat == smooth.khat == pytest.approx(float(pareto_khat(heavy)))
    assert raw.khat_limit == pytest.approx(float(khat_threshold(100))) == pytest.approx(0.5)
    smoothed = pareto_smooth(heavy)[0]
    assert smooth.value == pytest.approx(expectation(x, smoothed).value)
    assert smooth.ess == pytest.approx(float(effective_sample_size(smoothed)))
    assert log_normalizer(heavy, smooth=True).value == pytest.approx(log_normalizer(smoothed).value)


def test_an_estimate_that_must_not_be_trusted_says_so() -> None:
    g = torch.Generator().manual_seed(3)
    u = torch.rand(1000, generator=g, dtype=torch.float64)
    light, heavy = expectation(u, 0.2 * u), expectation(u, -1.3 * u.log())
    assert light.reliable
    assert "do not trust" not in str(light)
    assert not heavy.reliable
    assert "tail is too heavy" in str(heavy)
    few = expectation(u[:8], 0 * u[:8])
    assert not few.reliable
    assert "8 effective draws" in str(few)
    assert not expectation(u[:15], 0.2 * u[:15]).reliable  # too few draws to know the tail
    assert expectation(u[:15], 0 * u[:15]).reliable  # but equal weights have none


def test_degenerate_samples_have_defined_answers() -> None:
    dead = expectation(torch.ones(3), torch.full((3,), -INF))
    assert math.isnan(dead.value)  # type: ignore[arg-type]
    assert dead.stderr == INF
    assert dead.ess == 0
    nothing = expectation(torch.ones(3), torch.full((3,), -INF), self_normalized=False)
    assert nothing.value == 0
    one = expectation(torch.tensor([5.0, 1.0, 1.0]), torch.tensor([0.0, -INF, -INF]), jackknife=True)
    assert (one.value, one.stderr, one.ess) == (5, INF, 1)
    single = [
        expectation(torch.tensor([5.0]), torch.tensor([1.0])),
        expectation(torch.tensor([5.0]), torch.zeros(1), self_normalized=False),
        log_normalizer(torch.tensor([1.0])),
    ]
    assert [e.value for e in single] == pytest.approx([5, 5, 1])
    assert [e.stderr for e in single] == [INF] * 3
    none = log_normalizer(torch.full((3,), -INF))
    assert (none.value, none.stderr) == (-INF, INF)
    for estimate in (dead, nothing, one, *single, none):
        assert not estimate.reliable
        assert "do not trust" in str(estimate)
    wide = expectation(F, torch.tensor([1e8, -1e8, 0.0, 1e8, 5.0, -INF]), jackknife=True)
    assert wide.value == pytest.approx(2 * 3 - 3, abs=10)
    assert math.isfinite(wide.stderr)  # type: ignore[arg-type]


def test_what_stands_at_a_dead_draw_counts_for_nothing() -> None:
    log_w = torch.tensor([0.0, 1.0, -INF], dtype=torch.float64)
    x = torch.tensor([1.0, 2.0, 9.0])
    for bad in (math.nan, INF, 5.0):
        y = torch.tensor([1.0, 2.0, bad])
        for self_normalized in (True, False):
            found = expectation(y, log_w, control=y, self_normalized=self_normalized)
            expected = expectation(x, log_w, control=x, self_normalized=self_normalized)
            assert (found.value, found.stderr) == (expected.value, expected.stderr)


def test_bad_arguments_are_refused() -> None:
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match="NaN"):
            expectation(F, torch.tensor([bad, *[0.0] * 5]))
        with pytest.raises(ValueError, match="finite"):
            expectation([bad, *[0.0] * 5], LOG_W)
        with pytest.raises(ValueError, match="finite"):
            expectation(F, LOG_W, control=[bad, *[0.0] * 5])
    with pytest.raises(ValueError, match="no draw"):
        expectation(F[:0], LOG_W[:0])
    with pytest.raises(TypeError, match="floating"):
        expectation(F, torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="broadcast"):
        expectation(F[:4], LOG_W)
    with pytest.raises(ValueError, match="single number"):
        expectation(1.0, LOG_W)
    with pytest.raises(ValueError, match="one mean"):
        expectation(F, LOG_W, control=F, control_mean=torch.zeros(2))
    with pytest.raises(ValueError, match="dimension more"):
        expectation(F, LOG_W, control=torch.zeros(1, 1, 6))
    with pytest.raises(ValueError, match="at least 7 draws"):
        expectation(F, LOG_W, control=torch.randn(5, 6))
    with pytest.raises(ValueError, match="dim=0"):
        expectation(F, Weighted("abcdef", LOG_W), dim=0)


def test_summed_weights_estimate_sums_over_the_catalogue() -> None:
    counts = torch.tensor([1, 10, 3, 2, 5, 9])
    proposal, one = Popularity(counts), Context(torch.tensor([3]))
    g = torch.Generator().manual_seed(0)
    totals, z = [], []
    for _ in range(1000):
        draws = proposal.sample(one, 12, generator=g)
        totals.append(expectation(F[draws.ids], draws, self_normalized=False).value)
        z.append(math.exp(float(log_normalizer(draws.weigh(F[draws.ids])).value)))
    assert_unbiased(totals, float(F.sum()))
    assert_unbiased(z, float(F.exp().sum()))
    weighted = draws.weigh(F[draws.ids])
    assert log_normalizer(weighted).value == pytest.approx(float(weighted.log_normalizer))  # type: ignore[arg-type]
    found = expectation(torch.ones(12), weighted, self_normalized=False)
    assert found.value == pytest.approx(float(weighted.log_weight.exp().sum()))
    assert expectation(F[draws.ids], weighted).value == pytest.approx(
        float((weighted.log_weight.softmax(-1) * F[draws.ids]).sum())
    )


def test_empty_slots_of_draws_change_nothing() -> None:
    ids = torch.tensor([[3, 1, 4, 1], [5, 2, 0, 0], [0, 0, 0, 0]])
    log_expected = torch.tensor([[0.1, 0.7, -0.3, 0.7], [0.2, 1.0, INF, INF], [INF] * 4], dtype=torch.float64)
    draws = Draws(ids, log_expected, lambda asked: 0.0 * asked)
    g = torch.randn(4, generator=torch.Generator().manual_seed(0)).double()
    for options in ({"self_normalized": False}, {"jackknife": True}, {}):
        found = expectation(F[ids] * g, draws, **options)  # type: ignore[arg-type]
        short = Draws(ids[1, :2], log_expected[1, :2], draws.design)
        alone = expectation((F[ids] * g)[1, :2], short, **options)  # type: ignore[arg-type]
        assert found[1].value == pytest.approx(alone.value)
        assert found[1].stderr == pytest.approx(alone.stderr)
        assert (found[1].khat, found[1].khat_limit) == (alone.khat, alone.khat_limit)
        assert not found[2].reliable
    two = Draws(ids[:1, :2], torch.tensor([[0.0, INF]]), draws.design)
    assert log_normalizer(two)[0].khat == log_normalizer(two.weigh(torch.zeros(2)).log_weight[:, :1])[0].khat
    normaliser = log_normalizer(draws)
    assert normaliser[1].value == pytest.approx(log_normalizer(short).value)
    assert normaliser[1].stderr == pytest.approx(log_normalizer(short).stderr)
    assert (normaliser[2].value, normaliser[2].stderr) == (-INF, INF)


def test_a_plain_average_of_weights_that_float64_does_not_hold_is_refused() -> None:
    for scale in (-1000.0, -730.0, 1000.0):
        with pytest.raises(ValueError, match="log_normalizer"):
            expectation(F, LOG_W + scale, self_normalized=False)
        assert expectation(F, LOG_W + scale).value == pytest.approx(expectation(F, LOG_W).value)
    assert expectation(F, torch.full((6,), -INF), self_normalized=False).value == 0


def test_lists_of_python_floats_are_read_in_float64() -> None:
    log_w = [1e8, 1e8 + 1]
    expected = (0.1 + 0.2 * math.e) / (1 + math.e)
    assert expectation([0.1, 0.2], log_w).value == pytest.approx(expected, rel=1e-14)
    assert float(pareto_smooth([1e8 + 1])[0]) == 1e8 + 1


def test_a_control_mean_that_is_not_finite_and_complex_values_are_refused() -> None:
    for mean in (math.nan, INF, torch.tensor([-INF])):
        with pytest.raises(ValueError, match="means of controls"):
            expectation(F, LOG_W, control=F, control_mean=mean)
    with pytest.raises(TypeError, match="real"):
        expectation(F + 1j, LOG_W)
    with pytest.raises(TypeError, match="real"):
        expectation(F, LOG_W, control=F + 1j)
