"""Uniform candidates: shared by the batch, or for each query from what it is not known to want."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.context import Context
from steelyard.ragged import Ragged


@dataclass(frozen=True)
class Uniform:
    """Draw items uniformly, with replacement.

        shared:     q(j) = 1 / I                             for all items
        per query:  q_b(j) = 1 / (I - |known_b|)             for j not in known_b, else 0

    Shared draws cost one lookup of `n` item vectors for the whole batch (mask the accidental hits
    with `Context.hits`). Draws per query come from the complement of what the query is known to want,
    exactly and without rejection: with the known items sorted, `x_0 < x_1 < ...`, and `r` uniform on
    `0 .. I - h - 1`, the answer is `r + m`, m the number of k with `x_k - k <= r`.

    Args:
        n_items: size of the catalogue, I.
        per_query: draw for each query separately.

    Raises:
        ValueError: an empty catalogue.
    """

    n_items: int
    per_query: bool = False

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ValueError(f"A catalogue needs at least one item, got n_items={self.n_items}.")

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates, shared or per query.

        Args:
            context: the batch; `known` (the positive where None) is left out of draws per query.
            n: how many candidates.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws with ids (n,) shared, or (B, n) per query.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`; a query that is known to want every item.
        """
        check_number(n)
        if not self.per_query:
            value = math.log(n / self.n_items) if n else -math.inf
            ids = torch.randint(self.n_items, (n,), generator=generator)
            return Draws(
                ids,
                torch.tensor(value),
                lambda asked: torch.where(inside(asked, self.n_items), value, -math.inf),
            )
        known = context.known
        if known is None:
            rows = torch.arange(len(context))
            known = Ragged.from_pairs(rows, context.positives, len(context))
        left = self.n_items - known.counts
        if bool((left <= 0).any()):
            row = int((left <= 0).nonzero()[0])
            raise ValueError(
                f"Query {row} is known to want all {self.n_items} items, so there is nothing to draw for it; "
                "leave such queries out of training."
            )
        u = torch.rand(len(context), n, generator=generator, dtype=torch.float64)
        r = torch.minimum((u * left.unsqueeze(1)).long(), left.unsqueeze(1) - 1)
        value_of = math.log(n) - left.to(torch.float32).log() if n else torch.full((len(left),), -math.inf)

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(len(context), asked.shape[-1])
            within = inside(asked, self.n_items)
            wanted = Context(context.positives, known, context.owner).mask(asked.clamp(min=0))
            return torch.where(within & ~wanted, value_of.unsqueeze(1), -math.inf)

        return Draws(r + known_before(known, r, self.n_items), value_of.unsqueeze(1), design)


def known_before(known: Ragged, r: Tensor, n_items: int) -> Tensor:
    """For each row and each r: how many known items lie at or before the r-th item of the complement."""
    rows = known.row_index()
    rank = torch.arange(len(known.values)) - known.offsets[rows]
    keys = rows * (n_items + 1) + known.values - rank
    asked = torch.arange(len(known)).unsqueeze(1) * (n_items + 1) + r
    return torch.searchsorted(keys, asked, right=True) - known.offsets[:-1].unsqueeze(1)
