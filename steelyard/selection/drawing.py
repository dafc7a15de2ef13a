"""From scores on disk to a draw: weights looked at, tempered, raced, and the inclusion probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.selection.config import SelectConfig
from steelyard.selection.designs import ROW, BestRows, Histogram, log_probabilities, noise_keys, quotas
from steelyard.selection.passes import scored
from steelyard.selection.scorers import SCORERS

KEPT = 2**22
"""Log-weights at most that are kept in memory for the fit of their tail."""


@dataclass(frozen=True)
class Drawn:
    """Rows drawn, in the order of the corpus.

    Args:
        rows: of type `ROW`, (m,).
        log_probability: log inclusion probability of each.
        uniform: of type `ROW`: an even draw from the same rows, to hold against it.
    """

    rows: NDArray[Any]
    log_probability: NDArray[np.float64]
    uniform: NDArray[Any]


class Weights:
    """The log-importance weights of all scored rows that are long enough, read from disk a chunk at a time.

        log w_i = s_i                    the sum over n-grams, or their mean where the scorer gives means
        log w_i = (s_i / g_i) G          where scores are taken to equal length: g_i n-grams, G their mean
        design weight = b log w_i        with b the exponent that gives the wanted effective size

    Args:
        folder: with the scores.
        blocks: how many there are.
        config: the settings.
    """

    def __init__(self, folder: Path, blocks: int, config: SelectConfig) -> None:
        self.folder, self.blocks, self.config = folder, blocks, config
        self.rows = self.short = self.texts = 0
        self._mean_grams = 1.0
        self._measure()
        self.exponent = 1.0
        if config.wanted is not None:
            name, value = config.wanted
            if name == "ess":
                self.exponent = self.histogram.exponent(value if value >= 1 else value * self.texts)
            else:
                self.exponent = self.histogram.exponent_drawing_again(config.n, value)

    def _measure(self) -> None:
        """Sizes first, then the range, then the histogram: three readings of numbers on disk.

        Copies of a text are one row of the draw, so they must be one in the histogram, or thresholds and powers
        aim past it. Up to `KEPT` rows all contents are held and repeats are told; of more rows the histogram
        counts every copy, and `texts` is an estimate from those whose content has a small hash.
        """
        grams = 0
        for _, rows in scored(self.folder, self.blocks):
            long = rows["tokens"] >= self.config.min_tokens
            self.rows += int(long.sum())
            self.short += int((~long).sum())
            grams += int(self.config.ngrams_of().grams_of(rows["tokens"][long]).sum())
        if self.rows == 0:
            raise ValueError(
                f"No row of the corpus has a text of at least {self.config.min_tokens} tokens in its field "
                f"{self.config.text_field!r}; {self.short:,} are shorter."
            )
        self._mean_grams = grams / self.rows
        low, high, sums = math.inf, -math.inf, np.zeros(5)
        for _, rows, log_w in self.chunks():
            low, high = min(low, float(log_w.min())), max(high, float(log_w.max()))
            length = rows["tokens"].astype(np.float64)
            sums += [log_w.sum(), length.sum(), (log_w**2).sum(), (length**2).sum(), (log_w * length).sum()]
        self.correlation = _correlation(sums, self.rows)
        self.histogram = Histogram.empty(low, high)
        kept, contents = [], []
        share = min(KEPT / self.rows, 1.0)
        self.exact = share == 1
        for _, rows, log_w in self.chunks():
            some = slice(None) if self.exact else rows["content"] < share * 2.0**64
            kept.append(log_w[some])
            contents.append(rows["content"][some])
            if not self.exact:
                self.histogram.add(log_w)
        first = np.unique(np.concatenate(contents), return_index=True)[1]
        self.kept = np.concatenate(kept)[first]
        self.texts = round(len(first) / share)
        if self.exact:
            self.histogram.add(self.kept)

    def chunks(self) -> Iterator[tuple[int, NDArray[Any], NDArray[np.float64]]]:
        """Number of a block, its rows that are long enough, and their log-weights before the exponent."""
        grams_of, per_gram = self.config.ngrams_of().grams_of, SCORERS[self.config.method].per_gram
        for number, rows in scored(self.folder, self.blocks):
            rows = rows[rows["tokens"] >= self.config.min_tokens]
            if not len(rows):
                continue
            log_w = rows["score"].astype(np.float64)
            if per_gram or self.config.by_length:
                log_w = log_w / np.maximum(grams_of(rows["tokens"]), 1)
                if not per_gram:
                    log_w *= self._mean_grams
            yield number, rows, log_w

    def draw(self, uniform: int) -> Drawn:
        """Draw by the design.

        Args:
            uniform: how many rows to draw evenly beside it.

        Raises:
            ValueError: more rows wanted than there are different texts.
        """
        config = self.config
        if config.n > self.rows:
            raise ValueError(
                f"-n {config.n:,} is more than the {self.rows:,} rows with at least {config.min_tokens} tokens."
            )
        if self.exact and config.n > self.texts:
            raise ValueError(
                f"-n {config.n:,} is more than the {self.texts:,} different texts with at least "
                f"{config.min_tokens} tokens; copies of a text are one row."
            )
        even = BestRows(uniform)
        bounds = self._bounds()
        races = self._races(bounds)
        fixed = self.histogram.threshold(config.n, self.exponent) if config.design == "poisson" else None
        if fixed is not None:
            races[0].limit = fixed
        for number, rows, log_w in self.chunks():
            candidates = np.empty(len(rows), ROW)
            for name in ("score", "content", "tokens", "line"):
                candidates[name] = rows[name]
            candidates["block"], candidates["copies"], candidates["log_w"] = number, 1, log_w
            candidates["key"] = noise_keys(np.zeros(len(rows)), rows["content"], config.seed + 2**62)
            even.add(candidates)
            candidates["key"] = self._keys(log_w, rows["content"])
            stratum = np.searchsorted(bounds, log_w, side="left")
            for s, race in enumerate(races):
                race.add(candidates[stratum == s] if len(races) > 1 else candidates)
        parts, logs = [], []
        for race in races:
            rows = race.rows()
            k = race.k - 1 if fixed is None else len(rows)
            threshold = float(rows["key"][k]) if len(rows) > k else -np.inf
            parts.append(rows[:k])
            logs.append(self._log_probability(rows[:k], threshold if fixed is None else fixed))
        drawn, log_probability = np.concatenate(parts), np.concatenate(logs)
        if fixed is None and len(drawn) < config.n:
            raise ValueError(
                f"-n {config.n:,} is more than the {len(drawn):,} different texts that could be drawn: copies of a "
                "text are one row, and leave a stratum short. Lower -n or --strata."
            )
        order = np.lexsort((drawn["line"], drawn["block"]))
        return Drawn(drawn[order], log_probability[order], even.rows())

    def _keys(self, log_w: NDArray[np.float64], content: NDArray[np.uint64]) -> NDArray[np.float64]:
        if self.config.design == "top":
            return log_w
        even = self.config.design == "stratified"
        return noise_keys(np.zeros(len(log_w)) if even else self.exponent * log_w, content, self.config.seed)

    def _bounds(self) -> NDArray[np.float64]:
        if self.config.design != "stratified":
            return np.empty(0)
        return self.histogram.strata(self.config.strata, self.exponent)

    def _races(self, bounds: NDArray[np.float64]) -> list[BestRows]:
        """A race a stratum, each of one more than it gives, which is the threshold."""
        if self.config.design == "poisson":
            return [BestRows(self.rows)]
        if not len(bounds):
            return [BestRows(self.config.n + 1)]
        sizes = np.zeros(len(bounds) + 1, np.int64)
        for log_w in [self.kept] if self.exact else (log_w for _, _, log_w in self.chunks()):
            sizes += np.bincount(np.searchsorted(bounds, log_w, side="left"), minlength=len(sizes))
        return [BestRows(int(k) + 1) for k in quotas(sizes, self.config.n)]

    def _log_probability(self, rows: NDArray[Any], threshold: float) -> NDArray[np.float64]:
        if self.config.design == "top":
            return np.zeros(len(rows))
        even = self.config.design == "stratified"
        return log_probabilities(np.zeros(len(rows)) if even else self.exponent * rows["log_w"], threshold)


def _correlation(sums: NDArray[np.float64], n: int) -> float:
    """Pearson's, from sums of x, y, x^2, y^2 and xy; 0 where one of them does not vary."""
    x, y, xx, yy, xy = sums / n
    spread = math.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
    return (
        float(np.clip((xy - x * y) / spread, -1, 1))
        if spread > 1e-12 * math.sqrt(max(xx * yy, 1e-300))
        else 0.0
    )
