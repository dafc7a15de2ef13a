"""Margin distillation: what it is blind to, and what it is not."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.margins import margin_mse, tas_balanced_loss

CLOSE = {"atol": 1e-11, "rtol": 1e-11}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return normal(3, seed=1), normal(3, 4, seed=2), normal(3, seed=3) * 9, normal(3, 4, seed=4) * 9


def batch() -> tuple[Tensor, Tensor, Tensor]:
    return normal(4, 8, seed=5), normal(4, 2, seed=6) * 3, normal(4, 8, seed=7) * 2


def test_it_equals_a_plain_loop() -> None:
    s_p, s_n, t_p, t_n = case()
    log_expected = normal(4, seed=8)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = True
    got = margin_mse(s_p, s_n, t_p, t_n, log_expected, mask, reduction="none")
    for b in range(3):
        top = bottom = 0.0
        for k in range(4):
            if not mask[b, k]:
                weight = math.exp(-log_expected[k])
                top += weight * float((s_p[b] - s_n[b, k]) - (t_p[b] - t_n[b, k])) ** 2
                bottom += weight
        assert float(got[b]) == pytest.approx(top / bottom, abs=1e-10)
    plain = torch.nn.functional.mse_loss(s_p[:, None] - s_n, t_p[:, None] - t_n)
    torch.testing.assert_close(margin_mse(s_p, s_n, t_p, t_n), plain, **CLOSE)


def test_tas_balanced_equals_a_plain_loop() -> None:
    score, pair, teacher = batch()
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[1, 3] = True
    got = tas_balanced_loss(score, pair, teacher, mask, alpha=0.4, reduction="none")
    for i in range(4):
        want = float((score[i, i] - score[i, 4 + i]) - (pair[i, 0] - pair[i, 1])) ** 2
        errors = [
            float((score[i, i] - score[i, j]) - (teacher[i, i] - teacher[i, j])) ** 2
            for j in range(8)
            if j != i and not mask[i, j]
        ]
        want += 0.4 * sum(errors) / len(errors)
        assert float(got[i]) == pytest.approx(want, abs=1e-11)
    pairs = tas_balanced_loss(score, pair, teacher, alpha=0.0)
    own = score.diagonal(), score.diagonal(4)[:, None], pair[:, 0], pair[:, 1:]
    torch.testing.assert_close(pairs, margin_mse(*own), **CLOSE)


def test_shifting_all_scores_of_a_query_changes_nothing_and_scaling_them_does() -> None:
    s_p, s_n, t_p, t_n = case()
    shift = normal(3, seed=9) * 50
    want = margin_mse(s_p, s_n, t_p, t_n)
    torch.testing.assert_close(margin_mse(s_p + shift, s_n + shift[:, None], t_p, t_n), want, **CLOSE)
    torch.testing.assert_close(margin_mse(s_p, s_n, t_p + shift, t_n + shift[:, None]), want, **CLOSE)
    assert not torch.isclose(margin_mse(2 * s_p, 2 * s_n, t_p, t_n), want)
    score, pair, teacher = batch()
    rows = normal(4, 1, seed=10) * 50
    for shifted in (
        (score + rows, pair, teacher),
        (score, pair + rows, teacher),
        (score, pair, teacher + rows),
    ):
        torch.testing.assert_close(tas_balanced_loss(*shifted), tas_balanced_loss(*batch()), **CLOSE)


def test_the_loss_is_zero_only_where_all_margins_are_the_teachers() -> None:
    _, pair, teacher = batch()
    pair = torch.stack([teacher.diagonal(), teacher.diagonal(4)], -1) + 3.0  # teachers that agree
    student = teacher - 7.0
    assert float(tas_balanced_loss(student, pair, teacher)) == pytest.approx(0, abs=1e-20)
    for at in ((0, 0), (2, 6), (3, 1)):
        off = student.clone()
        off[at] += 0.1
        assert float(tas_balanced_loss(off, pair, teacher)) > 1e-4
    itself = torch.zeros(4, 8, dtype=torch.bool)
    itself[3, 1] = True
    off = student.clone()
    off[3, 1] += 0.1
    assert float(tas_balanced_loss(off, pair, teacher, itself)) == pytest.approx(0, abs=1e-20)


def test_draws_with_known_counts_stand_for_everything() -> None:
    s_p, s_n, t_p, t_n = case()
    times = torch.tensor([1, 5, 2, 3])  # each candidate is drawn as often as its design expects
    ids = torch.arange(4).repeat_interleave(times)
    expected = times.double().log()[ids]
    got = margin_mse(s_p, s_n[:, ids], t_p, t_n[:, ids], expected)
    torch.testing.assert_close(got, margin_mse(s_p, s_n, t_p, t_n), **CLOSE)
    assert not torch.isclose(margin_mse(s_p, s_n[:, ids], t_p, t_n[:, ids]), got)


def test_gradients_agree_with_finite_differences() -> None:
    s_p, s_n, t_p, t_n = case()
    mask = torch.tensor([True, False, False, False])
    inputs = (s_p.requires_grad_(), s_n.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: margin_mse(p, n, t_p, t_n, None, mask), inputs)
    score, pair, teacher = batch()
    assert torch.autograd.gradcheck(lambda s: tas_balanced_loss(s, pair, teacher), score.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_and_singles_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4]], dtype=dtype)
    loss = margin_mse(positive, negative, torch.zeros(1, dtype=dtype), negative)
    loss.backward()
    assert loss.dtype == dtype
    assert loss.isfinite()
    assert positive.grad.isfinite().all()


def test_candidates_left_out_count_for_nothing() -> None:
    s_p, s_n, t_p, t_n = case()
    t_n[0, 1] = math.nan
    s_n[1, 2] = -math.inf
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = True
    mask[2] = True
    s_n.requires_grad_()
    got = margin_mse(s_p, s_n, t_p, t_n, None, mask, reduction="none")
    assert got.isfinite().all()
    got.sum().backward()
    assert s_n.grad.isfinite().all()
    assert s_n.grad[mask].abs().sum() == 0
    assert got.tolist()[2] == 0


def test_what_does_not_fit_is_refused() -> None:
    s_p, s_n, t_p, t_n = case()
    score, pair, teacher = batch()
    with pytest.raises(ValueError, match="same candidates"):
        margin_mse(s_p, s_n, t_p, t_n[:, :2])
    with pytest.raises(ValueError, match=r"\(B, 2B\)"):
        tas_balanced_loss(score[:, :4], pair, teacher)
    with pytest.raises(ValueError, match="alpha"):
        tas_balanced_loss(score, pair, teacher, alpha=-1.0)
    with pytest.raises(ValueError, match="no query"):
        margin_mse(torch.zeros(0), torch.zeros(0, 1), torch.zeros(0), torch.zeros(0, 1))
