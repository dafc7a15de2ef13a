"""Fresh random subsets every epoch: the baseline of every selection."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor


def random_subsets(
    n: int, share: float, epochs: int, *, replacement: bool = False, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """A random share of the rows for each epoch, a new one each time (RS2).

        without replacement: walk through a random permutation, and through a new one where it ends
        with replacement: an independent draw each epoch (no row twice in one epoch)

    Trained for as many epochs, a share r costs r of the whole; the learning-rate schedule is stretched over the
    shortened run (`total_steps`). It beats most ways of choosing one subset and keeping it.

    Args:
        n: rows there are.
        share: of the rows an epoch sees, in (0, 1].
        epochs: how many.
        replacement: forget what earlier epochs saw.
        generator: source of randomness.

    Yields:
        Ids in the order to train on, (m,), m = round(share n), at least 1, without repeats within an epoch.

    Raises:
        ValueError: no rows, no epoch, or a share outside (0, 1].

    Reference:
        Okanovic, Waleffe, Mageirakos, Nikolakakis, Karbasi, Kalogerias, Gürel and Rekatsinas (2024), Repeated random
        sampling for minimizing the time-to-accuracy of learning, ICLR, arXiv 2305.18424.
    """
    n, epochs = operator.index(n), operator.index(epochs)
    if n < 1 or epochs < 1 or not 0 < share <= 1:
        raise ValueError(f"n and epochs must be at least 1 and share in (0, 1], got {n}, {epochs}, {share}.")
    size = max(1, round(share * n))
    if replacement:
        for _ in range(epochs):
            yield torch.randperm(n, generator=generator)[:size]
        return
    left = torch.empty(0, dtype=torch.int64)
    for _ in range(epochs):
        if len(left) < size:
            fresh = torch.randperm(n, generator=generator)
            # Rows of the old walk's end come first; the new walk has them again, but not in this epoch.
            again = torch.isin(fresh, left)
            fresh = torch.cat([fresh[~again], fresh[again]])
            left = torch.cat([left, fresh])
        yield left[:size]
        left = left[size:]


def total_steps(n: int, share: float, epochs: int, batch: int) -> int:
    """Steps of a run on random subsets, over which the learning-rate schedule goes once.

    Args:
        n: rows there are.
        share: of the rows an epoch sees.
        epochs: how many.
        batch: rows of a step.

    Returns:
        epochs * ceil(round(share n) / batch).

    Raises:
        ValueError: numbers below 1, or a share outside (0, 1].
    """
    if min(n, epochs, batch) < 1 or not 0 < share <= 1:
        raise ValueError(
            f"n, epochs and batch must be at least 1 and share in (0, 1], got {n}, {epochs}, {batch}, {share}."
        )
    return epochs * -(-max(1, round(share * n)) // batch)
