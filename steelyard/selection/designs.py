"""Which rows of a stream are drawn: keys that hang on seed and content alone, and the best of them kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.sampling.reservoir import words_of
from steelyard.sampling.successive import hash_id, key_of, log_inclusion, njit

Design = Literal["resample", "top", "poisson", "stratified"]
DESIGNS: tuple[Design, ...] = ("resample", "top", "poisson", "stratified")
BINS, COARSE = 2**20, 2**14
ROW = np.dtype(
    [
        ("key", "f8"),
        ("log_w", "f8"),
        ("score", "f8"),
        ("content", "u8"),
        ("block", "i4"),
        ("tokens", "i4"),
        ("line", "i8"),
        ("copies", "i8"),
    ]
)
"""A row that may be drawn: where it stands, and what it is drawn by."""


class BestRows:
    """The rows of a stream with the largest keys, each text once.

    Copies of a text have the same content, and so the same key: they are one row, and how often it came is
    counted. Rows come in any order and from any number of shards; ties go to the smaller hash of the content.

    Args:
        k: how many to keep.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.limit = -np.inf
        self._held: list[NDArray[Any]] = []
        self._count = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Let rows compete.

        Args:
            rows: of type `ROW`, (m,).
        """
        rows = rows[rows["key"] >= self.limit]
        self._held.append(rows)
        self._count += len(rows)
        if self._count > 2 * self.k + 65_536:
            self._shrink()

    def rows(self) -> NDArray[Any]:
        """The rows kept, from the largest key to the smallest."""
        self._shrink()
        return self._held[0]

    def _shrink(self) -> None:
        rows = np.concatenate(self._held) if self._held else np.empty(0, ROW)
        rows = rows[np.lexsort((rows["line"], rows["block"], rows["content"], -rows["key"]))]
        if len(rows):
            begins = np.flatnonzero(np.append(True, rows["content"][1:] != rows["content"][:-1]))
            copies = np.add.reduceat(rows["copies"], begins)
            rows = rows[begins]
            rows["copies"] = copies
        rows = rows[: self.k]
        if len(rows) == self.k > 0:
            self.limit = float(rows["key"][-1])
        self._held, self._count = [rows], len(rows)


def noise_keys(log_w: NDArray[np.float64], content: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Gumbel keys of rows, from a hash of the seed and the content.

        G_i = log w_i - log E_i,  E_i exponential

    Args:
        log_w: (m,); -inf is never drawn.
        content: hash of each row's content, (m,).
        seed: 0 <= seed < 2^63.

    Returns:
        float64, (m,).
    """
    out = np.empty(len(log_w))
    first, second = (np.uint64(word) for word in words_of(seed))
    _keys(log_w, content, first, second, out)
    return out


@njit
def _keys(log_w: Any, content: Any, s0: Any, s1: Any, out: Any) -> None:
    for j in range(len(log_w)):
        out[j] = key_of(log_w[j], hash_id(content[j], s0, s1))


@dataclass(frozen=True)
class Histogram:
    """How many rows have a log-weight in each of many narrow bins: all that tempering and thresholds need.

    Counts are whole numbers, so that shards merge in any order to the same result.

    Args:
        low: smallest log-weight.
        high: largest log-weight.
        counts: int64, (bins,).
    """

    low: float
    high: float
    counts: NDArray[np.int64]

    def filled(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Middles and counts of the bins that hold a row."""
        full = np.flatnonzero(self.counts)
        width = (self.high - self.low) / len(self.counts)
        return self.low + width * (full.astype(np.float64) + 0.5), self.counts[full]

    @classmethod
    def empty(cls, low: float, high: float) -> Histogram:
        """A histogram to which `add` adds."""
        return cls(low, high, np.zeros(BINS, np.int64))

    def add(self, log_w: NDArray[np.float64]) -> None:
        """Count more rows."""
        if self.high > self.low:
            place = ((log_w - self.low) * (len(self.counts) / (self.high - self.low))).astype(np.int64)
            np.add.at(self.counts, np.clip(place, 0, len(self.counts) - 1), 1)
        else:
            self.counts[0] += len(log_w)

    def effective_size(self, exponent: float = 1.0) -> float:
        """Kish's effective number of rows of the weights to a power, `(sum w)^2 / sum w^2`."""
        middle, count = self.filled()
        w = np.exp(exponent * (middle - middle.max()))
        return float((count @ w) ** 2 / (count @ w**2))

    def nth_largest(self, n: int) -> float:
        """A log-weight that n rows reach, up to the width of a bin."""
        middle, count = self.filled()
        place = int(np.searchsorted(np.cumsum(count[::-1]), n))
        return float(middle[::-1][min(place, len(middle) - 1)]) - (self.high - self.low) / len(self.counts)

    def exponent(self, ess: float) -> float:
        """The largest power in [0, 1] of the weights that has an effective size of at least so many rows."""
        return _largest(lambda power: self.effective_size(power) >= ess)

    def exponent_drawing_again(self, n: int, share: float) -> float:
        """The largest power in [0, 1] with which two draws of n rows have at most a share of them in common.

        sum p_i^2 / n <= share,  p_i = 1 - exp(-exp(b log w_i - t)),  sum p_i = n
        """
        coarse = Histogram(self.low, self.high, self.counts.reshape(-1, BINS // COARSE).sum(1))
        return _largest(lambda power: coarse.drawn_again(n, power) <= share)

    def drawn_again(self, n: int, exponent: float) -> float:
        """The share of n drawn rows that an independent draw would draw too."""
        middle, count = self.filled()
        log_w = exponent * middle
        p = -np.expm1(-np.exp(np.minimum(log_w - self.threshold(n, exponent), 700)))
        return float(count @ p**2 / n)

    def threshold(self, n: int, exponent: float = 1.0) -> float:
        """The limit that the keys of n rows exceed on average: `sum (1 - exp(-exp(log w - t))) = n`."""
        middle, count = self.filled()
        log_w = exponent * middle
        if n >= count.sum():
            return -np.inf
        low, high = log_w.min() - 60, log_w.max() + np.log(count.sum()) + 60
        for _ in range(100):
            t = (low + high) / 2
            expected = float(count @ -np.expm1(-np.exp(np.minimum(log_w - t, 700))))
            low, high = (t, high) if expected > n else (low, t)
        return float((low + high) / 2)

    def strata(self, parts: int, exponent: float = 1.0) -> NDArray[np.float64]:
        """Bounds that cut the rows, in the order of their weight, into parts of about equal weight.

        Returns:
            Ascending log-weights (before the power), at most (parts - 1,); a part between bounds may be heavy
            where single rows are.
        """
        middle, count = self.filled()
        w = count * np.exp(exponent * (middle - middle.max()))
        share = np.cumsum(w) / w.sum()
        places = np.searchsorted(share, np.arange(1, parts) / parts)
        return np.unique(middle[np.minimum(places, len(middle) - 1)])


def _largest(fits: Callable[[float], bool]) -> float:
    """The largest power in [0, 1] that fits, where all smaller ones do."""
    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def quotas(sizes: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Equal shares of n among strata, none above its size; what a small one leaves goes to the others.

    Args:
        sizes: rows of each stratum.
        n: at most their sum.

    Returns:
        int64, (strata,), which sum to n.
    """
    taken = np.zeros_like(sizes)
    open_ = sizes > 0
    while taken.sum() < n:
        left, places = n - int(taken.sum()), np.flatnonzero(open_)
        share, rest = divmod(left, len(places))
        more = np.full(len(places), share)
        more[len(places) - rest :] += 1
        taken[places] += np.minimum(more, sizes[places] - taken[places])
        open_ = taken < sizes
    return taken


def log_probabilities(log_w: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Log inclusion probabilities of rows whose keys race against a threshold."""
    limit = torch.tensor(threshold, dtype=torch.float64)
    return log_inclusion(torch.from_numpy(np.ascontiguousarray(log_w)), limit).numpy()
