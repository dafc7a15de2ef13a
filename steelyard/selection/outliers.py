"""Outliers to train a detector on: hard ones, and one of each kind."""

from __future__ import annotations

import operator

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.negatives.lloyd import finite_matrix, lloyd


def diverse_outliers(
    features: ArrayLike | Tensor,
    absence: ArrayLike | Tensor,
    k: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Of candidate outliers, the hardest of each of k clusters.

        normalise features to length 1; k-means; from each cluster the row with the least probability of the extra
        class "absent" under the detector

    Uncertainty alone picks many of one kind. Train with cross-entropy over K + 1 classes, the outliers in the extra one.

    Args:
        features: of the candidates, (n, d), finite; a row of zeros stays one.
        absence: the detector's probability that each is an outlier, (n,).
        k: how many, 1 to n.
        generator: source of randomness of k-means.

    Returns:
        Ids, ascending, (k,); fewer where fewer directions are different.

    Raises:
        ValueError: shapes that do not fit, NaN, or k outside its range.

    Reference:
        Jiang, Cheng, Chen, Wang and Wei (2024), DOS: Diverse outlier sampling for out-of-distribution
        detection, ICLR, arXiv 2306.02031.
    """
    x, sure = finite_matrix(features, "features"), torch.as_tensor(absence)
    if sure.shape != (len(x),) or bool(torch.isnan(sure).any()):
        raise ValueError(f"absence must hold {len(x)} numbers without NaN, got shape {tuple(sure.shape)}.")
    if not 1 <= operator.index(k) <= len(x):
        raise ValueError(f"k must lie between 1 and the {len(x)} candidates, got {k}.")
    cluster = lloyd(torch.nn.functional.normalize(x, dim=1), k, generator=generator)[1]
    order = torch.argsort(sure, stable=True)
    order = order[torch.argsort(cluster[order], stable=True)]
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = cluster[order[1:]] != cluster[order[:-1]]
    return order[first].sort().values
