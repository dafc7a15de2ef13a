"""Importance resampling of texts: weights by plain loops, draws by enumeration, and the move toward the target."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from steelyard.selection import HashedNgrams, dsir, kl_reduction, log_ratio
from tests.selection.test_hashed_ngrams import plain_buckets
from tests.statistical import assert_unbiased

RAW = ["red red blue", "blue green", "green green green", "red", "yellow blue", "red green blue"]
TARGET = ["red red", "red blue"]


def test_log_weights_are_those_of_a_plain_reference() -> None:
    """Counts, smoothing and sums once more by Python's loops, to 1e-10."""
    m, a = 53, 0.5
    target, raw = ([b for t in texts for b in plain_buckets(t, 2, m)] for texts in (TARGET, RAW))
    p = [(target.count(j) + a) / (len(target) + a * m) for j in range(m)]
    q = [(raw.count(j) + a) / (len(raw) + a * m) for j in range(m)]
    plain = [sum(math.log(p[b]) - math.log(q[b]) for b in plain_buckets(t, 2, m)) for t in RAW]
    grams = HashedNgrams(2, m)
    table = log_ratio(grams.counts(TARGET), grams.counts(RAW), smoothing=a)
    np.testing.assert_allclose(grams.scores(RAW, table)[0], plain, atol=1e-10)


def test_inclusion_frequencies_are_those_of_successive_weighted_draws() -> None:
    grams = HashedNgrams(1, 1000)
    table = log_ratio(grams.counts(TARGET), grams.counts(RAW))
    w = np.exp(grams.scores(RAW, table)[0])
    expected = np.zeros(len(RAW))
    for order in itertools.permutations(range(len(RAW)), 2):
        chance, left = 1.0, w.sum()
        for i in order:
            chance *= w[i] / left
            left -= w[i]
        expected[list(order)] += chance
    generator = torch.Generator().manual_seed(3)
    drawn = torch.zeros(4000, len(RAW))
    for k in range(len(drawn)):
        drawn[k, dsir(RAW, TARGET, 2, ngrams=grams, generator=generator).ids] = 1
    for i, chance in enumerate(expected):
        assert_unbiased(drawn[:, i].double(), float(chance))


def test_totals_over_the_corpus_are_unbiased_by_the_inclusion_probabilities() -> None:
    lengths = torch.tensor([float(len(t)) for t in RAW])
    generator = torch.Generator().manual_seed(5)
    totals = []
    for _ in range(3000):
        draws = dsir(RAW, TARGET, 3, generator=generator)
        totals.append((lengths[draws.ids] / draws.log_expected.exp()).sum())
    assert_unbiased(torch.stack(totals), float(lengths.sum()))


def test_a_corpus_like_its_target_is_drawn_evenly() -> None:
    grams = HashedNgrams(1, 1000)
    table = log_ratio(grams.counts(RAW), grams.counts(RAW))
    assert np.abs(table).max() == 0


def test_the_selection_moves_toward_the_target() -> None:
    rng = np.random.default_rng(0)
    likes = ["cat dog bird"] * 30 + ["stone sand clay"] * 170
    raw = [" ".join(rng.permutation(t.split() * 4)) for t in likes]
    target = ["dog cat cat bird dog"] * 5
    grams = HashedNgrams(1, 500)
    draws = dsir(raw, target, 20, ngrams=grams, generator=torch.Generator().manual_seed(0))
    assert (draws.ids < 30).all()
    even = [raw[i] for i in rng.permutation(200)[:20]]
    counts = [grams.counts(t) for t in (target, even, [raw[i] for i in draws.ids])]
    assert kl_reduction(*counts) > 0.5
    assert kl_reduction(counts[0], counts[1], counts[1]) == 0


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(ValueError, match="no n-gram"):
        dsir(RAW, [""], 1)
    with pytest.raises(ValueError, match="between 0 and the 6"):
        dsir(RAW, TARGET, 7)
    with pytest.raises(ValueError, match="smoothing"):
        dsir(RAW, TARGET, 1, smoothing=0)
    with pytest.raises(ValueError, match="same buckets"):
        log_ratio([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="not negative"):
        log_ratio([1, -2], [1, 2])


def test_smoothing_that_overflows_is_refused_and_not_made_nan() -> None:
    with pytest.raises(ValueError, match="too large to add up"):
        log_ratio([1.0, 2.0], [2.0, 1.0], smoothing=1e308)
