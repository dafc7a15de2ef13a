"""A weighted reservoir over any stream: the draw depends on seed and ids alone, and shards merge exactly."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.successive import (
    LOWEST,
    among,
    hash_id,
    log_inclusion,
    njit,
    race,
    shrink,
    thresholds,
)

_U = np.uint64


class Reservoir:
    """Keep k rows of a stream, drawn without replacement with probability proportional to their weight.

        G_i = log w_i - log E_i,  E_i exponential, from a hash of (seed, id_i);  the k largest keys are kept

    It is `without_replacement` for rows that never stand in memory together. The noise of a row is a hash of
    the seed and its id, so one seed gives one draw, in whatever order the rows come, split over however many
    workers or shards, resumed or not. A row costs a few operations unless it may win; memory is 64 (k + 1)
    bytes.

    Ids must be unique: a row that comes twice is found out when it is drawn, and refused.

    Args:
        k: how many rows to draw, at least 0.
        seed: of the hash, 0 <= seed < 2^63. Reservoirs with different seeds are independent.

    Raises:
        TypeError: `k` or `seed` is not an integer.
        ValueError: negative `k`, or a seed outside its range.

    Reference:
        Efraimidis & Spirakis (2006), Weighted random sampling with a reservoir, Information Processing
        Letters 97(5); hashed noise: Cohen & Kaplan (2007), Summarizing data using bottom-k sketches, PODC.
        The mixer is ours: the finaliser of splitmix64, then that of MurmurHash3.
    """

    def __init__(self, k: int, seed: int = 0) -> None:
        self.k, self.seed = operator.index(k), operator.index(seed)
        if self.k < 0:
            raise ValueError(f"A reservoir cannot hold {k} rows.")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"The seed must lie between 0 and 2^63 - 1, got {seed}.")
        # As numbers of their type: compiled code gives back Python's, and those would be taken for int64.
        self._words = tuple(_U(word) for word in words_of(self.seed))
        size = 2 * (self.k + 1) + 64
        self._keys, self._noise = np.empty(size), np.empty(size, np.uint64)
        self._ids, self._log_w = np.empty(size, np.int64), np.empty(size)
        self._state = np.array([0.0, LOWEST])
        self.seen = 0
        """How many rows were added, those of weight zero included."""

    def add(self, ids: Tensor, log_w: Tensor) -> None:
        """Let more rows compete.

        Args:
            ids: int64, (n,), unique over the whole stream.
            log_w: log-weights, (n,), with one common factor over the whole stream; -inf is never drawn.

        Raises:
            TypeError: `ids` are not integers, or `log_w` is not floating point.
            ValueError: not two vectors of one length; NaN or +inf in `log_w`, and then no row was added.
        """
        names, weights = torch.as_tensor(ids).cpu(), torch.as_tensor(log_w).detach().cpu()
        if names.is_floating_point() or names.is_complex() or names.dtype == torch.bool:
            raise TypeError(f"Row ids must be integers, got {names.dtype}.")
        if not weights.is_floating_point():
            raise TypeError(f"log_w must be floating point, got {weights.dtype}.")
        if names.ndim != 1 or names.shape != weights.shape:
            raise ValueError(
                f"ids and log_w must be vectors of one length, got shapes {tuple(names.shape)} and "
                f"{tuple(weights.shape)}."
            )
        if len(names) == 0:
            return
        if weights.dtype not in (torch.float32, torch.float64):
            weights = weights.float()
        w = weights.contiguous().numpy()
        bad = _first_bad(w)
        if bad >= 0:
            raise ValueError(
                f"log_w of row {int(names[bad])} is {float(w[bad])}; nothing of this batch was added."
            )
        race(names.long().contiguous().numpy(), w, *self._words, *self._buffers(), self._state, self.k + 1)
        self.seen += len(names)

    def merge(self, other: Reservoir) -> None:
        """Take in another reservoir of the same seed and size, as if its rows had come here.

        Args:
            other: over other rows; it is not changed.

        Raises:
            ValueError: another seed or another k.
        """
        if (self.k, self.seed) != (other.k, other.seed):
            raise ValueError(
                f"Reservoirs merge when k and seed agree, got k={self.k}, seed={self.seed} and k={other.k}, "
                f"seed={other.seed}."
            )
        both = [np.concatenate(pair) for pair in zip(self._candidates(), other._candidates(), strict=True)]
        self._state[1] = max(self._state[1], other._state[1])
        count = len(both[0])
        if count > self.k + 1:
            self._state[1] = max(self._state[1], shrink(*both, count, self.k + 1))
            count = self.k + 1
        for buffer, values in zip(self._buffers(), both, strict=True):
            buffer[:count] = values[:count]
        self._state[0] = count
        self.seen += other.seen

    def draws(self, log_w: Callable[[Tensor], Tensor] | None = None) -> Draws:
        """The rows drawn, with inclusion probabilities given the threshold as in `without_replacement`.

        Args:
            log_w: log-weights of any ids, (..., m) -> (..., m), -inf for an id outside the stream. The
                reservoir forgot the weights of the rows that it did not keep, so the design can answer for
                those (and the draws merge with others) only where this is given.

        Returns:
            Draws with ids (m,), ascending, m = min(k, rows with a weight above zero), and float64
            probabilities; all of them are 1 where nothing was left out.

        Raises:
            ValueError: a row was added twice.
        """
        arrays = self._candidates()
        names = np.sort(arrays[2])
        twice = names[1:][names[1:] == names[:-1]]
        if len(twice):
            raise ValueError(f"Row {int(twice[0])} was added twice; every row must come once, in one shard.")
        m, outer, inner = thresholds(*arrays, len(names), self.k)
        _, _, ids, kept = (a[:m] for a in arrays)
        order = np.argsort(ids)
        drawn, weight = torch.from_numpy(ids[order]), torch.from_numpy(kept[order])
        at = torch.tensor([outer, inner], dtype=torch.float64)

        def design(asked: Tensor) -> Tensor:
            is_drawn = among(asked, drawn)
            if log_w is None:
                if not bool(is_drawn.all()):
                    raise ValueError(
                        "The reservoir does not know the weight of a row it did not keep; use draws(log_w=...)."
                    )
                value = weight[torch.searchsorted(drawn, asked.contiguous())]
            else:
                value = log_w(asked).double()
            return log_inclusion(value, torch.where(is_drawn, at[0], at[1]))

        return Draws(drawn, log_inclusion(weight, at[0]), design)

    def state(self) -> dict[str, Tensor]:
        """All that is needed to go on elsewhere: at most k + 1 rows, as a dict of tensors."""
        keys, noise, ids, log_w = self._candidates()
        count = len(keys)
        if count > self.k + 1:
            shrink(keys, noise, ids, log_w, count, self.k + 1)
            count = self.k + 1
        numbers = {"k": self.k, "seed": self.seed, "seen": self.seen}
        rows = {"ids": torch.from_numpy(ids[:count]), "log_w": torch.from_numpy(log_w[:count])}
        return {name: torch.tensor(value) for name, value in numbers.items()} | rows

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Reservoir:
        """The reservoir of which this is the state.

        Args:
            state: as `state` gave it.

        Raises:
            ValueError: an entry is missing, or does not fit.
        """
        missing = {"k", "seed", "seen", "ids", "log_w"} - set(state)
        if missing:
            raise ValueError(f"The state of a reservoir lacks {', '.join(sorted(missing))}.")
        reservoir = cls(int(state["k"]), int(state["seed"]))
        reservoir.add(state["ids"], state["log_w"])
        reservoir.seen = int(state["seen"])
        return reservoir

    def _buffers(self) -> tuple[Any, Any, Any, Any]:
        return self._keys, self._noise, self._ids, self._log_w

    def _candidates(self) -> tuple[Any, Any, Any, Any]:
        """Copies of the filled part of the buffers."""
        keys, noise, ids, log_w = (buffer[: int(self._state[0])].copy() for buffer in self._buffers())
        return keys, noise, ids, log_w


@njit
def words_of(seed: int) -> Any:
    """Two words of 64 bits from one seed."""
    return hash_id(seed, _U(0x243F6A8885A308D3), _U(0x13198A2E03707344)), hash_id(
        seed, _U(0xA4093822299F31D0), _U(0x082EFA98EC4E6C89)
    )


@njit
def _first_bad(w: Any) -> int:
    """Position of the first log-weight that is NaN or +inf, or -1."""
    good = 0
    for j in range(len(w)):
        good += w[j] < np.inf
    if good == len(w):
        return -1
    for j in range(len(w)):
        if not w[j] < np.inf:
            return j
    return -1
