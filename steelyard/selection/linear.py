"""A linear classifier over hashed n-grams, whose score of any text is a mean of a table: it streams like a count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def fit_linear(
    features: Any, labels: ArrayLike, *, l2: float = 1e-7, iterations: int = 200
) -> NDArray[np.float64]:
    """Logistic regression on the shares of a text's n-grams in each bucket, both classes of equal weight.

        z_i = sum_j x_ij w_j / sum_j x_ij + b
        min over w, b:  mean over classes of the mean of log(1 + exp(-y_i z_i)) + l2 / 2 |w|^2,  y_i = +1 or -1

    With classes of equal weight z estimates the log ratio of the two densities. It is the n-gram classifier
    that filters pretraining corpora, without its learnt embeddings.

    Args:
        features: counts, sparse or dense, (n, buckets); a row without counts says nothing.
        labels: 1 or True for the positive class, (n,).
        l2: strength of the penalty.
        iterations: of L-BFGS at most.

    Returns:
        float64, (buckets,): w + b, so that the mean over a text's n-grams is its score.

    Raises:
        ValueError: shapes that do not fit, one class only, or a penalty that is not positive.

    Reference:
        Joulin, Grave, Bojanowski and Mikolov (2017), Bag of tricks for efficient text classification, EACL,
        arXiv 1607.01759; as a filter of corpora: Li et al. (2024), DataComp-LM, arXiv 2406.11794.
    """
    from scipy.optimize import minimize
    from scipy.sparse import csr_array

    x = csr_array(features, dtype=np.float64)
    positive = np.asarray(labels).astype(bool)
    if positive.shape != (x.shape[0],):
        raise ValueError(f"{x.shape[0]} rows of features do not fit labels of shape {positive.shape}.")
    if not 0 < l2 < np.inf:
        raise ValueError(f"l2 must be positive and finite, got {l2}.")
    sums = np.asarray(x.sum(1)).reshape(-1)
    if not (positive & (sums > 0)).any() or not (~positive & (sums > 0)).any():
        raise ValueError("A classifier needs texts of both classes.")
    scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
    sign = np.where(positive, 1.0, -1.0)
    weight = (sums > 0) * np.where(
        positive, 0.5 / (positive & (sums > 0)).sum(), 0.5 / (~positive & (sums > 0)).sum()
    )

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        w, b = parameters[:-1], parameters[-1]
        margin = sign * (scale * (x @ w) + b)
        value = float(weight @ np.logaddexp(0, -margin) + l2 / 2 * w @ w)
        slope = -weight * sign * np.exp(-np.logaddexp(0, margin))
        return value, np.append(x.T @ (scale * slope) + l2 * w, slope.sum())

    start = np.zeros(x.shape[1] + 1)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations}).x
    table: NDArray[np.float64] = found[:-1] + found[-1]
    return table
