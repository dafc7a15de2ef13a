"""Similarity of the structure of images over several scales, as a loss for what reconstructs them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from steelyard.losses.pairs import check_number, widened_alike
from steelyard.losses.softmax import Reduction, reduce

SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
K1, K2 = 0.01, 0.03


def ms_ssim_loss(
    images: Tensor,
    targets: Tensor,
    *,
    data_range: float = 1.0,
    scale_weights: Sequence[float] = SCALES,
    window_size: int = 11,
    sigma: float = 1.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """One minus the multiscale structural similarity of images and their targets (MS-SSIM).

        L = 1 - mean over channels of  l_M^w_M  prod_j cs_j^w_j,   halved from scale j to j + 1
        l = (2 m_x m_y + C1) / (m_x^2 + m_y^2 + C1),    cs = (2 s_xy + C2) / (s_x^2 + s_y^2 + C2)
        C1 = (0.01 range)^2,  C2 = (0.03 range)^2

    Means m, variances and the covariance are of a Gaussian window; l cs (at scale M) and cs are averaged over
    its places within the image. Contrast and structure count at all scales, brightness at the coarsest alone:
    a small shift of all pixels costs little, blur and noise much. Symmetric; 0 for equal images, at most 1.

    A channel with a mean of 0 or below at some scale, as of an image and its negative, has no real power: it
    counts as similarity 0, without gradient.

    Args:
        images: float, (B, channels, height, width).
        targets: float, of the same shape.
        data_range: largest minus smallest possible value, above 0: 1, or 255.
        scale_weights: one weight above 0 for each scale, finest first.
        window_size: side of the window, odd; the coarsest image must not be smaller.
        sigma: its standard deviation, in pixels, above 0.
        reduction: "mean" over images, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: images or targets that are not floating point.
        ValueError: shapes do not fit, images too small for the scales, parameters out of range, an unknown
            reduction, or the mean over no images.

    Reference:
        Wang, Simoncelli and Bovik (2003), Multiscale structural similarity for image quality assessment,
        Asilomar. Halved by means of 2 x 2 pixels; averages of l cs at the last scale as in its common code.
    """
    _check(images, targets, data_range, scale_weights, window_size, sigma)
    x, y = widened_alike(images, targets)
    place = torch.arange(window_size, dtype=torch.float64, device=x.device) - window_size // 2
    window = torch.softmax(-0.5 * (place / sigma).square(), 0).to(x.dtype)
    means = []
    for scale in range(len(scale_weights)):
        if scale:
            x, y = avg_pool2d(x, 2), avg_pool2d(y, 2)
        brightness, structure = _terms(x, y, window, data_range)
        last = scale == len(scale_weights) - 1
        means.append((brightness * structure if last else structure).mean((2, 3)))
    mean = torch.stack(means, -1)
    real = ~(mean <= 0)  # NaN stays NaN
    # of what has no power, any value: it is left out, and its gradient must not be 0 times infinity
    log_mean = torch.where(real, mean, 1.0).log()
    log_similarity = (log_mean * log_mean.new_tensor(list(scale_weights))).sum(-1)
    similarity = torch.where(real.all(-1), log_similarity.exp(), 0.0)
    return reduce(1 - similarity.mean(1), reduction)


def _terms(x: Tensor, y: Tensor, window: Tensor, data_range: float) -> tuple[Tensor, Tensor]:
    """Brightness and contrast-structure at each place of the window, (B, channels, ...)."""

    def smooth(v: Tensor) -> Tensor:
        flat = v.reshape(-1, 1, *v.shape[2:])
        flat = conv2d(conv2d(flat, window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))
        return flat.reshape(*v.shape[:2], *flat.shape[2:])

    c1, c2 = (K1 * data_range) ** 2, (K2 * data_range) ** 2
    # about a common centre, for the digits of the variances
    centre = ((x + y) / 2).mean((2, 3), keepdim=True).detach()
    a, b = x - centre, y - centre
    mean_a, mean_b = smooth(a), smooth(b)
    variances = smooth(a * a + b * b) - mean_a.square() - mean_b.square()
    covariance = smooth(a * b) - mean_a * mean_b
    mean_x, mean_y = mean_a + centre, mean_b + centre
    brightness = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    return brightness, (2 * covariance + c2) / (variances + c2)


def _check(
    images: Tensor,
    targets: Tensor,
    data_range: float,
    scale_weights: Sequence[float],
    window_size: int,
    sigma: float,
) -> None:
    if not (images.is_floating_point() and targets.is_floating_point()):
        raise TypeError(
            f"Images must be floating point, got {images.dtype} and {targets.dtype}; divide bytes by 255."
        )
    if images.ndim != 4 or images.shape != targets.shape or images.shape[1] == 0:
        raise ValueError(
            "Wanted images and targets of one shape (B, channels, height, width), got "
            f"{tuple(images.shape)} and {tuple(targets.shape)}."
        )
    check_number("data_range", data_range, above=0)
    check_number("sigma", sigma, above=0)
    if window_size < 1 or window_size % 2 == 0:
        raise ValueError(f"window_size must be odd and at least 1, got {window_size}.")
    if not scale_weights:
        raise ValueError("scale_weights must name one scale at least.")
    for weight in scale_weights:
        check_number("A scale's weight", weight, above=0)
    least = window_size * 2 ** (len(scale_weights) - 1)
    if min(images.shape[2:]) < least:
        raise ValueError(
            f"Images of {images.shape[2]} x {images.shape[3]} are too small for {len(scale_weights)} scales and a "
            f"window of {window_size}: wanted {least} a side; give fewer scale_weights or a smaller window."
        )
