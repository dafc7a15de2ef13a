"""Negatives at all distances alike: drawn against the density of distances on the sphere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import inside
from steelyard.negatives.hard.asked import all_finite, check_count, labelled_distance


def distance_weighted_log_weights(distance: Any, dimension: int, cutoff: float = 0.5) -> Tensor:
    """Log-weights that undo the density of pairwise distances on the unit sphere, capped.

        log w(d) = min( -log q(d), -log q(cutoff) ),   log q(d) = (n - 2) log d + (n - 3)/2 log(1 - d^2 / 4)

    q is the density, up to a constant, of the distance of two uniform points on the sphere in n dimensions,
    which in many dimensions is all near sqrt(2). The cap keeps the few at hand's breadth, whose direction is
    mostly noise, from being drawn always; it holds at both ends, for q vanishes at d = 2 too.

    Args:
        distance: float, any shape, in [0, 2]; what rounding puts above 2 by 1e-3 or less counts as 2.
        dimension: n, of the space whose unit sphere holds the embeddings, 2 or more.
        cutoff: distance below which the weight is constant, inside (0, 2).

    Returns:
        float64, the shape of `distance`.

    Raises:
        TypeError: distances that are not floating point, a dimension that is no integer.
        ValueError: distances outside [0, 2] or not finite, a dimension below 2, a cutoff outside (0, 2).

    Reference:
        Wu, Manmatha, Smola & Krähenbühl (2017), Sampling matters in deep embedding learning, ICCV, arXiv
        1706.07567; its lambda is 1 / q(cutoff).
    """
    check_count("dimension", dimension, 2)
    if not 0 < cutoff < 2:
        raise ValueError(f"cutoff must be a distance inside (0, 2), got {cutoff}.")
    d = all_finite("distance", distance).detach().double()
    if d.numel() and not (float(d.amin()) >= 0 and float(d.amax()) <= 2.001):
        raise ValueError(
            f"Distances on a unit sphere lie in [0, 2], got {float(d.amin()):.4g} to {float(d.amax()):.4g}: "
            "normalise the embeddings and give distances, not their squares."
        )

    def log_density(at: Tensor) -> Tensor:
        near: Tensor = torch.special.xlogy(dimension - 2.0, at)
        far: Tensor = torch.special.xlogy((dimension - 3.0) / 2, (1 - at.square() / 4).clamp(min=0))
        return near + far

    cap = -log_density(torch.tensor(cutoff, dtype=torch.float64))
    return torch.minimum(-log_density(d), cap)


def distance_weighted(
    distance: Any,
    labels: Any,
    dimension: int,
    n: int = 1,
    cutoff: float = 0.5,
    farthest: float = math.inf,
    *,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw negatives of each anchor, with replacement, so that all distances come up about equally.

        P(j | a) = w(d(a, j)) / sum_{k: y_k != y_a} w(d(a, k))        for y_j != y_a and d(a, j) < farthest

    What it does to the softmax: unweighed, as published for a margin loss, the draws overrate near negatives
    and the loss is another one; weighed by `log_expected` their sum estimates that over all negatives of the
    batch nearer than `farthest` without bias.

    Args:
        distance: float, (B, B), of unit vectors.
        labels: integers, (B,).
        dimension: of the embeddings, 2 or more.
        n: how many negatives an anchor.
        cutoff: as for `distance_weighted_log_weights`.
        farthest: negatives at this distance or beyond are never drawn; the authors' code has 1.4, their paper
            no such bound. Where all of an anchor's are beyond it, its slots are empty.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws per anchor, ids (B, n) into the batch, log_expected float64; empty for an anchor without
        negatives.

    Raises:
        TypeError: distances that are not floating point, labels or counts that are no integers.
        ValueError: shapes that do not fit, distances outside [0, 2], a cutoff outside (0, 2), a negative `n`.

    Reference:
        Wu, Manmatha, Smola & Krähenbühl (2017), ICCV, arXiv 1706.07567.
    """
    d, y = labelled_distance(distance, labels)
    check_count("n", n, 0)
    out = (y.unsqueeze(1) == y) | (d >= farthest)
    log_weight = distance_weighted_log_weights(d, dimension, cutoff).masked_fill_(out, -math.inf)
    empty = out.all(1)
    log_p = log_weight - torch.logsumexp(log_weight, 1, keepdim=True).masked_fill(empty.unsqueeze(1), 0.0)
    log_n = math.log(n) if n else -math.inf
    ids = torch.zeros(len(y), n, dtype=torch.int64)
    alive = (~empty).nonzero().squeeze(1)
    if n and len(alive):
        # Against the largest, not the sum: a row's own scale is no matter to multinomial, underflow is.
        weight = (log_weight[alive] - log_weight[alive].amax(1, keepdim=True)).exp()
        ids[alive] = torch.multinomial(weight, n, replacement=True, generator=generator)
    log_expected = (log_p.gather(1, ids) + log_n).masked_fill(empty.unsqueeze(1), math.inf)

    def design(asked: Tensor) -> Tensor:
        asked = asked.expand(len(y), asked.shape[-1])
        answer = log_p.gather(1, asked.clamp(0, len(y) - 1)) + log_n
        return answer.masked_fill(~inside(asked, len(y)), -math.inf)

    return Draws(ids, log_expected, design)
