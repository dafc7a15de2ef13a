"""Compress and Compress++: kernel thinning in near-linear time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.sampling.kernel_thinning import (
    Kernel,
    checked_rows,
    decide,
    finite,
    halve,
    kernel_thinning,
    kt_swap,
)
from steelyard.sampling.successive import njit

WHOLE = 4096  # rows of which the kernel matrix is held: 64 MB in float32
BATCH = 1 << 20  # kernel values of smaller sets held at a time


def compress(
    x: ArrayLike | Tensor,
    kernel: Kernel,
    *,
    oversampling: int = 4,
    delta: float = 0.5,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Keep 2^g sqrt(n) rows by halving small sets and joining them, four by four.

        Compress(S) = S where |S| <= 4^g, else Halve(Compress(S_1), ..., Compress(S_4))

    with S_1, ..., S_4 the quarters of S in order. Halve is kernel thinning without repeats, of which a random one of
    the two halves is kept, so that every row is as likely to stay. About n 4^g log_4(n) kernel values in O(n d) memory.

    As in `kernel_thinning`, the order of the rows matters and these are plain row numbers, not `Draws`.

    Args:
        x: (n, d), finite. n' = the largest power of 4 not above n is used: n' rows at equal steps from the end.
        kernel: as in `kernel_thinning`.
        oversampling: g, at least 0.
        delta: probability with which the bounds may fail.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, int64, (min(n', 2^g sqrt(n')),), each once and in no order.

    Raises:
        ValueError: not two-dimensional, empty, not finite, `oversampling` negative or delta outside (0, 1).

    Reference:
        Shetty, Dwivedi & Mackey (2022), Distribution compression in near-linear time, ICLR, arXiv 2111.07941.
    """
    rows = _checked(x, oversampling, delta)
    return _join(rows, kernel, oversampling, delta, 1, generator).flatten()


def compress_plus_plus(
    x: ArrayLike | Tensor,
    kernel: Kernel,
    *,
    oversampling: int = 4,
    delta: float = 0.5,
    unique: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Keep sqrt(n) rows: Compress each quarter to 2^g sqrt(n / 4), then thin these together.

    The maximum mean discrepancy to all rows is within about 4 times that of thinning all of them, and with g = 4
    commonly the same, at n 4^g log_4(n) kernel values in place of n^2. The last joining and halving of Compress is
    left to kernel thinning, which costs the same and leaves its swaps twice the choice; the paper thins what
    Compress made of all rows.

    As in `kernel_thinning`, the order of the rows matters and these are plain row numbers, not `Draws`.

    Args:
        x: (n, d), finite. n' = the largest power of 4 not above n is used: n' rows at equal steps from the end.
        kernel: as in `kernel_thinning`.
        oversampling: g, at least 0.
        delta: probability with which the bounds may fail, shared by both steps.
        unique: True never keeps a row twice.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, int64, (sqrt(n'),).

    Raises:
        ValueError: not two-dimensional, empty, not finite, `oversampling` negative or delta outside (0, 1).

    Reference:
        Shetty, Dwivedi & Mackey (2022), Distribution compression in near-linear time, ICLR, arXiv 2111.07941.
    """
    rows = _checked(x, oversampling, delta)
    rounds, m = (len(rows).bit_length() - 1) // 2, oversampling + 1
    if rounds <= m:  # too few rows to compress
        kept, thin = _cut(len(rows)), delta
        m = rounds
    else:
        thin = delta * m / (m + 2**m * (rounds - m))
        kept = _join(rows, kernel, oversampling, delta - thin, 4, generator).flatten()
    return kept[kernel_thinning(rows[kept], m, kernel, delta=thin, unique=unique, generator=generator)]


def _checked(x: ArrayLike | Tensor, oversampling: int, delta: float) -> Tensor:
    if oversampling < 0:
        raise ValueError(f"oversampling must not be negative, got {oversampling}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}.")
    return checked_rows(x)


def _cut(count: int) -> Tensor:
    """A power of 4 of row numbers, at equal steps back from the last one, as chains are thinned."""
    n = 4 ** ((count.bit_length() - 1) // 2)
    return count - 1 - (torch.arange(n - 1, -1, -1) * count).div(n, rounding_mode="floor")


def _join(
    rows: Tensor, kernel: Kernel, g: int, delta: float, until: int, generator: torch.Generator | None
) -> Tensor:
    """Compress each of `until` parts of the rows; row numbers, (until, 2^g sqrt(n / until)) or all."""
    kept = _cut(len(rows))
    n, base = len(kept), 4**g
    rounds = (n.bit_length() - 1) // 2 - g
    sets = kept.view(-1, min(n // until, base))
    while len(sets) > until:
        sets = sets.view(len(sets) // 4, -1)
        length = sets.shape[1]
        # The share of this halving in the failure probability: length^2 / (n 4^(g+1)) of each round's.
        share = delta * length**2 / (n * 4 * base * rounds)
        sets = _halve(rows, sets, finite(kernel), 2 * math.log(2 * length / share), generator)
    return sets


def _halve(
    rows: Tensor, sets: Tensor, kernel: Kernel, log_multiplier: float, generator: torch.Generator | None
) -> Tensor:
    """A random one of the two halves of each set, split by pairs and refined by exchanges; (c, length // 2)."""
    count, length = sets.shape
    if length > WHOLE:
        stays = torch.stack([_split_large(rows[s], kernel, log_multiplier, generator) for s in sets])
    else:
        coins = torch.rand(count, length // 2, generator=generator, dtype=torch.float64).numpy()
        side = np.empty((count, length), np.float64)
        step = max(1, BATCH // length**2)
        for low in range(0, count, step):
            part = slice(low, low + step)
            points = rows[sets[part]]
            values, size = kernel(points, points).numpy(), len(points)
            decide(values, np.zeros((size, length)), coins[part], side[part], np.zeros(size), log_multiplier)
            _exchange(values, side[part])
        stays = torch.from_numpy(side) < 0
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    return sets[stays != mirrored].view(count, -1)


def _split_large(
    points: Tensor, kernel: Kernel, log_multiplier: float, generator: torch.Generator | None
) -> Tensor:
    """As `_halve` for one set whose kernel matrix is too large to hold; bool, (length,)."""
    length, sums = len(points), torch.zeros(len(points), dtype=torch.float64)
    halves = halve(points, torch.arange(length)[None], kernel, log_multiplier, generator, sums)[0]
    stays = torch.zeros(length, dtype=torch.bool)
    stays[kt_swap(points, halves[:1], kernel, sums / length, unique=True)] = True
    return stays


@njit
def _exchange(values: Any, side: Any) -> None:
    """Refine the half of each set with side -1: it, or every second row, then the best exchange for each member.

    The discrepancy of a half to its set is a quarter of side' values side / (length / 2)^2, and `loss` is what
    that would gain by each row, up to a constant.
    """
    for s in range(len(side)):
        k, own = values[s], side[s]
        length = len(own)
        loss, every = np.zeros(length), np.zeros(length)
        for r in range(length):
            sign = 1.0 if r % 2 == 0 else -1.0
            for j in range(length):
                loss[j] -= own[r] * k[r, j]
                every[j] -= sign * k[r, j]
        split, plain = 0.0, 0.0
        for r in range(length):
            split -= own[r] * loss[r]
            plain -= (1.0 if r % 2 == 0 else -1.0) * every[r]
        if plain < split:
            loss[:] = every
            for r in range(length):
                own[r] = 1.0 if r % 2 == 0 else -1.0
        for r in range(length):
            loss[r] += k[r, r]
        members = np.flatnonzero(own < 0)
        for place in range(len(members)):
            old = members[place]
            for j in range(length):
                loss[j] -= 2 * k[old, j]
            own[old] = 1
            new = int(old)
            for j in range(length):
                if own[j] > 0 and loss[j] < loss[new]:
                    new = j
            own[new] = -1
            for j in range(length):
                loss[j] += 2 * k[new, j]
