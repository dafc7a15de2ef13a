"""Candidates drawn log-uniformly by popularity rank: close to Zipf's law, and in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside


class LogUniform:
    """Draw items by popularity rank, with replacement, shared by the batch.

        q(rank r) = (log(r + 2) - log(r + 1)) / log(I + 1)        r = 0 .. I - 1
        r = floor(exp(u log(I + 1))) - 1                           u uniform on [0, 1)

    Rank 0 is the most popular item. No counts and no table are needed, only the order: a draw costs one
    exponential, whatever the size of the catalogue. Accidental hits are masked with `Context.hits`.

    Args:
        n_items: size of the catalogue, I.
        order: int64, (I,), the item of each rank, a permutation; where None the ids are the ranks.

    Raises:
        TypeError: `order` is not int64.
        ValueError: an empty catalogue, or an `order` that is no permutation of the items.

    Reference:
        The log-uniform candidate sampler of TensorFlow (Abadi et al. (2016), TensorFlow: a system for
        large-scale machine learning, OSDI); sampled softmax by it: Jean et al. (2015), On using very large
        target vocabulary for neural machine translation, ACL, arXiv 1412.2007.
    """

    def __init__(self, n_items: int, order: Tensor | None = None) -> None:
        if n_items < 1:
            raise ValueError(f"A catalogue needs at least one item, got n_items={n_items}.")
        self.n_items = n_items
        self._order: Tensor | None = None
        self._rank: Tensor | None = None
        if order is None:
            return
        order = torch.as_tensor(order)
        if order.dtype != torch.int64:
            raise TypeError(f"order must be int64, got {order.dtype}.")
        if order.shape != (n_items,) or not bool(inside(order, n_items).all()):
            raise ValueError(f"order must hold each of the {n_items} items once, got {tuple(order.shape)}.")
        rank = torch.full((n_items,), -1)
        rank[order] = torch.arange(n_items)
        if bool((rank < 0).any()):
            raise ValueError(
                f"order must hold each item once; item {int((rank < 0).nonzero()[0])} is missing."
            )
        self._order, self._rank = order.clone(), rank

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
        u = torch.rand(n, generator=generator, dtype=torch.float64)
        # exp(u log(I + 1)) - 1; rounding may reach I, one past the last rank.
        ranks = torch.expm1(u * math.log1p(self.n_items)).long().clamp_(max=self.n_items - 1)
        design = self._design(n)
        ids = ranks if self._order is None else self._order[ranks]
        return Draws(ids, design(ids), design)

    def _design(self, n: int) -> Callable[[Tensor], Tensor]:
        """Log expected counts of any ids among `n` draws."""
        log_scale = math.log(n) - math.log(math.log1p(self.n_items)) if n else -math.inf

        def design(asked: Tensor) -> Tensor:
            ranks = asked.clamp(0, self.n_items - 1)
            if self._rank is not None:
                ranks = self._rank[ranks]
            share = torch.log1p(1 / (ranks.double() + 1))  # log((r + 2) / (r + 1)), its digits kept
            value = (share.log() + log_scale).float()
            return value.masked_fill_(~inside(asked, self.n_items), -math.inf)

        return design
