"""Sorting with gradients: soft permutation matrices of a list's scores."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from steelyard.losses.softmax import check_fits

Sort = Literal["neural", "soft"]


def log_soft_permutation(
    score: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float,
    sort: Sort = "neural",
    sinkhorn_steps: int = 50,
    tolerance: float = 1e-6,
) -> Tensor:
    """Log of a soft permutation matrix: row i says which candidate stands at place i, best first.

        neural: P_i = softmax_j( ((n + 1 - 2 i) s_j - sum_l |s_j - s_l|) / temperature )      NeuralSort
        soft:   P_i = softmax_j( -|s_[i] - s_j| / temperature ),   s_[i] the i-th largest        SoftSort
        then columns and rows are scaled to sum to 1, in turns (Sinkhorn)

    As the temperature falls to 0 it becomes the permutation that sorts, for scores without ties; tied
    candidates share their places. Before scaling only the rows sum to 1, so a candidate could stand at two
    places at once and another at none.

    Args:
        score: float, (..., N): scores of each list; finite where not masked.
        mask: bool, broadcastable to `score`: True leaves a candidate out (padding).
        temperature: in units of the scores, above 0.
        sort: which relaxation.
        sinkhorn_steps: at most this many rounds of scaling, 0 for none.
        tolerance: end the rounds when every column's sum is this near to 1.

    Returns:
        float32 at least, (..., N, N): of a list of n candidates the first n rows are places, with -inf for
        the masked columns; the other rows are -inf throughout. Memory grows with N^2, not with the rounds,
        whose gradient can be taken once.

    Raises:
        ValueError: shapes do not fit, a score that is not finite and not masked, or an option out of range.
        TypeError: scores that are not floating point.

    Reference:
        Grover, Wang, Zweig and Ermon (2019), Stochastic optimization of sorting networks via continuous
        relaxations, ICLR, arXiv 1903.08850; Prillo and Eisenschlos (2020), SoftSort, ICML, arXiv 2006.16038;
        the scaling after Pobrotyn and Bialobrzeski (2021), arXiv 2102.07831.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    if sinkhorn_steps < 0:
        raise ValueError(f"sinkhorn_steps must be at least 0, got {sinkhorn_steps}.")
    dtype = torch.promote_types(score.dtype, torch.float32)
    score, mask = _prepared(score, mask)
    n = score.shape[-1]
    count = (~mask).sum(-1, keepdim=True)
    place = torch.arange(1, n + 1, device=score.device)
    if sort == "neural":
        distance = (
            (score.unsqueeze(-1) - score.unsqueeze(-2)).abs().masked_fill(mask.unsqueeze(-1), 0.0).sum(-2)
        )
        slope = (count + 1 - 2 * place).to(score.dtype)
        logits = slope.unsqueeze(-1) * score.unsqueeze(-2) - distance.unsqueeze(-2)
    elif sort == "soft":
        ordered = score.masked_fill(mask, -math.inf).sort(-1, descending=True).values
        ordered = torch.where(place <= count, ordered, 0.0)
        logits = -(ordered.unsqueeze(-1) - score.unsqueeze(-2)).abs()
    else:
        raise ValueError(f'sort must be "neural" or "soft", got {sort!r}.')
    real = (place <= count).unsqueeze(-1) & ~mask.unsqueeze(-2)
    # the spare rows and the masked columns make a block of their own, so that no row or column is empty
    spare = (place > count).unsqueeze(-1) & mask.unsqueeze(-2)
    logits = torch.where(real, logits / temperature, torch.where(spare, 0.0, -math.inf))
    log_p = torch.log_softmax(logits, -1).to(dtype)
    if sinkhorn_steps and log_p.numel():
        log_p = log_p + _sinkhorn(log_p, sinkhorn_steps, tolerance)
    return log_p.masked_fill(~real, -math.inf)


def _sinkhorn(log_p: Tensor, steps: int, tolerance: float) -> Tensor:
    """What to add to log_p, (..., N, N) with rows that sum to 1, so that columns do too.

    Every candidate has a place where none is likelier, so no column of the exponentials sums to 0.
    """
    size = log_p.shape[-1]
    rows, columns = _Scaling.apply(log_p.exp().reshape(-1, size, size), steps, tolerance)  # type: ignore[no-untyped-call]
    shape = log_p.shape[:-1]
    scaling: Tensor = rows.log().reshape(*shape, 1) + columns.log().reshape(*shape[:-1], 1, size)
    return scaling


class _Scaling(torch.autograd.Function):
    """Sinkhorn's row and column factors, with all rounds' share of the gradient in one matrix product."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, steps: int, tolerance: float) -> tuple[Tensor, Tensor]:
        row, column = [torch.ones_like(p[:, :1])], [torch.ones_like(p[:, :1])]
        transposed = p.mT
        for _ in range(steps):
            total = row[-1] @ p
            if float(total.min()) == 0:
                raise ValueError("The temperature is too small for scores of this size: a place got lost.")
            if float((total * column[-1] - 1).abs().max()) <= tolerance:
                break
            column.append(1 / total)
            row.append(1 / (column[-1] @ transposed))
        ctx.save_for_backward(p, torch.cat(row, 1), torch.cat(column, 1))
        return row[-1].squeeze(1), column[-1].squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_row: Tensor, by_column: Tensor) -> tuple[Tensor, None, None]:
        p, row, column = ctx.saved_tensors
        by_row, by_column = by_row.unsqueeze(1), by_column.unsqueeze(1)
        left, right = [], []
        for step in range(row.shape[1] - 1, 0, -1):
            through_row = -by_row * row[:, step : step + 1].square()
            by_column = by_column + through_row @ p
            through_column = -by_column * column[:, step : step + 1].square()
            left += [through_row, row[:, step - 1 : step]]
            right += [column[:, step : step + 1], through_column]
            by_row, by_column = through_column @ p.mT, torch.zeros_like(by_column)
        if not left:
            return torch.zeros_like(p), None, None
        return torch.cat(left, 1).mT @ torch.cat(right, 1), None, None


def _prepared(score: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores around 0, 0 where masked, and the mask in their shape."""
    if not score.is_floating_point():
        raise TypeError(f"score must be floating point, got {score.dtype}; call .float() on it.")
    check_fits("mask", mask, score, of="lists")
    mask = torch.zeros_like(score, dtype=torch.bool) if mask is None else mask.expand(score.shape)
    score = score.double().masked_fill(mask, 0.0)  # places times scores over the temperature are large
    if not bool(score.isfinite().all()):
        raise ValueError("A score is not finite; mask candidates that are not in the list.")
    # a shift changes no row; without it the slope times a large common score would take the digits
    mean = score.detach().sum(-1, keepdim=True) / (~mask).sum(-1, keepdim=True).clamp(min=1)
    return (score - mean).masked_fill(mask, 0.0), mask
