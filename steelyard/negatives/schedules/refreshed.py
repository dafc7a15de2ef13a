"""Negatives from an index that is built anew every few steps, and how stale it is in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.context import Context
from steelyard.negatives.schedules.pools import NOTHING, answer, check_list


@dataclass
class Refreshed:
    """Draw each query's negatives among its top k in an index that is rebuilt every m steps: ANCE.

        negatives of q ~ uniform, without replacement, from   top k of q under the model of the last refresh
                                                              without what q is known to want
        expected(j) = min(1, n / |candidates of q|)

    Between two refreshes the table is stale by at most m - 1 steps; m = 1 is never stale and encodes all
    documents at each step. The draws have no support outside the table: `Draws.merge` with those of a proposal
    that covers everything makes the loss one over the catalogue.

    Args:
        encode_documents: all documents under the model as it is now, (I, d).
        search: from these and k to the top k of every training query under the model as it is now, int64
            (Q, k), in any order; -1 where there are fewer.
        k: size of the table; 200 in the paper.
        every: steps between refreshes, m; 10,000 in the paper's code.

    Raises:
        TypeError: `k` or `every` is not an integer.
        ValueError: `k` or `every` below 1.

    Reference:
        Xiong et al. (2021), Approximate nearest neighbor negative contrastive learning for dense text
        retrieval, ICLR, arXiv 2007.00808. There another process rebuilds the index beside training.
    """

    encode_documents: Callable[[], Tensor]
    search: Callable[[Tensor, int], Tensor]
    k: int = 200
    every: int = 10_000
    top: Tensor | None = field(default=None, init=False)
    staleness: int = field(default=0, init=False)
    refreshes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name, number in (("k", self.k), ("every", self.every)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"{name} must be an integer, got {number!r}.")
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")

    def step(self) -> bool:
        """Call before each training step: refreshes if it is time to, and counts the staleness.

        Returns:
            Whether the table was refreshed.

        Raises:
            TypeError: `search` gives anything but int64.
            ValueError: `search` gives another shape.
        """
        if self.top is None or self.staleness + 1 >= self.every:
            self.refresh()
            return True
        self.staleness += 1
        return False

    def refresh(self) -> None:
        """Encode all documents and search them for every query, now.

        Raises:
            TypeError: `search` gives anything but int64.
            ValueError: `search` gives another shape.
        """
        with torch.no_grad():
            top = torch.as_tensor(self.search(self.encode_documents().detach(), self.k))
        if top.dtype != torch.int64:
            raise TypeError(f"search must give int64 ids, got {top.dtype}.")
        if top.ndim != 2 or top.shape[1] != self.k:
            raise ValueError(f"search must give (queries, {self.k}) ids, got {tuple(top.shape)}.")
        self.top, self.staleness, self.refreshes = top, 0, self.refreshes + 1

    def sample(
        self, queries: Tensor, context: Context, n: int, *, generator: torch.Generator | None = None
    ) -> Draws:
        """Draw `n` different negatives of each query from its table.

        Args:
            queries: int64, (B,): which training queries these are.
            context: the batch: their positives and whatever else is known.
            n: how many of each.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, min(n, k)); empty slots at the end where fewer are left.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: no refresh yet, queries outside the table, another number of them than in the batch,
                a negative `n`, a table with an id twice in a row.
        """
        check_number(n)
        if self.top is None:
            raise ValueError("There is no table yet: call step() before each training step.")
        queries = torch.as_tensor(queries)
        if not bool(inside(queries, len(self.top)).all()):
            raise ValueError(f"queries must lie in [0, {len(self.top)}), the rows that search gave.")
        ids, live = check_list(self.top[queries], context)
        left = live.sum(1, keepdim=True)
        key = torch.rand(ids.shape, generator=generator, dtype=torch.float64).masked_fill(~live, -1)
        drawn, place = key.topk(min(n, self.k), 1)
        log_p = (n / left.clamp(min=max(n, 1))).log()
        candidates = ids.masked_fill(~live, NOTHING).sort(1).values
        return Draws(
            ids.gather(1, place).masked_fill(drawn < 0, 0),
            log_p.expand(drawn.shape).masked_fill(drawn < 0, math.inf),
            answer(candidates, lambda asked: log_p.expand(asked.shape)),
        )

    def state_dict(self) -> dict[str, Any]:
        """What training needs to go on where it stopped: the table and its age."""
        return {"top": self.top, "staleness": self.staleness, "refreshes": self.refreshes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, without encoding anything.

        Args:
            state: of a schedule with the same `k`.

        Raises:
            ValueError: a table of another `k`.
        """
        top = state["top"]
        if top is not None and top.shape[1] != self.k:
            raise ValueError(f"The state holds a table of k={top.shape[1]}, not {self.k}.")
        self.top, self.staleness, self.refreshes = top, int(state["staleness"]), int(state["refreshes"])


def pool_overlap(pool: Tensor, other: Tensor) -> Tensor:
    """How much of each query's pool another pool holds, as a share.

        |pool_q and other_q| / |pool_q|

    Args:
        pool: int64, (Q, n), ids different within a row; -1 in an empty slot.
        other: int64, (Q, m).

    Returns:
        float64, (Q,); NaN is never given: a query without a pool has share 1, nothing of it being lost.

    Raises:
        ValueError: the pools have another number of queries.

    Reference:
        Sun et al. (2022), Reduce catastrophic forgetting of dense retrieval training with teleportation
        negatives, EMNLP, arXiv 2210.17167 (overlap of the negatives of consecutive rounds).
    """
    if pool.ndim != 2 or other.ndim != 2 or len(pool) != len(other):
        raise ValueError(
            f"Pools must be (Q, n) and (Q, m), got {tuple(pool.shape)} and {tuple(other.shape)}."
        )
    ordered = other.sort(1).values.contiguous()
    held = pool >= 0
    if ordered.shape[1] == 0:
        return (held.sum(1) == 0).double()
    place = torch.searchsorted(ordered, pool.contiguous()).clamp_(max=ordered.shape[1] - 1)
    shared = ((ordered.gather(1, place) == pool) & held).sum(1)
    return torch.where(held.any(1), shared.double() / held.sum(1).clamp(min=1), 1.0)
