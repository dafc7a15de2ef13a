"""The number of heads of unequal coins: tilted to a wanted mean, and its law exact to the last digit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steelyard.sampling.successive import inlined, njit, select

_TINY = 42.0  # exp(-42) = 6e-19: what may be left out of a sum whose value is near one
_TERMS = 28  # of the series for a nearly certain sample: 16^28 / 28!^2 = 6e-26
_BLOCK = 4096


@njit
def alive_values(row: Any) -> Any:
    """Positions and values of the log-weights above -inf."""
    names = np.empty(len(row), np.int64)
    m = 0
    for j in range(len(row)):
        names[m] = j
        m += row[j] > -np.inf
    x = np.empty(m)
    for j in range(m):
        x[j] = row[names[j]]
    return names[:m], x


@njit
def coins(x: Any, c: float) -> Any:
    """Probabilities of log-odds x + c, and those of their complement."""
    p, q = np.empty(len(x)), np.empty(len(x))
    for j in range(len(x)):
        p[j] = 1 / (1 + math.exp(-(x[j] + c)))
        q[j] = 1 / (1 + math.exp(x[j] + c))
    return p, q


@njit
def variance(p: Any, q: Any) -> float:
    """Of the number of heads."""
    total = 0.0
    for j in range(len(p)):
        total += p[j] * q[j]
    return total


@njit
def tilt(x: Any, k: int) -> Any:
    """c for which the probabilities of log-odds x + c sum to k (nearly: any c leaves the design as it is)."""
    n = len(x)
    part = x.copy()
    upper = select(part, n - k)
    lower = -np.inf
    for j in range(n - k):
        lower = max(lower, part[j])
    # Midway, k probabilities are above 1/2, and the variance is at least half of the error: no step beyond 2.
    c = -(upper + lower) / 2
    low, high = -np.inf, np.inf
    for _ in range(60):
        excess, spread = -float(k), 0.0
        for j in range(n):
            p = 1 / (1 + math.exp(-(x[j] + c)))
            excess += p
            spread += p * (1 - p)
        if abs(excess) <= 1e-5 * max(1.0, math.sqrt(spread)):
            break
        if excess > 0:
            high = c
        else:
            low = c
        c -= excess / spread
        if not low < c < high:
            c = (low + high) / 2
    return c


@njit
def spectrum(p: Any, q: Any, center: int, spans: int) -> Any:
    """Terms of the Fourier sum for P(N = center): real and imaginary parts, conjugates counted, and angles.

    With one span, aliases are negligible at the center; with two, wherever N may come to lie.
    """
    mean, spread = 0.0, variance(p, q)
    for j in range(len(p)):
        mean += p[j]
    # The next alias lies a period away, where Bernstein's bound of the tail is exp(-_TINY).
    reach = abs(mean - center) + _TINY / 3 + math.sqrt((_TINY / 3) ** 2 + 2 * spread * _TINY) + 1
    period = int(min(spans * reach, len(p) + 1)) // 2 * 2 + 1  # odd: a coin of 1/2 is 0 at the angle pi
    m = 1
    while m <= period // 2 and 2 * spread * math.sin(math.pi * m / period) ** 2 <= _TINY:
        m += 1
    theta = np.empty(m)
    real, imag, cosine, sine = np.ones(m), np.zeros(m), np.empty(m), np.empty(m)
    for t in range(m):
        theta[t] = 2 * math.pi * t / period
        cosine[t], sine[t] = math.cos(theta[t]), math.sin(theta[t])
    for j in range(len(p)):
        for t in range(m):
            a, b = q[j] + p[j] * cosine[t], p[j] * sine[t]
            real[t], imag[t] = real[t] * a - imag[t] * b, real[t] * b + imag[t] * a
    for t in range(m):
        twice = 1.0 if t == 0 else 2.0
        a, b = twice * math.cos(theta[t] * center), -twice * math.sin(theta[t] * center)
        real[t], imag[t] = real[t] * a - imag[t] * b, real[t] * b + imag[t] * a
    return real, imag, theta


@njit
def mass(terms: Any, shift: int) -> float:
    """P(N = center + shift), up to the period as a factor."""
    real, imag, theta = terms
    total = 0.0
    for t in range(len(theta)):
        total += real[t] * math.cos(theta[t] * shift) + imag[t] * math.sin(theta[t] * shift)
    return total


@njit
def inclusion_by_fourier(x: Any, c: float, p: Any, q: Any, k: int) -> Any:
    real, imag, theta = spectrum(p, q, k, 1)
    total = 0.0
    cosine, sine = np.empty(len(theta)), np.empty(len(theta))
    for t in range(len(theta)):  # one turn back: P(N_{-i} = k - 1)
        total += real[t]
        a, b = math.cos(theta[t]), math.sin(theta[t])
        cosine[t], sine[t] = a, b
        real[t], imag[t] = real[t] * a - imag[t] * b, real[t] * b + imag[t] * a
    out = np.empty(len(x))
    for j in range(len(x)):
        s = 0.0
        for t in range(len(theta)):
            a, b = q[j] + p[j] * cosine[t], p[j] * sine[t]
            s += (real[t] * a + imag[t] * b) / (a * a + b * b)
        y = x[j] + c
        out[j] = min(y, 0.0) - math.log1p(math.exp(-abs(y))) + math.log(s / total)
    return out


@inlined
def _log_add(a: Any, b: Any) -> Any:
    high, low = max(a, b), min(a, b)
    return high if low < high - 45 or low == -np.inf else high + math.log1p(math.exp(low - high))


@njit
def _times(e: Any, x: float) -> None:
    """Multiply the polynomial whose coefficients have logs e by 1 + e^x z, and cut it after _TERMS."""
    for y in range(_TERMS - 1, 0, -1):
        e[y] = _log_add(e[y], x + e[y - 1])


@njit
def _without_one(x: Any, c: Any) -> Any:
    """For each j, log sum_y e_y(odds without j) exp(c_y): a table of prefixes against sums from the back.

    `c` is used up. The table holds a block; the prefixes at the borders of blocks are kept.
    """
    n = len(x)
    blocks = (n + _BLOCK - 1) // _BLOCK
    border, prefix = np.empty((blocks, _TERMS)), np.empty((min(n, _BLOCK) + 1, _TERMS))
    out = np.empty(n)
    e = np.full(_TERMS, -np.inf)
    e[0] = 0.0
    for j in range(n):
        if j % _BLOCK == 0:
            border[j // _BLOCK] = e
        _times(e, x[j])
    for b in range(blocks - 1, -1, -1):
        first, last = b * _BLOCK, min((b + 1) * _BLOCK, n)
        prefix[0] = border[b]
        for j in range(first, last):
            prefix[j - first + 1] = prefix[j - first]
            _times(prefix[j - first + 1], x[j])
        for j in range(last - 1, first - 1, -1):
            s = -np.inf
            for y in range(_TERMS):
                s = _log_add(s, prefix[j - first, y] + c[y])
            out[j] = s
            for y in range(_TERMS - 1):
                c[y] = _log_add(c[y], x[j] + c[y + 1])
    return out


@njit
def inclusion_by_series(x: Any, k: int) -> Any:
    """Log inclusion probabilities where k of the log-odds x are nearly certain and the rest nearly impossible.

    With A the candidates of odds above 1, N = k says: A loses d more than the others give, d = |A| - k. So
    sum over how many are given, and over how many are lost.
    """
    n = len(x)
    odds, place = np.empty(n), np.empty(n, np.int64)
    a, b = 0, n
    for j in range(n):  # A in front, with the odds of being lost; the others behind
        if x[j] > 0:
            place[j], a = a, a + 1
            odds[place[j]] = -x[j]
        else:
            b -= 1
            place[j] = b
            odds[b] = x[j]
    lost, given = np.full(_TERMS, -np.inf), np.full(_TERMS, -np.inf)
    kept, taken = np.full(_TERMS, -np.inf), np.full(_TERMS, -np.inf)
    lost[0] = given[0] = 0.0
    for j in range(n):
        _times(lost if j < a else given, odds[j])
    total, d = -np.inf, a - k
    for y in range(_TERMS):
        if 0 <= y + d < _TERMS:
            total = _log_add(total, given[y] + lost[y + d])
            kept[y + d] = given[y]
        if 0 <= y + 1 + d < _TERMS:
            taken[y] = lost[y + 1 + d]
    front, behind = _without_one(odds[:a], kept), _without_one(odds[a:], taken)
    out = np.empty(n)
    for j in range(n):
        out[j] = (front[place[j]] if place[j] < a else x[j] + behind[place[j] - a]) - total
    return out
