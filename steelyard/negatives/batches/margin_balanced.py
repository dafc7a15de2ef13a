"""One pair a query, spread evenly over how far a teacher sets its positive and its negative apart."""

from __future__ import annotations

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.batches.packing import as_labels, check_batch_size


def margin_balanced(
    margins: ArrayLike | Tensor,
    offsets: ArrayLike | Tensor,
    queries: ArrayLike | Tensor | None = None,
    *,
    bins: int = 10,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw one (positive, negative) pair of each query: a uniform margin bin, then uniformly within.

        bin(i) = floor( bins (m_i - min m) / (max m - min m) ),  the largest margin in the last bin
        P(i)   = 1 / ( non-empty bins of the query * pairs in bin(i) )

    Most negatives are easy and have large margins: uniform pairs would show the student little else. The bins
    have equal width between the least and the largest margin of each query; empty ones are not drawn. Where
    all margins are equal there is one bin. `score - log_expected` leads back to the sum over all pairs. Looks
    only at the pairs of the queries asked.

    Args:
        margins: float, (P,), finite: the teacher's score of the positive minus that of the negative, the
            pairs of one query side by side.
        offsets: int64, (Q + 1,): the pairs of query q are `offsets[q] .. offsets[q + 1] - 1`, as in `Ragged`.
        queries: int64, (B,): the queries of a batch, repeats allowed; all where None.
        bins: how many, 1 or more; 1 is uniform over the pairs.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (B, 1), numbers of pairs in 0 .. P - 1, and the log of their probabilities, float64. A
        query without pairs has an empty slot.

    Raises:
        TypeError: margins that are not floating point, numbers that are not integers.
        ValueError: margins that are not finite (P,), offsets that do not describe them, `bins` below 1, a
            query outside 0 .. Q - 1.

    Reference:
        Hofstätter, Lin, Yang, Lin and Hanbury (2021), Efficiently teaching an effective dense retriever with
        balanced topic aware sampling, SIGIR, arXiv 2104.06967. Leaving out empty bins is its code's; the
        probability is ours.
    """
    check_batch_size(bins, "bins")
    m, ends = _check(margins, offsets, bins)
    asked = torch.arange(len(ends) - 1) if queries is None else as_labels(queries, "queries")
    outside = (asked < 0) | (asked >= len(ends) - 1)
    if bool(outside.any()):
        raise ValueError(f"queries must lie in 0 .. {len(ends) - 2}, got {int(asked[outside][0])}.")
    first, counts = ends[asked], ends[asked + 1] - ends[asked]
    if bool((counts < 0).any()):
        raise ValueError("offsets must never fall.")
    starts = counts.cumsum(0) - counts  # where the pairs of a query begin among those of the batch
    owner = torch.repeat_interleave(torch.arange(len(asked)), counts)
    pair = torch.arange(len(owner)) - (starts - first)[owner]
    margin = m[pair].double()
    if not bool(margin.isfinite().all()):
        raise ValueError("margins must be finite; leave out a pair that the teacher did not score.")
    cell = owner * bins + _bins(margin, owner, len(asked), bins)
    held = torch.bincount(cell, minlength=len(asked) * bins).view(-1, bins)
    log_p = -(held > 0).sum(1).double().log()[owner] - held.view(-1)[cell].double().log()
    drawn = _draw(held, cell, counts > 0, generator)
    value = torch.full((len(asked), 1), math.inf, dtype=torch.float64)
    value[counts > 0, 0] = log_p[drawn]
    ids = torch.zeros(len(asked), 1, dtype=torch.int64)
    ids[counts > 0, 0] = pair[drawn]

    def design(ask: Tensor) -> Tensor:
        at = ask.expand(len(asked), ask.shape[-1]) - first.unsqueeze(1)
        own = (at >= 0) & (at < counts.unsqueeze(1))
        answer = torch.full(at.shape, -math.inf, dtype=torch.float64)
        answer[own] = log_p[(at + starts.unsqueeze(1))[own]]
        return answer

    return Draws(ids, value, design)


def _check(margins: ArrayLike | Tensor, offsets: ArrayLike | Tensor, bins: int) -> tuple[Tensor, Tensor]:
    check_batch_size(bins, "bins")
    m, ends = torch.as_tensor(margins).detach(), as_labels(offsets, "offsets")
    if not m.is_floating_point():
        raise TypeError(f"margins must be floating point, got {m.dtype}.")
    if m.ndim != 1:
        raise ValueError(f"margins must be (P,), one a pair, got {tuple(m.shape)}.")
    if len(ends) == 0 or int(ends[0]) != 0 or int(ends[-1]) != len(m):
        raise ValueError(f"offsets must rise from 0 to the number of pairs ({len(m)}).")
    return m, ends


def _bins(m: Tensor, owner: Tensor, n: int, bins: int) -> Tensor:
    """The bin of each pair among those of its query."""
    low = m.new_full((n,), math.inf).scatter_reduce(0, owner, m, "amin")[owner]
    high = m.new_full((n,), -math.inf).scatter_reduce(0, owner, m, "amax")[owner]
    width = torch.where(high > low, high - low, 1.0)
    return ((m - low) / width * bins).long().clamp_(max=bins - 1)


def _draw(held: Tensor, cell: Tensor, some: Tensor, generator: torch.Generator | None) -> Tensor:
    """A pair of each query that has some, as a number among the pairs of the batch."""
    u = torch.rand(2, len(held), generator=generator, dtype=torch.float64)[:, some]
    rank = (held[some] > 0).cumsum(1)
    wanted = (u[0] * rank[:, -1]).long() + 1  # of the non-empty bins, from 1
    chosen = torch.searchsorted(rank, wanted.unsqueeze(1)).squeeze(1)
    chosen += some.nonzero().flatten() * held.shape[1]
    size = held.view(-1)[chosen]
    ordered = cell.argsort(stable=True)  # the pairs of a bin side by side
    return ordered[held.view(-1).cumsum(0)[chosen] - size + (u[1] * size).long()]
