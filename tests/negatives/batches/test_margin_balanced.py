"""Bins of margin are equally likely, pairs within one too, and each pair knows its probability."""

import math
from collections import Counter

import pytest
import torch
from scipy import stats

from steelyard.negatives.batches.margin_balanced import margin_balanced
from tests.statistical import assert_unbiased

MARGINS = torch.tensor([0.0, 9.9, 10, 9.5, 9.6, 9.7, 4.2, 4.1, 3, 3, -1.5, 7, 7.1, 7.2], dtype=torch.float64)
OFFSETS = torch.tensor([0, 8, 10, 10, 11, 14])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def probabilities(bins: int) -> list[dict[int, float]]:
    """In plain loops."""
    found = []
    for q in range(5):
        pairs = range(int(OFFSETS[q]), int(OFFSETS[q + 1]))
        m = {i: float(MARGINS[i]) for i in pairs}
        low, high = min(m.values(), default=0), max(m.values(), default=0)
        cell = {
            i: min(int((v - low) / (high - low) * bins), bins - 1) if high > low else 0 for i, v in m.items()
        }
        held = Counter(cell.values())
        found.append({i: 1 / (len(held) * held[cell[i]]) for i in pairs})
    return found


@pytest.mark.parametrize("bins", [1, 3, 10])
def test_probabilities_equal_plain_loops_and_sum_to_one(bins: int) -> None:
    queries = torch.tensor([4, 0, 2, 1, 0, 3])
    draws = margin_balanced(MARGINS, OFFSETS, queries, bins=bins, generator=generator())
    answer = draws.log_expected_of(torch.arange(-2, 20)).exp()
    want = torch.zeros(6, 22, dtype=torch.float64)
    for b, q in enumerate(queries.tolist()):
        for i, p in probabilities(bins)[q].items():
            want[b, i + 2] = p
    torch.testing.assert_close(answer, want)
    torch.testing.assert_close(answer.sum(1), torch.tensor([1.0, 1, 0, 1, 1, 1], dtype=torch.float64))
    some = queries != 2
    torch.testing.assert_close(draws.log_expected[some], draws.log_expected_of(draws.ids)[some])
    assert draws.ids[2].tolist() == [0]
    assert draws.log_expected[2].tolist() == [math.inf]


def test_drawn_frequencies_are_the_probabilities_and_weighing_leads_back_to_the_mean() -> None:
    queries = torch.tensor([0, 4]).repeat(20000)
    draws = margin_balanced(MARGINS, OFFSETS, queries, bins=3, generator=generator())
    for row, q in ((0, 0), (1, 4)):
        want = probabilities(3)[q]
        drawn = draws.ids[row::2]
        assert_unbiased((drawn == torch.tensor(list(want))).double(), list(want.values()))
        weighed = MARGINS[drawn[:, 0]] * (-draws.log_expected[row::2, 0]).exp()
        assert_unbiased(weighed, float(MARGINS[list(want)].sum()))


def test_drawn_bins_are_uniform_by_chi_square() -> None:
    margins = torch.rand(500, generator=generator(3), dtype=torch.float64) ** 0.2  # most in the last bins
    margins[:2] = torch.tensor([0.0, 1.0])
    draws = margin_balanced(margins, [0, 500], torch.zeros(3000).long(), generator=generator())
    drawn = (margins[draws.ids[:, 0]] * 10).long().clamp(max=9).bincount(minlength=10)
    held = (margins * 10).long().clamp(max=9).bincount(minlength=10)
    assert stats.chisquare(drawn[held > 0].numpy()).pvalue > 1e-4
    assert stats.chisquare(held[held > 0].numpy()).pvalue < 1e-4


def test_equal_margins_types_and_no_pairs_are_answered() -> None:
    draws = margin_balanced(torch.full((4,), 3.0), [0, 4], generator=generator())
    assert draws.log_expected_of(torch.arange(4)).exp().tolist() == [[0.25] * 4]
    assert margin_balanced(torch.zeros(0), [0, 0, 0]).log_expected.tolist() == [[math.inf], [math.inf]]
    assert margin_balanced(torch.zeros(0), [0]).ids.shape == (0, 1)
    assert margin_balanced(torch.tensor([1e-40, 2e-40]), [0, 2]).log_expected_of(
        torch.tensor([0, 1])
    ).exp().tolist() == [[0.5, 0.5]]
    for bad, kind, said in (
        ((torch.tensor([1.0, math.nan]), [0, 2]), ValueError, "finite"),
        ((torch.tensor([1, 2]), [0, 2]), TypeError, "floating"),
        ((torch.ones(2), [0, 1]), ValueError, "offsets"),
        ((torch.ones(2), [0, 3, 2]), ValueError, "offsets"),
        ((torch.ones(2), [0, 2], [1]), ValueError, "queries must lie in 0 .. 0, got 1"),
    ):
        with pytest.raises(kind, match=said):
            margin_balanced(*bad)  # type: ignore[arg-type]
