"""Alias tables: draws from any discrete distribution at a constant cost each."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.poisson import look_up
from steelyard.sampling.successive import GOLDEN, draw_seeds, inlined, mix, njit

CELL = np.dtype([("share", np.float32), ("alias", np.uint32)])
"""Both halves of a cell side by side: a draw touches one line of memory. `share` is the part of the cell that
its own category keeps, or, if that is above one half, the negative of the part that it gives away: so that
either part is right to 6e-8 of itself, however small."""

_LARGEST = 2**32
_BLOCK = 512
_A_THREAD = 1 << 20  # draws that are worth a thread of their own
_U = np.uint64
_LOW, _S32 = _U(0xFFFFFFFF), _U(32)


class AliasTable:
    """Draw categories with given probabilities in constant time, however many there are.

        P(j) = w_j / sum_k w_k

    A uniform cell and one comparison decide each draw. Built in O(n), without stacks, by one sweep over the
    categories below the mean and one over those above it. A table keeps 16 bytes a category, 8 for its cell
    and 8 for `log_probability`. Each probability is right to 6e-8 of itself, down to 2^-64 of the whole,
    below which a category may never be drawn.

    Args:
        weights: (n,), non-negative and finite, not all zero; need not sum to one. At most 2^32 of them.

    Raises:
        TypeError: complex weights.
        ValueError: not one-dimensional, empty, negative, NaN or infinite weights, all zero, or too many.

    Reference:
        Walker (1977), An efficient method for generating discrete random variables with general
        distributions, ACM TOMS 3(3); Vose (1991), A linear algorithm for generating random numbers
        with a given distribution, IEEE TSE 17(9); the sweep: Hübschle-Schneider & Sanders (2019), Parallel
        weighted random sampling, ESA, arXiv 1903.00227.
    """

    def __init__(self, weights: ArrayLike | Tensor) -> None:
        if isinstance(weights, Tensor):
            weights = weights.detach().cpu()
            if weights.is_complex():
                raise TypeError(f"Weights must be real, got {weights.dtype}.")
            weights = weights.double()
        w = np.asarray(weights)
        if np.iscomplexobj(w):
            raise TypeError(f"Weights must be real, got {w.dtype}.")
        w = w.astype(np.float64, copy=False)
        if w.ndim != 1 or len(w) == 0:
            raise ValueError(f"AliasTable wants a non-empty vector of weights, got shape {w.shape}.")
        if len(w) > _LARGEST:
            raise ValueError(f"At most 2^32 categories, got {len(w)}; draw a part first, then within it.")
        if not np.isfinite(w).all() or (w < 0).any():
            bad = int(np.flatnonzero(~np.isfinite(w) | (w < 0))[0])
            raise ValueError(f"Weights must be finite and not negative; weight {bad} is {w[bad]}.")
        with np.errstate(over="ignore"):
            total = w.sum()
        if not 0 < total < np.inf:
            raise ValueError(f"Weights must have a positive, finite sum, got {total}: is any count above 0?")
        self.log_probability = torch.from_numpy(
            np.log(w, where=w > 0, out=np.full(len(w), -np.inf)) - np.log(total)
        )
        self._cells: Any = np.empty(len(w), CELL)
        _build(w, total, int(w.argmax()), self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def sample(self, shape: int | tuple[int, ...], *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws with replacement.

        Many draws are shared among as many threads as torch has; what is drawn does not depend on them.

        Args:
            shape: of the result.
            generator: source of randomness; torch's own where None.

        Returns:
            Category numbers, int64, of the given shape.

        Raises:
            TypeError: `shape` is not made of integers.
            ValueError: a negative size.
        """
        shape = tuple(shape) if isinstance(shape, Iterable) else (operator.index(shape),)
        if min(shape, default=0) < 0:
            raise ValueError(f"A shape has no negative sizes, got {shape}.")
        seed = draw_seeds(generator, 1)[0, 0]
        out = np.empty(math.prod(shape), np.int64)
        threads = min(torch.get_num_threads(), len(out) // _A_THREAD)
        if threads <= 1:
            _draw(self._cells, seed, 0, out)
        else:
            step = -(-len(out) // threads)
            with ThreadPoolExecutor(threads) as pool:
                jobs = [
                    pool.submit(_draw, self._cells, seed, first, out[first : first + step])
                    for first in range(0, len(out), step)
                ]
            for job in jobs:
                job.result()
        return torch.from_numpy(out).reshape(shape)

    def draws(self, shape: int | tuple[int, ...], *, generator: torch.Generator | None = None) -> Draws:
        """Independent draws with replacement that know how often each category was to be expected.

            expected(j) = n P(j)

        Args:
            shape: of the ids, (..., n).
            generator: source of randomness; torch's own where None.

        Returns:
            Draws on the CPU, log_expected in float64; a row is drawn anew for each leading index.
        """
        ids = self.sample(shape, generator=generator)
        log_n = math.log(ids.shape[-1]) if ids.ndim and ids.shape[-1] else -math.inf
        table = self.log_probability

        def design(asked: Tensor) -> Tensor:
            return look_up(table, asked, -math.inf) + log_n

        return Draws(ids, table.index_select(0, ids.flatten()).add_(log_n).reshape(ids.shape), design)


@inlined
def cell_of(word: Any, n: Any) -> Any:
    """The cell among n <= 2^32 on which a random word falls, and how far into it, as a fraction of 2^64.

    The two halves of the 96-bit product `word * n`: all bits of the word count, so that no cell is more
    than n / 2^64 likelier than another.
    """
    low = (word & _LOW) * n
    high = (word >> _S32) * n + (low >> _S32)
    return high >> _S32, (high << _S32) | (low & _LOW)


@njit
def _build(w: Any, total: float, heaviest: int, cells: Any) -> None:
    """Fill the cells of light categories from the heavy ones, both in the order given.

    A heavy category whose rest fits its own cell is topped up by the next one. What rounding leaves over at
    the end falls to the last heavy category; a light one is never given more than its weight.
    """
    n = len(w)
    heavy = _next_heavy(w, total, heaviest, -1)
    rest = w[heavy] / total * n
    for i in range(n):
        scaled = w[i] / total * n
        if scaled >= 1 or i == heaviest:
            continue
        while rest <= 1:
            following = _next_heavy(w, total, heaviest, heavy)
            if following == n:
                break
            _store(cells, heavy, rest, following)
            rest += w[following] / total * n - 1
            heavy = following
        _store(cells, i, scaled, heavy)
        rest -= 1 - scaled
    following = _next_heavy(w, total, heaviest, heavy)
    while following < n:
        _store(cells, heavy, min(rest, 1.0), following)
        rest += w[following] / total * n - 1
        heavy, following = following, _next_heavy(w, total, heaviest, following)
    _store(cells, heavy, 1.0, heavy)


@inlined
def _next_heavy(w: Any, total: float, heaviest: int, after: int) -> Any:
    """The next category of at least the mean weight; the heaviest is one whatever rounding says."""
    j = after + 1
    while j < len(w) and j != heaviest and w[j] / total * len(w) < 1:
        j += 1
    return j


@inlined
def _store(cells: Any, i: int, share: float, alias: int) -> None:
    cells[i]["share"] = share if share < 0.5 else -(1 - share)
    cells[i]["alias"] = alias


@njit
def _draw(cells: Any, seed: Any, first: int, out: Any) -> None:
    """Draws number `first`, first + 1, ... of a seed. The cells of a whole block are computed before any is
    read, so that the processor waits for many lines of memory at once.
    """
    n = _U(len(cells))
    cell, coin = np.empty(_BLOCK, np.int64), np.empty(_BLOCK)
    share, alias = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.uint32)
    for start in range(0, len(out), _BLOCK):
        part = out[start : start + _BLOCK]
        for j in range(len(part)):
            where, into = cell_of(mix(_U(first + start + j) * GOLDEN + seed), n)
            cell[j], coin[j] = np.int64(where), np.float64(into) * 2.0**-64
        for j in range(len(part)):
            found = cells[cell[j]]
            share[j], alias[j] = found["share"], found["alias"]
        for j in range(len(part)):
            own = (coin[j] < abs(share[j])) != np.signbit(share[j])
            part[j] = cell[j] if own else np.int64(alias[j])
