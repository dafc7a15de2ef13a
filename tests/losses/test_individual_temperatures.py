"""Robust contrast: its dual, its best temperature, and learning temperatures with small batches."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from steelyard.losses.individual_temperatures import (
    IndividualTemperatures,
    robust_contrastive,
    robust_temperature,
)


def case(n: int = 4, k: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    positive = torch.rand(n, generator=g, dtype=torch.float64)
    negative = torch.tanh(torch.randn(n, k, generator=g, dtype=torch.float64) - 0.3)
    log_expected = torch.randn(n, k, generator=g, dtype=torch.float64)
    mask = torch.zeros(n, k, dtype=torch.bool)
    mask[0, 0] = mask[1, 3] = True
    return positive, negative, log_expected, mask


def test_it_equals_a_plain_loop() -> None:
    positive, negative, log_expected, mask = case()
    t = torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=torch.float64)
    got = robust_contrastive(positive, negative, log_expected, mask, temperature=t, rho=0.7, reduction="none")
    for i in range(4):
        kept = [j for j in range(6) if not mask[i, j]]
        w = {j: math.exp(-log_expected[i, j]) for j in kept}
        mean = sum(w[j] * math.exp(float(negative[i, j] - positive[i]) / float(t[i])) for j in kept)
        want = float(t[i]) * (math.log(mean / sum(w.values())) + 0.7)
        assert float(got[i]) == pytest.approx(want, abs=1e-10)


def test_the_best_temperature_attains_the_worst_case_over_the_ball() -> None:
    positive, negative, _, _ = case()
    rho = 0.4
    t = robust_temperature(negative, rho=rho)
    dual = robust_contrastive(positive, negative, temperature=t, rho=rho, reduction="none")
    for i in range(4):
        h = (negative[i] - positive[i]).numpy()
        found = optimize.minimize(
            lambda p, h=h: -p @ h,
            np.full(6, 1 / 6),
            bounds=[(1e-12, 1)] * 6,
            constraints=[
                {"type": "eq", "fun": lambda p: p.sum() - 1},
                {"type": "ineq", "fun": lambda p: rho - (p * np.log(6 * p)).sum()},
            ],
            options={"ftol": 1e-13, "maxiter": 500},
        )
        assert float(dual[i]) == pytest.approx(-found.fun, abs=1e-6)
        p = torch.softmax(negative[i] / t[i], 0)
        assert float((p * (6 * p).log()).sum()) == pytest.approx(rho, abs=1e-9)
        for other in (0.5, 0.9, 1.1, 2.0):
            worse = robust_contrastive(positive[i], negative[i], temperature=other * t[i], rho=rho)
            assert float(worse) > float(dual[i])


def test_the_best_temperature_follows_the_spread_of_the_similarities() -> None:
    _, negative, _, _ = case()
    t = robust_temperature(negative, rho=0.4)
    torch.testing.assert_close(robust_temperature(0.3 * negative - 0.2, rho=0.4), 0.3 * t)
    g = torch.Generator().manual_seed(1)
    normal = 0.2 * torch.randn(1, 200_000, generator=g)
    assert float(robust_temperature(normal, rho=0.5)) == pytest.approx(0.2, rel=0.02)


def test_where_no_temperature_is_rho_away_an_end_is_given() -> None:
    s = torch.tensor([[0.5, 0.1, 0.0, -0.2], [0.3, 0.3, 0.3, 0.3]], dtype=torch.float64)
    t = robust_temperature(s, rho=2.0, least=0.01, most=5.0)
    assert t.tolist() == pytest.approx([0.01, 0.01])
    none = robust_temperature(s, mask=torch.ones(4, dtype=torch.bool), rho=0.1, most=5.0)
    assert none.tolist() == [5.0, 5.0]
    assert robust_temperature(s[:, :0], rho=0.1, most=5.0).tolist() == [5.0, 5.0]


def test_gradients_agree_with_finite_differences_temperature_too() -> None:
    positive, negative, log_expected, mask = case()
    t = torch.tensor([0.3, 0.5, 1.0, 2.0], dtype=torch.float64)
    inputs = [v.requires_grad_() for v in (positive, negative, t)]
    assert torch.autograd.gradcheck(
        lambda p, n, v: robust_contrastive(
            p, n, log_expected, mask, temperature=v, rho=0.2, reduction="none"
        ),
        inputs,
    )


def test_the_first_step_has_the_gradient_of_the_plain_loss_and_the_stated_slope_of_the_temperature() -> None:
    positive, negative, log_expected, mask = case()
    positive, negative = positive.requires_grad_(), negative.requires_grad_()
    learner = IndividualTemperatures(9, temperature=0.3, rho=0.5, learning_rate=0.1, momentum=1.0)
    index = torch.tensor([8, 2, 5, 0])
    got = learner(index, positive, negative, log_expected, mask)
    t = torch.full((4,), 0.3, dtype=torch.float64, requires_grad=True)
    want = robust_contrastive(positive, negative, log_expected, mask, temperature=t, rho=0.5)
    assert float(got.detach()) == pytest.approx(float(want.detach()), rel=1e-6)
    slopes = torch.autograd.grad(want, (positive, negative, t))
    for a, b in zip(torch.autograd.grad(got, (positive, negative)), slopes, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    moved = (0.3 - 0.1 * 4 * slopes[2]).clamp(0.05, 1.0)
    torch.testing.assert_close(learner.temperature[index].double(), moved, rtol=1e-5, atol=1e-6)
    assert float(learner.temperature[1]) == pytest.approx(0.3)


def test_the_moving_average_comes_nearer_the_mean_over_everything_than_single_batches() -> None:
    g = torch.Generator().manual_seed(4)
    everything = torch.tanh(torch.randn(2000, generator=g))
    full = float(torch.logsumexp(everything / 0.1, 0)) - math.log(2000)
    learner = IndividualTemperatures(1, temperature=0.1, decay=0.05, learning_rate=0.0)
    single = []
    for _ in range(400):
        drawn = everything[torch.randint(2000, (1, 8), generator=g)]
        learner(torch.tensor([0]), torch.zeros(1), drawn)
        single.append(float(torch.logsumexp(drawn / 0.1, 1)) - math.log(8))
    assert abs(float(learner.log_mean) - full) < abs(np.mean(single) - full) / 2


def test_learned_temperatures_settle_where_the_divergence_is_rho() -> None:
    _, negative, _, _ = case()
    s = negative.float()
    learner = IndividualTemperatures(
        4, temperature=0.5, rho=0.4, decay=1.0, learning_rate=0.05, least=0.01, most=5.0
    )
    for _ in range(600):
        learner(torch.arange(4), torch.zeros(4), s)
    torch.testing.assert_close(learner.temperature, robust_temperature(s, rho=0.4), rtol=1e-3, atol=1e-3)
    before = learner.temperature.clone(), learner.log_mean.clone()
    learner.eval()
    learner(torch.arange(4), torch.zeros(4), s)
    assert torch.equal(learner.temperature, before[0])
    assert torch.equal(learner.log_mean, before[1])


def test_anchors_without_negatives_cost_nothing_and_change_nothing() -> None:
    positive, negative, _, _ = case()
    nothing = torch.ones(4, 6, dtype=torch.bool)
    positive.requires_grad_()
    for n, m in ((negative, nothing), (negative[:, :0], None)):
        loss = robust_contrastive(positive, n, mask=m, temperature=0.1, rho=1.0)
        assert float(loss.detach()) == 0
        learner = IndividualTemperatures(4)
        learned = learner(torch.arange(4), positive, n, mask=m)
        assert float(learned.detach()) == 0
        for value in (loss, learned):
            assert not torch.autograd.grad(value, positive)[0].any()
        assert learner.log_mean.isnan().all()
    with pytest.raises(ValueError, match="no query"):
        robust_contrastive(torch.zeros(0), torch.zeros(0, 3), temperature=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cold_temperatures_stay_finite_in_low_precision(dtype: torch.dtype) -> None:
    positive, negative, _, _ = case()
    p, n = (v.to(dtype).requires_grad_() for v in (positive, negative))
    learner = IndividualTemperatures(4, temperature=1e-3, least=1e-3)
    for loss in (robust_contrastive(p, n, temperature=1e-4), learner(torch.arange(4), p, n)):
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (p, n)))
    assert learner.temperature.isfinite().all()


def test_what_is_wrong_is_named() -> None:
    positive, negative, _, _ = case()
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="temperature"):
            robust_contrastive(positive, negative, temperature=wrong)
    with pytest.raises(ValueError, match="does not broadcast"):
        robust_contrastive(positive, negative, temperature=torch.ones(3))
    with pytest.raises(ValueError, match="rho"):
        robust_contrastive(positive, negative, temperature=1.0, rho=-1.0)
    with pytest.raises(ValueError, match="rho"):
        robust_temperature(negative, rho=0.0)
    with pytest.raises(ValueError, match="least <= temperature"):
        IndividualTemperatures(3, temperature=2.0)
    with pytest.raises(ValueError, match="decay"):
        IndividualTemperatures(3, decay=0.0)
    learner = IndividualTemperatures(3)
    with pytest.raises(ValueError, match="0 to 2"):
        learner(torch.arange(4), positive, negative)
    with pytest.raises(ValueError, match="twice"):
        learner(torch.tensor([0, 1, 1, 2]), positive, negative)
    with pytest.raises(TypeError, match="integers"):
        learner(torch.zeros(4), positive, negative)
    with pytest.raises(ValueError, match="index"):
        learner(torch.arange(3), positive, negative)


def test_what_is_nan_has_no_temperature() -> None:
    negative = torch.tensor([[0.1, math.nan, 0.3], [0.1, 0.2, 0.3]])
    assert robust_temperature(negative, rho=0.1).isnan().tolist() == [True, False]
    ones = torch.tensor([[0.1, 0.2, 0.3]])
    counts = torch.tensor([[0.0, math.nan, 0.0]])
    assert bool(robust_temperature(ones, counts, rho=0.1).isnan())
    assert bool(robust_contrastive(torch.zeros(1), ones, counts, temperature=0.5).isnan())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_batch_that_is_not_finite_leaves_what_was_learned_alone(wrong: float) -> None:
    learner = IndividualTemperatures(2)
    index, positive = torch.arange(2), torch.full((2,), 0.5)
    negative = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    learner(index, positive, negative)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    with pytest.raises(ValueError, match="not finite"):
        learner(index, positive, negative.index_fill(1, torch.tensor([0]), wrong))
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())
    masked = negative.index_fill(1, torch.tensor([0]), wrong)
    learner(index, positive, masked, mask=~masked.isfinite())
    assert all(bool(value.isfinite().all()) for value in learner.state_dict().values())
