"""Log-weights: normalised, averaged, counted."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.weights import effective_sample_size, log_mean_exp, normalize

INF = math.inf
lists = st.lists(st.floats(-50, 50), min_size=1, max_size=20)


@given(lists, st.floats(-1e6, 1e6))
def test_they_equal_plain_sums_and_ignore_a_common_factor(values: list[float], shift: float) -> None:
    w = [math.exp(v) for v in values]
    log_w = torch.tensor(values, dtype=torch.float64)
    assert float(log_mean_exp(log_w)) == pytest.approx(math.log(sum(w) / len(w)))
    kish = sum(w) ** 2 / sum(x * x for x in w)
    assert float(effective_sample_size(log_w)) == pytest.approx(kish)
    assert float(effective_sample_size(log_w + shift)) == pytest.approx(kish, rel=1e-6)
    assert normalize(log_w).exp().tolist() == pytest.approx([x / sum(w) for x in w])


def test_equal_weights_count_in_full_and_one_weight_counts_one() -> None:
    assert float(effective_sample_size(torch.full((7,), -1e30))) == pytest.approx(7)
    assert float(effective_sample_size(torch.tensor([0.0, -INF, -INF]))) == pytest.approx(1)
    assert float(effective_sample_size(torch.tensor([1e8, -1e8]))) == pytest.approx(1)


def test_all_dead_draws_give_zero_and_minus_infinity_but_never_nan() -> None:
    dead = torch.full((2, 3), -INF)
    assert effective_sample_size(dead).tolist() == [0, 0]
    assert log_mean_exp(dead).tolist() == [-INF, -INF]
    assert normalize(dead).tolist() == dead.tolist()


def test_any_dimension_and_dtype() -> None:
    log_w = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1, 2, -1):
        moved = log_w.movedim(dim, -1)
        torch.testing.assert_close(effective_sample_size(log_w, dim), effective_sample_size(moved))
        torch.testing.assert_close(normalize(log_w, dim).movedim(dim, -1), normalize(moved))
    assert normalize(log_w.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("function", [normalize, log_mean_exp, effective_sample_size])
def test_bad_weights_are_refused(function) -> None:  # type: ignore[no-untyped-def]
    for bad in (torch.tensor([0.0, math.nan]), torch.tensor([INF]), torch.zeros(0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"NaN or \+inf|no draw"):
            function(bad)
    with pytest.raises(TypeError, match="floating"):
        function(torch.tensor([1, 2]))
