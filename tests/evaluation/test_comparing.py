"""Paired comparisons: the interval covers, the p-value is honest, and Holm holds the whole."""

from itertools import product

import pytest
import torch
from scipy.stats import wilcoxon

from steelyard.evaluation import holm, paired_comparison


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_pairing_sees_a_difference_that_hard_queries_would_hide() -> None:
    g = generator()
    hard = torch.rand(300, generator=g)
    a = hard + 0.01 + 0.02 * torch.randn(300, generator=g)
    b = hard + 0.02 * torch.randn(300, generator=g)
    (found,) = paired_comparison({"a": a, "b": b}, resamples=4000)
    assert found.difference == pytest.approx(float((a - b).double().mean()), abs=1e-6)
    assert found.low > 0
    assert found.p < 0.001
    assert wilcoxon((a - b).numpy()).pvalue < 0.001
    assert "differs" in str(found)
    shuffled = b[torch.randperm(300, generator=g)]
    (unpaired,) = paired_comparison({"a": a, "b": shuffled}, resamples=4000)
    assert unpaired.p > 0.05


def test_intervals_cover_and_p_values_are_uniform_where_there_is_no_difference() -> None:
    """Of 300 comparisons without a difference at most 30 of the intervals miss 0 (binomial, 5e-4 above 5 %)."""
    g = generator(1)
    missed, small = 0, 0
    for seed in range(300):
        a, b = torch.randn(2, 80, generator=g)
        (found,) = paired_comparison({"a": a, "b": b}, resamples=512, seed=seed)
        missed += not found.low <= 0 <= found.high
        small += found.p < 0.1
    assert missed <= 30
    assert small <= 52


@pytest.mark.parametrize("n", [2, 3, 5, 8, 15])
def test_equal_systems_are_called_different_as_often_as_said_however_few_the_queries(n: int) -> None:
    """Skewed scores; of 400 comparisons at most 38 have p < .05 (binomial, 1e-4), and below six queries none can."""
    g, small = generator(n), 0
    for seed in range(400):
        a, b = torch.rand(2, n, generator=g) ** 3
        (found,) = paired_comparison({"a": a, "b": b}, resamples=300, seed=seed)
        assert found.p >= 2.0 ** (1 - n) - 1e-12
        small += found.p < 0.05
    assert small <= 38


def test_few_queries_have_their_exact_p_value() -> None:
    d = torch.tensor([0.4, -0.1, 0.3, 0.2], dtype=torch.float64)
    (found,) = paired_comparison({"a": d, "b": d * 0})
    sums = [
        abs(sum(s * float(x) for s, x in zip(signs, d, strict=True))) for signs in product((1, -1), repeat=4)
    ]
    assert found.p == sum(s >= 0.8 - 1e-9 for s in sums) / 16


def test_intervals_of_eight_queries_cover_what_they_say() -> None:
    """Of 1,000 intervals 50 should miss; 76 is 3.8 standard deviations above, and plain percentiles miss about 100."""
    g, missed = generator(4), 0
    for seed in range(1000):
        a, b = torch.randn(2, 8, generator=g)
        (found,) = paired_comparison({"a": a, "b": b}, resamples=1000, seed=seed)
        missed += not found.low <= 0 <= found.high
    assert missed <= 76


def test_holm_equals_the_rule_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_correction_counts_all_pairs() -> None:
    g = generator(2)
    scores = {name: torch.randn(50, generator=g) for name in "abcd"}
    found = paired_comparison(scores, resamples=600)
    assert [(f.first, f.second) for f in found] == [
        ("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d"),
    ]  # fmt: skip
    assert [f.p_holm for f in found] == pytest.approx(holm([f.p for f in found]))
    assert all(f.p_holm >= f.p for f in found)


def test_the_same_generator_gives_the_same_answer_and_equal_systems_have_no_difference() -> None:
    a = torch.rand(40, generator=generator())
    twice = [paired_comparison({"a": a, "b": a}, resamples=300, seed=3) for _ in range(2)]
    assert twice[0] == twice[1]
    assert twice[0][0].p == 1.0
    assert (twice[0][0].low, twice[0][0].high) == (0.0, 0.0)


def test_bad_input_is_refused() -> None:
    a = torch.rand(5)
    with pytest.raises(ValueError, match="two systems"):
        paired_comparison({"a": a})
    with pytest.raises(ValueError, match="b has"):
        paired_comparison({"a": a, "b": a[:3]})
    with pytest.raises(ValueError, match="not finite"):
        paired_comparison({"a": a, "b": a / 0})
    with pytest.raises(ValueError, match="two queries"):
        paired_comparison({"a": a[:1], "b": a[:1]})
    with pytest.raises(ValueError, match="p-values"):
        holm([1.2])


def test_differences_that_cancel_are_no_difference_though_they_round() -> None:
    third = 1 / 3
    first = torch.tensor([third, third, 1, 2 * third, 0, 2 * third], dtype=torch.float64)
    second = torch.tensor([1, 2 * third, third, 0, 0, 1], dtype=torch.float64)
    assert paired_comparison({"a": first, "b": second})[0].p == 1
