"""Log-uniform draws follow the law of ranks, exactly counted."""

import math

import pytest
import torch
from scipy.stats import chisquare

from steelyard.draws import Proposal
from steelyard.negatives.log_uniform import LogUniform
from tests.statistical import assert_unbiased

ORDER = torch.tensor([4, 0, 5, 2, 1, 3])


def law(n_items: int) -> list[float]:
    return [(math.log(r + 2) - math.log(r + 1)) / math.log(n_items + 1) for r in range(n_items)]


def test_expected_counts_are_those_of_the_law() -> None:
    assert isinstance(LogUniform(6), Proposal)
    for n_items in (1, 2, 6, 1000):
        got = LogUniform(n_items).sample(None, 7).log_expected_of(torch.arange(n_items)).exp().double()
        assert got.tolist() == pytest.approx([7 * q for q in law(n_items)], rel=1e-6)
        assert float(got.sum()) == pytest.approx(7, rel=1e-6)


@pytest.mark.parametrize("order", [None, ORDER], ids=["ranks", "order"])
def test_draws_come_as_often_as_expected(order: torch.Tensor | None) -> None:
    """Chi-square at significance 1e-5."""
    draws = LogUniform(6, order).sample(None, 100_000, generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(draws.ids, minlength=6)[torch.arange(6) if order is None else order]
    assert chisquare(counts.numpy(), [1e5 * q for q in law(6)]).pvalue > 1e-5
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))


def test_the_sum_over_everything_is_unbiased() -> None:
    generator, score = torch.Generator().manual_seed(2), torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0, -0.5])
    made = LogUniform(6, ORDER)
    seen = []
    for _ in range(2000):
        draws = made.sample(None, 4, generator=generator)
        seen.append(float((score[draws.ids] - draws.log_expected).exp().sum()))
    assert_unbiased(seen, float(score.exp().sum()))


def test_a_large_catalogue_keeps_the_digits_of_rare_ranks() -> None:
    n_items = 10**9
    draws = LogUniform(n_items).sample(None, 10_000, generator=torch.Generator().manual_seed(3))
    assert int(draws.ids.min()) >= 0
    assert int(draws.ids.max()) < n_items
    assert 0.2 < float((draws.ids < 1000).double().mean()) < 0.5  # a third: log 1000 / log 1e9
    last = float(draws.log_expected_of(torch.tensor([n_items - 1])))
    assert last == pytest.approx(math.log(1e4 / n_items / math.log(n_items)), abs=1e-5)


def test_none_drawn_and_none_outside() -> None:
    made = LogUniform(6, ORDER)
    assert made.sample(None, 0).ids.tolist() == []
    assert made.sample(None, 0).log_expected_of(torch.tensor([1])).tolist() == [-math.inf]
    outside = torch.tensor([[-1, 6], [2**40, -(2**40)]])
    assert bool((made.sample(None, 3).log_expected_of(outside) == -math.inf).all())
    assert made.sample(None, 5).log_expected.dtype == torch.float32
    same = [made.sample(None, 9, generator=torch.Generator().manual_seed(5)).ids.tolist() for _ in range(2)]
    assert same[0] == same[1]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one item"):
        LogUniform(0)
    with pytest.raises(TypeError, match="int64"):
        LogUniform(2, torch.tensor([0.0, 1.0]))
    for bad in ([0, 1], [0, 1, 3], [0, -1, 2]):
        with pytest.raises(ValueError, match="each of the 3 items once"):
            LogUniform(3, torch.tensor(bad))
    with pytest.raises(ValueError, match="item 2 is missing"):
        LogUniform(3, torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="not be negative"):
        LogUniform(3).sample(None, -1)
    with pytest.raises(TypeError, match="integer"):
        LogUniform(3).sample(None, 1.5)  # type: ignore[arg-type]
