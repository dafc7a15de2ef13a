"""Conditional Poisson sampling: the fixed-size design of greatest entropy, exact and in linear time."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.binomial_sums import (
    alive_values,
    coins,
    inclusion_by_fourier,
    inclusion_by_series,
    mass,
    spectrum,
    tilt,
    variance,
)
from steelyard.sampling.poisson import as_rows, look_up
from steelyard.sampling.successive import GOLDEN, draw_seeds, hash_id, inlined, mix, njit

_SMALL_VARIANCE = 16.0
_U = np.uint64


def conditional_poisson(log_w: Tensor, k: int, *, generator: torch.Generator | None = None) -> Draws:
    """Draw k different candidates so that a set has probability proportional to the product of its weights.

        P(S) = prod_{i in S} w_i / e_k(w),  |S| = k,  e_k the k-th elementary symmetric polynomial

    Of all designs with the same inclusion probabilities it has the greatest entropy. Drawn exactly, by
    Hájek's rejection made linear in n: Poisson sampling with odds w e^c, tilted so that the expected size is
    k, kept when the size is k. Half of the variance is drawn at a time, and kept with the probability that
    the other half, known from `conditional_poisson_inclusion`'s sum, completes it.

    Args:
        log_w: log-weights, (..., n); any common factor cancels; -inf is never drawn.
        k: how many, at most the number of weights above -inf in any row.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws on the CPU with ids (..., k), ascending, and exact log inclusion probabilities.

    Raises:
        TypeError: `log_w` is not floating point or `k` not an integer.
        ValueError: NaN or +inf in `log_w`; `k` is negative or above the number of weights above -inf.

    Reference:
        Hájek (1964), Asymptotic theory of rejective sampling, Annals of Mathematical Statistics 35(4); Chen,
        Dempster & Liu (1994), Weighted finite population sampling to maximize entropy, Biometrika 81(3).
        The halving is ours.
    """
    rows, lead, k = _checked(log_w, k)
    ids = np.zeros((len(rows), k), np.int64)
    _draw_rows(rows.double().numpy(), draw_seeds(generator, len(rows)), ids)
    slots = torch.from_numpy(ids).reshape(*lead, k)
    table = _inclusion(rows, k).to(rows.dtype).reshape(*lead, rows.shape[1])

    def design(asked: Tensor) -> Tensor:
        return look_up(table, asked, -math.inf)

    return Draws(slots, design(slots), design)


def conditional_poisson_inclusion(log_w: Tensor, k: int) -> Tensor:
    """Exact log inclusion probabilities of `conditional_poisson`.

        inclusion(i) = w_i e_{k-1}(w without i) / e_k(w) = p_i P(N_{-i} = k - 1) / P(N = k)
        P(N = k) = (1/M) sum_{m=0}^{M-1} e^(-2 pi i m k / M) prod_j (1 - p_j + p_j e^(2 pi i m / M))

    with p_j the tilted Poisson probabilities, of sum k, and N the Poisson size. At that tilt the terms of the
    discrete Fourier sum fall like a normal density, so that about 15 of them reach the last digit whatever n
    and k are: O(n) time. Where the sample is nearly certain (variance of N below 1), the polynomials
    themselves are summed, in logs and cut after 28 terms, so that even probabilities like exp(-1000) are
    exact.

    Args:
        log_w: log-weights, (..., n); any common factor cancels; -inf gives -inf.
        k: size of the sample, at most the number of weights above -inf in any row.

    Returns:
        Log-probabilities, (..., n), on the CPU, in the dtype of `log_w` (float32 for a shorter one).

    Raises:
        TypeError: `log_w` is not floating point or `k` not an integer.
        ValueError: NaN or +inf in `log_w`; `k` is negative or above the number of weights above -inf.

    Reference:
        Chen, Dempster & Liu (1994), Biometrika 81(3); the Fourier form: Fernandez & Williams
        (2010), Closed-form expression for the Poisson-binomial probability density function, IEEE TAES 46(2).
        The number of terms is bounded by us, by Bernstein's inequality.
    """
    rows, lead, k = _checked(log_w, k)
    return _inclusion(rows, k).to(rows.dtype).reshape(*lead, rows.shape[1])


def conditional_poisson_joint(log_w: Tensor, k: int, ids: Tensor | None = None) -> Tensor:
    """Joint inclusion probabilities of pairs under `conditional_poisson`.

        inclusion(i, j) = p_i p_j P(N_{-ij} = k - 2) / P(N = k),  inclusion(i, i) = inclusion(i)

    by the Fourier sum of `conditional_poisson_inclusion`, to an absolute error of about 1e-14. They satisfy
    0 < inclusion(i, j) < inclusion(i) inclusion(j), so the Sen-Yates-Grundy variance is never negative.

    Args:
        log_w: log-weights, (n,).
        k: size of the sample, at most the number of weights above -inf.
        ids: int64, (m,), the candidates wanted; all where None.

    Returns:
        Probabilities, not logs, (m, m), float64.

    Raises:
        TypeError: `log_w` is not floating point or `k` not an integer.
        ValueError: `log_w` is not a vector, or as in `conditional_poisson_inclusion`.

    Reference:
        Chen, Dempster & Liu (1994), Biometrika 81(3); Aires (1999), Algorithms to find exact inclusion
        probabilities for conditional Poisson sampling, Methodology and Computing in Applied Probability 1(4).
    """
    rows, lead, k = _checked(log_w, k)
    if lead != ():
        raise ValueError(
            f"Joint probabilities want one vector of log-weights, got shape {(*lead, len(rows[0]))}."
        )
    ids = torch.arange(rows.shape[1]) if ids is None else torch.as_tensor(ids, dtype=torch.int64)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows.shape[1]:
        raise ValueError(f"ids must lie in [0, {rows.shape[1]}), got {int(ids.min())} to {int(ids.max())}.")
    single = _inclusion(rows, k)[0].exp()[ids]
    w = rows[0].double().numpy()
    alive = np.isfinite(w)
    if k in (0, int(alive.sum())):
        return torch.outer(single, single)
    p, q = coins(w, tilt(w[alive], k))
    real, imag, theta = spectrum(p[alive], q[alive], k, 1)
    p, q = p[ids.numpy(), None], q[ids.numpy(), None]
    turn = np.exp(1j * theta)
    g = torch.from_numpy(p * turn / (q + p * turn))
    weight = torch.from_numpy(real + 1j * imag) / real.sum()
    joint = ((g * weight) @ g.T).real
    same = ids.unsqueeze(0) == ids.unsqueeze(1)
    return torch.where(same, single.unsqueeze(0), joint.clamp_(min=0))


def conditional_poisson_weights(inclusion: Tensor) -> Tensor:
    """Log-weights for which `conditional_poisson` has wanted inclusion probabilities.

        log w_i <- log w_i + a (logit inclusion(i) - logit inclusion_w(i)),  from log w = logit inclusion

    with step a = 1, halved where the greatest error does not fall. Probabilities of 0 and 1 get weights of
    -inf and of 1e4 above the rest, which is as good as certain.

    Args:
        inclusion: probabilities in [0, 1], (..., n), each row with the same integer sum k; within 1e-6 k of
            it, they are shifted in log-odds to sum to k.

    Returns:
        Log-weights, (..., n), float64, on the CPU; those strictly between the ends sum to 0 in a row.

    Raises:
        TypeError: `inclusion` is not floating point.
        ValueError: outside [0, 1] or NaN; the rows do not sum to one integer.
        RuntimeError: no convergence to 1e-9 within 500 steps.

    Reference:
        Chen, Dempster & Liu (1994), Biometrika 81(3); in log-odds as in Tillé (2006), Sampling
        Algorithms. The halving is ours.
    """
    rows, lead = as_rows(inclusion, "inclusion")
    pi = rows.double()
    if not bool(((pi >= 0) & (pi <= 1)).all()):
        raise ValueError("Inclusion probabilities must lie in [0, 1].")
    sums = pi.sum(-1)
    k = round(float(sums[0])) if len(sums) else 0
    if pi.numel() == 0 and not bool((sums != 0).any()):
        return pi.reshape(*lead, rows.shape[1])
    if not bool(((sums - k).abs() <= 1e-6 * max(k, 1)).all()):
        raise ValueError(f"Every row must sum to the same integer, got sums {sums.tolist()[:5]}.")
    want = pi.logit()
    inner = want.isfinite()
    for _ in range(2):
        off = (k - want.sigmoid().sum(-1, keepdim=True)) / (pi * (1 - pi)).sum(-1, keepdim=True).clamp(
            min=1e-300
        )
        want = torch.where(inner, want + off, want)
    pi = want.sigmoid()
    log_w = want.clamp(max=1e4)
    step = torch.ones(len(pi), 1, dtype=torch.float64)
    last = torch.full((len(pi), 1), math.inf, dtype=torch.float64)
    for _ in range(500):
        have = _inclusion(log_w, k)
        error = (have.exp() - pi).abs().amax(-1, keepdim=True)
        if bool((error < 1e-12).all()):
            break
        step = torch.where(error < 0.7 * last, step, (step / 2).clamp(min=0.25))
        last = error
        log_w = log_w + step * torch.where(inner, want - (have - torch.log(-torch.expm1(have))), 0.0)
    if not bool((error < 1e-9).all()):
        raise RuntimeError(f"No convergence: inclusion probabilities are off by {float(error.max()):.1e}.")
    mean = torch.where(inner, log_w, 0.0).sum(-1, keepdim=True) / inner.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(inner, log_w - mean, log_w).reshape(*lead, pi.shape[1])


def _checked(log_w: Any, k: int) -> tuple[Tensor, torch.Size, int]:
    rows, lead = as_rows(log_w, "log_w")
    k = operator.index(k)
    if not bool((rows < math.inf).all()):
        raise ValueError("log_w has NaN or +inf; mark a candidate that is never drawn with -inf.")
    alive = int((rows > -math.inf).sum(-1).min()) if len(rows) else rows.shape[1]
    if not 0 <= k <= alive:
        raise ValueError(
            f"k must lie between 0 and the number of weights above -inf, {alive} in the row with the fewest; "
            f"got {k}."
        )
    return rows, lead, k


def _inclusion(rows: Tensor, k: int) -> Tensor:
    out = np.empty(rows.shape)
    _inclusion_rows(rows.double().numpy(), k, out)
    return torch.from_numpy(out)


@njit
def _inclusion_rows(rows: Any, k: int, out: Any) -> None:
    for r in range(len(rows)):
        out[r] = -np.inf
        names, x = alive_values(rows[r])
        if k == 0:
            continue
        log_pi = np.zeros(len(x))
        if k < len(x):
            c = tilt(x, k)
            p, q = coins(x, c)
            log_pi = (
                inclusion_by_fourier(x, c, p, q, k) if variance(p, q) >= 1 else inclusion_by_series(x + c, k)
            )
        for j in range(len(x)):
            out[r, names[j]] = min(log_pi[j], 0.0)


@inlined
def _coin(j: Any, base: Any, seed: Any) -> Any:
    return mix((base + _U(j)) * GOLDEN + seed)


@njit
def _count(limits: Any, base: Any, seed: Any) -> int:
    count = 0
    for j in range(len(limits)):
        count += _coin(j, base, seed) < limits[j]
    return count


@njit
def _draw_rows(rows: Any, seeds: Any, out: Any) -> None:
    k = out.shape[1]
    for r in range(len(rows)):
        if k > 0:
            names, x = alive_values(rows[r])
            _draw_one(x, names, k, seeds[r, 0], seeds[r, 1], out[r])


@njit
def _draw_one(x: Any, names: Any, k: int, seed: Any, other_seed: Any, out: Any) -> None:
    """Draw a head with half of the variance by rejection, then the rest for what is left of k, and so on."""
    base = _U(0)
    filled = 0
    while k > 0:
        if k == len(x):
            out[filled:] = names
            return
        p, q = coins(x, tilt(x, k))
        n = _head(p, q)
        center = int(p[n:].sum() + 0.5)
        rest = spectrum(p[n:], q[n:], center, 2)
        # The mode of a Poisson-binomial law is within 1 of its mean (Darroch 1964).
        highest = max(mass(rest, -1), mass(rest, 0), mass(rest, 1))
        limits = np.empty(n, np.uint64)
        for j in range(n):  # p as a fraction of 2^64; a certain one misses once in 2^53 times
            limits[j] = _U(min(p[j], 1 - 2.0**-53) * 2.0**64)
        while True:
            left = k - _count(limits, base, seed)
            if n == len(x):
                if left == 0:
                    break
            elif 0 <= left <= len(x) - n:
                u = np.float64(hash_id(base, seed, other_seed)) * 2.0**-64
                if u * highest < mass(rest, left - center):
                    break
            base += _U(n)
        for j in range(n):
            if _coin(j, base, seed) < limits[j]:
                out[filled] = names[j]
                filled += 1
        base += _U(n)
        x, names, k = x[n:], names[n:], left


@njit
def _head(p: Any, q: Any) -> int:
    """How many candidates hold half of the variance; all of them where it is small."""
    total = variance(p, q)
    if total <= _SMALL_VARIANCE:
        return len(p)
    part, n = 0.0, 0
    while part < total / 2:
        part += p[n] * q[n]
        n += 1
    return n
