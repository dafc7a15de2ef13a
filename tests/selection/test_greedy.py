"""Greedy selection against exhaustive search and plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from steelyard.selection.greedy import (
    augmentation_similarity_subset,
    facility_location,
    greedy_by_judge,
    lazy_greedy,
)
from steelyard.selection.information_gain import maximise_information, propagation


def cover(similarity: np.ndarray, kept: tuple[int, ...]) -> float:
    return float(similarity[list(kept)].max(0).sum()) if kept else 0.0


def test_lazy_greedy_is_plain_greedy_and_near_the_best() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        s = rng.random((9, 9)) ** 3
        plain: list[int] = []
        for _ in range(4):
            plain.append(max((i for i in range(9) if i not in plain), key=lambda i: cover(s, (*plain, i))))
        found = lazy_greedy(facility_location(s), 9, 4)
        assert found == plain
        best = max(cover(s, each) for each in itertools.combinations(range(9), 4))
        assert cover(s, tuple(found)) >= (1 - 1 / math.e) * best


def test_lazy_greedy_asks_few_rows_again() -> None:
    points = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    gain, calls = facility_location(torch.exp(-torch.cdist(points, points))), 0

    def counted(kept: list[int], row: int) -> float:
        nonlocal calls
        calls += 1
        return gain(kept, row)

    lazy_greedy(counted, 300, 30)
    assert calls < 300 * 30 / 3


def test_a_judge_with_everything_before_it_is_greedy_and_a_random_one_is_even() -> None:
    s = np.random.default_rng(3).random((12, 12))
    gain = facility_location(s)
    found = greedy_by_judge(lambda kept, shown: max(shown, key=lambda i: gain(kept, i)), 12, 5)
    assert found == lazy_greedy(facility_location(s), 12, 5)
    generator = torch.Generator().manual_seed(0)
    seen = np.zeros(12)
    for _ in range(2000):
        seen[greedy_by_judge(lambda _, shown: shown[0], 12, 3, pool=1, generator=generator)] += 1
    assert ((seen - 500) ** 2 / (500 * 0.75)).sum() < 37  # 11 degrees: once in ten thousand


def test_random_pools_keep_the_stochastic_greedy_bound_on_average() -> None:
    rng = np.random.default_rng(5)
    s = rng.random((60, 60)) ** 4
    gain = facility_location(s)
    reached = cover(s, tuple(lazy_greedy(facility_location(s), 60, 6)))
    pool = math.ceil(60 / 6 * math.log(1 / 0.1))
    generator = torch.Generator().manual_seed(1)
    values = [
        cover(s, tuple(greedy_by_judge(lambda k, c: max(c, key=lambda i: gain(k, i)), 60, 6, pool=pool, generator=generator)))
        for _ in range(20)
    ]  # fmt: skip
    assert np.mean(values) >= (1 - 1 / math.e - 0.1) / (1 - 1 / math.e) * reached


def test_answers_and_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="not among the candidates"):
        greedy_by_judge(lambda *_: -1, 5, 1)
    with pytest.raises(ValueError, match="at least one candidate"):
        greedy_by_judge(lambda _, shown: shown[0], 5, 1, pool=0)
    for n in (-1, 6):
        with pytest.raises(ValueError, match="between 0 and the 5"):
            lazy_greedy(lambda *_: 0.0, 5, n)
    with pytest.raises(ValueError, match="is NaN"):
        lazy_greedy(lambda *_: math.nan, 5, 1)
    with pytest.raises(ValueError, match="square"):
        facility_location(np.ones((2, 3)))


def test_augmentation_similarity_greedy_equals_its_plain_sum_and_leaves_outliers_out() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate(
        [rng.normal(0, 1, (20, 4)) + 5, rng.normal(0, 1, (20, 4)) - 5, rng.normal(0, 30, (2, 4))]
    )
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    s, classes = unit @ unit.T, np.array([0] * 20 + [1] * 20 + [0, 1])
    found = augmentation_similarity_subset(s, classes, 0.4)
    expected: list[int] = []
    for label in (0, 1):
        rows = np.flatnonzero(classes == label)
        kept: list[int] = []

        def value(some: list[int], rows: np.ndarray = rows) -> float:
            return float(sum(s[i, j] for i in some for j in rows if j not in some))

        for _ in range(round(0.4 * len(rows))):
            kept.append(max((int(i) for i in rows if i not in kept), key=lambda i: value([*kept, i])))
        expected += kept
    assert found.tolist() == sorted(expected)
    assert not {40, 41} & set(found.tolist())
    assert augmentation_similarity_subset(s, classes, 1.0).tolist() == list(range(42))
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match="share"):
            augmentation_similarity_subset(s, classes, share)
    with pytest.raises(ValueError, match="symmetric"):
        augmentation_similarity_subset(np.triu(s), classes, 0.5)


def information(sent: np.ndarray, kept: tuple[int, ...], power: float = 0.8) -> float:
    return float(((sent[list(kept)].sum(0) + 1e-6) ** power).sum())


def test_information_is_monotone_and_submodular_and_greedy_is_near_the_best() -> None:
    rng = np.random.default_rng(1)
    labels, quality = (rng.random((9, 5)) < 0.4).astype(float), rng.random(9)
    spread = propagation(rng.random((5, 5)), strength=0.5, threshold=0.6)
    sent = quality[:, None] * (labels @ spread.numpy())
    for small in itertools.combinations(range(8), 2):
        for more in range(8):
            large = tuple({*small, more})
            gains = [information(sent, (*each, 8)) - information(sent, each) for each in (small, large)]
            assert gains[0] >= gains[1] - 1e-12
            assert gains[1] >= -1e-12
    ids, gains = maximise_information(labels, quality, 4, spread=spread)
    plain: list[int] = []
    for _ in range(4):
        plain.append(
            max((i for i in range(9) if i not in plain), key=lambda i: information(sent, (*plain, i)))
        )
    assert ids.tolist() == plain
    assert float(gains.sum()) == pytest.approx(
        information(sent, tuple(plain)) - information(sent, ()), rel=1e-9
    )
    best = max(information(sent, each) for each in itertools.combinations(range(9), 4))
    assert information(sent, tuple(plain)) >= (1 - 1 / math.e) * best


def test_without_a_bend_information_is_a_ranking_by_quality() -> None:
    rng = np.random.default_rng(2)
    labels, quality = np.ones((30, 3)), rng.random(30)
    ids, _ = maximise_information(labels, quality, 10, power=1.0)
    assert ids.tolist() == np.argsort(-quality)[:10].tolist()


def test_a_bend_spreads_over_labels_and_propagation_joins_like_ones() -> None:
    labels = np.repeat(np.eye(3), [20, 5, 5], 0)
    ids, _ = maximise_information(labels, np.ones(30), 9)
    assert labels[ids].sum(0).tolist() == [3, 3, 3]
    alike, quality = np.eye(3), np.array([1.0, 0.9, 0.8])
    alike[0, 1] = alike[1, 0] = 1.0
    assert maximise_information(np.eye(3), quality, 2)[0].tolist() == [0, 1]
    assert maximise_information(np.eye(3), quality, 2, spread=propagation(alike))[0].tolist() == [0, 2]


def test_propagation_normalises_columns_and_bad_input_is_refused() -> None:
    p = propagation([[1.0, 0.5], [0.5, 1.0]], strength=2.0)
    torch.testing.assert_close(p, torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64))
    assert torch.equal(propagation(np.ones((3, 3)), strength=0), torch.eye(3, dtype=torch.float64))
    for wrong in (
        lambda: propagation(np.ones((2, 3))),
        lambda: propagation(np.ones((2, 2)), strength=-1),
        lambda: maximise_information(np.ones((3, 2)), np.ones(2), 1),
        lambda: maximise_information(np.ones((3, 2)), -np.ones(3), 1),
        lambda: maximise_information(np.ones((3, 2)), np.ones(3), 4),
        lambda: maximise_information(np.ones((3, 2)), np.ones(3), 1, power=1.5),
        lambda: maximise_information(np.ones((3, 2)), np.ones(3), 1, spread=np.ones((3, 3))),
    ):
        with pytest.raises(ValueError, match=r"must|fit"):
            wrong()


def test_a_number_of_rows_that_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError):
        maximise_information(np.eye(3), np.ones(3), 0.5)  # type: ignore[arg-type]
