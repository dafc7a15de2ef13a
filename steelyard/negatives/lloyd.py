"""Lloyd's k-means, in chunks: the clusters and codebooks from which candidates and batches are drawn."""

from __future__ import annotations

import operator

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.sampling.kmeans_plus_plus import kmeans_plus_plus

CHUNK = 2**22  # distances held at once
MENDS = 20  # rounds of moving centroids that no row is nearest to


def lloyd(
    vectors: ArrayLike | Tensor, k: int, *, iterations: int = 10, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Group rows around k centroids: k-means++ seeding, then Lloyd's iterations.

        a_i <- argmin_c |x_i - m_c|^2        m_c <- mean of the rows with a_i = c

    A cluster that loses its rows is moved to the row farthest from its centroid. Among fewer than k distinct
    rows each is its own centroid, and the clusters left over repeat the first one and have no rows. Takes
    O(n k d) time an iteration and O(n d) memory.

    Args:
        vectors: (n, d), finite. float64 stays float64; other floats are computed in float32, integers in
            float64.
        k: number of clusters, 1 to n.
        iterations: at most so many; fewer where no row changes its cluster.
        generator: source of randomness of the seeding; torch's own where None.

    Returns:
        The centroids, (k, d), and the cluster of each row, int64, (n,), whose centroid is
        nearest to it, up to the rounding of squared norms.

    Raises:
        TypeError: `k` or `iterations` is not an integer.
        ValueError: vectors of another shape, NaN or infinite, k outside 1 to n, negative `iterations`.

    Reference:
        Lloyd (1982), Least squares quantization in PCM, IEEE Transactions on Information Theory 28(2).
    """
    k, iterations = operator.index(k), operator.index(iterations)
    x = finite_matrix(vectors, "vectors")
    if not 1 <= k <= len(x):
        raise ValueError(f"k must lie between 1 and the {len(x)} rows, got {k}.")
    if iterations < 0:
        raise ValueError(f"iterations must not be negative, got {iterations}.")
    middle = x.double().mean(0).to(x.dtype)
    x = x - middle  # a common part of all rows would cost the distances their digits
    try:
        centroids = x[kmeans_plus_plus(x, k, generator=generator)]
    except ValueError:
        distinct, assignment = torch.unique(x, dim=0, return_inverse=True)
        if len(distinct) >= k:
            raise
        spare = distinct[:1].expand(k - len(distinct), -1)
        return torch.cat([distinct, spare]) + middle, assignment
    assignment = torch.full((len(x),), -1)
    for _ in range(iterations):
        nearest, distance = _nearest(x, centroids)
        nearest, _ = _fill(x, nearest, distance, centroids)
        if torch.equal(nearest, assignment):
            break
        assignment = nearest
        sizes = torch.bincount(assignment, minlength=k).unsqueeze(1)
        sums = x.new_zeros(centroids.shape, dtype=torch.float64).index_add_(0, assignment, x.double())
        centroids = (sums / sizes).to(x.dtype)
    for _ in range(MENDS):
        nearest, distance = _nearest(x, centroids)
        assignment, moved = _fill(x, nearest, distance, centroids)
        if len(moved) == 0:
            break
        centroids[assignment[moved]] = x[moved]
    return centroids + middle, assignment


def finite_matrix(vectors: ArrayLike | Tensor, name: str) -> Tensor:
    """One vector a row, checked.

    Args:
        vectors: (n, d).
        name: what they are called in an error.

    Returns:
        (n, d), float64 for float64 and integers, else float32; detached.

    Raises:
        TypeError: complex vectors.
        ValueError: not two-dimensional, no vectors, or a vector with NaN or infinity.
    """
    x = torch.as_tensor(vectors).detach()
    if x.is_complex():
        raise TypeError(f"{name} must be real, got {x.dtype}.")
    x = x.to(torch.float64 if x.dtype == torch.float64 or not x.is_floating_point() else torch.float32)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must be (n, d), one vector a row, got {tuple(x.shape)}.")
    bad = ~x.isfinite().all(1)
    if bool(bad.any()):
        raise ValueError(f"{name} must be finite; row {int(bad.nonzero()[0])} is not.")
    return x


def _nearest(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each row and its squared distance."""
    half = (centroids * centroids).sum(1) / -2
    nearest, distance = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x), dtype=x.dtype)
    step = max(1, CHUNK // len(centroids))
    for low in range(0, len(x), step):
        part = x[low : low + step]
        nearest[low : low + step] = torch.addmm(half, part, centroids.T).argmax(1)
        distance[low : low + step] = (part - centroids[nearest[low : low + step]]).square().sum(1)
    return nearest, distance


def _fill(x: Tensor, assignment: Tensor, distance: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Give each empty cluster one far row, no two of them equal; the assignment and the rows that moved."""
    sizes = torch.bincount(assignment, minlength=len(centroids))
    empty = (sizes == 0).nonzero().flatten()
    moved = torch.zeros(0, dtype=torch.int64)
    assignment, distance = assignment.clone(), distance.clone()
    for cluster in empty.tolist():
        # A row alone in its cluster stays: its cluster would be the next one without rows.
        row = int(torch.where(sizes[assignment] > 1, distance, -1).argmax())
        if not float(distance[row]) > 0:
            break
        sizes[assignment[row]] -= 1
        sizes[cluster] += 1
        assignment[row] = cluster
        distance = torch.minimum(distance, (x - x[row]).square().sum(1))
        moved = torch.cat([moved, torch.tensor([row])])
    return assignment, moved
