"""What gives a row its score: each way ends in a table over hash buckets, so that all of them stream alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.selection.betr import ranked
from steelyard.selection.dsir import log_ratio
from steelyard.selection.hashed_ngrams import HashedNgrams
from steelyard.selection.linear import fit_linear

FITTED = 20_000
"""Texts at most of target and corpus that a scorer is fitted to."""
TARGETS, AT_ONCE = 2000, 256
"""Rows of the target at most that rank documents, and how many at once."""


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


def _classifier(fitted: Fitted) -> NDArray[np.float64]:
    """Target against corpus, by n-grams."""
    features = fitted.ngrams.features([*fitted.target_texts, *fitted.raw_texts])
    return fit_linear(features, np.arange(features.shape[0]) < len(fitted.target_texts))


def _betr(fitted: Fitted) -> NDArray[np.float64]:
    """The tenth of a sample that is nearest to the target's rows, against the rest, by n-grams."""
    features = fitted.ngrams.features([*fitted.raw_texts, *fitted.target_texts])
    filled = np.flatnonzero(np.diff(features.indptr))
    raw = filled[filled < len(fitted.raw_texts)]
    target = filled[filled >= len(fitted.raw_texts)][:TARGETS]
    if len(raw) < 2 or not len(target):
        raise ValueError("Ranking by a benchmark needs texts with at least one token in corpus and target.")
    vectors = _tfidf(features)
    documents = vectors[raw].T.tocsr()
    chunks = (target[k : k + AT_ONCE] for k in range(0, len(target), AT_ONCE))
    scores = ranked(torch.from_numpy((vectors[rows] @ documents).toarray()) for rows in chunks).numpy()
    if scores.min() == scores.max():
        raise ValueError(
            "All rows of the corpus are equally near to the target, so that nothing ranks them: is the target a copy "
            "of the corpus, or are there too few --buckets?"
        )
    nearest = scores >= np.quantile(scores, 0.9)
    return fit_linear(features[raw], scores > scores.min() if nearest.all() else nearest)


def _tfidf(features: Any) -> Any:
    """Rows of (1 + log count) log(rows / rows with it), of length one."""
    n, m = features.shape
    found = features.astype(np.float32)
    spread = np.bincount(found.indices, minlength=m)
    found.data = (1 + np.log(found.data)) * np.log(n / np.maximum(spread, 1)).astype(np.float32)[
        found.indices
    ]
    length = np.sqrt(np.asarray(found.multiply(found).sum(1)).reshape(-1))
    found.data /= np.repeat(np.maximum(length, 1e-30), np.diff(found.indptr)).astype(np.float32)
    return found


SCORERS: dict[str, Scorer] = {
    "dsir": Scorer(_dsir),
    "classifier": Scorer(_classifier, per_gram=True, wants_texts=True),
    "betr": Scorer(_betr, per_gram=True, wants_texts=True),
    "random": Scorer(_random, wants_target=False),
}
