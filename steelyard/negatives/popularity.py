"""Candidates drawn in proportion to a power of how often each item occurs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, look_up
from steelyard.sampling.alias import AliasTable


class Popularity:
    """Draw items by popularity, with replacement, shared by the batch.

        q(j) = counts_j^alpha / sum_k counts_k^alpha

    alpha = 1 is the unigram distribution, 0.75 that of word2vec, 0 uniform over the items that occur.
    An item that never occurs is never drawn. Accidental hits are masked with `Context.hits`.

    Args:
        counts: (I,), non-negative: how often each item occurs.
        alpha: exponent, finite.

    Raises:
        ValueError: `alpha` not finite; counts negative, not finite, or all zero.

    Reference:
        Mikolov et al. (2013), Distributed representations of words and phrases and their
        compositionality, arXiv 1310.4546, section 2.2.
    """

    def __init__(self, counts: Tensor, alpha: float = 1.0) -> None:
        if not math.isfinite(alpha):
            raise ValueError(f"alpha must be finite, got {alpha}.")
        self.table = AliasTable(_powers(counts.to(torch.float64), alpha))
        self._log_q = self.table.log_probability.to(torch.float32)

    def sample(self, context: Any, n: int, *, generator: torch.Generator | None = None) -> Draws:  # noqa: ARG002
        """Draw `n` candidates, whatever the context.

        Args:
            context: not looked at.
            n: how many candidates.
            generator: source of randomness; torch's own where None.

        Returns:
            Shared draws, ids (n,).

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`.
        """
        check_number(n)
        log_q, log_n = self._log_q, math.log(n) if n else -math.inf
        ids = self.table.sample(n, generator=generator)
        return Draws(ids, log_q[ids] + log_n, lambda asked: look_up(log_q, asked, log_n))


def _powers(counts: Tensor, alpha: float) -> Tensor:
    """`counts^alpha` relative to the largest, which no exponent can make vanish; 0 where nothing occurs."""
    live = (counts > 0) & counts.isfinite()
    if not bool((live | (counts == 0)).all()) or not bool(live.any()):
        return counts  # the table names what is wrong with them
    log_count = counts.log()
    best = log_count.max() if alpha >= 0 else log_count[live].min()
    return torch.where(live, (alpha * (log_count - best)).exp(), 0.0)
