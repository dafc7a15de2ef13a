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

        expected(j) = (n / B) (B - 1) counts_j / (N - 1)          N = sum_k counts_k

    For a batch of B interactions out of N, drawn uniformly without replacement (a shuffled epoch): given
    a query and its positive p, the other B - 1 interactions are uniform among the N - 1 that are left, and
    hold item j != p that often. A query's own positive is an accidental hit, which `Context.hits` masks.
    Nothing is random here beyond the batch itself, unless fewer than B candidates are asked for: then
    they are a uniform subset.

    Args:
        counts: (I,), non-negative: how many interactions each item has in the data that batches come from.

    Raises:
        ValueError: fewer than two interactions, negative or non-finite counts.
    """

    def __init__(self, counts: Tensor) -> None:
        weights = counts.to(torch.float64)
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
            raise ValueError("counts must be finite and not negative.")
        total = float(weights.sum())
        if total < 2:
            raise ValueError(
                f"In-batch candidates need at least two interactions, the counts sum to {total:g}."
            )
        self._log_rate = (weights / (total - 1)).log().to(torch.float32)

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Take `n` of the batch's positives (all of them where `n` is the batch size or more).

        Args:
            context: the batch.
            n: how many candidates.
            generator: decides which, where `n` is less than the batch.

        Returns:
            Shared draws, ids (min(n, B),); none for a batch of one query, which has no others.

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
        if size == 1:  # the odd pair at the end of an epoch: there are no others
            ids = ids[:0]
        elif n < size:
            ids = ids[torch.randperm(size, generator=generator)[:n]]
        share = (size - 1) * min(n, size) / size if size else 0.0
        log_share = math.log(share) if share else -math.inf
        return Draws(ids, log_rate[ids] + log_share, lambda asked: look_up(log_rate, asked, log_share))
