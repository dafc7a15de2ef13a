"""k-means++ seeding without a pass over the data for each centre: exact, greedy, rejection-sampled, Markov chain."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.sampling.successive import GOLDEN, draw_seeds, mix, njit

METHODS = ("greedy", "exact", "rejection", "afkmc2")
# Rows on which the candidates of a greedy step are compared: 64 for each of 1000 centres.
EVALUATION_ROWS = 65_536
# Rows whose median stands for that of all.
MEDIAN_ROWS = 65_536
# How far the farthest row may lie, in typical deviations, before float32 is too short for both.
FAR = 2.0**20
# A distance inside a matrix product costs about a quarter of one on its own.
PAIRS_BOUGHT_FOR_ONE = 4


def kmeans_plus_plus(
    x: ArrayLike | Tensor,
    k: int,
    *,
    method: str = "greedy",
    trials: int | None = None,
    max_proposals: int | None = None,
    chain_length: int = 200,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choose k rows as first centres for k-means, each with probability proportional to its squared distance.

        P(next = i) = D_i^2 / sum_j D_j^2,    D_i^2 = min_{c in centres} |x_i - c|^2

    The first centre is uniform. No method makes a pass over the data for each centre:

    - `"exact"` has this law. Distances to the first few centres stay valid upper bounds B_i >= D_i^2 when
      centres are added, so a row proposed with probability B_i / sum B and accepted with probability
      D_i^2 / B_i has the law above; the bounds are brought up to date when the rejections since have cost as
      much as that would. The expected cost is at most 8 (ln k + 2) times the optimum.
    - `"greedy"` (default) draws `trials` such rows and keeps the one that lowers the cost most, the cost being
      estimated without bias on 65,536 rows drawn with probability B_i / sum B, and exact where n is no more.
      The cost it reaches is commonly 10 to 30 % lower; its guarantee is weaker by a power of `trials`.
    - `"rejection"` proposes by |x_i|^2 + |c_1|^2 after centring the data and accepts with probability
      D_i^2 / (2 |x_i|^2 + 2 |c_1|^2), which is never above 1: the exact law too, after one pass over the data,
      at an expected 2 sum_i (|x_i|^2 + |c_1|^2) / sum_i D_i^2 proposals for a centre. After `max_proposals`
      of them, where given, it takes a uniform row that is no centre: with a cap of b ln k this adds to the
      guarantee of "exact" a part of the variance sum_i |x_i|^2 that falls as a power -b / beta of k, up to a
      constant in the exponent, with beta the variance as a multiple of the least cost.
    - `"afkmc2"` runs a Metropolis chain of `chain_length` rows for each centre, proposed from
      q_i = D_i(c_1)^2 / (2 sum D(c_1)^2) + 1 / (2n); its law tends to the exact one as the chain grows.

    The law of the set as a whole is unknown, so these are plain row numbers, not `Draws`: do not weigh by them.
    Takes O(nd) memory (a centred copy) and, beside one or a few passes, O(k^2 d) time.

    Args:
        x: (n, d), finite. float64 stays float64; other floats are computed in float32, integers in float64.
        k: number of centres, 1 to n.
        method: one of the four.
        trials: candidates for a greedy step; 2 + floor(ln k) where None.
        max_proposals: cap of `"rejection"` for each centre; none where None.
        chain_length: steps of `"afkmc2"` for each centre.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers of the centres in the order in which they were chosen, int64, (k,), all different rows.

    Raises:
        ValueError: not two-dimensional, not finite, k outside 1 to n, fewer than k distinct rows, an unknown
            method, or a count below 1.

    Reference:
        Arthur & Vassilvitskii (2007), k-means++: the advantages of careful seeding, SODA (exact and greedy);
        Shah, Agrawal & Jaiswal (2025), A new rejection sampling approach to k-means++ with improved
        trade-offs, arXiv 2502.02085 (rejection); Bachem, Lucic, Hassani & Krause (2016), Fast and provably
        good seedings for k-means, NeurIPS (afkmc2). Sampling from outdated distances and estimating the
        greedy choice are ours.
    """
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}; choose one of {', '.join(METHODS)}.")
    for name, count in (("trials", trials), ("max_proposals", max_proposals), ("chain_length", chain_length)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")
    state = _start(x, k, generator)
    if k == 1:
        return torch.from_numpy(state.ids)
    if method == "exact":
        return _lazy(state, k, 1, generator)
    if method == "greedy":
        return _lazy(state, k, trials or 2 + int(math.log(k)), generator)
    if method == "rejection":
        return _rejection(state, k, max_proposals or -1)
    return _afkmc2(state, k, chain_length)


@dataclass
class _Seeding:
    """The rows, centred and scaled, the centres so far, and the state of the random numbers."""

    x: NDArray[Any]
    centers: NDArray[Any]
    ids: NDArray[np.int64]
    random: NDArray[np.uint64]


def centered_rows(x: ArrayLike | Tensor, k: int) -> NDArray[Any]:
    """Rows less a median of each column as a new float32 or float64 array, and rescaled if huge or tiny.

    Distances keep their proportions; their squares stay inside the range of the type. float32 rows become
    float64 where a few lie so far out that the others would merge.
    """
    k = operator.index(k)
    rows = torch.as_tensor(x).detach().cpu()
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"x must be (n, d) with d at least 1, got shape {tuple(rows.shape)}.")
    if not 1 <= k <= len(rows):
        raise ValueError(f"k must lie between 1 and the number of rows {len(rows)}, got {k}.")
    wide = rows.dtype == torch.float64 or not rows.is_floating_point()
    rows = rows.to(torch.float64 if wide else torch.float32)
    low, high = (float(v) for v in rows.aminmax())
    if not math.isfinite(high - low):
        raise ValueError(f"x must be finite; look at row {int((~rows.isfinite()).any(1).nonzero()[0])}.")
    # A mean would follow an outlier. A value of the column among the others subtracts from them exactly, and
    # so does one of a grid: its equal distances stay equal.
    some = rows[:: -(-len(rows) // MEDIAN_ROWS)]
    center = some.median(0).values
    if not wide:
        deviation = (some - center).abs()
        deviation = deviation[deviation > 0]
        farthest = float((rows.amax(0) - center).maximum(center - rows.amin(0)).max())
        if len(deviation) and farthest > FAR * float(deviation.median()):
            rows, center = rows.double(), center.double()
    exponent = math.frexp(max(-low, high))[1]
    if abs(exponent) > 30:
        for part in (-exponent // 2, -exponent - (-exponent // 2)):
            rows, center = rows * 2.0**part, center * 2.0**part
    return (rows - center).contiguous().numpy()


def _start(x: ArrayLike | Tensor, k: int, generator: torch.Generator | None) -> _Seeding:
    """Choose the first centre and draw the seed of what follows."""
    data = centered_rows(x, k)
    ids, centers = np.empty(k, np.int64), np.empty((k, data.shape[1]), data.dtype)
    ids[0] = int(torch.randint(len(data), (1,), generator=generator))
    centers[0] = data[ids[0]]
    return _Seeding(data, centers, ids, draw_seeds(generator, 1)[0])


def _lazy(state: _Seeding, k: int, trials: int, generator: torch.Generator | None) -> Tensor:
    """Exact D^2 draws from outdated distances; of several trials the best by the estimated cost."""
    x, centers, n = state.x, state.centers, len(state.x)
    bound = np.full(n, np.inf, x.dtype)
    cumulative, judges = np.empty(0), (x, bound[:0], bound[:0])
    candidates = np.empty(trials, np.int64)
    fresh, found, work, t = 0, 0, 0, 1  # bounds know `fresh` of t centres; `work`: distances measured since
    while t < k:
        # Rent or buy: a refresh costs a distance to each new centre and a few passes, for all rows.
        budget = n * (t - fresh) // PAIRS_BOUGHT_FOR_ONE + 3 * n if t > fresh else 2**62
        if work > budget or fresh == 0:
            _refresh(x, bound, centers[fresh:t])
            cumulative = np.cumsum(bound, dtype=np.float64)
            _require_rest(bound, t, k)
            fresh, work = t, 0
            if trials > 1:
                judges = _judges(x, bound, cumulative, generator)
            continue
        found, spent = _draw(
            x, cumulative, bound, centers[:t], candidates, found, budget - work, state.random
        )
        work += spent
        if found == trials:
            found, best = 0, candidates[_best(x[candidates], *judges) if trials > 1 else 0]
            state.ids[t], centers[t] = best, x[best]
            t += 1
    return torch.from_numpy(state.ids)


def _require_rest(distance: NDArray[Any], t: int, k: int) -> None:
    if not distance.any():
        raise ValueError(f"x has only {t} distinct rows, too few for k = {k} centres.")


def _refresh(x: NDArray[Any], bound: NDArray[Any], centers: NDArray[Any]) -> None:
    """Bring the squared distances up to date with new centres, exactly, in blocks that stay in cache.

    A matrix product finds the few centres that may be nearer; only those are measured by differences, since
    the product loses the digits of a distance much below the norm.
    """
    rows, new = torch.from_numpy(x), torch.from_numpy(centers)
    half = (new * new).sum(1) / -2
    step = max(64, min(16_384, 2**19 // len(new)))
    for low in range(0, len(x), step):
        part = slice(low, low + step)
        _lower(x[part], centers, torch.addmm(half, rows[part], new.T).numpy(), bound[part])


def _judges(
    x: NDArray[Any], bound: NDArray[Any], cumulative: NDArray[np.float64], generator: torch.Generator | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Rows that stand for all in comparing candidates, their inverse probabilities and squared distances."""
    if len(x) <= EVALUATION_ROWS:
        return x, np.ones_like(bound), bound.copy()
    # Stratified, with probability in proportion to the bound: no gain exceeds the bound, so that each row's
    # share in the estimate is bounded too.
    u = torch.rand(EVALUATION_ROWS, generator=generator, dtype=torch.float64).numpy()
    u = (u + np.arange(EVALUATION_ROWS)) * (cumulative[-1] / EVALUATION_ROWS)
    chosen = np.minimum(np.searchsorted(cumulative, u, side="right"), np.flatnonzero(bound)[-1])
    return x[chosen], 1 / bound[chosen], bound[chosen]


def _best(candidates: NDArray[Any], rows: NDArray[Any], weight: NDArray[Any], distance: NDArray[Any]) -> Any:
    """Which candidate lowers the weighted cost of the judging rows most; their distances are lowered by it."""
    new = torch.from_numpy(candidates)
    product = torch.addmm((new * new).sum(1, keepdim=True) / -2, new, torch.from_numpy(rows).T).numpy()
    best = int(_gains(rows, candidates, product, weight, distance).argmax())
    _lower(rows, candidates[best : best + 1], product[best][:, None], distance)
    return best


def _rejection(state: _Seeding, k: int, cap: int) -> Tensor:
    """Proposals by the norms of the centred rows alone."""
    x, n = state.x, len(state.x)
    norm = np.einsum("ij,ij->i", x, x)
    bound = 2 * (norm + norm[state.ids[0]])
    # The rounding of the sums must not lift an acceptance above 1.
    bound *= 1 + 4 * x.shape[1] * np.finfo(x.dtype).eps
    cumulative = np.cumsum(bound, dtype=np.float64)
    candidate = np.empty(1, np.int64)
    distance, fresh = np.full(n, np.inf, x.dtype), 0  # squared distances to the first `fresh` centres
    for t in range(1, k):
        budget = max(n * (t - fresh), 2**18)
        end = _draw_capped(x, cumulative, bound, state.centers[:t], candidate, cap, budget, state.random)
        if end != FOUND:
            # As much work as the distances of all rows, so take those; more proposals might never end.
            _refresh(x, distance, state.centers[fresh:t])
            _require_rest(distance, t, k)
            fresh = t
            candidate[0] = _pick_rest(distance if end == PROPOSING else distance > 0, state.random)
        state.ids[t], state.centers[t] = candidate[0], x[candidate[0]]
    return torch.from_numpy(state.ids)


def _afkmc2(state: _Seeding, k: int, chain_length: int) -> Tensor:
    """Independent Metropolis chains with the distances to the first centre as their proposal."""
    x, n = state.x, len(state.x)
    distance = np.full(n, np.inf, x.dtype)
    _refresh(x, distance, state.centers[:1])
    _require_rest(distance, 1, k)
    proposal = distance / (2 * distance.sum(dtype=np.float64)) + 0.5 / n
    cumulative = np.cumsum(proposal, dtype=np.float64)
    fresh = 1
    for t in range(1, k):
        i = -1
        for _ in range(max(1, 2**18 // chain_length)):
            i = _chain(x, cumulative, proposal, state.centers[:t], chain_length, state.random)
            if i >= 0:
                break
        if i < 0:  # every row of these chains was a centre: draw from the law to which they would have come
            if fresh < t:
                _refresh(x, distance, state.centers[fresh:t])
            _require_rest(distance, t, k)
            i, fresh = _pick_rest(distance, state.random), t
        state.ids[t], state.centers[t] = i, x[i]
    return torch.from_numpy(state.ids)


def _pick_rest(weight: NDArray[Any], random: NDArray[np.uint64]) -> int:
    """A row in proportion to its weight, never one of weight 0."""
    rest = np.flatnonzero(weight)
    return int(rest[_pick(np.cumsum(weight[rest], dtype=np.float64), random)])


# How a draw ended: with a row, or out of budget among the proposals or the uniform rows after them.
FOUND, PROPOSING, UNIFORM = 0, 1, 2

# Sums in any order, or LLVM makes no vectors of them.
fast: Callable[..., Any] = numba.njit(cache=True, nogil=True, fastmath=True)


@njit
def next_uniform(state: Any) -> Any:
    """A float64 in [0, 1) by splitmix64: a loop of unknown length cannot be handed its numbers."""
    state[0] += GOLDEN
    return np.float64(mix(state[0]) >> np.uint64(11)) * 2.0**-53


@fast
def squared_distance(a: Any, b: Any) -> Any:
    total = a[0] * 0
    for j in range(len(a)):
        total += (a[j] - b[j]) * (a[j] - b[j])
    return total


@njit
def _pick(cumulative: Any, state: Any) -> Any:
    u = next_uniform(state) * cumulative[-1]
    return min(np.searchsorted(cumulative, u, side="right"), len(cumulative) - 1)


@njit
def _draw(
    x: Any, cumulative: Any, bound: Any, centers: Any, candidates: Any, found: int, budget: int, state: Any
) -> Any:
    """Fill `candidates` from `found` on with rows drawn by D^2, until `budget` distances are spent."""
    work = 0
    while found < len(candidates) and work <= budget:
        i = _pick(cumulative, state)
        least = next_uniform(state) * bound[i]
        accepted = True
        for c in range(len(centers) - 1, -1, -1):  # the newest centres are those that the bound does not know
            work += 1
            if squared_distance(x[i], centers[c]) <= least:
                accepted = False
                break
        if accepted:
            candidates[found] = i
            found += 1
    return found, work


@njit
def _draw_capped(
    x: Any, cumulative: Any, bound: Any, centers: Any, candidate: Any, cap: int, budget: int, state: Any
) -> Any:
    """One row by D^2 or, after `cap` rejections, any that is no centre, unless the budget ends first."""
    while budget > 0 and cap != 0:
        cap -= 1
        found, work = _draw(x, cumulative, bound, centers, candidate, 0, 0, state)
        budget -= work
        if found == 1:
            return FOUND
    if cap != 0:
        return PROPOSING
    while budget > 0:
        i = min(int(next_uniform(state) * len(x)), len(x) - 1)
        candidate[0] = i
        apart = True
        for c in range(len(centers)):
            budget -= 1
            apart = apart and squared_distance(x[i], centers[c]) > 0
        if apart:
            return FOUND
    return UNIFORM


@njit
def _chain(x: Any, cumulative: Any, proposal: Any, centers: Any, length: int, state: Any) -> Any:
    """The last row of a Metropolis chain with stationary law D^2, or -1 if it never left the centres."""
    row, ratio = -1, 0.0
    for _ in range(length):
        i = _pick(cumulative, state)
        # Accept with probability ratio' / ratio, ratio = D^2 / q: done as soon as a centre is too near.
        least = next_uniform(state) * ratio * proposal[i]
        nearest = np.inf
        for c in range(len(centers) - 1, -1, -1):
            nearest = min(nearest, squared_distance(x[i], centers[c]))
            if nearest <= least:
                break
        if nearest > least:
            row, ratio = i, nearest / proposal[i]
    return row


@fast
def _lower(x: Any, centers: Any, product: Any, bound: Any) -> None:
    """bound_i <- min(bound_i, min_c |x_i - c|^2), given product_ic = x_i.c - |c|^2 / 2 up to rounding."""
    d = x.shape[1]
    norms = np.empty(len(centers), x.dtype)
    for c in range(len(centers)):
        norms[c] = squared_distance(centers[c], centers[c] * 0)
    rounding = (4 + d) * np.finfo(x.dtype).eps
    largest = norms.max()
    for i in range(len(x)):
        top = product[i, 0]
        for c in range(1, len(centers)):
            top = max(top, product[i, c])
        norm = product[i, 0] * 0
        for j in range(d):
            norm += x[i, j] * x[i, j]
        slack = rounding * (norm + largest)
        if norm - 2 * top - slack < bound[i]:
            for c in range(len(centers)):
                if product[i, c] >= top - slack:
                    bound[i] = min(bound[i], squared_distance(x[i], centers[c]))


@fast
def _gains(rows: Any, candidates: Any, product: Any, weight: Any, distance: Any) -> Any:
    """How much each candidate lowers the weighted cost, given product_ci = c.x_i - |c|^2 / 2 up to rounding."""
    n, d = rows.shape
    gain = np.zeros(len(candidates))
    rounding = (4 + d) * np.finfo(rows.dtype).eps
    zero = candidates[0] * 0
    least = np.empty(n, rows.dtype)
    for i in range(n):
        least[i] = squared_distance(rows[i], zero)
    for c in range(len(candidates)):
        slack = rounding * squared_distance(candidates[c], zero)
        for i in range(n):
            # Few rows are nearer to the candidate than to a centre; only those are measured.
            if (1 - rounding) * least[i] - slack - 2 * product[c, i] < distance[i]:
                gain[c] += weight[i] * max(distance[i] - squared_distance(rows[i], candidates[c]), 0.0)
    return gain
