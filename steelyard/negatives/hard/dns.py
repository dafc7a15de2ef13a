"""Dynamic negative sampling: one of the best of a random pool, and the law by which it is drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor

from steelyard.negatives.hard.asked import check_count, masked_score


def dns(
    score: Any,
    n_best: int,
    n: int = 1,
    mask: Any = None,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw negatives uniformly, with replacement, among the best by score of each query's pool.

        P(j) = 1 / min(n_best, |pool_b|)   for j among the n_best best of pool_b, else 0

    The pool is the M candidates that were drawn and scored before; the paper writes DNS(M, N) with the pool's
    size second and `n_best` first. What it does to the loss: pairwise losses then estimate the one-way
    partial area under the ROC curve, of the range of false positive rates up to about n_best / M, in place of
    the whole area; a softmax over what is drawn is a partial softmax and estimates none over everything.

    Args:
        score: float, (..., M), scores of the pool; -inf for a candidate that must not be taken.
        n_best: among how many of the best to draw, 1 or more; M or more is uniform over the pool.
        n: how many to draw.
        mask: bool, broadcastable to `score`: True leaves a candidate out.
        generator: source of randomness; torch's own where None.

    Returns:
        Columns, int64, (..., n); and a mask of that shape, True throughout for a query whose pool is empty
        (its columns are 0).

    Raises:
        TypeError: scores that are not floating point, a mask that is not bool, counts that are no integers.
        ValueError: `n_best` below 1 or a negative `n`, a mask that does not broadcast, NaN or +inf among what
            is not masked.

    Reference:
        Zhang, Chen, Wang & Yu (2013), Optimizing top-N collaborative filtering via dynamic negative item
        sampling, SIGIR (n_best = 1); Shi et al. (2023), On the theories behind hard negative sampling for
        recommendation, WWW, arXiv 2302.03472.
    """
    check_count("n_best", n_best)
    check_count("n", n, 0)
    pool = masked_score(score, mask)
    kept, columns = pool.topk(min(n_best, pool.shape[-1]), -1)
    count = (kept > -math.inf).sum(-1, keepdim=True)
    u = torch.rand(*pool.shape[:-1], n, generator=generator, dtype=torch.float64)
    place = torch.minimum((u * count).long(), (count - 1).clamp(min=0))
    empty = (count == 0).expand(place.shape)
    if columns.shape[-1] == 0:
        return torch.zeros_like(place), empty
    return columns.gather(-1, place).masked_fill(empty, 0), empty


def dns_log_probability(rank: Any, n_items: int, pool: int, n_best: int) -> Tensor:
    """Log-probability that dynamic negative sampling draws the negative of a given rank.

        P(r) = pool / (I min(n_best, pool)) P(H < n_best),    H ~ hypergeometric(I - 1, r, pool - 1)

    for a pool drawn uniformly without replacement from I negatives: the item is in the pool, with H of the r
    better ones. With it the draws of `dns` can be weighed back to a sum over everything, as long as no
    probability is 0: an item of rank r below I - pool + n_best can be drawn.

    Args:
        rank: int64, any shape: how many of the negatives score higher, 0 for the best; ties broken at will.
        n_items: how many negatives there are, I.
        pool: size of the pool, 1 .. I.
        n_best: among how many of the best `dns` draws.

    Returns:
        float64, the shape of `rank`; -inf for a rank never drawn.

    Raises:
        TypeError: ranks or counts that are no integers.
        ValueError: a rank outside [0, I), a pool outside 1 .. I, an `n_best` below 1.

    Reference:
        Shi et al. (2023), arXiv 2302.03472, for the sampler; the exact law for a finite catalogue is ours.
    """
    for name, count in (("n_items", n_items), ("pool", pool), ("n_best", n_best)):
        check_count(name, count)
    if pool > n_items:
        raise ValueError(f"A pool without replacement holds at most the {n_items} negatives, got {pool}.")
    ranks = torch.as_tensor(rank)
    if ranks.dtype != torch.int64:
        raise TypeError(f"rank must be int64, got {ranks.dtype}.")
    if ranks.numel() and not (int(ranks.min()) >= 0 and int(ranks.max()) < n_items):
        raise ValueError(f"Ranks lie in [0, {n_items}), got {int(ranks.min())} to {int(ranks.max())}.")
    better = hypergeom.logcdf(n_best - 1, n_items - 1, ranks.numpy(), pool - 1)
    law = torch.from_numpy(np.asarray(better, dtype=np.float64)).reshape(ranks.shape)
    return law + math.log(pool) - math.log(n_items) - math.log(min(n_best, pool))
