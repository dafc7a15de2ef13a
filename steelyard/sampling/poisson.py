"""Poisson sampling: every candidate takes its own coin, with known probabilities and a size that varies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws


def poisson(log_p: Tensor, expected: float, *, generator: torch.Generator | None = None) -> Draws:
    """Include each candidate independently, with probability proportional to p and capped at 1.

        inclusion(i) = min(1, c p_i),  c such that the sum over i is `expected`

    Args:
        log_p: log-weights, (..., n); any common factor cancels; -inf is never drawn.
        expected: the expected number of draws, between 0 and the number of candidates above -inf.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws on the CPU with ids (..., m), ascending, m the largest number drawn in any row; a row with
        fewer ends in empty slots (id 0, log_expected +inf).

    Raises:
        TypeError: `log_p` is not floating point.
        ValueError: NaN or +inf in `log_p`; `expected` is negative, not finite, or above the number of
            candidates above -inf in some row.

    Reference:
        Hájek (1964), Asymptotic theory of rejective sampling with varying probabilities from a finite
        population, Annals of Mathematical Statistics 35(4).
    """
    log_inclusion = proportional_inclusion(log_p, expected)
    u = torch.rand(log_inclusion.shape, generator=generator, dtype=torch.float64)
    return pack(u < log_inclusion.double().exp(), log_inclusion)


def proportional_inclusion(log_p: Tensor, expected: float) -> Tensor:
    """Log inclusion probabilities proportional to p, capped at 1, with a given sum.

        inclusion(i) = min(1, c p_i),  c such that the sum over i is `expected`

    The capped candidates are a head of the order by p; the smallest head that leaves nobody above 1 is
    found among the `expected` + 1 largest by a partial select, and only in rows that need a cap at all.

    Args:
        log_p: log-weights, (..., n); any common factor cancels; -inf gives -inf.
        expected: the sum, between 0 and the number of candidates above -inf.

    Returns:
        Log-probabilities, (..., n), on the CPU, in the dtype of `log_p` (float32 for a shorter one).

    Raises:
        TypeError: `log_p` is not floating point.
        ValueError: NaN or +inf in `log_p`; `expected` is negative, not finite, or above the number of
            candidates above -inf in some row.

    Reference:
        Tillé (2006), Sampling Algorithms (inclusion probabilities proportional to size).
    """
    given, lead = as_rows(log_p, "log_p")
    rows = given.double()
    if not bool((rows < math.inf).all()):
        raise ValueError("log_p has NaN or +inf; mark a candidate that is never drawn with -inf.")
    alive = int((rows > -math.inf).sum(-1).min()) if len(rows) else 0
    if not 0 <= expected <= alive and len(rows):
        raise ValueError(
            f"expected={expected} must lie between 0 and the number of candidates above -inf, {alive} in the "
            "row with the fewest."
        )
    if expected == 0 or rows.numel() == 0:
        result = torch.full_like(rows, -math.inf)
    else:
        # Shifted first, or weights of size 1e8 and more leave the sum no digits.
        rows = rows - rows.amax(-1, keepdim=True)
        log_c = math.log(expected) - rows.logsumexp(-1, keepdim=True)
        result = rows + log_c
        over = result.amax(-1) > 0
        if bool(over.any()):
            result[over] = _capped(rows[over], expected)
    return result.to(answer_dtype(given)).reshape(*lead, given.shape[1])


def _capped(rows: Tensor, expected: float) -> Tensor:
    n = rows.shape[1]
    top, where = rows.topk(min(n, int(expected) + 1), -1)
    rest = rows.scatter(-1, where, -math.inf).logsumexp(-1, keepdim=True)
    tail = torch.logaddexp(top.flip(-1).logcumsumexp(-1).flip(-1), rest)  # of all but the j largest
    left = (expected - torch.arange(top.shape[1], dtype=torch.float64)).clamp_(min=0).log()
    log_c = left - tail
    # -inf - -inf: rows with fewer candidates than columns; they have settled before that.
    fits = (top + log_c <= 1e-15) | (tail == -math.inf)
    return (rows + log_c.gather(-1, fits.int().argmax(-1, keepdim=True))).clamp_(max=0)


def pack(mask: Tensor, log_inclusion: Tensor) -> Draws:
    """The draws of a design with fixed inclusion probabilities, given who was drawn.

    Args:
        mask: bool, (..., n).
        log_inclusion: float, (..., n).

    Returns:
        Draws with ids (..., m), ascending, m the largest number drawn in any row, then empty slots (id 0,
        log_expected +inf).
    """
    lead, n = mask.shape[:-1], mask.shape[-1]
    rows = mask.reshape(lead.numel(), n)
    row, column = rows.nonzero(as_tuple=True)
    counts = rows.sum(-1)
    slot = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    width = int(counts.max()) if len(counts) else 0
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    log_expected = torch.full((len(rows), width), math.inf, dtype=log_inclusion.dtype)
    ids[row, slot] = column
    log_expected[row, slot] = log_inclusion.reshape(lead.numel(), n)[row, column]
    return Draws(
        ids.reshape(*lead, width),
        log_expected.reshape(*lead, width),
        lambda asked: look_up(log_inclusion, asked, -math.inf),
    )


def look_up(table: Tensor, asked: Tensor, outside: float) -> Tensor:
    """Entries of a table for ids, with one answer for every id outside it.

    Args:
        table: (..., n).
        asked: int64, (..., m), leading dimensions broadcastable to those of the table.
        outside: the answer for an id below 0 or from n.

    Returns:
        (..., m), in the dtype of the table.
    """
    n = table.shape[-1]
    inside = (asked >= 0) & (asked < n)
    if n == 0:
        return torch.full(asked.shape, outside, dtype=table.dtype)
    place = asked.where(inside, 0)
    if table.ndim == 1:
        return table[place].where(inside, outside)
    shape = torch.broadcast_shapes(asked.shape[:-1], table.shape[:-1])  # type: ignore[no-untyped-call]
    found = table.expand(*shape, n).gather(-1, place.expand(*shape, place.shape[-1]))
    return found.where(inside, outside)


def as_rows(values: Any, name: str) -> tuple[Tensor, torch.Size]:
    """A floating-point input as (rows, n) on the CPU, no copy where it is one, and its leading shape.

    Raises:
        TypeError: not floating point.
        ValueError: a single number.
    """
    given = torch.as_tensor(values).detach().cpu()
    if not given.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {given.dtype}.")
    if given.ndim == 0:
        raise ValueError(f"{name} needs a dimension of candidates, got a single number.")
    given = given.to(answer_dtype(given))
    lead = given.shape[:-1]
    return given.reshape(lead.numel(), given.shape[-1]).contiguous(), lead


def answer_dtype(given: Tensor) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if given.dtype == torch.float64 else torch.float32
