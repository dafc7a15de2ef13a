"""The highest scores kept, and a random part of the rest that stands for all of it."""

from __future__ import annotations

import math
import operator

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.poisson import look_up
from steelyard.selection.coverage import as_scores, top_mask


def top_and_explore(
    score: ArrayLike | Tensor, k: int, *, explore: float = 0.5, generator: torch.Generator | None = None
) -> Draws:
    """Keep the rows of highest score with certainty, and an even draw of the others with the weight they stand for.

        k1 = k - round(explore k) highest scores: weight 1
        k2 = round(explore k) at random of the n - k1 others: weight (n - k1) / k2

    Pruning by scores alone trains on another loss. With the weights the sum of losses over the draw is unbiased for
    the sum over all rows, and the rows of high score add no variance.

    Args:
        score: (n,), larger is kept.
        k: rows to keep, at most n.
        explore: share of the k drawn at random, in [0, 1]; at least one row where any is left out.
        generator: source of randomness.

    Returns:
        Draws with ids (k,), ascending; `-log_expected` is the log-weight of a row.

    Raises:
        TypeError: `k` is not an integer.
        ValueError: `k` or `explore` outside its range, scores with NaN, or rows left out without any drawn for them.

    Reference:
        Ayed and Hayou (2023), Data pruning and neural scaling laws: fundamental limitations of score-based algorithms,
        TMLR, arXiv 2302.06960 (calibration by random exploration).
    """
    value, k = as_scores(score), operator.index(k)
    n = len(value)
    if not 0 <= k <= n:
        raise ValueError(f"k must lie between 0 and the {n} rows, got {k}.")
    if not 0 <= explore <= 1:
        raise ValueError(f"explore must lie in [0, 1], got {explore}.")
    random = round(explore * k)
    if random == 0 and k < n:
        raise ValueError(
            f"{n - k} rows would have no chance to be drawn, and no weight could make up for them: raise explore."
        )
    certain = top_mask(value, k - random)
    others = (~certain).nonzero().flatten()
    taken = others[torch.randperm(len(others), generator=generator)[:random]]
    table = torch.zeros(n, dtype=torch.float64)
    table[others] = math.log(random / len(others)) if random else -math.inf
    ids = torch.cat([certain.nonzero().flatten(), taken]).sort().values
    return Draws(ids, table[ids], lambda asked: look_up(table, asked, -math.inf))
