"""Rows by what their gradient does: toward trusted weights, or to the row itself."""

from __future__ import annotations

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.selection.error_norms import grand


def mimic_score(gradients: ArrayLike | Tensor, direction: ArrayLike | Tensor) -> Tensor:
    """How far a step on each row alone would go toward the weights of a trusted model.

        m_i = -<g_i, d> / |d|,  d = theta_reference - theta

    Positive: descending on the row moves toward the reference. It is the directional derivative of the row's loss away
    from it.

    Args:
        gradients: of each row's loss, (n, p); those of the last layer often do.
        direction: d, (p,).

    Returns:
        float, (n,).

    Raises:
        ValueError: shapes that do not fit, not finite, or a direction of length 0.

    Reference:
        Huang, Bilkhu, Cooper, Sala and Movellan (2025), Evaluating sample utility for efficient data selection by
        mimicking model weights, arXiv 2501.06708.
    """
    g, d = torch.as_tensor(gradients), torch.as_tensor(direction)
    if g.ndim != 2 or d.shape != g.shape[1:]:
        raise ValueError(f"gradients {tuple(g.shape)} do not fit a direction of shape {tuple(d.shape)}.")
    length = float(d.double().norm())
    if not math.isfinite(length) or length == 0 or not bool(torch.isfinite(g).all()):
        raise ValueError("Gradients must be finite, and the direction finite and not 0.")
    return -(g @ (d / length).to(g))


def mimic_weights(score: ArrayLike | Tensor, *, temperature: float = 1.0) -> Tensor:
    """Weights of the rows of a batch, `softmax(score / temperature)`: even as the temperature grows.

    Args:
        score: `mimic_score` of the batch, (n,).
        temperature: above 0.

    Returns:
        float, (n,), which sum to 1.

    Raises:
        ValueError: a temperature that is not positive, or scores that are not finite.

    Reference:
        Huang et al. (2025), arXiv 2501.06708 (Grad-Mimic).
    """
    s = torch.as_tensor(score)
    if not temperature > 0 or not bool(torch.isfinite(s).all()):
        raise ValueError(f"temperature must be positive and scores finite, got {temperature}.")
    return (s / temperature).softmax(-1)


def mimic_keep(scores: ArrayLike | Tensor, share: float) -> Tensor:
    """Rows worth training on, by their scores over a whole run.

        normalise scores within each step to mean 0 and deviation 1, average them over steps, keep the highest

    Args:
        scores: one row a step, (T, n); NaN where a row was not visited.
        share: of the rows to keep, in (0, 1].

    Returns:
        Ids, ascending, (round(share n),); a row never visited is never kept before visited ones.

    Raises:
        ValueError: not (T, n), or a share outside (0, 1].

    Reference:
        Huang et al. (2025), arXiv 2501.06708. Reconstructed: how steps are put together.
    """
    s = torch.as_tensor(scores).double()
    if s.ndim != 2 or s.numel() == 0 or not 0 < share <= 1:
        raise ValueError(f"scores must be (steps, rows) and share in (0, 1], got {tuple(s.shape)}, {share}.")
    seen = ~s.isnan()
    count = seen.sum(1, keepdim=True).clamp(min=1)
    mean = s.nan_to_num().sum(1, keepdim=True) / count
    spread = (((s - mean).nan_to_num() ** 2).sum(1, keepdim=True) / count).sqrt()
    level = ((s - mean) / spread.where(spread > 0, 1.0)).nan_to_num().sum(0) / seen.sum(0).clamp(min=1)
    level = level.masked_fill(~seen.any(0), -math.inf)
    return (
        torch.argsort(level, descending=True, stable=True)[: max(1, round(share * s.shape[1]))].sort().values
    )


def self_influence(
    logits: ArrayLike | Tensor, labels: ArrayLike | Tensor, features: ArrayLike | Tensor, *, bias: bool = True
) -> Tensor:
    """The square of a row's gradient in the last layer: what a step on the row does to its own loss.

        SI_i = |p_i - onehot(y_i)|^2 (|h_i|^2 + 1)      without bias: |h_i|^2

    Args:
        logits: (n, C).
        labels: integers, (n,).
        features: that enter the last layer, (n, d).
        bias: whether the layer has one.

    Returns:
        float, (n,).

    Raises:
        TypeError, ValueError: as `grand`.

    Reference:
        Pruthi, Liu, Sundararajan and Kale (2020), Estimating training data influence by tracing gradient descent,
        NeurIPS, arXiv 2002.08484.
    """
    return grand(logits, labels, features, bias=bias).square()


def presence_weights(influence: ArrayLike | Tensor, *, temperature: float, phase: int) -> Tensor:
    """Weights of the rows of a microbatch by self-influence, first for what is new, then for what is stable.

        w = softmax(+SI / tau) in the first phase,  softmax(-SI / tau) in the second

    Early in training a high self-influence is novelty; later it is noise, and the sign turns.

    Args:
        influence: self-influence of each row, (..., n).
        temperature: tau above 0; the larger the more even.
        phase: 1 or 2.

    Returns:
        float, which sum to 1 along the last dimension.

    Raises:
        ValueError: influence that is negative or not finite, a temperature that is not positive, another phase.

    Reference:
        Thakkar, Bolukbasi, Ganapathy, Vashishth, Chandar and Talukdar (2023), Self-influence guided data reweighting
        for language model pre-training, EMNLP, arXiv 2311.00913.
    """
    si = torch.as_tensor(influence)
    if phase not in (1, 2) or not temperature > 0:
        raise ValueError(f"phase must be 1 or 2 and temperature positive, got {phase} and {temperature}.")
    if not bool((torch.isfinite(si) & (si >= 0)).all()):
        raise ValueError("Self-influence must be finite and not negative.")
    return ((si if phase == 1 else -si) / temperature).softmax(-1)
