"""Alignment of positives and uniformity of everything: what contrast asks for, each by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.contrastive import check_views
from steelyard.losses.pairs import check_number, widened
from steelyard.losses.softmax import Reduction, reduce


def alignment(first: Tensor, second: Tensor, *, power: float = 2.0, reduction: Reduction = "mean") -> Tensor:
    """Distance of the two views of an example on the unit sphere.

        L_i = |u_i - v_i|^a

    Args:
        first: float, (B, d), of any length.
        second: float, (B, d): the other views.
        power: a, above 0.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least; 0 where the views coincide, with gradient
        0.

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: shapes do not fit, a power out of range, an unknown reduction, or the mean over no
            examples.

    Reference:
        Wang and Isola (2020), Understanding contrastive representation learning through alignment and
        uniformity on the hypersphere, ICML, arXiv 2005.10242.
    """
    check_views(first, second)
    check_number("power", power, above=0)
    squared = (normalize(widened(first), dim=1) - normalize(widened(second), dim=1)).square().sum(1)
    if power == 2:
        return reduce(squared, reduction)
    apart = squared > 0  # a root has no finite slope at 0
    return reduce(torch.where(apart, torch.where(apart, squared, 1.0) ** (power / 2), 0.0), reduction)


def uniformity(embedding: Tensor, other: Tensor | None = None, *, scale: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential of pairs on the unit sphere.

        L = log mean_{i < j} exp(-t |u_i - u_j|^2)

    At most 0, reached where everything collapses to a point; least, in the limit of many points, for the
    uniform distribution, and for d + 1 points or fewer for a regular simplex. Alignment plus a multiple of it
    is a loss without a temperature: `alignment(u, v) + (uniformity(u) + uniformity(v)) / 2`.

    Args:
        embedding: float, (B, d), of any length, B at least 2.
        other: float, (N, d): the mean over pairs of the two sets in place of pairs within one.
        scale: t, above 0.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: shapes do not fit, a scale out of range, or no pair.

    Reference:
        Wang and Isola (2020), ICML, arXiv 2005.10242.
    """
    check_number("scale", scale, above=0)
    sets = [embedding] if other is None else [embedding, other]
    for of in sets:
        if not of.is_floating_point():
            raise TypeError(f"Embeddings must be floating point, got {of.dtype}.")
    if any(of.ndim != 2 or of.shape[1] != embedding.shape[-1] for of in sets):
        raise ValueError(f"Wanted (B, d) embeddings, got {[tuple(of.shape) for of in sets]}.")
    if len(embedding) < (2 if other is None else 1) or (other is not None and len(other) == 0):
        raise ValueError("Uniformity is a mean over pairs, and there is none; give two embeddings or more.")
    u = normalize(widened(embedding), dim=1)
    if other is not None:
        cosine = (u @ normalize(widened(other), dim=1).T).flatten()
    else:
        row, column = torch.triu_indices(len(u), len(u), 1, device=u.device)
        cosine = (u @ u.T)[row, column]
    return torch.logsumexp(2 * scale * (cosine - 1), 0) - math.log(len(cosine))  # |u - v|^2 = 2 - 2 cos
