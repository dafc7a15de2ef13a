"""Effective sizes: Kish's, perplexity, and the largest weight's."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.weights import effective_sample_size

INF = math.inf
KINDS = ("kish", "perplexity", "max")
lists = st.lists(st.floats(-50, 50), min_size=1, max_size=20)


@given(lists, st.floats(-1e6, 1e6))
def test_each_kind_equals_its_plain_sum_and_ignores_a_common_factor(
    values: list[float], shift: float
) -> None:
    w = [math.exp(v) for v in values]
    share = [x / sum(w) for x in w]
    expected = {
        "kish": sum(w) ** 2 / sum(x * x for x in w),
        "perplexity": math.exp(-sum(x * math.log(x) for x in share)),
        "max": 1 / max(share),
    }
    log_w = torch.tensor(values, dtype=torch.float64)
    for kind in KINDS:
        assert float(effective_sample_size(log_w, kind=kind)) == pytest.approx(expected[kind])
        assert float(effective_sample_size(log_w + shift, kind=kind)) == pytest.approx(
            expected[kind], rel=1e-6
        )
    assert float(effective_sample_size(log_w)) == pytest.approx(expected["kish"])
    assert 1 - 1e-9 <= expected["max"] <= expected["kish"] + 1e-9
    assert expected["kish"] <= expected["perplexity"] + 1e-9 <= len(w) + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_count_in_full_and_one_weight_counts_one(kind) -> None:  # type: ignore[no-untyped-def]
    assert float(effective_sample_size(torch.full((7,), -1e30), kind=kind)) == pytest.approx(7)
    assert float(effective_sample_size(torch.tensor([0.0, -INF, -INF]), kind=kind)) == pytest.approx(1)
    assert float(effective_sample_size(torch.tensor([1e8, -1e8]), kind=kind)) == pytest.approx(1)
    assert float(effective_sample_size(torch.tensor([3.0]), kind=kind)) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_all_dead_draws_count_nothing(kind) -> None:  # type: ignore[no-untyped-def]
    assert effective_sample_size(torch.full((2, 3), -INF), kind=kind).tolist() == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_any_dimension(kind) -> None:  # type: ignore[no-untyped-def]
    log_w = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1, 2, -1):
        moved = effective_sample_size(log_w.movedim(dim, -1), kind=kind)
        torch.testing.assert_close(effective_sample_size(log_w, dim, kind=kind), moved)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="perplexity"):
        effective_sample_size(torch.zeros(3), kind="entropy")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_dead_draws_and_dead_rows_leave_gradients_finite(kind) -> None:  # type: ignore[no-untyped-def]
    log_w = torch.tensor([[0.0, 1.0, -INF], [-INF, -INF, -INF]], requires_grad=True)
    effective_sample_size(log_w, kind=kind).sum().backward()
    assert bool(log_w.grad.isfinite().all())
    assert log_w.grad[0, 0] > 0 > log_w.grad[0, 1]
    assert log_w.grad[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_million_equal_float32_weights_count_exactly(kind) -> None:  # type: ignore[no-untyped-def]
    size = effective_sample_size(torch.full((1_000_003,), 0.3), kind=kind)
    assert size.dtype == torch.float32
    assert float(size) == 1_000_003
