"""The self-consistent robust error: bounds by distances, the Brier score, and a toy posterior."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.self_consistent_robust import linf_perturbation, self_consistent_loss


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def case() -> tuple[Tensor, Tensor, Tensor]:
    g = seeded()
    a, b = (torch.randn(30, 4, generator=g, dtype=torch.float64) for _ in range(2))
    return a, a + 0.7 * b, torch.randint(4, (30,), generator=g)


def test_the_loss_equals_a_plain_loop() -> None:
    a, b, y = case()
    got = self_consistent_loss(a, b, y, beta=3.0, reduction="none")
    for i in range(30):
        p = [math.exp(v) / sum(math.exp(u) for u in a[i].tolist()) for v in a[i].tolist()]
        q = [math.exp(v) / sum(math.exp(u) for u in b[i].tolist()) for v in b[i].tolist()]
        want = sum((v - (c == int(y[i]))) ** 2 for c, v in enumerate(p))
        want += 3 * sum((v - u) ** 2 for v, u in zip(p, q, strict=True))
        assert float(got[i]) == pytest.approx(want, abs=1e-12)
    torch.testing.assert_close(self_consistent_loss(a, b, y, beta=3.0), got.mean())


def test_without_a_perturbation_it_is_the_brier_score() -> None:
    a, _, y = case()
    hot = torch.nn.functional.one_hot(y, 4).double()
    brier = (a.softmax(1) - hot).square().sum(1)
    torch.testing.assert_close(self_consistent_loss(a, a, y, beta=2.0, reduction="none"), brier)
    torch.testing.assert_close(self_consistent_loss(a, a, hot, beta=2.0, reduction="none"), brier)


@pytest.mark.parametrize("beta", [0.2, 1.0, 5.0])
def test_the_robust_error_lies_within_the_bounds_of_the_triangle_inequality(beta: float) -> None:
    a, b, y = case()
    hot = torch.nn.functional.one_hot(y, 4).double()
    robust = (hot - b.softmax(1)).norm(dim=1)
    standard, moved = (hot - a.softmax(1)).norm(dim=1), (b.softmax(1) - a.softmax(1)).norm(dim=1)
    assert bool(((standard - moved).abs() <= robust).all())
    assert bool((robust <= standard + moved).all())
    loss = self_consistent_loss(a, b, y, beta=beta, reduction="none")
    assert bool((robust.square() <= (1 + 1 / beta) * loss).all())
    # met where both steps go one way, the first beta times as far
    far = 0.5 / (1 + beta)
    p, q = (torch.tensor([[1 - v, v]], dtype=torch.float64) for v in (beta * far, 0.5))
    least = self_consistent_loss(p.log(), q.log(), torch.tensor([0]), beta=beta)
    assert (1 + 1 / beta) * float(least) == pytest.approx(2 * 0.5**2)


def test_the_true_posterior_is_self_consistent_but_for_its_slope_and_an_invariant_model_is_not() -> None:
    x = torch.linspace(-3, 3, 61, dtype=torch.float64).unsqueeze(1)
    epsilon, slope = 0.1, 2.0
    posterior = lambda v: torch.cat([slope * v, torch.zeros_like(v)], 1)  # noqa: E731
    truth = posterior(x).softmax(1)
    moved = linf_perturbation(posterior, x, epsilon, generator=seeded())
    own = self_consistent_loss(posterior(x), posterior(moved), truth, beta=1.0, reduction="none")
    assert float(own.max()) <= 2 * (slope / 4 * epsilon) ** 2  # sigmoid is Lipschitz with slope / 4
    assert float(own.max()) > 0.9 * 2 * (slope / 4 * epsilon) ** 2
    for steep in (0.0, 0.5, 8.0):
        other = lambda v, s=steep: torch.cat([s * v, torch.zeros_like(v)], 1)  # noqa: E731
        worst = linf_perturbation(other, x, epsilon, generator=seeded())
        assert float(self_consistent_loss(other(x), other(worst), truth, beta=1.0)) > 2 * float(own.mean())


def test_the_perturbation_reaches_the_worst_point_of_a_grid() -> None:
    g = seeded(2)
    w, x = (
        torch.randn(2, 3, generator=g, dtype=torch.float64),
        torch.randn(20, 2, generator=g, dtype=torch.float64),
    )
    predict = lambda v: v @ w  # noqa: E731
    moved = linf_perturbation(predict, x, 0.2, generator=seeded())
    assert float((moved - x).abs().max()) <= 0.2 + 1e-12
    far = (predict(moved).softmax(1) - predict(x).softmax(1)).norm(dim=1)
    steps = torch.linspace(-0.2, 0.2, 21, dtype=torch.float64)
    grid = torch.cartesian_prod(steps, steps)
    best = (
        (predict(x.unsqueeze(1) + grid).softmax(-1) - predict(x).softmax(1).unsqueeze(1)).norm(dim=-1).amax(1)
    )
    assert bool((far <= best + 1e-12).all())
    assert float((far / best).median()) > 0.999
    # from its random start, ascent may end at the lesser of two maxima, on opposite sides
    assert float((far / best).min()) > 0.6


def test_bounds_of_the_inputs_hold_and_no_gradient_is_left_on_the_model() -> None:
    model = torch.nn.Linear(2, 3)
    x = torch.rand(10, 2, generator=seeded())
    kept = x.clone()
    moved = linf_perturbation(model, x, 0.5, low=0.0, high=1.0, generator=seeded())
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    assert torch.equal(x, kept)
    assert not moved.requires_grad
    assert model.weight.grad is None
    assert torch.equal(moved, linf_perturbation(model, x, 0.5, low=0.0, high=1.0, generator=seeded()))
    torch.testing.assert_close(linf_perturbation(model, x, 0.0), x)
    with torch.no_grad():
        assert not torch.equal(linf_perturbation(model, x, 0.5, generator=seeded()), x)


def test_gradients_flow_through_both_predictions() -> None:
    a, b, y = case()
    assert torch.autograd.gradcheck(
        lambda u, v: self_consistent_loss(u, v, y[:3], beta=2.0),
        (a[:3].clone().requires_grad_(), b[:3].clone().requires_grad_()),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_and_nothing(dtype: torch.dtype) -> None:
    a, b, y = case()
    low = self_consistent_loss(a.to(dtype), b.to(dtype), a.softmax(1).to(dtype), beta=1.0)
    assert low.dtype == torch.float32
    want = self_consistent_loss(a.to(dtype).double(), b.to(dtype).double(), a.softmax(1), beta=1.0)
    torch.testing.assert_close(low.double(), want, atol=2e-3, rtol=0)
    assert float(self_consistent_loss(a[:0], b[:0], y[:0], beta=1.0, reduction="sum")) == 0
    assert math.isnan(float(self_consistent_loss(a * math.nan, b, y, beta=1.0)))


def test_what_is_wrong_is_named() -> None:
    a, b, y = case()
    with pytest.raises(TypeError, match="floating"):
        self_consistent_loss(a.long(), b, y, beta=1.0)
    with pytest.raises(ValueError, match="one shape"):
        self_consistent_loss(a, b[:2], y, beta=1.0)
    with pytest.raises(ValueError, match="0 to 3"):
        self_consistent_loss(a, b, y + 4, beta=1.0)
    with pytest.raises(ValueError, match="beta"):
        self_consistent_loss(a, b, y, beta=0.0)
    with pytest.raises(ValueError, match="sum 1"):
        self_consistent_loss(a, b, a, beta=1.0)
    with pytest.raises(ValueError, match="as the logits"):
        self_consistent_loss(a, b, a[:, :2], beta=1.0)
    with pytest.raises(ValueError, match="epsilon"):
        linf_perturbation(lambda v: v, a, -1.0)
    with pytest.raises(ValueError, match="steps"):
        linf_perturbation(lambda v: v, a, 1.0, steps=0)
    with pytest.raises(ValueError, match="low and high"):
        linf_perturbation(lambda v: v, a, 1.0, low=0.0)
    with pytest.raises(TypeError, match="floating"):
        linf_perturbation(lambda v: v, a.long(), 1.0)
