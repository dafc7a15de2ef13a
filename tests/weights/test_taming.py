"""Weights truncated, clipped and tempered."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.weights import clip, effective_sample_size, log_mean_exp, temper, truncate

INF = math.inf
G = torch.Generator().manual_seed(1)
SKEWED = torch.randn(50, generator=G, dtype=torch.float64).exp() * 2


def test_truncation_keeps_a_light_tail_and_bounds_a_heavy_one() -> None:
    light = torch.rand(100, generator=G, dtype=torch.float64)
    assert truncate(light).tolist() == light.tolist()
    w = [0.5, 1.0, 0.1, 2.0, 900.0, 0.0, 3.0, 0.2, 0.3]
    cap = math.sqrt(len(w)) * sum(w) / len(w)
    found = truncate(torch.tensor(w, dtype=torch.float64).log()).exp().tolist()
    assert found == pytest.approx([min(x, cap) for x in w])
    assert found[4] < 900


def test_truncation_has_a_finite_error_where_the_variance_of_the_weights_is_infinite() -> None:
    """Weights u^(-0.7): mean 1 / 0.3, no variance. Their truncated means spread less, and lie a little low."""
    log_w = (
        -0.7 * torch.rand(2000, 400, generator=torch.Generator().manual_seed(3), dtype=torch.float64).log()
    )
    plain, cut = log_mean_exp(log_w).exp(), log_mean_exp(truncate(log_w)).exp()
    error = [float((m - 1 / 0.3).square().mean().sqrt()) for m in (plain, cut)]
    assert error[1] < 0.7 * error[0]
    assert 0 < 1 / 0.3 - float(cut.mean()) < 0.5


def test_clipping_caps_at_the_limit_plain_or_in_mean_weights() -> None:
    w = torch.tensor([[0.5, 4.0, 1.5], [8.0, 0.0, 1.0]], dtype=torch.float64)
    assert clip(w.log(), 2.0).exp().tolist() == [[0.5, pytest.approx(2), 1.5], [pytest.approx(2), 0, 1]]
    by_row = clip(w.log(), torch.tensor([1.0, 3.0])).exp()
    assert by_row.flatten().tolist() == pytest.approx([0.5, 1, 1, 3, 0, 1])
    relative = clip(w.log(), 1.5, relative=True).exp()
    assert relative.flatten().tolist() == pytest.approx([0.5, 3, 1.5, 4.5, 0, 1])
    columns = clip(w.log().T, torch.tensor([1.0, 3.0]), 0)
    assert columns.T.exp().flatten().tolist() == pytest.approx([0.5, 1, 1, 3, 0, 1])
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="positive"):
            clip(w.log(), limit)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=20, unique=True), st.floats(0.02, 0.98))
def test_tempering_reaches_the_wanted_effective_size(values: list[float], share: float) -> None:
    log_w = torch.tensor(values, dtype=torch.float64)
    ess = 1 + share * (len(values) - 1)
    tempered, b = temper(log_w, ess=ess)
    assert 0 < float(b) <= 1
    torch.testing.assert_close(tempered, log_w * b)
    if float(effective_sample_size(log_w)) >= ess:
        assert float(b) == 1
    else:
        assert float(effective_sample_size(tempered)) == pytest.approx(ess, rel=1e-7)


def test_a_row_that_has_the_size_already_keeps_its_weights_and_rows_do_not_mix() -> None:
    rows = torch.stack([SKEWED, SKEWED / 100, 1e6 * SKEWED, SKEWED * 0])
    tempered, b = temper(rows, ess=20.0)
    alone = [temper(row, ess=20.0) for row in rows]
    assert b.tolist() == pytest.approx([float(one[1]) for one in alone])
    assert tempered[1].tolist() == rows[1].tolist()
    assert effective_sample_size(tempered)[[0, 2]].tolist() == pytest.approx([20, 20])
    assert b[1] == b[3] == 1
    assert float(b[2]) == pytest.approx(float(b[0]) / 1e6)
    columns, _ = temper(rows.T, ess=20.0, dim=0)
    torch.testing.assert_close(columns.T, tempered)


def test_tempering_leaves_the_dead_dead_and_equalises_the_rest_when_all_are_wanted() -> None:
    log_w = torch.tensor([1.0, -INF, 5.0, 1e8, -INF])
    tempered, b = temper(log_w, ess=3)
    assert tempered.tolist() == [0, -INF, 0, 0, -INF]
    assert float(b) == 0
    leaf = SKEWED.clone().requires_grad_()
    flat, b = temper(leaf, ess=20.0)
    flat.sum().backward()
    assert leaf.grad.tolist() == pytest.approx([float(b)] * 50)
    tied = torch.tensor([2.0, -INF, 2.0])
    assert temper(tied, ess=2)[0].tolist() == tied.tolist()
    for ess in (4, 0.5, math.nan):
        with pytest.raises(ValueError, match="living"):
            temper(log_w, ess=ess)
    with pytest.raises(ValueError, match="living"):
        temper(torch.full((3,), -INF), ess=1)


@pytest.mark.parametrize("function", [truncate, lambda x: clip(x, 2.0), lambda x: temper(x, ess=1.5)[0]])
def test_shape_and_dtype_stay_and_the_input_is_not_changed(function) -> None:  # type: ignore[no-untyped-def]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        log_w = torch.tensor([[0.0, 3.0, -INF], [1.0, 1.0, 9.0]], dtype=dtype)
        before = log_w.clone()
        out = function(log_w)
        assert out.dtype == dtype
        assert out.shape == log_w.shape
        assert not bool(out.isnan().any())
        assert torch.equal(log_w, before)
