"""Alias tables: draws from any discrete distribution at a constant cost each."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


class AliasTable:
    """Draw categories with given probabilities in constant time, however many there are.

        P(j) = w_j / sum_k w_k

    A uniform cell and one comparison decide each draw. Built in O(n) by Vose's method in float64;
    the number of categories is limited by memory alone: 24 bytes each, 16 for the cells and 8 for
    `log_probability`.

    Args:
        weights: (n,), non-negative and finite, not all zero; need not sum to one.

    Raises:
        ValueError: not one-dimensional, empty, negative, NaN or infinite weights, or all zero.

    Reference:
        Walker (1977), An efficient method for generating discrete random variables with general
        distributions, ACM TOMS 3(3); Vose (1991), A linear algorithm for generating random numbers
        with a given distribution, IEEE TSE 17(9).
    """

    def __init__(self, weights: ArrayLike | Tensor) -> None:
        w = np.asarray(weights, dtype=np.float64)
        if w.ndim != 1 or len(w) == 0:
            raise ValueError(f"AliasTable wants a non-empty vector of weights, got shape {w.shape}.")
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
        with np.errstate(under="ignore"):  # a share below 1e-308 of the whole is never drawn
            scaled = w / total * len(w)
        keep, alias = _build(scaled)
        self._keep, self._alias = torch.from_numpy(keep), torch.from_numpy(alias)

    def __len__(self) -> int:
        return len(self._keep)

    def sample(self, shape: int | tuple[int, ...], *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws with replacement.

        Args:
            shape: of the result.
            generator: source of randomness; torch's own where None.

        Returns:
            Category numbers, int64, of the given shape.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        n = len(self)
        # One float64 gives the cell and the coin: 53 bits leave at least 2^-20 of a coin at n = 2^33.
        u = torch.rand(shape, generator=generator, dtype=torch.float64) * n
        cell = u.long().clamp_(max=n - 1)
        coin = u - cell
        return torch.where(coin < self._keep[cell], cell, self._alias[cell])


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _build(scaled: NDArray[np.float64]) -> Any:
    """Vose's two stacks in one array; `scaled` has mean one. Rounding leftovers keep their own cell."""
    n = len(scaled)
    keep = np.ones(n, np.float64)
    alias = np.arange(n)
    stack = np.empty(n, np.int64)
    small, large = 0, n
    heaviest = 0
    for j in range(n):
        if scaled[j] > scaled[heaviest]:
            heaviest = j
        if scaled[j] < 1.0:
            stack[small] = j
            small += 1
        else:
            large -= 1
            stack[large] = j
    rest = scaled.copy()
    while small > 0 and large < n:
        small -= 1
        lo, hi = stack[small], stack[large]
        keep[lo] = rest[lo]
        alias[lo] = hi
        rest[hi] -= 1.0 - rest[lo]
        if rest[hi] < 1.0:
            large += 1
            stack[small] = hi
            small += 1
    # A cell left over by rounding is full but for 1e-16; one of weight zero must still never be drawn.
    for i in range(small):
        if scaled[stack[i]] == 0.0:
            keep[stack[i]] = 0.0
            alias[stack[i]] = heaviest
    return keep, alias
