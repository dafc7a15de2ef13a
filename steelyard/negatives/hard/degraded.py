"""Contrast for image restoration: a target spoilt is a hard negative, one with more detail a positive."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, normalize, pad

from steelyard.losses.softmax import Reduction, reduce, sampled_softmax
from steelyard.negatives.hard.asked import all_finite, check_count


def degrade_targets(
    target: Any,
    n_positives: int,
    n_negatives: int,
    blur: tuple[float, float] = (0.3, 1.5),
    noise: float = 0.02,
    boost: tuple[float, float] = (0.3, 1.5),
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Make positives by raising the high frequencies of a target, and hard negatives by lowering them.

        positive = x + c (x - G_s x)          c ~ U(boost),  s the middle of `blur`
        negative = G_s x + noise e            s ~ U(blur),   e ~ N(0, 1)

    G_s is a Gaussian blur with edges continued. What it does to the softmax: its negatives are no other
    images, so the loss is of one image against its own spoilt copies and estimates no sum over images.

    Args:
        target: float, (B, C, H, W), finite.
        n_positives: how many sharpened copies of each.
        n_negatives: how many blurred and noisy copies of each.
        blur: range of the blur's standard deviation in pixels, not negative, rising; 0 does not blur.
        noise: standard deviation of the noise, in the units of the image, not negative.
        boost: range of the share of detail that is added, not negative, rising.
        generator: source of randomness; torch's own where None.

    Returns:
        Positives, (B, n_positives, C, H, W), and negatives, (B, n_negatives, C, H, W). Nothing is clipped:
        values may leave the range of the target.

    Raises:
        TypeError: a target that is not floating point, counts that are no integers.
        ValueError: another shape, values that are not finite, numbers out of range.

    Reference:
        Wu, Jiang, Liu & Ma (2021), A practical contrastive learning framework for single-image
        super-resolution (PCL-SR), IEEE TNNLS, arXiv 2111.13924; the kernels and ranges are reconstructed.
    """
    x = all_finite("target", target)
    if x.ndim != 4:
        raise ValueError(f"target must be (B, C, H, W), got {tuple(x.shape)}.")
    check_count("n_positives", n_positives, 0)
    check_count("n_negatives", n_negatives, 0)
    for name, (low, high) in (("blur", blur), ("boost", boost)):
        if not 0 <= low <= high < math.inf:
            raise ValueError(f"{name} must be a rising range of finite numbers from 0 up, got {(low, high)}.")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be finite and not negative, got {noise}.")
    batch, of_image = len(x), x.shape[1:]

    def uniform(count: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(batch * count, generator=generator, dtype=torch.float64)

    share = uniform(n_positives, *boost).to(x.dtype).view(batch, n_positives, 1, 1, 1)
    middle = torch.full((batch,), sum(blur) / 2, dtype=torch.float64)
    positives = x.unsqueeze(1) + share * (x - gaussian_blur(x, middle)).unsqueeze(1)
    copies = x.repeat_interleave(n_negatives, 0)
    blurred = gaussian_blur(copies, uniform(n_negatives, *blur)).view(batch, n_negatives, *of_image)
    grain = torch.randn(blurred.shape, generator=generator, dtype=torch.float64).to(x.dtype)
    return positives, blurred + noise * grain


def gaussian_blur(image: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image by its own Gaussian, cut at three deviations of the widest, with edges continued.

    Args:
        image: float, (B, C, H, W).
        sigma: float, (B,), standard deviations in pixels; 0 leaves an image as it is.

    Returns:
        float, (B, C, H, W).
    """
    if image.numel() == 0:
        return image
    batch, channels, height, width = image.shape
    reach = max(1, math.ceil(3 * float(sigma.max())))
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    # 0 deviations: all weight at the centre, by a limit that divides by no zero.
    log_kernel = -offset.square() / (2 * sigma.double().clamp(min=1e-6).square()).unsqueeze(1)
    kernel = log_kernel.softmax(1).to(image.dtype).repeat_interleave(channels, 0)
    flat = image.reshape(1, batch * channels, height, width)
    for across in (False, True):
        shape = (-1, 1, 1, len(offset)) if across else (-1, 1, len(offset), 1)
        margin = (reach, reach, 0, 0) if across else (0, 0, reach, reach)
        flat = conv2d(pad(flat, margin, mode="replicate"), kernel.view(shape), groups=batch * channels)
    return flat.view(image.shape)


def restoration_contrast(
    anchor: Any, positives: Any, negatives: Any, temperature: float = 1.0, *, reduction: Reduction = "mean"
) -> Tensor:
    """Contrast of a restored image's features with those of sharpened and spoilt targets.

        L_b = mean over p of  -log[ e^{s(a,p)/t} / ( e^{s(a,p)/t} + sum_n e^{s(a,n)/t} ) ]
        s(a, x) = mean over places of the cosine of the channels of a and x

    Args:
        anchor: float, (B, C, H, W), features of the restored image.
        positives: float, (B, P, C, H, W), P at least 1.
        negatives: float, (B, N, C, H, W).
        temperature: positive.
        reduction: "mean" over the batch, "sum" or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        TypeError: features that are not floating point.
        ValueError: shapes that do not fit, no positives, features that are not finite, a temperature that is
            not positive.

    Reference:
        Wu, Jiang, Liu & Ma (2021), PCL-SR, IEEE TNNLS, arXiv 2111.13924, as in its code: each positive has a
        softmax of its own.
    """
    a, p, n = (
        all_finite(name, value)
        for name, value in (("anchor", anchor), ("positives", positives), ("negatives", negatives))
    )
    fits = a.ndim == 4 and p.ndim == n.ndim == 5 and p.shape[2:] == n.shape[2:] == a.shape[1:]
    if not fits or not len(a) == len(p) == len(n) or p.shape[1] == 0:
        raise ValueError(
            "anchor must be (B, C, H, W), positives (B, P, C, H, W), P > 0, negatives (B, N, C, H, W), got "
            f"{tuple(a.shape)}, {tuple(p.shape)} and {tuple(n.shape)}."
        )
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    direction = normalize(a, dim=1).unsqueeze(1)
    near, far = ((direction * normalize(x, dim=2)).sum(2).mean((2, 3)) / temperature for x in (p, n))
    each = sampled_softmax(
        near, far.unsqueeze(1).expand(-1, p.shape[1], -1), far.new_zeros(1), reduction="none"
    ).mean(1)
    return reduce(each, reduction)
