"""Robustness measured against the distribution at the clean point, so that it does not oppose accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from steelyard.losses.pairs import check_classes, check_number, widened
from steelyard.losses.softmax import Reduction, reduce


def self_consistent_loss(
    logits: Tensor,
    perturbed_logits: Tensor,
    targets: Tensor,
    *,
    beta: float,
    reduction: Reduction = "mean",
) -> Tensor:
    """Squared distance of predictions to the target, and of perturbed predictions to clean ones (SCORE).

        L_i = |t - p(x)|^2 + beta |p(x') - p(x)|^2,   p = softmax of the logits, Euclidean distances
        (1 + 1 / beta) L_i >= |t - p(x')|^2

    The self-consistent robust error max_x' |t(x) - p(x')| has a metric where adversarial training has a
    divergence; by the triangle inequality it is bounded by the loss where x' is the worst perturbation (that
    of `linf_perturbation`, say), and never below |t - p(x)|, the error without one. With x' = x this is the
    Brier score.

    Args:
        logits: float, (B, C): at the clean inputs.
        perturbed_logits: float, (B, C): at the perturbed ones; gradient flows through both.
        targets: integers (B,), or the probabilities of the classes, float (B, C).
        beta: weight of the second part, above 0, tuned.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: logits that are not floating point, or targets that are neither integers nor (B, C).
        ValueError: shapes do not fit, a label out of range, probabilities that are negative or do not sum to
            1, `beta` out of range, an unknown reduction, or the mean over no examples.

    Reference:
        Pang, Lin, Yang, Zhu and Yan (2022), Robustness and accuracy could be reconcilable by (proper)
        definition, ICML, arXiv 2202.10103; in squares and with beta as in the authors' code.
    """
    if not (logits.is_floating_point() and perturbed_logits.is_floating_point()):
        raise TypeError(f"Logits must be floating point, got {logits.dtype} and {perturbed_logits.dtype}.")
    if logits.ndim != 2 or logits.shape != perturbed_logits.shape or logits.shape[1] == 0:
        raise ValueError(
            "Wanted logits and perturbed_logits of one shape (B, C), C above 0, got "
            f"{tuple(logits.shape)} and {tuple(perturbed_logits.shape)}."
        )
    check_number("beta", beta, above=0)
    clean, perturbed = widened(logits).softmax(1), widened(perturbed_logits).softmax(1)
    if targets.ndim == 2 and targets.is_floating_point():
        wanted = _probabilities(targets, clean)
    else:
        check_classes(targets, *logits.shape)
        wanted = torch.zeros_like(clean).scatter_(1, targets.long().unsqueeze(1), 1.0)
    error = (wanted - clean).square().sum(1)
    return reduce(error + beta * (perturbed - clean).square().sum(1), reduction)


def linf_perturbation(
    predict: Callable[[Tensor], Tensor],
    inputs: Tensor,
    epsilon: float,
    *,
    steps: int = 10,
    step_size: float | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Inputs near the given ones whose predictions are far from theirs, by projected gradient ascent.

        x' <- project( x' + step_size sign( grad |p(x') - p(x)|^2 ) ),   |x' - x| <= epsilon in each number

    Starts at random within the bounds: at x itself the gradient is 0. Gradients of the model's parameters are
    neither used nor left behind; whether layers such as batch normalisation train meanwhile is the caller's.

    Args:
        predict: maps inputs to logits, (B, ...) to (B, C).
        inputs: float, (B, ...), within `low` and `high`.
        epsilon: largest change of a number, at least 0; 0 returns the inputs.
        steps: ascents, at least 1.
        step_size: default 2.5 epsilon / steps, which reaches every place within the bounds.
        low: least value an input may have.
        high: largest.
        generator: source of randomness.

    Returns:
        The perturbed inputs, without gradient, as `inputs`.

    Raises:
        TypeError: inputs that are not floating point.
        ValueError: parameters out of range, or inputs outside `low` and `high`.

    Reference:
        Madry et al. (2018), Towards deep learning models resistant to adversarial attacks, ICLR, arXiv
        1706.06083; ascending the distance of Pang et al. (2022), arXiv 2202.10103.
    """
    if not inputs.is_floating_point():
        raise TypeError(f"Inputs must be floating point, got {inputs.dtype}.")
    check_number("epsilon", epsilon, least=0)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}.")
    size = 2.5 * epsilon / steps if step_size is None else step_size
    check_number("step_size", size, least=0)
    x = inputs.detach()
    if not bool(((x >= low) & (x <= high)).all()):
        raise ValueError(f"Inputs must lie within low and high, {low} to {high}, and not be NaN.")
    least, most = (x - epsilon).clamp(min=low), (x + epsilon).clamp(max=high)
    with torch.no_grad():
        clean = widened(predict(x)).softmax(1)
    start = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    moved = torch.minimum(torch.maximum(x + epsilon * (2 * start - 1), least), most)
    for _ in range(steps):
        moved.requires_grad_()
        with torch.enable_grad():
            distance = (widened(predict(moved)).softmax(1) - clean).square().sum()
        (ascent,) = torch.autograd.grad(distance, moved)
        moved = torch.minimum(torch.maximum(moved.detach() + size * ascent.sign(), least), most)
    return moved


def _probabilities(targets: Tensor, like: Tensor) -> Tensor:
    """Targets that are probabilities of the classes, checked."""
    if targets.shape != like.shape:
        raise ValueError(f"targets must be {tuple(like.shape)} as the logits, got {tuple(targets.shape)}.")
    t = targets.to(like.dtype)
    # what rounding of the given precision explains is forgiven
    slack = 10 * max(torch.finfo(targets.dtype).eps, torch.finfo(like.dtype).eps) ** 0.75
    if not bool(((t >= 0).all(1) & ((t.sum(1) - 1).abs() <= slack)).all()):
        raise ValueError("targets must be probabilities: at least 0, and of sum 1 in each row.")
    return t
