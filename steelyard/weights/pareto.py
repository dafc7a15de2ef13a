"""Pareto smoothing: the largest weights replaced by quantiles of a fitted tail, and the shape of that tail."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.weights.normalizing import checked

LOG_TINY = math.log(np.finfo(np.float64).tiny)
FEWEST = 5  # draws in a tail that is fitted
BLOCK = 32  # draws read between two looks at a buffer


def pareto_smooth(
    log_w: Tensor | ArrayLike, dim: int = -1, *, relative_efficiency: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Replace the largest weights by the quantiles of a generalised Pareto distribution fitted to them.

        M = ceil(min(S / 5, 3 sqrt(S / r)))                          S draws, r their relative efficiency
        tail: the draws whose weight is above u, the (M+1)-th largest
        i-th smallest of the m in the tail <- min(u + sigma ((1 - z)^-k - 1) / k, largest raw weight),
            z = (i - 1/2) / m

    k and sigma are those of Zhang and Stephens, k drawn towards 1/2 with the weight of ten draws:
    `k-hat = (m k + 5) / (m + 10)`. It counts the moments of the weights: above 1/2 their variance, above 1
    their mean is infinite; `khat_threshold` says how much S draws can bear.

    Where rules differ between libraries, this is the one used here:
    Draws of weight u are not in the tail, nor any below 2e-308 times the largest. Draws of equal weight
    share the mean of the quantiles of their ranks, so that the order of the draws changes nothing. With
    fewer than 5 draws in the tail nothing is fitted or smoothed and k-hat is +inf, "cannot be judged":
    20 draws or fewer, or nearly all dead. But where the whole tail has the same weight, or the largest
    weight is that of more than M draws (two or more equal weights, say), there is no tail beyond it: nothing is
    smoothed and k-hat is -inf. Otherwise the results are those of ArviZ's `psislw(normalize=False)`.

    Time is O(S + M sqrt(M)): a selection, not a sort. Computed in float64 on the processor; carries no
    gradient.

    Args:
        log_w: log-weights, (..., n) along `dim`, up to any constant; -inf marks a dead draw, counts in S
            and stays dead.
        dim: dimension of the draws.
        relative_efficiency: effective share of independent draws among these, 1 where independent, less for
            a Markov chain.

    Returns:
        Log-weights of the same shape, dtype and scale, not normalised, and k-hat, float64, without `dim`.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf, or an efficiency that is not positive and finite.

    Reference:
        Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72),
        arXiv 1507.02646; Zhang & Stephens (2009), A new and efficient estimation method for the generalized
        Pareto distribution, Technometrics 51(3).
    """
    log_w = checked(log_w, dim)
    rows = log_w.detach().movedim(dim, -1)
    counts = torch.full(rows.shape[:-1], rows.shape[-1])
    smoothed, khat = smooth_tails(rows, counts, relative_efficiency)
    return smoothed.movedim(-1, dim), khat


def pareto_khat(log_w: Tensor | ArrayLike, dim: int = -1, *, relative_efficiency: float = 1.0) -> Tensor:
    """Shape of the weights' upper tail: whether their variance and mean can be believed to exist.

    The k-hat of `pareto_smooth`, by the same rules, without the smoothed weights.

    Args:
        log_w: log-weights, (..., n) along `dim`, up to any constant; -inf marks a dead draw.
        dim: dimension of the draws.
        relative_efficiency: effective share of independent draws among these.

    Returns:
        float64, shape of `log_w` without `dim`; +inf where too few draws lie in the tail to judge it, -inf
        where the largest weight is shared by the whole tail.

    Raises:
        TypeError: `log_w` is not floating point.
        ValueError: no draws, NaN or +inf, or an efficiency that is not positive and finite.

    Reference:
        Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72),
        arXiv 1507.02646.
    """
    return pareto_smooth(log_w, dim, relative_efficiency=relative_efficiency)[1]


def khat_threshold(n: int | Tensor) -> Tensor:
    """Largest k-hat with which the error of an average of n draws is still controlled.

        min(1 - 1 / log10(n), 0.7)

    Args:
        n: number of draws, at least 1.

    Returns:
        float64, shape of `n`: below zero for fewer than 10 draws, 0.7 from 2155 draws on.

    Raises:
        ValueError: a number of draws below 1.

    Reference:
        Vehtari, Simpson, Gelman, Yao & Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72),
        arXiv 1507.02646.
    """
    count = torch.as_tensor(n, dtype=torch.float64)
    if not bool((count >= 1).all()):
        raise ValueError(f"A threshold on k-hat wants at least one draw, got {n}.")
    return (1 - 1 / count.log10()).clamp(max=0.7)


def smooth_tails(rows: Tensor, counts: Tensor, relative_efficiency: float = 1.0) -> tuple[Tensor, Tensor]:
    """Pareto smoothing of rows along the last dimension, of which `counts` are draws and the rest padding."""
    if not 0 < relative_efficiency < math.inf:
        raise ValueError(
            f"The relative efficiency of draws is positive and finite, got {relative_efficiency}."
        )
    flat = rows.detach().cpu().reshape(-1, rows.shape[-1])
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.float()
    s = counts.reshape(-1).double()
    sizes = torch.minimum(s / 5, 3 * (s / relative_efficiency).sqrt()).ceil()
    sizes = torch.minimum(sizes, s - 1).clamp(min=0).long()  # a cut-off below the tail must be left
    source = flat.contiguous().numpy()
    out, khat = np.empty_like(source), np.empty(len(source))  # NumPy's large arrays cost fewer page faults
    _smooth_rows(source, sizes.cpu().numpy(), out, khat)
    khat[(s <= 1).cpu().numpy()] = np.inf  # equal to itself only: that says nothing of a tail
    smoothed = torch.from_numpy(out).view(rows.shape).to(rows)
    return smoothed, torch.from_numpy(khat).view(rows.shape[:-1]).to(rows.device)


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _smooth_rows(rows: Any, sizes: NDArray[np.int64], out: Any, khat: NDArray[np.float64]) -> None:
    widest = max(sizes.max(), 1) if len(sizes) else 1
    buffer = np.empty(4 * (widest + 1) + BLOCK, rows.dtype)
    where = np.empty(widest + 1, np.int64)
    excess = np.empty(widest, np.float64)
    levels = np.empty(0, np.float64)
    for r in range(len(rows)):
        row = rows[r]
        top, u = _cut_off(row, sizes[r], buffer)
        out[r] = row
        above = 0
        for i in range(len(row)):  # without a branch: write always, step on only where it is above
            where[above] = i
            above += row[i] > u
        floor = np.exp(max(u - top, LOG_TINY))
        m = 0
        for i in where[:above]:
            heavier = np.exp(row[i] - top) - floor
            if heavier > 0.0:  # not so where it is equal but for rounding, or vanishes beside the largest
                where[m], excess[m] = i, heavier
                m += 1
        if m < FEWEST:
            khat[r] = -np.inf if m == 0 and top > -np.inf else np.inf
            continue
        order = np.argsort(excess[:m])
        y = excess[:m][order]
        if y[0] == y[m - 1]:
            khat[r] = -np.inf
            continue
        k, sigma = _fitted(y)
        if not (np.isfinite(k) and 0.0 < sigma < np.inf):
            khat[r] = np.inf
            continue
        khat[r] = k
        if len(levels) != m:
            levels = -np.log1p(-(np.arange(m) + 0.5) / m)
        _write_quantiles(y, levels, floor, k, sigma, top, where[:m][order], out[r])


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _cut_off(row: Any, size: int, buffer: Any) -> Any:
    """Largest value, and the (size + 1)-th largest; -inf where so many are not above -inf."""
    wanted = size + 1
    # A bound guessed from every step-th value lets few values pass. If too few, as can be where the order
    # of the draws means something, the work is done again without it.
    step = len(row) // wanted
    sampled = 0
    for i in range(0, wanted * step, step):
        buffer[sampled] = row[i]
        sampled += 1
    rank = sampled * wanted / len(row)
    rank = min(int(rank + 3.0 * np.sqrt(rank)) + 1, sampled)
    used = _gather(row, wanted, buffer, _select(buffer, sampled, rank))
    if used < wanted:
        used = _gather(row, wanted, buffer, -np.inf)
    u = _select(buffer, used, wanted) if used >= wanted else -np.inf
    top = -np.inf
    for i in range(min(used, wanted)):
        top = max(top, buffer[i])
    return np.float64(top), np.float64(u)


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _gather(row: Any, wanted: int, buffer: Any, bound: float) -> int:
    """Put values above a bound into the buffer; whenever it is full, keep the largest and raise the bound.

    One pass whatever the order: each time the buffer fills, selection costs a constant for each newcomer.
    """
    full = 4 * wanted
    used = 0
    for start in range(0, len(row), BLOCK):
        for i in range(start, min(start + BLOCK, len(row))):
            buffer[used] = row[i]
            used += row[i] > bound
        if used >= full:
            bound = _select(buffer, used, wanted)
            used = wanted
    return used


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _select(a: Any, n: int, wanted: int) -> Any:
    """Move the `wanted` largest of `a[:n]` to its front and return the least of them (Hoare's selection)."""
    low, high, target = 0, n - 1, wanted - 1
    while low < high:
        x, y, z = a[low], a[(low + high) // 2], a[high]
        pivot = max(min(x, y), min(max(x, y), z))  # median of three
        i, j = low, high
        while i <= j:
            while a[i] > pivot:
                i += 1
            while a[j] < pivot:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break
    return a[target]


@numba.njit(cache=True, error_model="numpy")  # type: ignore[misc, untyped-decorator, unused-ignore]
def _fitted(y: NDArray[np.float64]) -> Any:
    """k drawn towards 1/2, and sigma, of the generalised Pareto distribution of rising `y` > 0."""
    m = len(y)
    grid = 30 + int(np.sqrt(m))
    b = np.empty(grid)
    for j in range(grid):
        b[j] = 1.0 / y[m - 1] + (1.0 - np.sqrt(grid / (j + 0.5))) / (3.0 * y[int(m / 4 + 0.5) - 1])
    k = _mean_logs(b, y)
    likelihood = np.empty(grid)
    for j in range(grid):
        rate = -b[j] / k[j] if b[j] != 0.0 else 1.0 / y.mean()
        likelihood[j] = m * (np.log(rate) - k[j] - 1.0)
        if not np.isfinite(likelihood[j]):
            likelihood[j] = -np.inf
    share = np.exp(likelihood - likelihood.max())
    share /= share.sum()
    share[share < 10.0 * 2.220446049250313e-16] = 0.0
    mean_b = (share * b).sum() / share.sum()
    shape = np.log1p(-mean_b * y).mean()
    return (m * shape + 5.0) / (m + 10.0), -shape / mean_b


@numba.njit(cache=True, error_model="numpy")  # type: ignore[misc, untyped-decorator, unused-ignore]
def _mean_logs(b: NDArray[np.float64], y: NDArray[np.float64]) -> Any:
    """Mean over i of log(1 - b_j y_i): the log of products of as many factors as float64 surely holds."""
    m, grid = len(y), len(b)
    # The factors lie between 1 / (12 grid), since b_j <= (1 - c) / y_m, and that of the lowest b.
    widest = max(np.log1p(-b[0] * y[m - 1]), np.log(12.0 * grid))
    at_once = min(max(int(700.0 / widest), 1), 64) if widest < np.inf else 1
    total = np.zeros(grid)
    product = np.empty(grid)
    for start in range(0, m, at_once):
        product[:] = 1.0
        for i in range(start, min(start + at_once, m)):
            for j in range(grid):
                product[j] *= 1.0 - b[j] * y[i]
        for j in range(grid):
            total[j] += np.log(product[j])
    return total / m


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _write_quantiles(
    y: NDArray[np.float64],
    levels: NDArray[np.float64],
    u: float,
    k: float,
    sigma: float,
    top: float,
    where: NDArray[np.int64],
    out: Any,
) -> None:
    """Quantiles by rank, none above the largest raw weight; equal draws share the mean of theirs."""
    m = len(y)
    first = 0
    while first < m:
        last = first
        total = 0.0
        while last < m and y[last] == y[first]:
            level = levels[last]  # -log(1 - z)
            quantile = np.expm1(k * level) / k if abs(k) > 2.220446049250313e-16 else level
            total += min(u + sigma * quantile, 1.0)
            last += 1
        value = top + np.log(total / (last - first))
        for i in range(first, last):
            out[where[i]] = value
        first = last
