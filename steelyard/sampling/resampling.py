"""Resampling: n ancestors with replacement, each as often as its weight says, by schemes of low variance."""

from __future__ import annotations

import math
import operator
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.alias import cell_of
from steelyard.sampling.pivotal import uniform
from steelyard.sampling.poisson import as_rows, look_up
from steelyard.sampling.successive import GOLDEN, draw_seeds, mix, njit

Scheme = Literal["multinomial", "residual", "stratified", "systematic", "ssp", "killing"]

_BLOCK, _WIDE = 512, 4
_LARGEST = 2**32 - 1
_ROUNDING = 1 + 1e-12  # an expected count this near below an integer is that integer
_U = np.uint64
# Not literals, of which numba compiles versions of their own.
_ZERO: Any = np.int64(0)
_NO: Any = np.bool_(False)


def resample(
    log_w: Tensor | ArrayLike,
    n: int,
    *,
    scheme: Scheme = "systematic",
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw n ancestors with replacement, so that candidate i is drawn `n w_i` times on average.

        E[count_i] = n w_i;  C_i = n (w_1 + ... + w_i), w normalised;  u ~ U(0, 1)

        "multinomial":  n independent points on [0, n]; each draws the i with C_{i-1} <= point < C_i
        "stratified":   one point in each unit interval, k + u_k;  variance never above multinomial
        "systematic":   the same u in all, k + u;  counts are floor or ceil of n w_i
        "residual":     floor(n w_i) copies of each, and multinomial draws by what is left of n w_i;
                        variance never above multinomial
        "ssp":          floor(n w_i) copies of each; the fractions meet in order, an open a and the next b:
                        a + b < 1:   one gets both, a with probability a / (a + b), and stays open
                        a + b >= 1:  one becomes 1, a with probability (1 - b) / (2 - a - b), and the other,
                                     of a + b - 1, stays open
                        counts are floor or ceil of n w_i, and negatively associated
        "killing":      slot i keeps candidate i with probability w_i / max w, and is else filled by
                        multinomial draws

    All take O(m + n) time. Systematic resampling can fail to converge in an order with a period in it; the
    others do not mind the order. The variance of systematic, stratified and ssp falls much further where
    candidates that resemble each other stand side by side:

        order = hilbert_order(x)
        ancestors = order[resample(log_w[order], n).ids]

    Counts depend on each other: for the error of an average, repeat the draw (`Estimate.from_replicates`).

    Args:
        log_w: log-weights, (..., m); any common factor cancels; -inf is never drawn. The design of the draws
            looks at this tensor: do not change it while they live.
        n: how many ancestors, whatever m; below 2^32. With "killing" and n other than m, slots are dealt to
            the candidates by systematic resampling of equal weights, floor or ceil of n / m each.
        scheme: one of the six above.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws on the CPU with ids (..., n) and log_expected `log(n w)`. Ids are ascending, so shuffle them
        where their order must not tell anything. With "killing", survivors stand in their own slots and
        ascending draws in those of the killed.

    Raises:
        TypeError: `log_w` is not floating point, or `n` is not an integer.
        ValueError: NaN or +inf in `log_w`, a row all -inf, no candidates, an unknown scheme, or `n` negative
            or too large.

    Reference:
        Multinomial: Gordon, Salmond & Smith (1993), IEE Proceedings F 140(2). Residual: Liu & Chen (1998),
        Sequential Monte Carlo methods for dynamic systems, JASA 93(443). Stratified: Kitagawa (1996), Monte
        Carlo filter and smoother, JCGS 5(1). Systematic: Carpenter, Clifford & Fearnhead (1999), Improved
        particle filter for nonlinear problems, IEE Proceedings 146(1). SSP: Gerber, Chopin & Whiteley (2019),
        Negative association, ordering and convergence of resampling methods, Annals of Statistics 47(4),
        arXiv 1707.01845; its steps from the authors' package. Killing: Del Moral (2004), Feynman-Kac
        Formulae; in this form Chopin, Singh, Soto & Vihola (2022), On resampling schemes for particle filters
        with weakly informative observations, Annals of Statistics 50(6); for n other than m it is ours.
    """
    rows, lead = as_rows(log_w, "log_w")
    n = operator.index(n)
    if scheme not in get_args(Scheme):
        raise ValueError(f"scheme must be one of {', '.join(get_args(Scheme))}, got {scheme!r}.")
    if not 0 <= n <= _LARGEST:
        raise ValueError(f"n must lie between 0 and 2^32 - 1, got {n}.")
    table = rows.numpy()
    top = _largest(table)
    w = np.subtract(table, top, dtype=np.float64)
    with np.errstate(under="ignore"):  # a weight below 1e-308 of the largest is never drawn
        np.exp(w, out=w)
    total = w.sum(-1, keepdims=True)
    ids = _ancestors(w, n / total[:, 0], n, scheme, generator)
    first = np.arange(0, table.size, table.shape[1])[:, None]
    drawn = np.empty(ids.shape, table.dtype)
    np.take(table, ids if len(ids) == 1 else ids + first, out=drawn, mode="clip")
    top = top.reshape(*lead, 1)
    shift = (np.log(n / total) if n else np.full_like(total, -math.inf)).reshape(*lead, 1)

    def log_expected(fresh: Any) -> Tensor:
        # The largest goes first: beside log-weights of size 1e8 the logs of n and the total would vanish.
        logs = fresh.astype(np.float64, copy=False)
        logs -= top
        logs += shift
        return torch.from_numpy(logs.astype(table.dtype, copy=False))

    def design(asked: Tensor) -> Tensor:
        return log_expected(look_up(rows.reshape(*lead, rows.shape[1]), asked, -math.inf).numpy())

    return Draws(torch.from_numpy(ids).reshape(*lead, n), log_expected(drawn.reshape(*lead, n)), design)


def _largest(table: Any) -> Any:
    """The largest log-weight of each row, (rows, 1), which must be finite."""
    if table.shape[1] == 0:
        raise ValueError("log_w has no candidates along its last dimension.")
    top = table.max(-1, keepdims=True)  # NaN where there is any
    if not (top < math.inf).all():
        raise ValueError("log_w has NaN or +inf; mark a candidate that is never drawn with -inf.")
    if not (top > -math.inf).all():
        bad = int((top[:, 0] == -math.inf).argmax())
        raise ValueError(f"Row {bad} of log_w is all -inf: leave it out, or set it to 0 for equal weights.")
    return top


def _ancestors(w: Any, scale: Any, n: int, scheme: str, generator: torch.Generator | None) -> Any:
    """Ids of the draws, (rows, n), for weights (rows, m); `scale` times their sum is n in each row.

    What is large gets its room from numpy, which asks for huge pages, and not from torch or compiled code:
    the first touch of small pages takes longer than all exponentials.
    """
    rows, m = w.shape
    # Each row writes a few names past its end: on those of the next row, whose turn comes, or on scrap.
    flat = np.empty(rows * n + _WIDE, np.int64)
    if n > 0:
        seeds = draw_seeds(generator, rows)
        if scheme in ("stratified", "systematic"):
            _rows_of_one_each(w, scale, n, scheme == "systematic", seeds, flat)
        elif scheme == "ssp":
            _rows_of_ssp(w, scale, n, seeds, flat, np.empty(m, np.uint8))
        else:
            tally, before = np.zeros(n, np.uint8), np.empty(n + 2, np.uint32)
            killed = np.empty(n if scheme == "killing" else 0, np.bool_)
            _rows_of_multinomial(w, scale, n, scheme == "residual", seeds, flat, tally, before, killed)
    return flat[: rows * n].reshape(rows, n)


@njit
def _rows_of_one_each(w: Any, scale: Any, n: int, same: bool, seeds: Any, flat: Any) -> None:
    for r in range(len(w)):
        _one_each(w[r], scale[r], same, seeds[r, 0], flat[r * n : (r + 1) * n + _WIDE])


@njit
def _rows_of_ssp(w: Any, scale: Any, n: int, seeds: Any, flat: Any, extra: Any) -> None:
    for r in range(len(w)):
        _ssp(w[r], scale[r], seeds[r, 0], flat[r * n : (r + 1) * n + _WIDE], extra)


@njit
def _rows_of_multinomial(
    w: Any, scale: Any, n: int, residual: bool, seeds: Any, flat: Any, tally: Any, before: Any, killed: Any
) -> None:
    for r in range(len(w)):
        out = flat[r * n : (r + 1) * n + _WIDE]
        if len(killed) > 0:
            _killing(w[r], scale[r], seeds[r, 0], seeds[r, 1], out, tally, before, killed)
        else:
            _multinomial(w[r], scale[r], residual, seeds[r, 0], seeds[r, 1], out, tally, before)


@njit
def _place(first: int, part: Any, begin: Any, out: Any, last: Any, since: Any) -> Any:
    """Write the names of a block of candidates from where their draws begin, nearly without a branch.

    Each one alive writes its name a few times, whatever its count: the next one writes over what is too much.
    Whoever is the last alive of all must then take all places that are left, from `since` on. So nobody of
    weight 0 is drawn and no place is empty or out of range, wherever rounding puts the last beginning.

    Args:
        first: number of the first candidate of the block.
        part: weights of the block, (size,).
        begin: how many draws belong to those before each of them, and before the next block, (size + 1,).
        out: (n + _WIDE,).
        last: the last one alive so far; returned as it is after the block.
        since: where its draws begin; likewise.
    """
    n = _U(len(out) - _WIDE)  # unsigned, so that numba does not ask which places count from the end
    for j in range(len(part)):
        alive, name = part[j] > 0, first + j
        at = min(_U(begin[j]), n) if alive else n
        out[at] = out[at + _U(1)] = out[at + _U(2)] = out[at + _U(3)] = name
        t, until = at + _U(_WIDE), min(_U(begin[j + 1]), n)
        while t < until:
            out[t] = name
            t += _U(1)
        last, since = (name, np.int64(at)) if alive else (last, since)
    return last, since


@njit
def _one_each(w: Any, scale: float, same: bool, seed: Any, out: Any) -> None:
    """Stratified and systematic: k + u_k < x for all k below floor(x), and for floor(x) if u < its fraction."""
    way, begin = np.empty(_BLOCK + 1), np.empty(_BLOCK + 1, np.int64)
    base, left, last, since = _ZERO, 0.0, _ZERO, _ZERO
    u = uniform(seed, 0)
    for first in range(0, len(w), _BLOCK):
        part = w[first : first + _BLOCK]
        way[0] = left
        for j in range(len(part)):
            left += part[j] * scale
            way[j + 1] = left
        if same:
            for j in range(len(part) + 1):
                whole = np.int64(way[j])
                begin[j] = base + whole + (u < way[j] - whole)
        else:
            for j in range(len(part) + 1):
                whole = np.int64(way[j])
                begin[j] = base + whole + (uniform(seed, base + whole) < way[j] - whole)
        last, since = _place(first, part, begin, out, last, since)
        # Whole steps are counted apart after each block, so that no digits are lost on a long way.
        base, left = base + int(left), left - int(left)
    out[since : len(out) - _WIDE] = last


@njit
def _split(part: Any, scale: float, whole: Any, fraction: Any) -> None:
    """Whole and fractional parts of expected counts, the latter in [0, 1)."""
    for j in range(len(part)):
        expected = part[j] * scale
        whole[j] = np.int64(expected * _ROUNDING)
        fraction[j] = max(expected - whole[j], 0.0)


@njit
def _multinomial(
    w: Any, scale: float, residual: bool, s0: Any, s1: Any, out: Any, tally: Any, before: Any
) -> None:
    """Independent points without a sort: their unit intervals by tally, their places in them by a hash."""
    way, fraction, whole = np.empty(_BLOCK + 1), np.empty(_BLOCK), np.empty(_BLOCK, np.int64)
    begin, copies = np.empty(_BLOCK + 1, np.int64), np.empty(_BLOCK + 1, np.int64)
    points, stretch = len(out) - _WIDE, scale
    if residual:
        points, length = _left_over(w, scale, points, whole, fraction)
        stretch = points / length if length > 0 else 0.0
    _throw(points, s0, tally, before)
    base, left, kept, last, since = _ZERO, 0.0, _ZERO, _ZERO, _ZERO
    for first in range(0, len(w), _BLOCK):
        part, size = w[first : first + _BLOCK], min(_BLOCK, len(w) - first)
        way[0], copies[0] = left, kept
        if residual:
            _split(part, scale, whole, fraction)
            for j in range(size):
                left += fraction[j] * stretch
                kept += whole[j]
                way[j + 1], copies[j + 1] = left, kept
        else:
            for j in range(size):
                left += part[j] * stretch
                way[j + 1] = left
        _points_below(way[: size + 1], base, before, points, s1, begin)
        if residual:
            for j in range(size + 1):
                begin[j] += copies[j]
        last, since = _place(first, part, begin, out, last, since)
        base, left = base + int(left), left - int(left)
    out[since : len(out) - _WIDE] = last


@njit
def _left_over(w: Any, scale: float, n: int, whole: Any, fraction: Any) -> Any:
    """How many of n draws no whole copy takes, and the sum of all fractions: the same but for rounding."""
    length = 0.0
    for first in range(0, len(w), _BLOCK):
        size = min(_BLOCK, len(w) - first)
        _split(w[first : first + size], scale, whole, fraction)
        n -= whole[:size].sum()
        length += fraction[:size].sum()
    return max(n, 0), length


@njit
def _throw(points: int, seed: Any, tally: Any, before: Any) -> None:
    """Throw points on [0, points] and find how many lie before each unit interval; `tally` is left at 0."""
    interval = np.empty(_BLOCK, np.uint64)
    for first in range(0, points, _BLOCK):
        size = min(_BLOCK, points - first)
        for t in range(size):
            interval[t] = cell_of(mix(_U(first + t) * GOLDEN + seed), _U(points))[0]
        for t in range(size):
            tally[interval[t]] += np.uint8(1)  # overflows with a probability of 1e-507
    total = 0
    for k in range(points):
        before[k] = total
        total += tally[k]
    before[points] = before[points + 1] = points
    tally[:points] = 0


@njit
def _points_below(way: Any, base: int, before: Any, points: int, seed: Any, begin: Any) -> None:
    """How many points lie below each place; point i of unit interval k has the same hash whoever asks."""
    size = len(way)
    interval, inside = np.empty(_BLOCK + 1, np.uint64), np.empty(_BLOCK + 1, np.int64)
    fraction = np.empty(_BLOCK + 1)
    for j in range(size):
        interval[j] = min(base + int(way[j]), points)
        fraction[j] = way[j] - np.int64(way[j])
    for j in range(size):
        begin[j] = before[interval[j]]
        inside[j] = np.int64(before[interval[j] + _U(1)]) - begin[j]
    for i in range(2):  # in vectors; there are seldom more
        for j in range(size):
            begin[j] += (i < inside[j]) & (uniform(seed, _U(i * points) + interval[j]) < fraction[j])
    for j in range(size):
        if inside[j] > 2:
            for i in range(2, inside[j]):
                begin[j] += uniform(seed, _U(i * points) + interval[j]) < fraction[j]


@njit
def _ssp(w: Any, scale: float, seed: Any, out: Any, extra: Any) -> None:
    _settle(w, scale, seed, extra)
    begin, whole, fraction = np.empty(_BLOCK + 1, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK)
    total, last, since = _ZERO, _ZERO, _ZERO
    for first in range(0, len(w), _BLOCK):
        part, more = w[first : first + _BLOCK], extra[first : first + _BLOCK]
        _split(part, scale, whole, fraction)
        begin[0] = total
        for j in range(len(part)):
            total += whole[j] + more[j]
            begin[j + 1] = total
        last, since = _place(first, part, begin, out, last, since)
    out[since : len(out) - _WIDE] = last


@njit
def _settle(w: Any, scale: float, seed: Any, extra: Any) -> None:
    """Which fractions the SSP rounds up. The open one before a duel is the fractional part of the sum of all
    before it, and a duel makes a 1 where that sum passes an integer: only its holder goes from duel to duel.
    """
    way, fraction = np.empty(_BLOCK + 1), np.empty(_BLOCK)
    whole, one, wins = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.bool_)
    holder, left = 0, 0.0
    extra[:] = 0
    for first in range(0, len(w), _BLOCK):
        size = min(_BLOCK, len(w) - first)
        _split(w[first : first + size], scale, whole, fraction)
        way[0] = left
        for j in range(size):
            left += fraction[j]
            way[j + 1] = left
        for j in range(size):
            a, b = way[j] - np.floor(way[j]), fraction[j]
            one[j] = np.int64(way[j + 1]) - np.int64(way[j])
            u = uniform(seed, first + j)
            wins[j] = u * (2 - a - b) < 1 - b if one[j] else u * (a + b) < a
        for j in range(size):
            extra[holder if wins[j] else first + j] += one[j]
            holder = holder if wins[j] != one[j] else first + j
        left -= int(left)
    extra[holder] += left > 0.5  # all fractions together are an integer but for rounding


@njit
def _killing(w: Any, scale: float, s0: Any, s1: Any, out: Any, tally: Any, before: Any, killed: Any) -> None:
    n, m = len(out) - _WIDE, len(w)
    coins = mix(s0 + s1)
    # floor((t + u) m / n) with u = part / m: systematic resampling of equal weights, in integers.
    step, more = m // n, m % n
    name, part = divmod(np.int64(cell_of(mix(_U(n) * GOLDEN + coins), _U(m))[0]), n)
    u, limit, total = np.empty(_BLOCK), w.max(), 0
    for first in range(0, n, _BLOCK):
        here = killed[first : first + _BLOCK]
        for t in range(len(here)):
            u[t] = uniform(coins, first + t) * limit
        for t in range(len(here)):
            here[t] = u[t] >= w[name]
            total += here[t]
            part += more
            name += step + (part >= n)
            part -= n if part >= n else 0
    _multinomial(w, scale * (total / n), _NO, s0, s1, out[: total + _WIDE], tally, before)
    for t in range(n - 1, -1, -1):  # backwards, so that no draw is written over before it has moved
        part -= more
        name -= step + (part < 0)
        part += n if part < 0 else 0
        total -= killed[t]
        out[t] = out[total] if killed[t] else name
