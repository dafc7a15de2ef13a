"""What all ways to form batches share: sizes, rows grouped by label, random numbers below a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.sampling.alias import cell_of
from steelyard.sampling.successive import GOLDEN, inlined, mix


def check_batch_size(batch_size: object, name: str = "batch_size") -> None:
    """Refuse a size that is none.

    Args:
        batch_size: how many rows.
        name: what it is called in an error.

    Raises:
        TypeError: not an integer.
        ValueError: below 1.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {batch_size!r}.")
    if batch_size < 1:
        raise ValueError(f"{name} must be at least 1, got {batch_size}.")


def as_labels(labels: ArrayLike | Tensor, name: str) -> Tensor:
    """One integer label a row, checked.

    Args:
        labels: (n,), any integers.
        name: what they are called in an error.

    Returns:
        int64, (n,).

    Raises:
        TypeError: not integers.
        ValueError: not one-dimensional.
    """
    found = torch.as_tensor(labels).detach()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        if found.numel():
            raise TypeError(f"{name} must be integers, one a row, got {found.dtype}.")
        found = found.long()  # an empty list has no type of its own
    if found.ndim != 1:
        raise ValueError(f"{name} must be (n,), one a row, got {tuple(found.shape)}.")
    return found.long()


def shuffled_groups(labels: Tensor, generator: torch.Generator | None) -> Ragged:
    """The rows of each label, in random order.

    Args:
        labels: int64, (n,).
        generator: source of randomness; torch's own where None.

    Returns:
        One row a label that occurs, by rising label.
    """
    shuffled = torch.randperm(len(labels), generator=generator)
    ordered, order = labels[shuffled].sort(stable=True)
    counts = torch.unique_consecutive(ordered, return_counts=True)[1]
    return of_sizes(shuffled[order], counts)


def of_sizes(rows: Tensor, sizes: Tensor) -> Ragged:
    """Consecutive rows cut into pieces of the given sizes.

    Args:
        rows: int64, (n,).
        sizes: int64, (pieces,), with sum n.
    """
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=offsets[1:])
    return Ragged(offsets, rows)


def in_random_order(batches: Ragged, generator: torch.Generator | None) -> Ragged:
    """The same batches, shuffled.

    Args:
        batches: one row a batch.
        generator: source of randomness; torch's own where None.
    """
    return batches.take(torch.randperm(len(batches), generator=generator))


@inlined
def below(seed: Any, counter: Any, n: Any) -> Any:
    """Random number `counter` of a seed, an integer in [0, n), n < 2^32."""
    return np.int64(cell_of(mix(np.uint64(counter) * GOLDEN + seed), np.uint64(n))[0])
