"""Multiscale structural similarity: a plain loop, what it overlooks, and what it does not."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from steelyard.losses.structural_similarity import ms_ssim_loss

SMALL: dict[str, Any] = {"scale_weights": (0.3, 0.5, 0.2), "window_size": 3, "sigma": 0.8}


def case(size: tuple[int, int] = (14, 13), dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(2, 3, *size, generator=g, dtype=torch.float64).cumsum(3) / size[1]
    noise = torch.rand(2, 3, *size, generator=g, dtype=torch.float64)
    return x.to(dtype), (0.7 * x + 0.2 * noise).to(dtype)


def by_loops(x: Tensor, y: Tensor, data_range: float = 1.0) -> float:
    """One channel, (H, W), by sums over the pixels of each window."""
    taps = [math.exp(-(t * t) / (2 * 0.8**2)) for t in (-1, 0, 1)]
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    out = 1.0
    for scale, weight in enumerate(SMALL["scale_weights"]):
        found = []
        for i in range(len(x) - 2):
            for j in range(x.shape[1] - 2):
                w = torch.tensor([[p * q / sum(taps) ** 2 for q in taps] for p in taps], dtype=x.dtype)
                a, b = x[i : i + 3, j : j + 3], y[i : i + 3, j : j + 3]
                ma, mb = float((w * a).sum()), float((w * b).sum())
                va, vb = float((w * (a - ma) ** 2).sum()), float((w * (b - mb) ** 2).sum())
                cov = float((w * (a - ma) * (b - mb)).sum())
                term = (2 * cov + c2) / (va + vb + c2)
                if scale == 2:
                    term *= (2 * ma * mb + c1) / (ma * ma + mb * mb + c1)
                found.append(term)
        out *= (sum(found) / len(found)) ** weight
        h, v = len(x) // 2, x.shape[1] // 2
        x, y = (t[: 2 * h, : 2 * v].reshape(h, 2, v, 2).mean((1, 3)) for t in (x, y))
    return out


def test_the_loss_equals_a_plain_loop() -> None:
    x, y = case()
    got = ms_ssim_loss(x, y, reduction="none", **SMALL)
    for i in range(2):
        want = 1 - sum(by_loops(x[i, c], y[i, c]) for c in range(3)) / 3
        assert float(got[i]) == pytest.approx(want, abs=1e-12)
    assert float(ms_ssim_loss(x, y, **SMALL)) == pytest.approx(float(got.mean()))
    torch.testing.assert_close(ms_ssim_loss(255 * x, 255 * y, data_range=255, reduction="none", **SMALL), got)


def test_equal_images_have_no_loss_and_roles_may_change() -> None:
    x, y = case((180, 176))
    assert float(ms_ssim_loss(x, x)) == pytest.approx(0, abs=1e-12)
    assert 0.01 < float(ms_ssim_loss(x, y)) < 1
    torch.testing.assert_close(ms_ssim_loss(x, y), ms_ssim_loss(y, x))


def test_noise_and_blur_cost_more_the_stronger_and_a_shift_costs_little() -> None:
    x, _ = case((64, 64))
    x = x + 0.2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    options: dict[str, Any] = {"scale_weights": (0.3, 0.7), "window_size": 7}
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    noisy = [float(ms_ssim_loss(x + s * noise, x, **options)) for s in (0.0, 0.02, 0.05, 0.1, 0.3)]
    assert noisy == sorted(noisy)
    blurred = [
        float(
            ms_ssim_loss(
                torch.nn.functional.avg_pool2d(x, k, 1, k // 2, count_include_pad=False), x, **options
            )
        )
        for k in (1, 3, 5, 9)
    ]
    assert blurred == sorted(blurred)
    shifted = float(ms_ssim_loss(x + 0.05, x, **options))  # of the same mean square error as noise of 0.05
    assert shifted < 0.1 * noisy[2]


def test_gradients_agree_with_finite_differences() -> None:
    x, y = case((8, 9))
    options: dict[str, Any] = {"scale_weights": (0.4, 0.6), "window_size": 3}
    one, other = x[:1, :1].clone().requires_grad_(), y[:1, :1].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: ms_ssim_loss(a, b, **options), (one, other))


def test_an_image_and_its_negative_count_as_unlike_without_nan() -> None:
    x = torch.rand(1, 1, 14, 13, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = ms_ssim_loss(x, 1 - x.detach(), **SMALL)
    assert float(loss.detach()) == 1
    assert bool((torch.autograd.grad(loss, x)[0] == 0).all())


def test_descent_on_the_loss_restores_an_image() -> None:
    target, start = case((16, 16))
    guess = start.clone().requires_grad_()
    options: dict[str, Any] = {"scale_weights": (0.5, 0.5), "window_size": 5}
    optimiser = torch.optim.Adam([guess], lr=0.02)
    first = float(ms_ssim_loss(start, target, **options))
    for _ in range(100):
        optimiser.zero_grad()
        ms_ssim_loss(guess, target, **options).backward()
        optimiser.step()
    assert float(ms_ssim_loss(guess.detach(), target, **options)) < 0.1 * first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_flat_images_and_none(dtype: torch.dtype) -> None:
    x, y = (v.to(dtype) for v in case())
    want = ms_ssim_loss(x.double(), y.double(), **SMALL)
    torch.testing.assert_close(ms_ssim_loss(x, y, **SMALL).double(), want, atol=1e-5, rtol=0)
    far = ms_ssim_loss(x.float() + 1000, y.float() + 1000, **SMALL)  # variances keep their digits
    assert float(far) == pytest.approx(
        float(ms_ssim_loss(x.double() + 1000, y.double() + 1000, **SMALL)), abs=0.01
    )
    flat = torch.full((1, 1, 14, 13), 0.5, dtype=dtype).requires_grad_()
    loss = ms_ssim_loss(flat, flat.detach(), **SMALL)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert bool(torch.autograd.grad(loss, flat)[0].isfinite().all())
    assert float(ms_ssim_loss(x[:0], y[:0], reduction="sum", **SMALL)) == 0
    assert math.isnan(float(ms_ssim_loss(x * math.nan, y, **SMALL)))
    with pytest.raises(ValueError, match="no query"):
        ms_ssim_loss(x[:0], y[:0], **SMALL)


def test_what_is_wrong_is_named() -> None:
    x, y = case()
    with pytest.raises(TypeError, match="255"):
        ms_ssim_loss(x.byte(), y.byte(), **SMALL)
    with pytest.raises(ValueError, match="one shape"):
        ms_ssim_loss(x, y[:1], **SMALL)
    with pytest.raises(ValueError, match="wanted 176 a side"):
        ms_ssim_loss(x, y)
    with pytest.raises(ValueError, match="data_range"):
        ms_ssim_loss(x, y, data_range=0, **SMALL)
    with pytest.raises(ValueError, match="odd"):
        ms_ssim_loss(x, y, window_size=4)
    with pytest.raises(ValueError, match="one scale"):
        ms_ssim_loss(x, y, scale_weights=())
    with pytest.raises(ValueError, match="weight"):
        ms_ssim_loss(x, y, scale_weights=(1.0, -1.0), window_size=3)
