"""Candidates drawn in proportion to a power of how often each item occurs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
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
        ValueError: `alpha` not finite; counts negative, NaN, or all zero.

    Reference:
        Mikolov et al. (2013), Distributed representations of words and phrases and their
        compositionality, arXiv 1310.4546, section 2.2.
    """

    def __init__(self, counts: Tensor, alpha: float = 1.0) -> None:
        if not math.isfinite(alpha):
            raise ValueError(f"alpha must be finite, got {alpha}.")
        weights = counts.to(torch.float64)
        self.table = AliasTable(torch.where(weights == 0, weights, weights**alpha))
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
            ValueError: a negative `n`.
        """
        if n < 0:
            raise ValueError(f"The number of draws must not be negative, got {n}.")
        log_expected = self._log_q + (math.log(n) if n else -math.inf)
        ids = self.table.sample(n, generator=generator)
        return Draws(ids, log_expected[ids], lambda asked: log_expected[asked])
