"""Candidates from earlier batches: a first-in, first-out memory of their items."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, look_up


class Queue:
    """Take the items of earlier batches as candidates: many for the price of remembering them.

        expected(j) = m p_j        p_j = counts_j / sum_k counts_k,   m = min(n, items held)

    This assumes that each of the m slots is an independent draw from the data, in which item j has share
    p_j, and independent of the batch at hand. Where batches come from a shuffled epoch the slots differ a
    little from that: an interaction in the queue cannot come again before the epoch ends. Counts of other data
    than the batches come from leave the estimate biased.

    Push a batch after its loss, not before: else its own positives stand in the queue, which the formula does
    not know. The queue holds ids alone; what the item vectors were when they entered is the caller's to keep
    (`ids` gives the order), or the items are encoded anew. Accidental hits are masked with `Context.hits`.

    Args:
        capacity: most ids it holds; the oldest leave first.
        counts: (I,), non-negative: how often each item occurs in the data that batches come from.

    Raises:
        ValueError: a capacity below 1; counts of another shape, negative, not finite, or all zero.

    Reference:
        Wang et al. (2020), Cross-batch memory for embedding learning, CVPR, arXiv 1912.06798; He et al. (2020),
        Momentum contrast for unsupervised visual representation learning, CVPR, arXiv 1911.05722. Neither
        corrects for the frequency of items; the expected counts are ours.
    """

    def __init__(self, capacity: int, counts: Tensor) -> None:
        if capacity < 1:
            raise ValueError(f"A queue needs a capacity of at least 1, got {capacity}.")
        weights = torch.as_tensor(counts).to(torch.float64)
        if weights.ndim != 1 or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(
                f"counts must be (I,), finite and not negative, got shape {tuple(weights.shape)}."
            )
        if not float(weights.sum()) > 0:
            raise ValueError("counts must be positive for at least one item.")
        self.capacity = capacity
        self._log_p = (weights.log() - weights.sum().log()).float()
        self._ring = torch.zeros(capacity, dtype=torch.int64)
        self._next = 0  # where the next id goes
        self._held = 0

    def __len__(self) -> int:
        return self._held

    @property
    def ids(self) -> Tensor:
        """A copy of the ids held, int64, (held,), the oldest first."""
        places = torch.arange(self._next - self._held, self._next) % self.capacity
        return self._ring[places]

    def push(self, ids: Tensor) -> None:
        """Remember the items of a batch; the oldest leave where there are more than the capacity.

        Args:
            ids: int64, (b,).

        Raises:
            TypeError: ids that are not int64.
            ValueError: another shape, or an id that never occurs by the counts.
        """
        ids = self._checked(ids)
        ids = ids[-self.capacity :]
        self._ring[(self._next + torch.arange(len(ids))) % self.capacity] = ids
        self._next = (self._next + len(ids)) % self.capacity
        self._held = min(self.capacity, self._held + len(ids))

    def sample(self, context: Any, n: int, *, generator: torch.Generator | None = None) -> Draws:  # noqa: ARG002
        """Take what the queue holds, or a uniform subset of `n`.

        Args:
            context: not looked at.
            n: how many candidates.
            generator: decides which, where `n` is less than the queue holds; torch's own where None.

        Returns:
            Shared draws, ids (min(n, held),): none from an empty queue.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`.
        """
        check_number(n)
        ids = self.ids
        if n < len(ids):
            ids = ids[torch.randperm(len(ids), generator=generator)[:n]]
        log_p, log_m = self._log_p, math.log(len(ids)) if len(ids) else -math.inf
        return Draws(ids, look_up(log_p, ids, log_m), lambda asked: look_up(log_p, asked, log_m))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep: the ids, the oldest first, and the capacity."""
        return {"capacity": self.capacity, "ids": self.ids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Args:
            state: from `state_dict`.

        Raises:
            ValueError: the state of a queue with another capacity, or ids that do not fit it or the counts.
        """
        ids = state["ids"]
        if state["capacity"] != self.capacity or len(ids) > self.capacity:
            raise ValueError(
                f"This queue has capacity {self.capacity}, the state is {len(ids)} ids of one with capacity "
                f"{state['capacity']}."
            )
        ids = self._checked(ids)
        self._ring[: len(ids)] = ids
        self._next, self._held = len(ids) % self.capacity, len(ids)

    def _checked(self, ids: Tensor) -> Tensor:
        """The ids, refused unless each occurs by the counts."""
        ids = torch.as_tensor(ids)
        if ids.dtype != torch.int64:
            raise TypeError(f"ids must be int64, got {ids.dtype}.")
        if ids.ndim != 1:
            raise ValueError(f"ids must be (b,), got {tuple(ids.shape)}.")
        never = look_up(self._log_p, ids, 0.0) == -math.inf
        if bool(never.any()):
            raise ValueError(
                f"Item {int(ids[never][0])} never occurs by the counts of {len(self._log_p)} items, so its "
                "expected count is 0; count the data that the batches come from."
            )
        return ids
