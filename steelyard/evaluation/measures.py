"""Compiled closed forms of the ranking measures, averaged over every order of tied candidates."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Ids = NDArray[np.int64]

RECALL, PRECISION, NDCG, MAP, HIT_RATE, MRR = range(6)


@njit(cache=True, nogil=True)
def fill_measures(
    first: int,
    last: int,
    starts: _Ids,
    stops: _Ids,
    above: _Ids,
    tied: _Ids,
    gains: _Floats,
    ideal_gains: _Floats,
    cuts: _Ids,
    discounts: _Floats,
    harmonic: _Floats,
    out: _Floats,
    mrr: _Floats,
) -> None:
    """Fill `out`, (6, cuts, queries), and the uncut `mrr`, (queries,), of the queries `first` to `last`.

    Query q owns the entries `starts[q]` to `stops[q]`, sorted by `above`, targets beyond reach
    (`tied` 0) last; `ideal_gains` fall within each query. `discounts[n]` and `harmonic[n]` are the
    sums of the first n discounts and of 1 / rank, to the largest cut. `cuts` rise.
    """
    for query in range(first, last):
        start, stop = starts[query], stops[query]
        at, before = start, 0
        while at < stop and tied[at] > 0:
            end, gain = at, 0.0
            while end < stop and above[end] == above[at]:
                gain += gains[end]
                end += 1
            if at == start:
                mrr[query] = _first_hit(above[at], tied[at], end - at, cuts, out[HIT_RATE:, :, query])
            elif above[at] >= cuts[-1]:
                break
            group = (above[at], tied[at], end - at, before)
            _add_group(group, gain, cuts, discounts, harmonic, out[:, :, query])
            before += end - at
            at = end
        _divide(stop - start, ideal_gains[start:stop], cuts, out[:, :, query])


@njit(cache=True)
def _add_group(
    group: tuple[int, int, int, int],
    gain: float,
    cuts: _Ids,
    discounts: _Floats,
    harmonic: _Floats,
    out: _Floats,
) -> None:
    """Add what a group of c tied candidates, r of them targets, after `above` others, brings each sum.

    Each place of the group holds a target with probability r / c, and given a target at place j the
    expected number of targets at the j - 1 places before it is (j - 1) (r - 1) / (c - 1).
    """
    above, c, r, before = group
    slope = (r - 1) / (c - 1) if c > 1 else 0.0
    for cut in range(len(cuts)):
        places = min(c, cuts[cut] - above)
        if places <= 0:
            continue
        out[RECALL, cut] += r * (places / c)
        out[NDCG, cut] += gain / c * (discounts[above + places] - discounts[above])
        reciprocals = harmonic[above + places] - harmonic[above]
        out[MAP, cut] += r / c * ((before + 1 - (above + 1) * slope) * reciprocals + slope * places)


@njit(cache=True)
def _first_hit(above: int, c: int, r: int, cuts: _Ids, out: _Floats) -> float:
    """Fill hit rate and cut MRR, (2, cuts), from the first group with a target; return the uncut MRR.

    `miss` is the chance that the first j places of the group hold none of its r targets,
    prod_{i < j} (c - r - i) / (c - i); only the first group matters, since a cut inside it excludes
    all later ones.
    """
    miss, mrr, cut = 1.0, 0.0, 0
    while cut < len(cuts) and cuts[cut] <= above:
        cut += 1
    for place in range(1, c - r + 2):
        hit = miss * (r / (c - place + 1))
        mrr += hit / (above + place)
        miss *= (c - r - place + 1) / (c - place + 1)
        while cut < len(cuts) and cuts[cut] == above + place:
            out[0, cut], out[1, cut] = 1.0 - miss, mrr
            cut += 1
        if cut == len(cuts) and miss < 1e-17 * mrr * (above + place):
            break
    for rest in range(cut, len(cuts)):
        out[0, rest], out[1, rest] = 1.0, mrr
    return mrr


@njit(cache=True)
def _divide(n_targets: int, ideal_gains: _Floats, cuts: _Ids, out: _Floats) -> None:
    """Turn the sums into measures: by the number of targets, the cut, and the gain of the ideal list."""
    ideal, done = 0.0, 0
    for cut in range(len(cuts)):
        while done < min(cuts[cut], n_targets):
            ideal += ideal_gains[done] / np.log2(done + 2.0)
            done += 1
        out[PRECISION, cut] = out[RECALL, cut] / cuts[cut]
        out[RECALL, cut] /= n_targets
        out[MAP, cut] /= n_targets
        out[NDCG, cut] /= ideal
