"""Which unlabelled rows to label, by how unsure a weak model is of them."""

from __future__ import annotations

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.poisson import pack, proportional_inclusion


def unsure_rows(
    probabilities: ArrayLike | Tensor,
    expected: float,
    *,
    alpha: float = 1.0,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw rows independently, in proportion to a power of a surrogate's variance of their label.

        pi_i = min(1, c (p_i (1 - p_i))^(alpha / 2)),  c such that they sum to `expected`

    alpha = 0 is an even draw; alpha = 1 follows the label's standard deviation; below 0 it prefers sure rows. Train
    with weights `1 / pi` for an estimate of the loss over all rows, or with weight 1: the second is biased and can
    nevertheless test better, even better than all rows.

    Args:
        probabilities: the surrogate's probability of the positive label, (n,), in [0, 1].
        expected: rows to draw on average.
        alpha: finite power; below 0 no probability may be 0 or 1.
        generator: source of randomness.

    Returns:
        Draws on the CPU, their number random; `-log_expected` is the log of `1 / pi`.

    Raises:
        ValueError: probabilities outside [0, 1], more rows wanted than have a chance, or a power that gives none.

    Reference:
        Kolossov, Montanari and Tandon (2024), Towards a statistical theory of data selection under weak supervision,
        ICLR, arXiv 2309.14563.
    """
    p = torch.as_tensor(probabilities).detach().double()
    if p.ndim != 1 or not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError(f"probabilities must be a vector in [0, 1], got shape {tuple(p.shape)}.")
    if not math.isfinite(alpha) or (alpha < 0 and bool(((p == 0) | (p == 1)).any())):
        raise ValueError(
            f"alpha must be finite, and not negative where a probability is 0 or 1, got {alpha}."
        )
    log_w = torch.zeros_like(p) if alpha == 0 else alpha / 2 * (p.log() + torch.log1p(-p))
    log_inclusion = proportional_inclusion(log_w, expected)
    u = torch.rand(p.shape, generator=generator, dtype=torch.float64)
    return pack(u < log_inclusion.exp(), log_inclusion)
