"""Dynamic negatives: the best of a few uniform draws, with the probability that order statistics give it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.context import Context
from steelyard.negatives.top_k import checked_scores, wanted_rows
from steelyard.sampling.kmeans_plus_plus import next_uniform
from steelyard.sampling.successive import draw_seeds, njit


@dataclass(frozen=True)
class BestOf:
    """Draw m items uniformly, and take one of the n_best among them with the highest scores: DNS(m, n_best).

        q(j) = E[min(A + G, n_best) - min(A, n_best)] / (n_best g)
        A, G of m uniform draws: those above j's score (a of L items), and those equal to it (g of L, j one)

    L items of a query are left when those that it is known to want are taken out: they are not drawn and have
    expected count 0. For n_best = 1 and different scores the item of rank r = 1 .. L has the probability
    ((L - r + 1)^m - (L - r)^m) / L^m. Equal scores share theirs evenly. n_best = m, or m = 1, is uniform; a
    large m takes the best. Drawn with replacement, n times independently.

    Time a query is O(I) for the scores and one pass over them to count a and g of what was drawn, and O(n m)
    for the draws; nothing is sorted but the scores of the ids asked for. Log-probabilities are right to their
    last digits, whatever m and L.

    Args:
        n_items: size of the catalogue, I.
        m: how many uniform draws, with replacement, compete for each candidate; 1 or more.
        n_best: among how many of the best the candidate is chosen, 1 .. m.
        score: from the batch to float scores (B, I).

    Raises:
        TypeError: `m` or `n_best` is not an integer, or there is no `score`.
        ValueError: an empty catalogue, `m` or `n_best` out of range.

    Reference:
        Zhang, Chen, Wang & Yu (2013), Optimizing top-N collaborative filtering via dynamic negative item
        sampling, SIGIR; DNS(M, N): Shi et al. (2023), On the theories behind hard negative sampling for
        recommendation, WWW, arXiv 2302.03472. The probabilities are ours.
    """

    n_items: int
    m: int
    n_best: int = 1
    score: Callable[[Context], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ValueError(f"A catalogue needs at least one item, got n_items={self.n_items}.")
        if operator.index(self.m) < 1:
            raise ValueError(f"m must be at least 1, got {self.m}.")
        if not 1 <= operator.index(self.n_best) <= self.m:
            raise ValueError(f"n_best must lie between 1 and m={self.m}, got {self.n_best}.")
        if self.score is None:
            raise TypeError("BestOf compares by score; give a function from the batch to scores (B, I).")

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates for each query.

        Args:
            context: the batch.
            n: how many candidates of a query.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n).

        Raises:
            TypeError: `n` is not an integer, or scores that are not floating point.
            ValueError: a negative `n`; scores of another shape, or NaN; positives or known items outside the
                catalogue; a query that is known to want every item.
        """
        check_number(n)
        assert self.score is not None
        known = wanted_rows(context, self.n_items)
        left = self.n_items - known.counts
        if bool((left <= 0).any()):
            raise ValueError(
                f"Query {int((left <= 0).nonzero()[0])} is known to want all {self.n_items} items, so there is "
                "nothing to draw for it; leave such queries out of training."
            )
        # NaN, which equals and exceeds nothing, takes out the known items.
        scores = checked_scores(self.score, context, self.n_items).cpu().clone()
        scores = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        scores[known.row_index(), known.values] = math.nan
        table = scores.numpy()
        ids = np.empty((len(context), n), np.int64)
        seeds = draw_seeds(generator, len(context))[:, 0].copy()
        _draw(table, known.offsets.numpy(), known.values.numpy(), self.m, self.n_best, seeds, ids)
        log_n = math.log(n) if n else -math.inf

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(len(context), asked.shape[-1])
            within = inside(asked, self.n_items)
            log_q = np.empty(asked.shape)
            _law(table, asked.clamp(0, self.n_items - 1).numpy(), left.numpy(), self.m, self.n_best, log_q)
            answer = (torch.from_numpy(log_q) + log_n).float()
            return answer.masked_fill_(~within, -math.inf)

        drawn = torch.from_numpy(ids)
        return Draws(drawn, design(drawn), design)


def best_of_log_probability(
    above: ArrayLike | Tensor, equal: ArrayLike | Tensor, left: ArrayLike | Tensor, m: int, n_best: int = 1
) -> Tensor:
    """Log-probability that DNS(m, n_best) takes one given item, from how it ranks.

        A ~ Binomial(m, a / L);   G | A ~ Binomial(m - A, g / (L - a))
        q = (1 / (n_best g)) sum_{A < n_best} P(A) E[min(G, n_best - A)]

    Every term is positive and nothing is subtracted from a number near it, so that the best and the worst of
    10^9 items have theirs to the last digits.

    Args:
        above: int64, (...): a, how many items score higher.
        equal: int64, (...): g, how many score the same, the item itself among them; 1 or more.
        left: int64, (...): L, how many items there are.
        m: how many uniform draws, with replacement.
        n_best: among how many of the best the item is chosen, 1 .. m.

    Returns:
        float64, (...).

    Raises:
        ValueError: counts that do not fit each other, `m` or `n_best` out of range.

    Reference:
        Shi et al. (2023), On the theories behind hard negative sampling for recommendation, WWW, arXiv
        2302.03472, for the scheme; the closed form, with ties, is ours.
    """
    counts: tuple[Tensor, ...] = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
        *(torch.as_tensor(x, dtype=torch.int64) for x in (above, equal, left))
    )
    a, g, total = counts
    if not 1 <= n_best <= m:
        raise ValueError(f"n_best must lie between 1 and m={m}, got {n_best}.")
    if bool(((a < 0) | (g < 1) | (a + g > total)).any()):
        raise ValueError("above must be 0 or more, equal 1 or more, and their sum at most left.")
    flat = (x.reshape(-1).contiguous().numpy() for x in counts)
    return torch.from_numpy(_log_laws(*flat, m, n_best)).reshape(a.shape)


@njit
def _draw(scores: Any, offsets: Any, known: Any, m: int, n_best: int, seeds: Any, out: Any) -> None:
    """The n_best of m draws are kept in falling order; equal scores stay in the order in which they came,
    which is fair among items, since the draws are independent and alike.
    """
    kept: Any = np.empty(n_best, np.int64)
    value = np.empty(n_best, scores.dtype)
    state = np.empty(1, np.uint64)
    for b in range(len(out)):
        state[0] = seeds[b]
        mine = known[offsets[b] : offsets[b + 1]]
        left = scores.shape[1] - len(mine)
        for i in range(out.shape[1]):
            count = 0
            for _ in range(m):
                item = _skip(mine, min(np.int64(next_uniform(state) * left), left - 1))
                s = scores[b, item]
                if count == n_best and s <= value[count - 1]:
                    continue
                place = count if count < n_best else n_best - 1
                while place > 0 and value[place - 1] < s:
                    kept[place], value[place] = kept[place - 1], value[place - 1]
                    place -= 1
                kept[place], value[place] = item, s
                count = min(count + 1, n_best)
            out[b, i] = kept[min(np.int64(next_uniform(state) * n_best), n_best - 1)]


@njit
def _skip(known: Any, r: int) -> Any:
    """The r-th item that is not among the known ones, which rise: those with x_k - k <= r lie before it."""
    low, high = 0, len(known)
    while low < high:
        middle = (low + high) // 2
        if known[middle] - middle <= r:
            low = middle + 1
        else:
            high = middle
    return r + low


@njit
def _law(scores: Any, asked: Any, left: Any, m: int, n_best: int, out: Any) -> None:
    """Count, in one pass over the scores of a query, how many lie above each asked id and how many equal it."""
    for b in range(len(asked)):
        own = np.empty(asked.shape[1], scores.dtype)
        for i in range(len(own)):
            own[i] = scores[b, asked[b, i]]
        levels = np.unique(own[~np.isnan(own)])  # rising
        above, equal = np.zeros(len(levels), np.int64), np.zeros(len(levels), np.int64)
        low, rate, before = _buckets(levels)
        last = len(before) - 2
        for j in range(scores.shape[1] if len(levels) else 0):
            s = scores[b, j]
            if s >= levels[0]:  # a known item, NaN, never gets here
                place = len(levels) - 1
                if s < levels[place]:
                    place = before[_bucket(s, low, rate, last)] - 1
                    while levels[place + 1] <= s:
                        place += 1
                if levels[place] == s:
                    equal[place] += 1
                else:
                    above[place] += 1
        higher = 0
        value = np.empty(len(levels))
        for level in range(len(levels) - 1, -1, -1):
            higher += above[level]
            value[level] = _log_law(higher, equal[level], left[b], m, n_best)
            higher += equal[level]
        for i in range(len(own)):
            if np.isnan(own[i]):
                out[b, i] = -np.inf
            else:
                out[b, i] = value[np.searchsorted(levels, own[i])]


@njit
def _buckets(levels: Any) -> Any:
    """Equal intervals between the finite levels, and how many levels lie in the intervals before each.

    A binary search among the levels for every score would cost several times as much.
    """
    count = 4 * len(levels)
    finite = levels[np.isfinite(levels)]
    low, rate = 0.0, 0.0
    if len(finite):
        low, span = np.float64(finite[0]), np.float64(finite[-1]) - np.float64(finite[0])
        if 0 < span < np.inf and (count - 1) / span < np.inf:
            rate = (count - 1) / span
    before = np.zeros(count + 1, np.int64)
    for level in levels:
        if level < np.inf:
            before[_bucket(level, low, rate, count - 1) + 1] += 1
    for i in range(count):
        before[i + 1] += before[i]
    return low, rate, before


@njit
def _bucket(s: Any, low: float, rate: float, last: int) -> Any:
    """Never falls as s grows, which is all that the search relies on; a score may lie past the finite levels."""
    return np.int64(min((s - low) * rate, np.float64(last))) if rate > 0 and s > low else 0


@njit
def _log_laws(above: Any, equal: Any, left: Any, m: int, n_best: int) -> Any:
    out = np.empty(len(above))
    for i in range(len(out)):
        out[i] = _log_law(above[i], equal[i], left[i], m, n_best)
    return out


@njit
def _log_law(above: int, equal: int, left: int, m: int, n_best: int) -> Any:
    """See `best_of_log_probability`; the terms are added by a running logsumexp."""
    if above == 0:
        total = _log_mean_of_least(m, equal, left, n_best)
    else:
        log_odds = math.log(above) - math.log(left - above)
        log_p = m * _log_rest(above, left)  # P(A = 0)
        top, total = -np.inf, 0.0
        for a in range(n_best):
            term = log_p + _log_mean_of_least(m - a, equal, left - above, n_best - a)
            if term > top:
                total = total * math.exp(top - term) + 1
                top = term
            elif term > -np.inf:
                total += math.exp(term - top)
            log_p += math.log((m - a) / (a + 1)) + log_odds
        total = top + math.log(total)
    return total - math.log(n_best) - math.log(equal)


@njit
def _log_rest(part: int, whole: int) -> Any:
    """log(1 - part / whole), whichever of the two is small."""
    return math.log1p(-part / whole) if 2 * part < whole else math.log((whole - part) / whole)


@njit
def _log_mean_of_least(size: int, part: int, whole: int, most: int) -> Any:
    """log E[min(X, most)], X ~ Binomial(size, part / whole), most <= size."""
    if part == whole:
        return math.log(most)
    log_rest = _log_rest(part, whole)
    if most == 1:
        return math.log(-math.expm1(size * log_rest))
    mean, log_p, log_odds = size * (part / whole), size * log_rest, math.log(part / whole) - log_rest
    total = 0.0
    if mean > most / 2:  # most of it is reached: what it lacks is no small difference
        for i in range(most):
            total += (most - i) * math.exp(log_p)
            log_p += math.log((size - i) / (i + 1)) + log_odds
        return math.log(most - total)
    for i in range(1, size + 1):
        log_p += math.log((size - i + 1) / i) + log_odds
        term = min(i, most) * math.exp(log_p)
        total += term
        if i > mean and term < 1e-18 * total:
            break
    return math.log(total)
