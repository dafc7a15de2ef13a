"""What the course of a training says of each row: how often it was forgotten, and by what margin it was held."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.selection.error_norms import checked_logits


def forgetting_events(correct: ArrayLike | Tensor, observed: ArrayLike | Tensor | None = None) -> Tensor:
    """How often a row that the model had right was wrong at the next visit.

        F_i = #{ t : correct at its t-th visit, wrong at the next },    inf if it was never correct

    A row that is never learned is not unforgettable but the hardest of all, so it ranks above every count;
    `drop_hardest` and the `beta` of `coverage_centric` take such rows first.

    Args:
        correct: bool, (T, n): whether the model had each row right, visit by visit.
        observed: bool, (T, n): False where a row was not visited; None where every one was.

    Returns:
        The counts, float32, (n,), +inf for rows never correct.

    Raises:
        TypeError: an argument is not bool.
        ValueError: not two-dimensional, shapes that differ, or a row never visited.

    Reference:
        Toneva et al. (2019), An empirical study of example forgetting during deep neural network learning,
        ICLR, arXiv 1812.05159.
    """
    right = torch.as_tensor(correct)
    seen = torch.ones_like(right) if observed is None else torch.as_tensor(observed)
    for name, table in (("correct", right), ("observed", seen)):
        if table.dtype != torch.bool:
            raise TypeError(f"{name} must be bool, got {table.dtype}.")
        if table.ndim != 2 or table.shape != right.shape:
            raise ValueError(
                f"{name} must be (T, n), the shape of both, got {tuple(table.shape)} beside {tuple(right.shape)}."
            )
    missing = int((~seen.any(0)).sum())
    if missing:
        raise ValueError(f"{missing} rows were never visited, so nothing is known of them; leave them out.")
    last = torch.zeros(right.shape[1], dtype=torch.bool, device=right.device)
    ever, count = last.clone(), torch.zeros(right.shape[1], device=right.device)
    for now, visited in zip(right, seen, strict=True):
        count += visited & last & ~now
        last = torch.where(visited, now, last)
        ever |= visited & now
    return count.masked_fill(~ever, torch.inf)


def area_under_margin(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> Tensor:
    """By how much the label's logit led over the best other one, averaged over the training.

        AUM_i = mean_t ( z_t,y - max_{j != y} z_t,j )

    Low or negative for rows that are mislabelled or hard, so `-area_under_margin(...)` is a hardness. It
    is taken of logits: of probabilities the margin of a row that is nearly certain no longer grows.

    Args:
        logits: float, (n, C), or (T, n, C) of T epochs, with two classes at least; finite.
        labels: integers, (n,).

    Returns:
        The margins, (n,), in float32 at least.

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, fewer than two classes, a label out of range, no epoch, or logits
            that are not finite.

    Reference:
        Pleiss, Zhang, Elenberg and Weinberger (2020), Identifying mislabeled data using the area under the
        margin ranking, NeurIPS, arXiv 2001.10528.
    """
    z, y = checked_logits(logits, labels)
    if z.shape[2] < 2:
        raise ValueError(f"A margin needs two classes at least, got {z.shape[2]}.")
    if not bool(z.isfinite().all()):
        raise ValueError("Logits must be finite: a margin over a class that is ruled out has no mean.")
    own = y.unsqueeze(1)
    margins = [
        (epoch.gather(1, own) - epoch.scatter(1, own, -torch.inf).amax(1, keepdim=True)).squeeze(1)
        for epoch in z
    ]
    return torch.stack(margins).mean(0)
