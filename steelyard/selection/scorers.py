"""What gives a row its score: each way ends in a table over hash buckets, so that all of them stream alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.selection.dsir import log_ratio
from steelyard.selection.hashed_ngrams import HashedNgrams

FITTED = 20_000
"""Texts at most of target and corpus that a scorer is fitted to."""


@dataclass(frozen=True)
class Fitted:
    """What a scorer is fitted to.

    Args:
        ngrams: what is counted.
        smoothing: count added to every bucket.
        target: n-grams of the target by bucket; None without a target.
        raw: n-grams of the corpus by bucket; None without a target.
        target_texts: texts of the target, where the scorer asks for texts.
        raw_texts: an even sample of the corpus, where it does.
    """

    ngrams: HashedNgrams
    smoothing: float
    target: NDArray[np.int64] | None
    raw: NDArray[np.int64] | None
    target_texts: list[str]
    raw_texts: list[str]


@dataclass(frozen=True)
class Scorer:
    """A way to score rows.

    Args:
        table: gives the score of one n-gram in each bucket, float64, (buckets,).
        per_gram: whether a text's score is the mean over its n-grams, not their sum.
        wants_target: whether it needs a target.
        wants_texts: whether it needs texts of target and corpus, not counts alone.
    """

    table: Callable[[Fitted], NDArray[np.float64]]
    per_gram: bool = False
    wants_target: bool = True
    wants_texts: bool = False


def _dsir(fitted: Fitted) -> NDArray[np.float64]:
    assert fitted.target is not None
    assert fitted.raw is not None
    return log_ratio(fitted.target, fitted.raw, smoothing=fitted.smoothing)


def _random(fitted: Fitted) -> NDArray[Any]:
    return np.zeros(fitted.ngrams.buckets)


SCORERS: dict[str, Scorer] = {
    "dsir": Scorer(_dsir),
    "random": Scorer(_random, wants_target=False),
}
