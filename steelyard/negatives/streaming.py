"""How often items occur in a stream, from the gaps between their visits, for in-batch candidates."""

from __future__ import annotations

import math
import operator
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number
from steelyard.negatives.context import Context
from steelyard.sampling.successive import hash_id


class StreamingFrequency:
    """Take the positives of the batch as candidates, with frequencies estimated from the stream itself.

        gap:    B[h(j)] <- (1 - alpha) B[h(j)] + alpha (t - A[h(j)]),   A[h(j)] <- t      when j comes at t
        q(j) = 1 / max_d B_d[h_d(j)]
        expected(j) = pi (B - 1) c q(j)      pi = min(1, n / (B c)) in a batch of B queries

    c is the number of positives a query: 1, or where a query may have many (`Context.owner`) the average that
    the stream has shown so far, so that q c is how often a query has j and heavy queries change nothing.

    Neither a list of items nor their counts are needed, and the estimate follows a stream that changes. With
    several hash functions the longest gap is the one that collisions shortened least. A step t is one id of
    the stream, so that gaps have mean 1 / q exactly; in the paper it is a batch, with 1 / B the probability
    that the batch has the item.

    In a stationary stream, without collisions, after v visits from a starting gap b_0, by the recursion:

        E[B] - 1/q = (1 - alpha)^v (b_0 - 1/q)
        Var[B] = alpha (1 - (1 - alpha)^(2 v)) / (2 - alpha) (1 - q) / q^2

    (the paper's proposition 4.1 prints the power v - 1 for the second 1/q, and a bound for the variance). The
    gap itself, and so the weight 1 / expected, is unbiased once the start is forgotten; q = 1 / B is on
    average too large, by a factor of about 1 + alpha / 2 for a rare item. Expected counts are estimates here,
    so the softmax is left unbiased only as far as they are right.

    Update with a batch before sampling from it. Given one query the other B - 1 are draws from the stream;
    its own positives are accidental hits, which `Context.hits` masks. Fewer candidates than the batch has are
    taken as `InBatch` takes them.

    Args:
        n_cells: cells of each hash function.
        n_hash: number of hash functions.
        alpha: learning rate, in (0, 1]: about the last 2 / alpha visits count.
        initial_gap: b_0, at least 1; where None the first gap of a cell is taken as it is, which has the right
            mean, and the variance falls from that of one gap, (1 - q) / q^2.
        seed: picks the hash functions.

    Raises:
        ValueError: a number of cells or hash functions below 1, `alpha` or `initial_gap` out of range.

    Reference:
        Yi et al. (2019), Sampling-bias-corrected neural modeling for large corpus item recommendations,
        RecSys, algorithms 2 and 3. The start from the first gap and many positives a query are ours.
    """

    def __init__(
        self,
        n_cells: int,
        n_hash: int = 1,
        *,
        alpha: float = 0.01,
        initial_gap: float | None = None,
        seed: int = 0,
    ) -> None:
        if n_cells < 1 or n_hash < 1:
            raise ValueError(
                f"There must be at least one cell and hash function, got n_cells={n_cells}, n_hash={n_hash}."
            )
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must lie in (0, 1], got {alpha}.")
        if initial_gap is not None and not 1 <= initial_gap < math.inf:
            raise ValueError(f"initial_gap must be finite and at least 1, a step, got {initial_gap}.")
        self.alpha, self.initial_gap, self.seed = alpha, initial_gap, seed
        words = np.random.SeedSequence(seed).generate_state(2 * n_hash, np.uint64)
        self._seeds = words.reshape(n_hash, 2)
        self._step = 0
        self._queries = 0
        self._last = np.zeros((n_hash, n_cells), np.int64)  # 0: never visited
        self._gap = np.zeros((n_hash, n_cells))

    def update(self, ids: Tensor, n_queries: int | None = None) -> None:
        """See the next ids of the stream, in their order.

        Args:
            ids: int64, any shape; each is one step.
            n_queries: how many queries these are the positives of; one each where None.

        Raises:
            TypeError: ids that are not int64, or `n_queries` that is not an integer.
            ValueError: a negative id; ids of no query.
        """
        flat = _flat(ids)
        if len(flat) and int(flat.min()) < 0:
            raise ValueError(f"ids must not be negative, got {int(flat.min())}: leave out what is no item.")
        queries = len(flat) if n_queries is None else operator.index(n_queries)
        if queries < (len(flat) > 0):
            raise ValueError(f"{len(flat)} ids must belong to one query or more, got n_queries={n_queries}.")
        start = -1.0 if self.initial_gap is None else self.initial_gap
        _visit(flat, self._seeds, self._step, self.alpha, start, self._last, self._gap)
        self._step += len(flat)
        self._queries += queries

    def log_probability(self, ids: Tensor) -> Tensor:
        """Log of the estimated share of each id in the stream, `-log(gap)`.

        Args:
            ids: int64, any shape.

        Returns:
            float32, the shape of `ids`; -inf for an id that has not come yet, or is negative.

        Raises:
            TypeError: ids that are not int64.
        """
        gap = torch.from_numpy(_longest_gap(_flat(ids), self._seeds, self._last, self._gap))
        return (-gap.log()).float().reshape(torch.as_tensor(ids).shape)

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Take `n` of the batch's positives, or all, at their estimated frequencies.

        Args:
            context: the batch; with many positives a query, `update` must have been told how many queries
                the ids belong to.
            n: how many candidates; many positives a query give as many on average.
            generator: decides which, where `n` is less than the batch has; torch's own where None.

        Returns:
            Shared draws, ids (min(n, P),); none for a batch of one query. The design answers until
            the next update, and refuses after it, when the estimates are others.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`; a positive that `update` has not seen.
        """
        check_number(n)
        ids, size = context.positives, len(context)
        if bool((self.log_probability(ids) == -math.inf).any()):
            raise ValueError("Some positives of the batch were not seen yet; call update with them first.")
        if size <= 1 or n == 0:
            ids, rate = ids[:0], 0.0
        elif context.owner is None:
            rate = min(n, size) / size * (size - 1)
            if n < size:
                ids = ids[torch.randperm(size, generator=generator)[:n]]
        else:
            each = self._step / max(self._queries, 1)  # positives of a query; 0 where none was ever seen
            share = min(1.0, n / (size * each)) if each else 0.0
            rate = share * each * (size - 1)
            if share < 1:
                ids = ids[torch.rand(len(ids), generator=generator) < share]
        log_rate = math.log(rate) if rate else -math.inf
        step = self._step

        def design(asked: Tensor) -> Tensor:
            if self._step != step:  # a copy of the cells for each batch would cost more than the draws
                raise RuntimeError(
                    f"The estimates have seen {self._step - step} more ids since these draws were made; ask "
                    "their design before the next update."
                )
            return self.log_probability(asked) + log_rate

        return Draws(ids, design(ids), design)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep: the step, the queries, the last visits, the gaps and the seed."""
        return {
            "step": self._step,
            "queries": self._queries,
            "seed": self.seed,
            "last": torch.from_numpy(self._last.copy()),
            "gap": torch.from_numpy(self._gap.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Args:
            state: from `state_dict`.

        Raises:
            ValueError: a state with another seed or other numbers of cells and hash functions.
        """
        shapes = tuple(state["last"].shape), tuple(state["gap"].shape)
        if state["seed"] != self.seed or shapes != (self._last.shape, self._gap.shape):
            raise ValueError(
                f"The state has seed {state['seed']} and shapes {shapes}, this estimator seed {self.seed} and "
                f"{self._last.shape}; make it with the same n_cells, n_hash and seed."
            )
        self._step = int(state["step"])
        self._queries = int(state.get("queries", self._step))  # states of old had one positive a query
        self._last, self._gap = state["last"].numpy().copy(), state["gap"].numpy().copy()


def _flat(ids: Tensor) -> NDArray[np.int64]:
    """The ids as one row for a compiled loop."""
    ids = torch.as_tensor(ids)
    if ids.dtype != torch.int64:
        raise TypeError(f"ids must be int64, got {ids.dtype}.")
    flat: NDArray[np.int64] = ids.reshape(-1).contiguous().numpy()
    return flat


@numba.njit(cache=True)
def _visit(ids: Any, seeds: Any, step: int, alpha: float, start: float, last: Any, gap: Any) -> None:
    """One step for each id; a negative `start` takes a cell's first gap as it is."""
    cells = np.uint64(last.shape[1])
    for i in range(len(ids)):
        step += 1
        for d in range(len(seeds)):
            cell = np.int64(hash_id(ids[i], seeds[d, 0], seeds[d, 1]) % cells)
            new = np.float64(step - last[d, cell])
            if last[d, cell] > 0:
                new = (1 - alpha) * gap[d, cell] + alpha * new
            elif start >= 0:
                new = (1 - alpha) * start + alpha * new
            gap[d, cell], last[d, cell] = new, step


@numba.njit(cache=True)
def _longest_gap(ids: Any, seeds: Any, last: Any, gap: Any) -> Any:
    """The longest gap over the hash functions; infinite where a cell was never visited."""
    cells = np.uint64(last.shape[1])
    longest = np.zeros(len(ids))
    for i in range(len(ids)):
        for d in range(len(seeds)):
            cell = np.int64(hash_id(ids[i], seeds[d, 0], seeds[d, 1]) % cells)
            if ids[i] < 0 or last[d, cell] == 0:
                longest[i] = np.inf
            longest[i] = max(longest[i], gap[d, cell])
    return longest
