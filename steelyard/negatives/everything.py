"""The whole catalogue as candidates: the exact softmax, through the same door."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from steelyard.draws import Draws
from steelyard.negatives.asked import inside


@dataclass(frozen=True)
class Everything:
    """Take every item once, with certainty: expected count 1, so the sampled softmax is the full one.

    Args:
        n_items: size of the catalogue.

    Raises:
        ValueError: an empty catalogue.
    """

    n_items: int

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ValueError(f"A catalogue needs at least one item, got n_items={self.n_items}.")

    def sample(self, context: Any, n: int, *, generator: torch.Generator | None = None) -> Draws:  # noqa: ARG002
        """All items, whatever `n`; nothing is random.

        Args:
            context: not looked at.
            n: not looked at.
            generator: not used.

        Returns:
            Shared draws, ids (I,), each with expected count 1.
        """
        return Draws(
            torch.arange(self.n_items),
            torch.zeros(()),
            lambda asked: torch.where(inside(asked, self.n_items), 0.0, -math.inf),
        )
