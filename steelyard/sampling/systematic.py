"""Systematic sampling: one random start, then equal steps along the cumulative inclusion probabilities."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.pivotal import as_probabilities, shuffled, uniform
from steelyard.sampling.poisson import pack
from steelyard.sampling.successive import draw_seeds, njit


def systematic(
    inclusion: Tensor,
    *,
    order: Literal["random", "given"] = "given",
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw with given inclusion probabilities by equal steps from one random start.

        i is drawn  <=>  C_{i-1} < U + j <= C_i for some integer j,  C_i = inclusion(1) + ... + inclusion(i)

    One uniform U decides everything, and inclusion probabilities are exact. If they sum to an integer, that
    is the size of every draw (but for the rounding of that sum); if not, the size is one of the two
    integers beside the sum. In the order given, the draw is spread along the candidates: sort them by
    something that resembles the values, but beware of a period in them. Many pairs are never drawn together,
    so a variance needs independent replicates, or a random order.

    Args:
        inclusion: probabilities in [0, 1], (..., n).
        order: "given", or "random": the candidates shuffled before each draw.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws on the CPU with ids (..., m), ascending, and the log of `inclusion`. Their number varies by at
        most one; a row with fewer ends in an empty slot (id 0, log_expected +inf).

    Raises:
        TypeError: `inclusion` is not floating point.
        ValueError: probabilities outside [0, 1] or NaN; an unknown order.

    Reference:
        Madow (1949), On the theory of systematic sampling, II, Annals of Mathematical Statistics 20(3).
    """
    rows, lead = as_probabilities(inclusion)
    if order not in ("random", "given"):
        raise ValueError(f'order must be "random" or "given", got {order!r}.')
    drawn = np.zeros(rows.shape, np.bool_)
    _steps(rows.double().numpy(), draw_seeds(generator, len(rows))[:, 0], order == "random", drawn)
    mask = torch.from_numpy(drawn).reshape(*lead, rows.shape[1])
    return pack(mask, rows.log().reshape(mask.shape))


@njit
def _steps(rows: Any, seeds: Any, at_random: bool, drawn: Any) -> None:
    n = rows.shape[1]
    for r in range(len(rows)):
        places = shuffled(n, seeds[r]) if at_random else np.arange(n)
        # The way since the last step, always below one: no digits are lost however long the list is.
        way = uniform(seeds[r], n)
        for t in range(n):
            j = places[t]
            if rows[r, j] >= 1:
                drawn[r, j] = True
                continue
            way += rows[r, j]
            if way >= 1:
                drawn[r, j] = rows[r, j] > 0
                way -= 1
