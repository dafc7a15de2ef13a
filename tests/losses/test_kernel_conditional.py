"""Kernel conditional contrast: its weights' limits, plain loops, and a condition that is kept out."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.kernel_conditional import conditional_contrastive, kernel_weights
from steelyard.losses.softmax import sampled_softmax

Z = torch.tensor([0, 0, 0, 1, 1, 2, 2])


def delta() -> Tensor:
    return (Z[:, None] == Z).double()


def scores(n: int = 7) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.rand(n, n, generator=g, dtype=torch.float64) * 2 - 1


def smooth() -> Tensor:
    g = torch.Generator().manual_seed(1)
    z = torch.randn(7, 1, generator=g, dtype=torch.float64)
    return torch.exp(-((z - z.T) ** 2) / 0.5)


def test_weights_solve_the_ridge_regression() -> None:
    k = smooth()
    w = kernel_weights(k, ridge=0.3)
    torch.testing.assert_close((k + 0.3 * torch.eye(7, dtype=torch.float64)) @ w, k)
    torch.testing.assert_close(w, torch.linalg.inv(k + 0.3 * torch.eye(7, dtype=torch.float64)) @ k)


def test_discrete_conditions_give_group_means_a_constant_kernel_the_mean_and_a_large_ridge_nothing() -> None:
    w = kernel_weights(delta(), ridge=1e-9)
    torch.testing.assert_close(w, delta() / delta().sum(1), atol=1e-8, rtol=0)
    torch.testing.assert_close(kernel_weights(delta(), ridge=2.0), delta() / (delta().sum(1) + 2))
    mean = kernel_weights(torch.ones(7, 7, dtype=torch.float64), ridge=1e-9)
    torch.testing.assert_close(mean, torch.full((7, 7), 1 / 7, dtype=torch.float64), atol=1e-8, rtol=0)
    assert float(kernel_weights(smooth(), ridge=1e6).abs().max()) < 1e-5


@pytest.mark.parametrize("own", [False, True])
def test_both_losses_equal_plain_loops(own: bool) -> None:
    s, t = scores(), 0.4
    w = kernel_weights(smooth(), ridge=0.05) * (1 + scores().T)  # not symmetric: anchor i has column i
    assert bool((w < 0).any())
    negatives = conditional_contrastive(s, w, temperature=t, with_own=own, reduction="none")
    positives = conditional_contrastive(
        s, w, conditional="positives", temperature=t, with_own=own, reduction="none"
    )
    for i in range(7):
        c = sum(max(float(w[j, i]), 0) * math.exp(s[i, j] / t) for j in range(7) if own or j != i)
        e = math.exp(s[i, i] / t)
        rest = sum(math.exp(s[i, j] / t) for j in range(7) if j != i)
        assert float(negatives[i]) == pytest.approx(-math.log(e / (e + 6 * c)), abs=1e-10)
        assert float(positives[i]) == pytest.approx(-math.log(c / (c + rest)), abs=1e-10)


def test_groups_give_info_nce_against_ones_own_group() -> None:
    s = scores()
    w = kernel_weights(delta(), ridge=1e-10)
    got = conditional_contrastive(s, w, temperature=1.0, reduction="none")
    for i in range(7):
        own = [j for j in range(7) if Z[j] == Z[i] and j != i]
        n = len(own) + 1  # each negative of the group stands for 6 / n
        want = sampled_softmax(s[i, i], s[i, own], torch.tensor(math.log(n / 6)))
        assert float(got[i]) == pytest.approx(float(want), abs=1e-7)


def test_conditional_negatives_leave_no_use_for_the_condition() -> None:
    g = torch.Generator().manual_seed(2)
    z = torch.randint(2, (60,), generator=g)
    content = torch.randn(60, 2, generator=g)
    x = torch.cat([content + 0.1 * torch.randn(60, 2, generator=g), 3.0 * z[:, None] - 1.5], 1)
    y = torch.cat([content + 0.1 * torch.randn(60, 2, generator=g), 3.0 * z[:, None] - 1.5], 1)
    used = []
    for kernel in (torch.ones(60, 60), (z[:, None] == z).float()):
        w = kernel_weights(kernel, ridge=0.01)
        scale = torch.zeros(3, requires_grad=True)  # how much each coordinate counts in the score
        optimiser = torch.optim.Adam([scale], lr=0.05)
        for _ in range(100):
            s = -((x * scale)[:, None] - (y * scale)).square().sum(2)
            optimiser.zero_grad()
            (conditional_contrastive(s, w, temperature=1.0) + 1e-3 * (scale - 0.3).square().sum()).backward()
            optimiser.step()
        used.append(float(scale.detach()[2].abs() / scale.detach()[:2].abs().mean()))
    assert used[0] > 2 * used[1]


def test_gradients_agree_with_finite_differences() -> None:
    s, w = scores().requires_grad_(), kernel_weights(smooth())
    for mode in ("negatives", "positives"):
        assert torch.autograd.gradcheck(
            lambda v, mode=mode: conditional_contrastive(v, w, conditional=mode, reduction="none"), (s,)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["negatives", "positives"])
def test_lonely_conditions_low_precision_and_single_pairs(mode, dtype) -> None:  # type: ignore[no-untyped-def]
    low = scores().to(dtype).requires_grad_()
    alone = kernel_weights(torch.eye(7))
    loss = conditional_contrastive(low, alone, conditional=mode)
    (gradient,) = torch.autograd.grad(loss, low)
    assert float(loss.detach()) == 0
    assert not gradient.any()
    w = kernel_weights(smooth())
    loss = conditional_contrastive(low, w, conditional=mode, temperature=1e-3)
    assert torch.autograd.grad(loss, low)[0].isfinite().all()
    want = conditional_contrastive(low.detach().double(), w, conditional=mode, temperature=1e-3)
    assert float(loss.detach()) == pytest.approx(float(want), rel=1e-5)
    one = torch.zeros(1, 1, requires_grad=True)
    for own in (False, True):
        loss = conditional_contrastive(one, kernel_weights(torch.ones(1, 1)), conditional=mode, with_own=own)
        assert torch.autograd.grad(loss, one)[0].isfinite().all()
    none = torch.zeros(0, 0)
    assert float(conditional_contrastive(none, kernel_weights(none), conditional=mode, reduction="sum")) == 0


def test_what_is_wrong_is_named() -> None:
    s, w = scores(), kernel_weights(delta())
    with pytest.raises(ValueError, match="positive definite"):
        kernel_weights(-delta())
    with pytest.raises(ValueError, match="ridge"):
        kernel_weights(delta(), ridge=0.0)
    with pytest.raises(ValueError, match=r"\(B, B\)"):
        kernel_weights(s[:3])
    with pytest.raises(TypeError, match="floating"):
        kernel_weights(delta().long())
    with pytest.raises(ValueError, match="conditional"):
        conditional_contrastive(s, w, conditional="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature"):
        conditional_contrastive(s, w, temperature=0.0)
    with pytest.raises(ValueError, match="weights"):
        conditional_contrastive(s, w[:3])
    with pytest.raises(ValueError, match="NaN"):
        conditional_contrastive(s, w * math.nan)
