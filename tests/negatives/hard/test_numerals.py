"""Texts with numerals are drawn with the odds asked for."""

import math

import pytest
import torch

from steelyard.negatives.hard.numerals import numeric_aware_log_weights
from steelyard.sampling import AliasTable
from tests.statistical import assert_unbiased

TEXTS = ["revenue rose 4%", "a good year", "in 2019", "twelve stores", "٣ shops"]


@pytest.mark.parametrize("ratio", [0.25, 3.0])
def test_probabilities_have_the_odds_and_draws_follow_them(ratio: float) -> None:
    law = numeric_aware_log_weights(TEXTS, ratio).exp()
    total = 3 * ratio + 2
    assert law.tolist() == pytest.approx([ratio / total, 1 / total, ratio / total, 1 / total, ratio / total])
    drawn = AliasTable(law).sample(5000, generator=torch.Generator().manual_seed(1))
    hits = torch.nn.functional.one_hot(drawn, 5).double()
    assert_unbiased(hits, law)
    value = torch.arange(1.0, 6.0, dtype=torch.float64)
    assert_unbiased(value[drawn] / law[drawn], float(value.sum()))


def test_a_ratio_of_one_is_uniform_and_extremes_keep_their_digits() -> None:
    assert numeric_aware_log_weights(TEXTS, 1.0).exp().tolist() == pytest.approx([0.2] * 5)
    assert numeric_aware_log_weights(["no", "none"], 7.0).exp().tolist() == pytest.approx([0.5, 0.5])
    tiny = numeric_aware_log_weights(["1", "one"], 1e-300)
    assert float(tiny[0]) == pytest.approx(math.log(1e-300))
    assert numeric_aware_log_weights([], 2.0).shape == (0,)


def test_what_is_no_ratio_and_no_text_is_refused() -> None:
    for ratio in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="ratio"):
            numeric_aware_log_weights(TEXTS, ratio)
    with pytest.raises(TypeError, match="one string"):
        numeric_aware_log_weights("text", 2.0)
    with pytest.raises(TypeError, match="int"):
        numeric_aware_log_weights([3], 2.0)  # type: ignore[list-item]
