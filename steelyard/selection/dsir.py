"""Data selection by importance resampling: which rows of a corpus look like the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike, NDArray

from steelyard.draws import Draws
from steelyard.sampling.successive import without_replacement
from steelyard.selection.hashed_ngrams import HashedNgrams


def log_ratio(target: ArrayLike, raw: ArrayLike, *, smoothing: float = 1.0) -> NDArray[np.float64]:
    """The log-weight of one n-gram in each bucket: how much more often the target has it than the corpus.

        d_j = log((t_j + a) / (sum t + a m)) - log((r_j + a) / (sum r + a m))

    The log-importance weight of a text is the sum of d over its n-grams. Without smoothing a bucket that the
    target never fills would cost a text all its weight.

    Args:
        target: n-grams of the target by bucket, (m,).
        raw: n-grams of the corpus by bucket, (m,).
        smoothing: count a > 0 added to every bucket.

    Returns:
        float64, (m,).

    Raises:
        ValueError: counts of different shapes, negative or none at all, or smoothing that is not positive.

    Reference:
        Xie, Santurkar, Ma and Liang (2023), Data selection for language models via importance resampling,
        NeurIPS, arXiv 2302.03169. Additive smoothing is ours; their code adds 1e-8 to each probability.
    """
    counts = [np.asarray(c, np.float64) for c in (target, raw)]
    if counts[0].ndim != 1 or counts[0].shape != counts[1].shape:
        raise ValueError(
            f"Both counts must be vectors over the same buckets, got shapes {counts[0].shape}, {counts[1].shape}."
        )
    if not 0 < smoothing < np.inf:
        raise ValueError(f"smoothing must be positive and finite, got {smoothing}.")
    if not np.isfinite(smoothing * max(len(counts[0]), 1) + sum(c.sum() for c in counts)):
        raise ValueError(
            f"smoothing={smoothing:g} in {len(counts[0])} buckets is too large to add up; lower it."
        )
    for name, c in zip(("target", "raw"), counts, strict=True):
        if not (np.isfinite(c).all() and (c >= 0).all()):
            raise ValueError(f"The counts of {name} must be finite and not negative.")
        if c.sum() == 0:
            raise ValueError(f"The counts of {name} are all 0: it has no n-gram.")
    logs: list[NDArray[np.float64]] = [
        np.log((c + smoothing) / (c.sum() + smoothing * len(c))) for c in counts
    ]
    return logs[0] - logs[1]


def kl_reduction(
    target: ArrayLike, baseline: ArrayLike, selected: ArrayLike, *, smoothing: float = 1.0
) -> float:
    """How much closer a selection is to the target than a baseline, in nats an n-gram.

        KL(p_target || p_baseline) - KL(p_target || p_selected)

    Both sides must hold about equally many n-grams, or the smaller one looks worse for its size alone.

    Args:
        target: n-grams by bucket, (m,).
        baseline: likewise.
        selected: likewise.
        smoothing: count added to every bucket.

    Returns:
        Positive where the selection is closer.

    Raises:
        ValueError: as `log_ratio`.

    Reference:
        Xie et al. (2023), arXiv 2302.03169, section 5 (there the baseline is the corpus, averaged over tasks).
    """
    p = np.asarray(target, np.float64) / max(float(np.sum(target)), 1.0)
    gain = log_ratio(selected, baseline, smoothing=smoothing)
    return float(p @ gain)


def dsir(
    texts: Sequence[str] | pa.Array,
    target: Sequence[str] | pa.Array,
    n: int,
    *,
    ngrams: HashedNgrams | None = None,
    smoothing: float = 1.0,
    temper: float = 1.0,
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw n rows without replacement with probability proportional to their importance weight.

        log w_i = temper * sum over n-grams g of x_i of d[bucket(g)];  the n largest log w_i + Gumbel noise

    The sum grows with the length of a text, so that on documents of unequal length few rows hold all the
    weight: look at `steelyard.weights.effective_sample_size`, and choose `temper` with
    `steelyard.weights.temper`.

    Args:
        texts: the corpus, (N,).
        target: what it should look like.
        n: rows to draw, at most N.
        ngrams: what is counted; 1- and 2-grams in 10,000 buckets where None.
        smoothing: count added to every bucket.
        temper: exponent of the weights.
        generator: source of randomness.

    Returns:
        Draws with ids (n,) and log inclusion probabilities given the threshold.

    Raises:
        TypeError: not texts.
        ValueError: more rows than there are, a target or a corpus without an n-gram, or settings outside
            their range.

    Reference:
        Xie, Santurkar, Ma and Liang (2023), arXiv 2302.03169.
    """
    if not np.isfinite(temper):
        raise ValueError(f"temper must be finite, got {temper}.")
    grams = ngrams or HashedNgrams()
    table = log_ratio(grams.counts(target), grams.counts(texts), smoothing=smoothing)
    log_w: Any = temper * grams.scores(texts, table)[0]
    if not 0 <= n <= len(log_w):
        raise ValueError(f"n must lie between 0 and the {len(log_w)} texts, got {n}.")
    return without_replacement(torch.from_numpy(log_w), n, generator=generator)
