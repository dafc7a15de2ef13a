"""The spherical family: moments without logits, invariances, and plain loops."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.spherical import (
    LogitMoments,
    log_taylor_softmax,
    logit_moments,
    moments_of_logits,
    spherical_squared_error,
    z_loss,
)

Y = torch.tensor([3, 0, 8, 8])


def case() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return make(4, 3), make(9, 3) + torch.tensor([2.0, 0.0, -1.0])


def losses(m: LogitMoments) -> list[Tensor]:
    return [
        z_loss(m, a=0.7, b=1.2, reduction="none"),
        log_taylor_softmax(m, reduction="none"),
        spherical_squared_error(m, reduction="none"),
    ]


def test_moments_equal_those_of_the_logits_gradients_too() -> None:
    h, w = (v.requires_grad_() for v in case())
    cheap, dense = logit_moments(h, w, Y), moments_of_logits(h @ w.T, Y)
    for a, b in zip(cheap[:3], dense[:3], strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(losses(cheap), losses(dense), strict=True):
        torch.testing.assert_close(a, b)
        for x, y in zip(
            torch.autograd.grad(a.sum(), (h, w), retain_graph=True),
            torch.autograd.grad(b.sum(), (h, w), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(x, y)


def test_losses_equal_plain_loops() -> None:
    h, w = case()
    got = losses(logit_moments(h, w, Y))
    for i in range(4):
        o = [float(h[i] @ row) for row in w]
        mean = sum(o) / 9
        deviation = math.sqrt(sum((v - mean) ** 2 for v in o) / 9)
        z = (o[Y[i]] - mean) / deviation
        taylor = [1 + v + v * v / 2 for v in o]
        want = [
            math.log(1 + math.exp(0.7 * (1.2 - z))) / 0.7,
            math.log(sum(taylor) / taylor[Y[i]]),
            sum((v - (c == int(Y[i]))) ** 2 for c, v in enumerate(o)),
        ]
        assert [float(v[i]) for v in got] == pytest.approx(want, abs=1e-10)


def test_shifting_and_scaling_logits_leaves_the_z_loss_alone() -> None:
    h, w = case()
    o = h @ w.T
    want = z_loss(moments_of_logits(o, Y), b=1.0)
    torch.testing.assert_close(z_loss(moments_of_logits(5 * o - 3, Y), b=1.0), want)
    assert not torch.allclose(z_loss(moments_of_logits(-o, Y), b=1.0), want)
    assert not torch.allclose(
        log_taylor_softmax(moments_of_logits(5 * o, Y)), log_taylor_softmax(moments_of_logits(o, Y))
    )


def test_small_logits_make_the_taylor_softmax_a_softmax() -> None:
    h, w = case()
    o = 0.01 * h @ w.T
    want = torch.nn.functional.cross_entropy(o, Y)
    torch.testing.assert_close(log_taylor_softmax(moments_of_logits(o, Y)), want, atol=1e-5, rtol=0)


def test_a_large_common_mean_keeps_its_digits_in_single_precision() -> None:
    h, w = case()
    far = (w + 1000).float()
    got = z_loss(logit_moments(h.float(), far, Y), b=1.0, reduction="none")
    want = z_loss(logit_moments(h.float().double(), far.double(), Y), b=1.0, reduction="none")
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=0)


def test_training_with_the_z_loss_ranks_the_own_class_first() -> None:
    g = torch.Generator().manual_seed(1)
    h = torch.randn(60, 8, generator=g)
    y = (h @ torch.randn(8, 6, generator=g)).argmax(1)
    w = (0.1 * torch.randn(6, 8, generator=g)).requires_grad_()
    optimiser = torch.optim.Adam([w], lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        z_loss(logit_moments(h, w, y), b=1.5).backward()
        optimiser.step()
    assert float(((h @ w.detach().T).argmax(1) == y).float().mean()) > 0.9


def test_gradients_agree_with_finite_differences() -> None:
    h, w = (v.requires_grad_() for v in case())
    assert torch.autograd.gradcheck(lambda a, b: losses(logit_moments(a, b, Y)), (h, w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_one_class_and_nothing(dtype: torch.dtype) -> None:
    h, w = (v.to(dtype).requires_grad_() for v in case())
    exact = losses(logit_moments(h.detach().double(), w.detach().double(), Y))
    for got, want in zip(losses(logit_moments(h, w, Y)), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
        assert all(v.isfinite().all() for v in torch.autograd.grad(got.sum(), (h, w), retain_graph=True))
    one = logit_moments(h, w[:1], torch.zeros(4, dtype=torch.long))
    assert float(log_taylor_softmax(one).detach()) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="are equal"):
        z_loss(one, b=1.0)
    nobody = logit_moments(h[:0], w, Y[:0])
    assert float(z_loss(nobody, b=1.0, reduction="sum").detach()) == 0
    with pytest.raises(ValueError, match="no query"):
        log_taylor_softmax(nobody)


def test_what_is_wrong_is_named() -> None:
    h, w = case()
    with pytest.raises(ValueError, match="0 to 8"):
        logit_moments(h, w, Y + 1)
    with pytest.raises(ValueError, match="0 to 8"):
        moments_of_logits(h @ w.T, Y - 1)
    with pytest.raises(ValueError, match="weight"):
        logit_moments(h, w[:, :2], Y)
    with pytest.raises(ValueError, match="C above 0"):
        logit_moments(h, w[:0], Y)
    with pytest.raises(TypeError, match="floating"):
        moments_of_logits(torch.zeros(4, 9, dtype=torch.long), Y)
    m = logit_moments(h, w, Y)
    with pytest.raises(ValueError, match="a must"):
        z_loss(m, a=0.0, b=1.0)
    with pytest.raises(ValueError, match="b must"):
        z_loss(m, b=math.inf)
