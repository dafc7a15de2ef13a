"""Negatives from the lists of several retrievers, with the probability of all ways they could have come."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number
from steelyard.negatives.context import Context
from steelyard.sampling.successive import without_replacement

NOTHING = torch.iinfo(torch.int64).max  # fills up a row of candidates, which stay ascending


def pooled_negatives(
    lists: Sequence[ArrayLike | Tensor],
    context: Context,
    n: int,
    *,
    weights: Sequence[float] | None = None,
    replacement: bool = True,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw each query's negatives from a mixture of the top lists of several retrievers: R2anker.

        P(j) = sum_r w_r [j in L_r] / |L_r| / sum over the query's lists that are not empty of w_r
        L_r  = the top list of retriever r without what the query is known to want
        expected(j) = n P(j)

    Each retriever errs in its own way; a ranker that sees the errors of many learns none of them by heart,
    and what several find is drawn more often. The draws have no support outside the lists: `Mixture` beside a
    proposal that covers everything makes the loss one over the catalogue.

    Args:
        lists: int64, (B, N_r) for each retriever, in any order; -1 in an empty slot.
        context: the batch: the positives and whatever else is known.
        n: how many draws of each query.
        weights: of the retrievers, positive; equal by default.
        replacement: False draws different candidates one after the other by P, at most as many as there are,
            with inclusion probabilities given the threshold in place of n P.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws per query, ids (B, n). A query all of whose lists are empty has empty slots only.

    Raises:
        TypeError: `n` or ids that are not integers.
        ValueError: no lists, lists of another shape or with ids below -1, an id twice in one list of a query,
            weights that are not one positive number a list, a negative `n`.

    Reference:
        Zhou et al. (2023), Towards robust ranker for text retrieval, Findings of ACL, arXiv 2206.08063.
        Reconstructed: fixed weights of the retrievers, uniform draws within a list.
    """
    check_number(n)
    shares = [1.0] * len(lists) if weights is None else [float(w) for w in weights]
    if not lists or len(lists) != len(shares) or not all(math.isfinite(w) and w > 0 for w in shares):
        raise ValueError(f"Give lists and one positive weight for each, got {len(lists)} lists and {shares}.")
    candidates, log_p = pool(lists, shares, context)
    return draw_from_pool(candidates, log_p, n, replacement=replacement, generator=generator)


def pool(
    lists: Sequence[ArrayLike | Tensor], weights: Sequence[float], context: Context
) -> tuple[Tensor, Tensor]:
    """The mixture of lists as one list of different candidates.

    Args:
        lists: int64, (B, N_r) each; -1 in an empty slot.
        weights: of the lists, 0 or more.
        context: what each query wants, which is left out.

    Returns:
        Candidates, int64 (B, C), ascending, `NOTHING` in the empty slots at the end; and their
        log-probabilities, float64 (B, C), which sum to one over a row with candidates, -inf in empty slots.

    Raises:
        TypeError: ids that are not integers.
        ValueError: lists of another shape, with ids below -1 or one twice in a row.
    """
    ids, shares = [], []
    for found, weight in zip(lists, weights, strict=True):
        one, live = check_list(found, context)
        share = live.double() * weight / live.sum(1, keepdim=True).clamp(min=1)
        ids.append(one.masked_fill(share == 0, NOTHING))
        shares.append(share)
    ordered, order = torch.cat(ids, 1).sort(1)
    share = torch.cat(shares, 1).gather(1, order)
    slot = (ordered.diff(dim=1) != 0).cumsum(1)
    slot = torch.cat([slot.new_zeros(len(slot), 1), slot], 1)[:, : ordered.shape[1]]
    p = torch.zeros_like(share).scatter_add(1, slot, share)
    candidates = torch.full_like(ordered, NOTHING).scatter(1, slot, ordered)
    return candidates, p.log() - p.sum(1, keepdim=True).where(p > 0, 1.0).log()


def check_list(found: ArrayLike | Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """A list of ids for each query, checked, and which of them are candidates.

    Args:
        found: int64, (B, N); -1 in an empty slot.
        context: what each query wants.

    Returns:
        int64 (B, N) and bool (B, N), True at ids that are not known.

    Raises:
        TypeError: ids that are not int64.
        ValueError: another shape, ids below -1, or one twice in a row.
    """
    ids = torch.as_tensor(found)
    if ids.dtype != torch.int64:
        raise TypeError(f"Lists must hold int64 ids, got {ids.dtype}.")
    if ids.ndim != 2 or len(ids) != len(context):
        raise ValueError(f"Lists must be ({len(context)}, N), got {tuple(ids.shape)}.")
    if ids.numel() and int(ids.min()) < -1:
        raise ValueError(f"Lists must hold ids, or -1 in an empty slot, got {int(ids.min())}.")
    ordered = ids.sort(1).values
    if bool(((ordered.diff(dim=1) == 0) & (ordered[:, 1:] >= 0)).any()):
        raise ValueError("A list must not hold an id twice for one query.")
    return ids, (ids >= 0) & ~context.mask(ids.clamp(min=0))


def draw_from_pool(
    candidates: Tensor, log_p: Tensor, n: int, *, replacement: bool, generator: torch.Generator | None
) -> Draws:
    """Draw candidates of each row by their probabilities.

    Args:
        candidates: int64, (B, C), as `pool` gives them.
        log_p: float64, (B, C).
        n: how many.
        replacement: with or without.
        generator: source of randomness.

    Returns:
        Draws with ids (B, n), or (B, min(n, C)) without replacement; log_expected in float32.
    """
    if not replacement:
        drawn = without_replacement(log_p, min(n, log_p.shape[1]), generator=generator)
        empty = drawn.log_expected == math.inf
        ids = candidates.gather(1, drawn.ids).masked_fill(empty, 0)
        return Draws(ids, drawn.log_expected.float(), answer(candidates, drawn.log_expected_of))
    if log_p.shape[1] == 0 or n == 0:
        value = torch.full((len(candidates), n), math.inf)
        return Draws(torch.zeros_like(value).long(), value, answer(candidates, _never))
    u = torch.rand(len(log_p), n, generator=generator, dtype=torch.float64)
    edges = log_p.exp().cumsum(1)
    some = (candidates != NOTHING).sum(1, keepdim=True)
    place = torch.searchsorted(edges, u * edges[:, -1:], right=True)
    place = torch.minimum(place, (some - 1).clamp(min=0))  # rounding must not lead past the last
    expected = log_p + math.log(n)
    ids = candidates.gather(1, place).masked_fill(some == 0, 0)
    value = expected.gather(1, place).masked_fill(some == 0, math.inf)
    return Draws(ids, value.float(), answer(candidates, lambda asked: expected.gather(1, asked)))


def _never(places: Tensor) -> Tensor:
    return torch.full(places.shape, -math.inf)


def answer(candidates: Tensor, of_places: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A design that looks ids up among ascending candidates and asks another for the places found.

    Args:
        candidates: int64, (B, C), ascending.
        of_places: from places (B, m) among the candidates to log expected counts.
    """

    def design(asked: Tensor) -> Tensor:
        asked = asked.expand(len(candidates), asked.shape[-1]).contiguous()
        if candidates.shape[1] == 0:
            return _never(asked)
        place = torch.searchsorted(candidates, asked).clamp_(max=candidates.shape[1] - 1)
        found = (candidates.gather(1, place) == asked) & (asked != NOTHING)
        return of_places(place).where(found, -math.inf).float()

    return design
