"""Hard negatives that no data point is: the hardest of a queue mixed with each other and with the query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.negatives.hard.asked import alike, all_finite, check_count


def mochi(
    query: Any,
    queue: Any,
    n_hardest: int,
    n_pairs: int,
    n_with_query: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mix the hardest queue entries of each query with each other, and with the query itself.

        h  = norm( a n_i + (1 - a) n_j )       a ~ U(0, 1)
        h' = norm( b q   + (1 - b) n_j )       b ~ U(0, 1/2)

    n_i and n_j are drawn among the `n_hardest` queue entries most similar to the query, two different ones
    where there are two. What it does to the softmax: terms of no item are added, so the loss lies above the
    one with the queue alone and none is an estimate of the other; without synthetic ones it is that loss.

    Args:
        query: float, (B, D), on the unit sphere.
        queue: float, (Q, D), on the unit sphere.
        n_hardest: from how many of the nearest entries to mix, 1 or more; all where there are fewer.
        n_pairs: how many to make of two entries, for each query.
        n_with_query: how many to make of an entry and the query; each is nearer to the query than its entry.
        generator: source of randomness; torch's own where None.

    Returns:
        (B, n_pairs + n_with_query, D), unit vectors without gradient, those of pairs first: negatives of
        their own query only.

    Raises:
        TypeError: tensors that are not floating point, counts that are no integers.
        ValueError: shapes that do not fit, an empty queue, entries that are not finite, or counts out of
            range.

    Reference:
        Kalantidis, Sariyildiz, Pion, Weinzaepfel & Larlus (2020), Hard negative mixing for contrastive
        learning (MoCHi), NeurIPS, arXiv 2010.01028, which may pair an entry with itself.
    """
    check_count("n_hardest", n_hardest)
    check_count("n_pairs", n_pairs, 0)
    check_count("n_with_query", n_with_query, 0)
    q, stored = alike(all_finite("query", query).detach(), all_finite("queue", queue).detach())
    if q.ndim != 2 or stored.ndim != 2 or q.shape[1] != stored.shape[1] or len(stored) == 0:
        raise ValueError(
            f"query must be (B, D) and queue (Q, D) with Q > 0, got {tuple(q.shape)} and "
            f"{tuple(stored.shape)}."
        )
    n_hard = min(n_hardest, len(stored))
    hard = (q @ stored.T).topk(n_hard, 1).indices
    total = n_pairs + n_with_query
    share = torch.rand(len(q), total, 1, generator=generator, dtype=torch.float64).to(q.dtype)
    share = torch.cat([share[:, :n_pairs], share[:, n_pairs:] / 2], 1)
    second = torch.randint(n_hard, (len(q), total), generator=generator)
    step = torch.randint(max(n_hard - 1, 1), (len(q), n_pairs), generator=generator) + 1
    first = (second[:, :n_pairs] + step) % n_hard
    partner = stored[hard.gather(1, first)]
    partner = torch.cat([partner, q.unsqueeze(1).expand(-1, n_with_query, -1)], 1)
    return normalize(share * partner + (1 - share) * stored[hard.gather(1, second)], dim=2)
