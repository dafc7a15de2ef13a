"""Binary classification under a loss drawn anew each step, whose every draw is convex and calibrated."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.losses.pairs import check_number, widened
from steelyard.losses.softmax import Reduction, reduce

FLOOR = 1e-6  # added to every slope, which is then strictly negative: a draw of 0 would not be calibrated


def ens_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    box_cox: float = 0.0,
    cap: float = 1.0,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """A random loss whose ensemble over the steps of one run takes the place of a fixed one (EnsLoss).

        L_i = g_i z_i,   g without gradient,   z = logit of the true side, negative where it is wrong
        x_i = min(B(n_i), cap) + 1e-6,   n_i ~ N(0, 1),   B(n) = exp(n) or max(1 + lambda n, 0)^(1 / lambda)
        g = -x, largest x to the smallest z;   where z > 1: g / z

    Only the slopes of a loss matter to its gradient, and slopes that are negative and do not fall as z grows
    are those of some convex, calibrated loss. Beyond z = 1 they fade as 1 / z at least, so that no loss falls
    faster than the logarithm there. The value has no meaning but its gradient.

    Args:
        logits: float, (B,).
        targets: bool, or 0 and 1, (B,).
        box_cox: lambda of the inverse Box-Cox transform, at least 0; 0 draws from the lognormal. May be drawn
            anew by the caller from time to time.
        cap: largest size of a slope, above 0; infinity for none.
        generator: source of randomness.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: logits that are not floating point.
        ValueError: shapes do not fit, targets other than 0 and 1, logits that are not finite, parameters out
            of range, an unknown reduction, or the mean over no examples.

    Reference:
        Dai (2025), EnsLoss: stochastic calibrated loss ensembles for preventing overfitting in
        classification, ICML, arXiv 2409.00908. Cap, floor and the fading beyond 1 after the author's code.
    """
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}.")
    if logits.ndim != 1 or targets.shape != logits.shape:
        raise ValueError(
            f"Wanted (B,) logits and targets, got {tuple(logits.shape)} and {tuple(targets.shape)}."
        )
    holds = targets == 1
    if not bool((holds | (targets == 0)).all()):
        raise ValueError("Targets must be 0 or 1.")
    z = widened(logits)
    margins = torch.where(holds, z, -z)
    slopes = random_slopes(margins, box_cox=box_cox, cap=cap, generator=generator)
    return reduce(slopes * margins, reduction)


def random_slopes(
    margins: Tensor, *, box_cox: float = 0.0, cap: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Slopes at some margins of a random convex, calibrated loss, as `ens_loss` draws them.

    Args:
        margins: float, (B,).
        box_cox: lambda, at least 0.
        cap: largest size of a slope, above 0; infinity for none.
        generator: source of randomness.

    Returns:
        float, (B,), without gradient: negative, and nowhere smaller at a larger margin. Equal margins have
        slopes of their own, between those of their neighbours, as at a kink.

    Raises:
        ValueError: margins that are not (B,) finite floats, or parameters out of range.
    """
    check_number("box_cox", box_cox, least=0)
    if not cap > 0:
        raise ValueError(f"cap must be above 0, got {cap}.")
    if margins.ndim != 1 or not margins.is_floating_point():
        raise ValueError(f"Wanted (B,) float margins, got {tuple(margins.shape)} of {margins.dtype}.")
    z = margins.detach()
    if not bool(z.isfinite().all()):
        raise ValueError("A margin is NaN or infinite, and has no place among the others.")
    noise = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
    sizes = noise.exp() if box_cox == 0 else (1 + box_cox * noise).clamp(min=0) ** (1 / box_cox)
    sizes = sizes.clamp(max=cap) + FLOOR
    slopes = torch.empty_like(z)
    slopes[z.argsort()] = -sizes.sort(descending=True).values
    return slopes / z.clamp(min=1)
