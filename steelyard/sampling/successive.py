"""Successive sampling: k of n without replacement by exponential keys, probabilities given a threshold."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.poisson import as_rows, look_up, pack

LOWEST = -np.finfo(np.float64).max
"""Below every key; -inf is not, so that a weight of zero never competes."""

_BLOCK = 512
_PILOT = 1 << 14
_U = np.uint64
GOLDEN, _A, _B = _U(0x9E3779B97F4A7C15), _U(0xBF58476D1CE4E5B9), _U(0x94D049BB133111EB)
_C, _D = _U(0xFF51AFD7ED558CCD), _U(0xC4CEB9FE1A85EC53)
_S27, _S30, _S31, _S33 = _U(27), _U(30), _U(31), _U(33)
# -log u is at most _TOP - _SLOPE * (bits of the float u): the mantissa is linear where the log is concave.
_SLOPE = math.log(2) * 2.0**-52
_TOP = 1023 * math.log(2) + 1e-9


def without_replacement(log_p: Tensor, k: int, *, generator: torch.Generator | None = None) -> Draws:
    """Draw k different candidates, one after the other, each with probability p among those left.

        G_i = log p_i - log E_i,  E_i ~ Exp(1) independent;  S = the k largest keys G_i
        P(i in S | the other keys) = P(G_i > t_i) = 1 - exp(-exp(log p_i - t_i))
        t_i = k-th largest key among the others: the (k+1)-th of all if i is in S, the k-th if it is not

    These are inclusion probabilities given a threshold: unbiased weights, and exact in a merge with other
    designs, but they differ from draw to draw. One threshold for all would be biased in a merge. One pass
    and no sort: O(n + k log(n / k)) time, O(k) memory beside `log_p`.

    Args:
        log_p: log-weights, (..., n); any common factor cancels; -inf is never drawn. Beyond 1e9 in size
            they have too few digits left for exact probabilities. The design of the draws looks at this
            tensor: do not change it while they live.
        k: how many, 0 <= k <= n.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws on the CPU with ids (..., k), ascending. A row with fewer than k candidates above -inf gives
        all of them with certainty and leaves the slots at its end empty (id 0, log_expected +inf).

    Raises:
        TypeError: `log_p` is not floating point or `k` not an integer.
        ValueError: `k` is negative or above n; NaN or +inf in `log_p`.

    Reference:
        Kool, van Hoof & Welling (2019), Stochastic beams and where to find them, ICML, arXiv 1903.06059;
        the thresholds: Cohen & Kaplan (2008), Tighter estimation using bottom-k sketches, PVLDB 1(1);
        Duffield, Lund & Thorup (2007), Priority sampling, JACM 54(6). The rule for who was not drawn is theirs
        applied to the other keys.
    """
    rows, lead = as_rows(log_p, "log_p")
    n, k = rows.shape[1], operator.index(k)
    if not 0 <= k <= n:
        raise ValueError(f"k must lie between 0 and the {n} candidates, got {k}.")
    if n == 0:
        return pack(torch.zeros(*lead, 0, dtype=torch.bool), rows.reshape(*lead, 0))
    ids = np.zeros((len(rows), k), np.int64)
    log_w = np.zeros((len(rows), k))
    found = np.zeros(len(rows), np.int64)
    threshold = np.zeros((len(rows), 2))
    bad = _draw_rows(rows.numpy(), draw_seeds(generator, len(rows)), ids, log_w, found, threshold)
    if bad >= 0:
        raise ValueError(f"log_p has {float(rows.flatten()[bad])} in row {bad // n}, column {bad % n}.")
    slots = torch.from_numpy(ids).reshape(*lead, k)
    empty = torch.arange(k) >= torch.from_numpy(found).reshape(*lead, 1)
    outer, inner = torch.from_numpy(threshold).reshape(*lead, 2).unbind(-1)
    table, dtype = rows.reshape(*lead, n), rows.dtype

    def design(asked: Tensor) -> Tensor:
        drawn = among(asked, slots.masked_fill(empty, n))
        limit = torch.where(drawn, outer.unsqueeze(-1), inner.unsqueeze(-1))
        return log_inclusion(look_up(table, asked, -math.inf), limit).to(dtype)

    log_expected = log_inclusion(torch.from_numpy(log_w).reshape(*lead, k), outer.unsqueeze(-1))
    return Draws(slots, log_expected.masked_fill(empty, math.inf).to(dtype), design)


def log_inclusion(log_w: Tensor, threshold: Tensor) -> Tensor:
    """Log-probability that the key of a candidate exceeds a threshold, `log(1 - exp(-exp(log_w - t)))`.

    Args:
        log_w: log-weights; -inf gives -inf.
        threshold: broadcastable to `log_w`; -inf gives 0, +inf gives -inf.

    Returns:
        float64, broadcast.
    """
    gap = log_w.double() - threshold.where(log_w > -math.inf, 0.0)
    # Below -30 the rest of the series, -exp(gap) / 2, is lost in the last digit, and exp may underflow.
    return torch.where(gap < -30, gap, torch.log(-torch.expm1(-torch.exp(gap))))


def among(asked: Tensor, ids: Tensor) -> Tensor:
    """Whether each id asked for is one of `ids`.

    Args:
        asked: int64, (..., m).
        ids: int64, (..., k), ascending along the last dimension.

    Returns:
        bool, (..., m), leading dimensions broadcast.
    """
    shape = torch.broadcast_shapes(asked.shape[:-1], ids.shape[:-1])  # type: ignore[no-untyped-call]
    if ids.ndim > 1:
        ids = ids.expand(*shape, ids.shape[-1]).contiguous()
        asked = asked.expand(*shape, asked.shape[-1])
    if ids.shape[-1] == 0:
        return torch.zeros_like(asked, dtype=torch.bool)
    place = torch.searchsorted(ids, asked.contiguous()).clamp_(max=ids.shape[-1] - 1)
    return (ids[place] if ids.ndim == 1 else ids.gather(-1, place)) == asked


def draw_seeds(generator: torch.Generator | None, rows: int) -> NDArray[np.uint64]:
    """Two random words a row, (rows, 2), from which compiled loops make their own noise."""
    words = torch.randint(-(2**63), 2**63 - 1, (rows, 2), generator=generator)
    return words.numpy().view(np.uint64)


njit: Callable[..., Any] = numba.njit(cache=True, nogil=True)
inlined: Callable[..., Any] = numba.njit(cache=True, nogil=True, inline="always")  # or LLVM makes no vectors


@inlined
def mix(x: Any) -> Any:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014), a bijection of 64-bit words."""
    x = (x ^ (x >> _S30)) * _A
    x = (x ^ (x >> _S27)) * _B
    return x ^ (x >> _S31)


@inlined
def hash_id(i: Any, s0: Any, s1: Any) -> Any:
    """Noise of row `i` under the seed (s0, s1): two different mixers in a row, a bijection of `i`."""
    x = mix(_U(i) * GOLDEN + s0) + s1
    x = (x ^ (x >> _S33)) * _C
    x = (x ^ (x >> _S33)) * _D
    return x ^ (x >> _S33)


@inlined
def key_of(log_w: Any, noise: Any) -> Any:
    """log w - log E, with E = -log(1 - u) exponential and u the noise as a fraction of 2^64."""
    u = min(max(np.float64(noise) * 2.0**-64, 2.0**-65), 1 - 2.0**-53)
    return log_w - math.log(-math.log1p(-u))


@njit
def select(values: Any, rank: int) -> Any:
    """The `rank`-th smallest value, counted from 0; the order of the values is lost (Hoare's quickselect)."""
    low, high = 0, len(values) - 1
    while low < high:
        a, b, c = values[low], values[(low + high) // 2], values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            return values[rank]
    return values[rank]


@njit
def shrink(keys: Any, noise: Any, ids: Any, log_w: Any, count: int, keep: int) -> Any:
    """Move the `keep` largest keys to the front, in their order; ties go to the smaller noise.

    Returns the smallest key kept.
    """
    limit = select(keys[:count].copy(), count - keep)
    above, ties = 0, 0
    for j in range(count):
        above += keys[j] > limit
        ties += keys[j] == limit
    last = ~_U(0)
    if ties > keep - above:
        last = select(noise[:count][keys[:count] == limit], keep - above - 1)
    at = 0
    for j in range(count):
        if keys[j] > limit or (keys[j] == limit and noise[j] <= last):
            keys[at], noise[at], ids[at], log_w[at] = keys[j], noise[j], ids[j], log_w[j]
            at += 1
    return limit


@njit
def race(
    given: Any, w: Any, s0: Any, s1: Any, keys: Any, noise: Any, ids: Any, log_w: Any, state: Any, keep: int
) -> Any:
    """Let rows compete for a place among the `keep` largest keys.

    The buffers hold the candidates so far, `state[0]` of them, each with a key of at least `state[1]`; when
    they are full, they shrink to `keep` and that limit rises. A block of rows at a time gets noise and an
    upper bound of its keys in loops without branches, and only those that may win get a logarithm.

    Args:
        given: (n,) row ids, or an empty array for 0, 1, ... n - 1.
        w: (n,) log-weights.
        s0: first half of the seed.
        s1: second half.
        keep: how many rows are wanted.
        keys: buffer, longer than `keep`.
        noise: likewise.
        ids: likewise.
        log_w: likewise.
        state: count and limit, (2,) float64; changed.

    Returns:
        -1, or the position of a log-weight that is NaN or +inf, where the work stopped.
    """
    uniform = np.empty(_BLOCK)
    bits = uniform.view(np.int64)
    bound = np.empty(_BLOCK)
    count, limit = int(state[0]), state[1]
    for start in range(0, len(w), _BLOCK):
        part = w[start : start + _BLOCK]
        _bounds(given[start : start + _BLOCK], start, part, s0, s1, uniform, bits, bound)
        for j in range(len(part)):
            if bound[j] < limit:
                continue
            if not part[j] < np.inf:
                return start + j
            name = given[start + j] if len(given) > 0 else start + j
            word = hash_id(name, s0, s1)
            key = key_of(np.float64(part[j]), word)
            if key >= limit:
                keys[count], noise[count], ids[count], log_w[count] = key, word, name, part[j]
                count += 1
                if count == len(keys):
                    limit = max(limit, shrink(keys, noise, ids, log_w, count, keep))
                    count = keep
    state[0], state[1] = count, limit
    return -1


@njit
def _bounds(given: Any, start: int, part: Any, s0: Any, s1: Any, uniform: Any, bits: Any, bound: Any) -> None:
    """Upper bounds of the keys of a block, in loops that LLVM turns into vectors."""
    if len(given) > 0:
        for j in range(len(part)):
            uniform[j] = np.float64(hash_id(given[j], s0, s1)) * 2.0**-64
    else:
        for j in range(len(part)):
            uniform[j] = np.float64(hash_id(_U(start) + _U(j), s0, s1)) * 2.0**-64
    for j in range(len(part)):
        bound[j] = part[j] + (_TOP - np.float64(bits[j]) * _SLOPE)


@njit
def thresholds(keys: Any, noise: Any, ids: Any, log_w: Any, count: int, k: int) -> Any:
    """Settle a race among `count` candidates: the k winners to the front.

    Returns how many were found, the (k+1)-th largest key and the k-th; -inf where there are too few, and +inf
    for the k-th of k = 0.
    """
    outer, inner = -np.inf, np.inf
    if count > k:
        outer = keys[:count].max() if k == 0 else shrink(keys, noise, ids, log_w, count, k + 1)
        if k > 0:
            shrink(keys, noise, ids, log_w, k + 1, k)
        count = k
    if k > 0:
        inner = keys[:k].min() if count == k else -np.inf
    return count, outer, inner


@njit
def _pilot(w: Any, s0: Any, s1: Any, keep: int) -> Any:
    """A limit that `keep` of the keys exceed almost surely, from a sample of them; LOWEST if not worth it."""
    n, m = len(w), _PILOT
    rank = int(keep * m / n)
    rank += 16 + 5 * int(math.sqrt(rank + 1))
    if n < 8 * m or 4 * rank > m:
        return LOWEST
    keys = np.empty(m)
    for t in range(m):
        j = int(t * (n / m))
        keys[t] = key_of(np.float64(w[j]), hash_id(j, s0, s1))
        if not keys[t] < np.inf:
            return LOWEST
    return max(select(keys, m - rank), LOWEST)


@njit
def _draw_rows(rows: Any, seeds: Any, out: Any, out_log_w: Any, found: Any, threshold: Any) -> Any:
    """Draw each row; returns -1, or the flat position of a log-weight that is NaN or +inf."""
    k = out.shape[1]
    size = min(max(2 * (k + 1), k + 65), rows.shape[1] + 2)
    keys, log_w = np.empty(size), np.empty(size)
    noise, ids = np.empty(size, np.uint64), np.empty(size, np.int64)
    none = np.empty(0, np.int64)
    state = np.empty(2)
    for r in range(len(rows)):
        s0, s1 = seeds[r]
        guess = _pilot(rows[r], s0, s1, k + 1)
        state[0], state[1] = 0, guess
        bad = race(none, rows[r], s0, s1, keys, noise, ids, log_w, state, k + 1)
        if bad < 0 and guess > LOWEST and state[0] <= k:
            state[0], state[1] = 0, LOWEST
            bad = race(none, rows[r], s0, s1, keys, noise, ids, log_w, state, k + 1)
        if bad >= 0:
            return r * rows.shape[1] + bad
        m, threshold[r, 0], threshold[r, 1] = thresholds(keys, noise, ids, log_w, int(state[0]), k)
        found[r], out[r, :m], out_log_w[r, :m] = m, ids[:m], log_w[:m]
    return -1
