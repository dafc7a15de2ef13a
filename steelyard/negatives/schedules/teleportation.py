"""Negatives that carry over from round to round and look ahead, so that what was learned is not forgotten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number
from steelyard.negatives.context import Context
from steelyard.negatives.schedules.pools import draw_from_pool, pool


@dataclass
class TeleNegatives:
    """Mix this round's neighbours with those of the round before and with the positive's: ANCE-Tele.

        N_t ~ without replacement, by   p(j) proportional to   [j in A_q] / |A_q|
                                             + momentum  [j in N_{t-1}] / |N_{t-1}|
                                             + lookahead [j in A_d] / |A_d|
        A_q, A_d: the top lists of the query and of its positive, all without what the query is known to want

    A refresh alone replaces nearly all negatives, and the model forgets the old ones while it learns the new:
    it swings between groups of negatives. The carry-over keeps some of all past rounds, and the neighbours of
    the positive are where the query is drawn to, a guess at the rounds to come. With both weights 0 it is
    ANCE.

    Args:
        momentum: weight of the negatives of the round before, 0 or more; 0.5 in the paper.
        lookahead: weight of the neighbours of the positive, 0 or more; 0.5 in the paper.

    Raises:
        ValueError: a weight that is negative or not finite.

    Reference:
        Sun et al. (2022), Reduce catastrophic forgetting of dense retrieval training with teleportation
        negatives, EMNLP, arXiv 2210.17167. Reconstructed: the weights as shares of one mixture, uniform within
        each list.
    """

    momentum: float = 0.5
    lookahead: float = 0.5
    carried: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name, weight in (("momentum", self.momentum), ("lookahead", self.lookahead)):
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {weight}.")

    def refresh(
        self,
        top: ArrayLike | Tensor,
        of_positive: ArrayLike | Tensor,
        context: Context,
        n: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Draws:
        """Draw the negatives of a round, and keep them for the next.

        Args:
            top: int64, (Q, k): the documents nearest to each training query under the model as it is now; -1
                in an empty slot.
            of_positive: int64, (Q, m): the documents nearest to the positive of each.
            context: all training queries, with their positives and whatever else is known.
            n: how many negatives of each.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (Q, n) or fewer columns where the lists are shorter; empty slots at the end
            of queries with fewer candidates.

        Raises:
            TypeError: `n` or ids that are not integers.
            ValueError: a negative `n`, lists of another shape, with ids below -1 or one twice in a row; other
                training queries than in the round before.
        """
        check_number(n)
        lists, weights = [top, of_positive], [1.0, self.lookahead]
        if self.carried is not None:
            if len(self.carried) != len(context):
                raise ValueError(
                    f"The round before had {len(self.carried)} queries, this one {len(context)}; give all "
                    "training queries in one order."
                )
            lists.append(self.carried)
            weights.append(self.momentum)
        candidates, log_p = pool(lists, weights, context)
        draws = draw_from_pool(candidates, log_p, n, replacement=False, generator=generator)
        self.carried = draws.ids.masked_fill(draws.log_expected == math.inf, -1)
        return draws

    def state_dict(self) -> dict[str, Any]:
        """What training needs to go on where it stopped: the negatives of the last round."""
        return {"carried": self.carried}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Args:
            state: of a schedule for the same training queries.
        """
        self.carried = state["carried"]
