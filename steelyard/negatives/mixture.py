"""Candidates from several proposals at once, weighed by all the ways they could have come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from steelyard.draws import Draws, Proposal
from steelyard.negatives.asked import check_number
from steelyard.negatives.context import Context


class Mixture:
    """Split the draws over several proposals and sum their expected counts.

        expected(j) = sum_d expected_d(j)

    The split is fixed (largest remainders), not random, which only lowers the variance.

    Args:
        parts: the proposals.
        shares: share of the draws of each part, positive; equal by default.

    Raises:
        ValueError: no parts, another number of shares than parts, or a share that is not positive.

    Reference:
        Veach & Guibas (1995), SIGGRAPH, section 3.3 (balance heuristic); mixed in-batch and uniform
        negatives: Yang et al. (2020), Mixed negative sampling for learning two-tower neural networks
        in recommendations, WWW companion.
    """

    def __init__(self, parts: Sequence[Proposal], shares: Sequence[float] | None = None) -> None:
        shares = [1.0] * len(parts) if shares is None else list(shares)
        if not parts or len(parts) != len(shares):
            raise ValueError(
                f"A mixture needs parts and one share for each, got {len(parts)} and {len(shares)}."
            )
        if not all(math.isfinite(s) and s > 0 for s in shares):
            raise ValueError(f"Shares must be positive and finite, got {shares}.")
        self.parts = list(parts)
        self.shares = [s / sum(shares) for s in shares]

    def split(self, n: int) -> list[int]:
        """How many of `n` draws each part makes: its share, by largest remainders.

        Beside others, a part that is certain of some (`TopK.certain`) takes those first, and no more.

        Args:
            n: how many draws.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`.
        """
        check_number(n)
        certain = [int(getattr(part, "certain", 0)) for part in self.parts]
        if all(certain):
            certain = [0] * len(certain)
        counts: list[int] = []
        for number in certain:
            counts.append(min(number, n - sum(counts)))
        left = n - sum(counts)
        shares = [0.0 if number else share for number, share in zip(certain, self.shares, strict=True)]
        shares = [share / sum(shares) for share in shares]
        rest = [int(left * share) for share in shares]
        order = sorted(range(len(rest)), key=lambda d: rest[d] - left * shares[d])
        for d in order[: left - sum(rest)]:
            rest[d] += 1
        return [a + b for a, b in zip(counts, rest, strict=True)]

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates, split over the parts.

        Args:
            context: the batch.
            n: how many candidates of all parts together; a part may make fewer (in-batch) or more (everything).
            generator: source of randomness; torch's own where None.

        Returns:
            Merged draws, shared where every part is, else per query; none for `n` of 0.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`, and what a part raises.
        """
        counts = self.split(n)
        if n == 0:
            nothing = torch.zeros(0, dtype=torch.int64)
            return Draws(nothing, torch.zeros(0), lambda asked: torch.full(asked.shape, -math.inf))
        return Draws.merge(
            [
                part.sample(context, count, generator=generator)
                for part, count in zip(self.parts, counts, strict=True)
                if count
            ]
        )
