"""What a proposal is asked: how many draws, and for which ids of its catalogue."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


def check_number(n: object) -> None:
    """Refuse a number of draws that is none.

    Args:
        n: how many draws were asked for.

    Raises:
        TypeError: `n` is not an integer.
        ValueError: a negative `n`.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"The number of draws must be an integer, got {n!r}.")
    if n < 0:
        raise ValueError(f"The number of draws must not be negative, got {n}.")


def inside(ids: Tensor, n_items: int) -> Tensor:
    """Which ids belong to a catalogue of `n_items`.

    Args:
        ids: int64, any shape.
        n_items: size of the catalogue.

    Returns:
        bool, the shape of `ids`.
    """
    return (ids >= 0) & (ids < n_items)


def look_up(table: Tensor, ids: Tensor, shift: float) -> Tensor:
    """`table[id] + shift`, and -inf for an id outside the catalogue, at a cost that knows only the ids.

    Args:
        table: float, (I,): a logarithm for each item.
        ids: int64, any shape.
        shift: added to each.

    Returns:
        float, the shape of `ids`.
    """
    found = table[ids.clamp(0, len(table) - 1)] + shift
    return found.masked_fill_(~inside(ids, len(table)), -math.inf)
