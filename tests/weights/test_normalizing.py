"""Log-weights: normalised and averaged."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.weights import effective_sample_size, log_mean_exp, normalize, pareto_khat, truncate

INF = math.inf
lists = st.lists(st.floats(-50, 50), min_size=1, max_size=20)


@given(lists, st.floats(-1e6, 1e6))
def test_they_equal_plain_sums_and_ignore_a_common_factor(values: list[float], shift: float) -> None:
    w = [math.exp(v) for v in values]
    log_w = torch.tensor(values, dtype=torch.float64)
    assert float(log_mean_exp(log_w)) == pytest.approx(math.log(sum(w) / len(w)))
    assert normalize(log_w).exp().tolist() == pytest.approx([x / sum(w) for x in w])
    assert float(log_mean_exp(log_w + shift)) == pytest.approx(math.log(sum(w) / len(w)) + shift, abs=1e-8)
    assert normalize(log_w + shift).exp().tolist() == pytest.approx([x / sum(w) for x in w], rel=1e-6)


def test_all_dead_draws_give_minus_infinity_but_never_nan() -> None:
    dead = torch.full((2, 3), -INF)
    assert log_mean_exp(dead).tolist() == [-INF, -INF]
    assert normalize(dead).tolist() == dead.tolist()
    some = torch.tensor([[-INF, -INF], [0.0, -INF]], requires_grad=True)
    assert normalize(some).tolist() == [[-INF, -INF], [0.0, -INF]]
    normalize(some)[1, 0].backward()
    assert bool(some.grad.isfinite().all())


def test_float32_keeps_the_log_of_n_beside_log_weights_of_1e8() -> None:
    for size in (1e8, -1e8, 1e30):
        assert normalize(torch.full((7,), size)).tolist() == pytest.approx([-math.log(7)] * 7)
    assert normalize(torch.tensor([1e8, -1e8])).tolist() == [0.0, -2e8]


def test_any_dimension_and_dtype() -> None:
    log_w = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1, 2, -1):
        moved = log_w.movedim(dim, -1)
        torch.testing.assert_close(log_mean_exp(log_w, dim), log_mean_exp(moved))
        torch.testing.assert_close(normalize(log_w, dim).movedim(dim, -1), normalize(moved))
    assert normalize(log_w.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("function", [normalize, log_mean_exp, effective_sample_size, truncate, pareto_khat])
def test_bad_weights_are_refused(function) -> None:  # type: ignore[no-untyped-def]
    for bad in (torch.tensor([0.0, math.nan]), torch.tensor([INF]), torch.zeros(0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"NaN or \+inf|no draw"):
            function(bad)
    with pytest.raises(TypeError, match="floating"):
        function(torch.tensor([1, 2]))


def test_the_mean_of_dead_weights_has_a_gradient_of_zero() -> None:
    log_w = torch.tensor([[-INF, -INF], [0.0, -INF]], requires_grad=True)
    log_mean_exp(log_w).sum().backward()
    assert log_w.grad.tolist() == [[0, 0], [1, 0]]


def test_half_precision_means_of_more_draws_than_it_can_count() -> None:
    mean = log_mean_exp(torch.zeros(100_000, dtype=torch.float16))
    assert mean.dtype == torch.float16
    assert float(mean) == 0
