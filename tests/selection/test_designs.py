"""Draws from a stream: the stated inclusion probabilities, one row a text, and nothing that hangs on the order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from steelyard.selection.designs import ROW, BestRows, Histogram, log_probabilities, noise_keys, quotas
from tests.statistical import assert_unbiased


def rows_of(log_w: np.ndarray, content: np.ndarray, seed: int = 0) -> np.ndarray:
    rows = np.zeros(len(log_w), ROW)
    rows["log_w"], rows["content"], rows["copies"] = log_w, content, 1
    rows["key"] = noise_keys(log_w, content, seed)
    rows["line"] = np.arange(len(log_w))
    return rows


def test_the_best_rows_do_not_hang_on_order_or_shards() -> None:
    rng = np.random.default_rng(0)
    rows = rows_of(rng.normal(size=200_000), rng.integers(0, 2**63, 200_000).astype(np.uint64))
    best = BestRows(500)
    best.add(rows)
    expected = best.rows()
    assert (expected["key"] == np.sort(rows["key"])[::-1][:500]).all()
    for seed in range(3):
        again = BestRows(500)
        for part in np.array_split(np.random.default_rng(seed).permutation(rows), 7):
            again.add(part)
        assert (again.rows() == expected).all()


def test_copies_of_a_text_are_one_row_and_are_counted() -> None:
    content = np.array([5, 9, 5, 7, 5, 9], np.uint64)
    rows = rows_of(np.array([0.0, 1.0, 0.0, -50.0, 0.0, 1.0]), content)
    best = BestRows(2)
    for row in rows:  # one by one, so that copies meet in later batches
        best.add(rows[rows["line"] == row["line"]])
    found = best.rows()
    assert sorted(zip(found["content"].tolist(), found["copies"].tolist(), strict=True)) == [(5, 3), (9, 2)]
    assert found["line"][found["content"] == 5] == 0


def test_totals_by_inclusion_probabilities_are_unbiased_given_the_threshold() -> None:
    log_w = np.log([0.1, 0.5, 2.0, 7.0, 0.9, 3.0])
    value = np.array([4.0, 1.0, -2.0, 3.0, 10.0, 0.5])
    content = np.arange(6, dtype=np.uint64) * 977
    totals = []
    for seed in range(4000):
        rows = rows_of(log_w, content, seed)
        best = BestRows(4)
        best.add(rows)
        found = best.rows()
        drawn, threshold = found[:3], float(found["key"][3])
        totals.append((value[drawn["line"]] / np.exp(log_probabilities(drawn["log_w"], threshold))).sum())
    assert_unbiased(torch.tensor(totals), float(value.sum()))


def test_a_fixed_threshold_draws_n_rows_on_average_each_with_its_probability() -> None:
    rng = np.random.default_rng(1)
    log_w = rng.normal(0, 2, 400)
    histogram = Histogram.empty(log_w.min(), log_w.max())
    histogram.add(log_w)
    threshold = histogram.threshold(50, 0.7)
    chances = np.exp(log_probabilities(0.7 * log_w, threshold))
    assert chances.sum() == pytest.approx(50, abs=1e-3)
    content = rng.integers(0, 2**63, 400).astype(np.uint64)
    taken = np.stack([noise_keys(0.7 * log_w, content, seed) > threshold for seed in range(3000)])
    assert_unbiased(torch.from_numpy(taken.sum(1)).double(), 50.0)
    for row in (int(log_w.argmin()), int(log_w.argmax()), 7):
        assert_unbiased(torch.from_numpy(taken[:, row]).double(), float(chances[row]))


def test_tempering_reaches_the_effective_size_and_never_sharpens() -> None:
    log_w = np.random.default_rng(2).normal(0, 30, 10_000)
    histogram = Histogram.empty(log_w.min(), log_w.max())
    histogram.add(log_w)
    power = histogram.exponent(2500)
    w = np.exp(power * log_w - (power * log_w).max())
    assert w.sum() ** 2 / (w**2).sum() == pytest.approx(2500, rel=1e-3)
    again = histogram.exponent_drawing_again(300, 0.4)
    threshold = histogram.threshold(300, again)
    p = np.exp(log_probabilities(again * log_w, threshold))
    assert (p**2).sum() / 300 == pytest.approx(0.4, abs=1e-3)
    content = np.arange(10_000, dtype=np.uint64)
    draws = [np.argsort(-noise_keys(again * log_w, content, seed))[:300] for seed in range(40)]
    common = [len(np.intersect1d(a, b)) / 300 for a, b in itertools.pairwise(draws)]
    assert np.mean(common) == pytest.approx(0.4, abs=0.03)
    assert histogram.exponent(1.0) == 1.0
    assert histogram.exponent(20_000) == 0.0


def test_strata_share_the_weight_evenly() -> None:
    log_w = np.random.default_rng(3).normal(0, 1, 50_000)
    histogram = Histogram.empty(log_w.min(), log_w.max())
    histogram.add(log_w)
    place = np.searchsorted(histogram.strata(5), log_w)
    weight = np.bincount(place, np.exp(log_w))
    assert len(weight) == 5
    np.testing.assert_allclose(weight / weight.sum(), 0.2, atol=0.01)


def test_equal_weights_are_one_stratum_and_have_a_threshold() -> None:
    histogram = Histogram.empty(1.5, 1.5)
    histogram.add(np.full(100, 1.5))
    assert histogram.effective_size() == pytest.approx(100)
    assert np.exp(log_probabilities(np.full(1, 1.5), histogram.threshold(10))) == pytest.approx(0.1, abs=1e-6)
    assert histogram.threshold(100) == -np.inf
    assert len(histogram.strata(4)) <= 1


@pytest.mark.parametrize(("sizes", "n"), [([5, 0, 100, 3], 20), ([1, 1, 1], 3), ([10, 10], 7), ([4], 0)])
def test_quotas_spend_exactly_n_as_evenly_as_sizes_allow(sizes: list[int], n: int) -> None:
    found = quotas(np.array(sizes), n)
    assert found.sum() == n
    assert (found <= sizes).all()
    for a, b in itertools.permutations(range(len(sizes)), 2):
        assert found[a] <= found[b] + 1 or found[b] == sizes[b]
