"""The positives of the other queries in the batch as candidates: free, and popular."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside, look_up
from steelyard.negatives.context import Context


class InBatch:
    """Take the positives of the batch as candidates for all its queries.

        expected(j) = pi (B - 1) counts_j / (Q - 1)        pi = min(1, n / P)

    For a batch of B queries out of Q, drawn uniformly without replacement (a shuffled epoch), each with all
    its positives: given one query, the other B - 1 are uniform among the Q - 1 that are left, and bring item
    j that often, unless the query itself has j. Its own positives are accidental hits, which `Context.hits`
    masks. With one positive a query Q is the number of interactions. Nothing is random here beyond the batch
    itself, unless fewer than its P positives are asked for: then one positive a query gives a uniform subset
    of n, and many positives a query an independent choice of each with probability
    `pi = min(1, n Q / (B sum_k counts_k))`, which does not depend on the batch's own number of positives.

    Args:
        counts: (I,), non-negative: how many interactions each item has in the data that batches come from.
        n_queries: how many queries batches are drawn from, Q; default one for each interaction.

    Raises:
        ValueError: fewer than two queries, negative or non-finite counts.
    """

    def __init__(self, counts: Tensor, n_queries: int | None = None) -> None:
        weights = counts.to(torch.float64)
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
            raise ValueError("counts must be finite and not negative.")
        self._total = float(weights.sum())
        self._n_queries = self._total if n_queries is None else n_queries
        if min(self._n_queries, self._total) < 2:
            raise ValueError(
                f"In-batch candidates need at least two queries with an interaction each, got "
                f"{self._n_queries:g} with {self._total:g}."
            )
        self._log_rate = (weights / (self._n_queries - 1)).log().to(torch.float32)

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Take `n` of the batch's positives (all of them where `n` is their number or more).

        Args:
            context: the batch.
            n: how many candidates; many positives a query give as many on average.
            generator: decides which, where `n` is less than the batch has.

        Returns:
            Shared draws, ids (min(n, P),); none for a batch of one query, which has no others.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`, or a positive of the batch outside the catalogue.
        """
        size = len(context)
        check_number(n)
        ids, log_rate = context.positives, self._log_rate
        if not bool(inside(ids, len(log_rate)).all()):
            raise ValueError(
                f"positives must lie in [0, {len(log_rate)}), the catalogue that was counted, got "
                f"{int(ids.min())} to {int(ids.max())}."
            )
        if size <= 1:  # the odd query at the end of an epoch: there are no others
            ids, share = ids[:0], 0.0
        elif context.owner is None:
            share = min(n, size) / size
            if n < size:
                ids = ids[torch.randperm(size, generator=generator)[:n]]
        else:
            share = min(1.0, n * self._n_queries / (size * self._total))
            if share < 1:
                ids = ids[torch.rand(len(ids), generator=generator) < share]
        log_share = math.log(share * (size - 1)) if share else -math.inf
        return Draws(ids, log_rate[ids] + log_share, lambda asked: look_up(log_rate, asked, log_share))
