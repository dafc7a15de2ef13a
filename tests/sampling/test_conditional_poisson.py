"""Conditional Poisson sampling: equal to enumeration, in logs a thousand apart, and at any size."""

import itertools
import math

import numpy as np
import pytest
import torch

from steelyard.sampling.binomial_sums import coins, inclusion_by_fourier, inclusion_by_series, tilt
from steelyard.sampling.conditional_poisson import (
    conditional_poisson,
    conditional_poisson_inclusion,
    conditional_poisson_joint,
    conditional_poisson_weights,
)
from tests.sampling.drawing import seeded
from tests.statistical import assert_unbiased

INF = math.inf
LOG_W = torch.tensor([0.3, 2.0, -1.0, 3.5, 0.0, 1.0], dtype=torch.float64)


def law_of_sets(log_w: list[float], k: int) -> dict[tuple[int, ...], float]:
    """Log-probability of each set."""
    logs = {s: math.fsum(log_w[i] for i in s) for s in itertools.combinations(range(len(log_w)), k)}
    top = max(logs.values())
    total = top + math.log(math.fsum(math.exp(v - top) for v in logs.values()))
    return {s: v - total for s, v in logs.items()}


def enumerated(log_w: list[float], k: int, *ids: int) -> float:
    """Log-probability that all of `ids` are in the draw."""
    logs = [v for s, v in law_of_sets(log_w, k).items() if set(ids) <= set(s)]
    if not logs:
        return -INF
    return max(logs) + math.log(math.fsum(math.exp(v - max(logs)) for v in logs))


@pytest.mark.parametrize("scale", [0.1, 1, 10, 1000])
def test_inclusion_probabilities_equal_enumeration_down_to_exp_minus_a_thousand(scale: float) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 9):
        log_w = (rng.normal(size=n) * scale).tolist()
        for k in range(n + 1):
            got = conditional_poisson_inclusion(torch.tensor(log_w, dtype=torch.float64), k).tolist()
            assert got == pytest.approx([enumerated(log_w, k, i) for i in range(n)], rel=1e-11, abs=1e-12)


def test_a_sample_that_is_nearly_certain_keeps_every_digit_of_what_is_not() -> None:
    log_w = [0.0, -1000.0, -2000.0, -2000.5]
    got = conditional_poisson_inclusion(torch.tensor(log_w, dtype=torch.float64), 2)
    assert got.tolist() == pytest.approx([enumerated(log_w, 2, i) for i in range(4)], rel=1e-13)
    assert float(got[2]) == pytest.approx(-1000)


def test_fourier_sum_and_polynomials_agree_where_one_takes_over_from_the_other() -> None:
    rng = np.random.default_rng(1)
    for k, gap in ((5, 2.0), (40, 4.0)):
        x = rng.normal(size=9000) - 9
        x[:k] = rng.normal(size=k) + gap
        c = tilt(x, k)
        p, q = coins(x, c)
        assert 0.3 < p @ q < 6
        by_fourier = inclusion_by_fourier(x, c, p, q, k)
        np.testing.assert_allclose(inclusion_by_series(x + c, k), by_fourier, rtol=1e-10, atol=1e-11)
        assert np.exp(by_fourier).sum() == pytest.approx(k, rel=1e-11)


@pytest.mark.parametrize(("n", "k"), [(1000, 1), (1000, 500), (1000, 999), (100_000, 10_000)])
def test_probabilities_sum_to_k_at_any_size(n: int, k: int) -> None:
    log_w = torch.randn(n, generator=seeded(1), dtype=torch.float64) * 3
    assert float(conditional_poisson_inclusion(log_w, k).exp().sum()) == pytest.approx(k, rel=1e-11)
    assert float(conditional_poisson_inclusion(-log_w, n - k).exp().sum()) == pytest.approx(n - k, rel=1e-11)


def test_equal_weights_are_simple_random_sampling() -> None:
    pi = conditional_poisson_inclusion(torch.full((700,), -5.0, dtype=torch.float64), 91)
    assert pi.exp().tolist() == pytest.approx([0.13] * 700, rel=1e-12)
    joint = conditional_poisson_joint(torch.zeros(7), 3)
    assert float(joint[0, 1]) == pytest.approx(3 * 2 / (7 * 6), rel=1e-6)


def test_sets_come_in_proportion_to_the_product_of_their_weights() -> None:
    law = law_of_sets((LOG_W / 2).tolist(), 3)
    draws = conditional_poisson((LOG_W / 2).expand(40_000, 6), 3, generator=seeded(2))
    code = (2**draws.ids).sum(-1)
    seen = torch.stack([code == sum(2**i for i in s) for s in law], -1)
    assert_unbiased(seen.double(), [math.exp(v) for v in law.values()])


def test_large_draws_come_in_halves_with_the_same_law() -> None:
    """Frequencies of candidates and of neighbouring pairs, where the variance of 50 needs two cuts."""
    log_w = torch.randn(300, generator=seeded(3), dtype=torch.float64).sort().values
    draws = conditional_poisson(log_w.expand(10_000, 300), 100, generator=seeded(4))
    seen = torch.zeros(10_000, 300, dtype=torch.float64).scatter_(-1, draws.ids, 1.0)
    assert bool((seen.sum(-1) == 100).all())
    assert bool((draws.ids.diff(dim=-1) > 0).all())
    assert_unbiased(seen, conditional_poisson_inclusion(log_w, 100).exp())
    joint = conditional_poisson_joint(log_w, 100)
    for shift in (1, 100, 200):
        assert_unbiased(seen[:, shift:] * seen[:, :-shift], joint.diagonal(shift))
    half = seen[:, 200:].sum(-1)
    assert_unbiased(
        (half - half.mean()).square(),
        float((joint - torch.outer(joint.diag(), joint.diag()))[200:, 200:].sum()),
    )


def test_joint_probabilities_equal_enumeration_and_never_exceed_the_product() -> None:
    joint = conditional_poisson_joint(LOG_W, 3)
    want = [[math.exp(enumerated(LOG_W.tolist(), 3, i, j)) for j in range(6)] for i in range(6)]
    np.testing.assert_allclose(joint, want, atol=1e-13)
    single = joint.diag()
    off = ~torch.eye(6, dtype=torch.bool)
    assert bool((joint < torch.outer(single, single))[off].all())
    some = torch.tensor([4, 1, 1])
    torch.testing.assert_close(conditional_poisson_joint(LOG_W, 3, some), joint[some][:, some])
    assert conditional_poisson_joint(torch.tensor([0.0, -INF, 0.0]), 2).tolist() == [
        [1, 0, 1],
        [0, 0, 0],
        [1, 0, 1],
    ]


def test_weights_found_for_probabilities_give_them_back() -> None:
    for n, k, scale in ((5, 2, 3.0), (20, 1, 3.0), (20, 19, 3.0), (3, 2, 0.3), (1000, 100, 2.0)):
        log_w = torch.randn(n, generator=seeded(n), dtype=torch.float64) * scale
        log_w -= log_w.mean()
        found = conditional_poisson_weights(conditional_poisson_inclusion(log_w, k).exp())
        torch.testing.assert_close(found, log_w, atol=1e-8, rtol=1e-8)
    pi = torch.tensor([[0.5, 1.0, 0.5, 0.0, 1.0], [0.6, 0.6, 0.6, 0.6, 0.6]], dtype=torch.float64)
    again = conditional_poisson_inclusion(conditional_poisson_weights(pi), 3).exp()
    torch.testing.assert_close(again, pi, atol=1e-12, rtol=0)
    single = torch.tensor([0.2, 0.7, 0.1])  # float32 does not sum to 1 exactly
    torch.testing.assert_close(
        conditional_poisson_inclusion(conditional_poisson_weights(single), 1).exp().float(), single
    )


def test_draws_know_their_design() -> None:
    draws = conditional_poisson(LOG_W, 3, generator=seeded(5))
    every = conditional_poisson_inclusion(LOG_W, 3)
    assert draws.log_expected.tolist() == every[draws.ids].tolist()
    assert draws.log_expected_of(torch.tensor([0, 6, -1])).tolist() == [float(every[0]), -INF, -INF]
    masked = torch.tensor([0.0, -INF, 1.0, 2.0])
    assert conditional_poisson(masked, 3).ids.tolist() == [0, 2, 3]
    assert conditional_poisson(masked, 3).log_expected.tolist() == [0, 0, 0]
    assert conditional_poisson(masked, 0).ids.shape == (0,)
    assert conditional_poisson_inclusion(masked, 0).tolist() == [-INF] * 4
    assert conditional_poisson(torch.tensor([-7.0]), 1).ids.tolist() == [0]


def test_a_common_factor_cancels_and_inputs_are_not_changed() -> None:
    log_w = LOG_W.clone()
    a = conditional_poisson(log_w, 3, generator=seeded(6))
    b = conditional_poisson(log_w + 500, 3, generator=seeded(6))
    assert a.ids.tolist() == b.ids.tolist()
    torch.testing.assert_close(a.log_expected, b.log_expected)
    assert log_w.tolist() == LOG_W.tolist()
    assert conditional_poisson(LOG_W.bfloat16(), 2).log_expected.dtype == torch.float32
    assert conditional_poisson(torch.zeros(2, 3, 7), 4).ids.shape == (2, 3, 4)


def test_bad_input_is_refused() -> None:
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match=r"NaN or \+inf"):
            conditional_poisson(torch.tensor([0.0, bad]), 1)
    for k in (-1, 3):
        with pytest.raises(ValueError, match="2 in the row with the fewest"):
            conditional_poisson(torch.tensor([[0.0, 1.0, -INF], [0.0, 0.0, 0.0]]), k)
    with pytest.raises(TypeError, match="floating"):
        conditional_poisson(torch.tensor([1, 2]), 1)
    with pytest.raises(TypeError, match="integer"):
        conditional_poisson(LOG_W, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one vector"):
        conditional_poisson_joint(torch.zeros(2, 3), 1)
    with pytest.raises(ValueError, match="same integer"):
        conditional_poisson_weights(torch.tensor([0.5, 0.2]))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        conditional_poisson_weights(torch.tensor([1.5, 0.5]))
