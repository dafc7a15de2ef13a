"""Projection DPPs and volume-rescaled sampling: diverse rows whose least squares fit is unbiased."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.kmeans_plus_plus import next_uniform
from steelyard.sampling.leverage import orthonormal_basis
from steelyard.sampling.poisson import look_up
from steelyard.sampling.successive import draw_seeds, njit


def projection_dpp(a: ArrayLike | Tensor, *, generator: torch.Generator | None = None) -> Draws:
    """Draw as many rows as a matrix has rank, with probability in proportion to their squared volume.

        P(S) = det(V_S)^2,  V an orthonormal basis of the columns of A;   P(i in S) = |v_i|^2, the leverage score

    Rows that resemble each other rarely come together. By the chain rule: each further row i is proposed with
    probability |v_i|^2 / rank and accepted with |v_i less its projection on the rows drawn|^2 / |v_i|^2, so that
    beside the basis, O(n d^2), a draw takes O(d^3 log d) whatever n is.

    Args:
        a: features, (n, d), finite; columns may depend on each other.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (rank,), ascending, each once, and the log of their inclusion probabilities.

    Raises:
        ValueError: `a` is not a finite matrix, or has rank 0.

    Reference:
        Hough, Krishnapur, Peres & Virág (2006), Determinantal processes and independence, Probability Surveys 3;
        Barthelmé, Tremblay & Amblard (2023), A faster sampler for discrete determinantal point processes,
        AISTATS, arXiv 2210.17358.
    """
    basis, leverage = _basis(a)
    ids = _chain(basis, leverage.cumsum(), draw_seeds(generator, 1)[0])
    ids.sort()
    log_inclusion = torch.from_numpy(np.minimum(leverage, 1)).log()
    return _draws(torch.from_numpy(ids), log_inclusion)


def volume_sampling(a: ArrayLike | Tensor, m: int, *, generator: torch.Generator | None = None) -> Draws:
    """Draw m rows so that weighted least squares on them is unbiased for the fit on all rows.

        P(i_1 ... i_m) in proportion to det(sum_s v_s v_s^T / |v_s|^2) prod_s |v_s|^2,    expected_i = m |v_i|^2 / rank

    A projection DPP of as many rows as the rank, and the rest independently with probability |v_i|^2 / rank, in
    random order. Fit by `weighted_least_squares(a[ids], y[ids], log_expected)`: for any targets its mean is the
    least squares solution on all n rows, which independent draws miss, and targets in the span of the features
    are recovered exactly, whatever is drawn. For a weighted measure of rows multiply features and targets by the
    square root of the weights.

    Args:
        a: features, (n, d), finite; columns may depend on each other.
        m: number of draws, at least the rank; d log d and more for an error near the best.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (m,), a row as often as it was drawn, and the log of their expected counts.

    Raises:
        ValueError: `a` is not a finite matrix or has rank 0, or m is below the rank.

    Reference:
        Nouy & Michel (2025), Weighted least-squares approximation with determinantal point processes and
        generalized volume sampling, SMAI Journal of Computational Mathematics, arXiv 2312.14057; Dereziński,
        Warmuth & Hsu (2018), Leveraged volume sampling for linear regression, NeurIPS, arXiv 1802.06749.
    """
    basis, leverage = _basis(a)
    rank = basis.shape[1]
    if m < rank:
        raise ValueError(f"m must be at least the rank of a, {rank}, got {m}.")
    cumulative = leverage.cumsum()
    ids = _chain(basis, cumulative, draw_seeds(generator, 1)[0])
    u = torch.rand(m - rank, generator=generator, dtype=torch.float64).numpy() * cumulative[-1]
    rest = np.minimum(np.searchsorted(cumulative, u, side="right"), np.flatnonzero(leverage)[-1])
    shuffled = torch.randperm(m, generator=generator)
    log_expected = torch.from_numpy(leverage).log() + math.log(m / rank)
    return _draws(torch.from_numpy(np.concatenate([ids, rest]))[shuffled], log_expected)


def _basis(a: ArrayLike | Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    basis = orthonormal_basis(a).contiguous().numpy()
    if basis.shape[1] == 0:
        raise ValueError("a has rank 0: every feature is 0.")
    return basis, np.einsum("ij,ij->i", basis, basis)


def _draws(ids: Tensor, log_expected: Tensor) -> Draws:
    return Draws(ids, log_expected[ids], lambda asked: look_up(log_expected, asked, -math.inf))


@njit
def _chain(basis: NDArray[np.float64], cumulative: NDArray[np.float64], seed: NDArray[np.uint64]) -> Any:
    """Rows of a projection DPP, one after the other, by rejection from the leverage scores."""
    n, rank = basis.shape
    ids = np.empty(rank, np.int64)
    span = np.zeros((rank, rank))  # orthonormal, of the rows drawn so far
    rest = np.empty(rank)
    t = 0
    while t < rank:
        i = min(np.searchsorted(cumulative, next_uniform(seed) * cumulative[-1], side="right"), n - 1)
        rest[:] = basis[i]
        whole = np.dot(rest, rest)
        for _ in range(2):  # twice, or rounding leaves a trace of what was projected out
            for j in range(t):
                rest -= np.dot(span[j], rest) * span[j]
        left = np.dot(rest, rest)
        if next_uniform(seed) * whole < left:
            ids[t] = i
            span[t] = rest / math.sqrt(left)
            t += 1
    return ids
