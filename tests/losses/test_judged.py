"""Alignment with a judge, and the false negatives that a judge finds."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.judged import judge_alignment, judged_false_negatives
from tests.losses.minimising import minimise

CLOSE = {"atol": 1e-11, "rtol": 1e-11}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("divergence", ["js", "symmetric_kl"])
def test_it_equals_a_plain_loop(divergence: str) -> None:
    score, judge = normal(3, 5, seed=1), normal(3, 5, seed=2) * 2
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = mask[2, 4] = True
    got = judge_alignment(
        score,
        judge,
        mask,
        temperature=0.7,
        judge_temperature=1.3,
        divergence=divergence,  # type: ignore[arg-type]
        reduction="none",
    )
    for b in range(3):
        kept = [k for k in range(5) if not mask[b, k]]
        p = [math.exp(score[b, k] / 0.7) for k in kept]
        q = [math.exp(judge[b, k] / 1.3) for k in kept]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        want = 0.0
        for x, y in zip(p, q, strict=True):
            m = (x + y) / 2
            if divergence == "js":
                want += (x * math.log(x / m) + y * math.log(y / m)) / 2
            else:
                want += (x * math.log(x / y) + y * math.log(y / x)) / 2
        assert float(got[b]) == pytest.approx(want, abs=1e-12)


def test_it_is_zero_only_where_the_distributions_match_and_the_js_at_most_log_2() -> None:
    score = normal(50, 4, seed=3) * 3
    shifted = score + normal(50, 1, seed=4)
    for divergence in ("js", "symmetric_kl"):
        same = judge_alignment(score, shifted, temperature=0.5, divergence=divergence, reduction="none")  # type: ignore[arg-type]
        assert float(same.abs().max()) < 1e-12
    other = judge_alignment(score, normal(50, 4, seed=5) * 30, temperature=0.5, reduction="none")
    assert float(other.min()) > 1e-6
    assert float(other.max()) <= math.log(2) + 1e-12
    opposite = torch.tensor([[500.0, 0.0]]), torch.tensor([[0.0, 500.0]])
    assert float(judge_alignment(*opposite, temperature=0.5)) == pytest.approx(math.log(2))
    swapped = judge_alignment(*opposite[::-1], temperature=0.5)
    torch.testing.assert_close(swapped, judge_alignment(*opposite, temperature=0.5))


def test_a_judge_who_is_sure_sets_the_target_of_info_nce() -> None:
    score, t = normal(40, 6, seed=6) * 2, 0.8
    sure = torch.zeros(40, 6, dtype=torch.float64)
    sure[:, 0] = 1e4
    loss = judge_alignment(score, sure, temperature=t, reduction="none")
    info_nce = torch.nn.functional.cross_entropy(
        score / t, torch.zeros(40, dtype=torch.int64), reduction="none"
    )
    assert info_nce.argsort().tolist() == loss.argsort().tolist()  # a rising function of it
    p = (-info_nce).exp()
    want = (p * torch.log(2 * p / (1 + p)) + (1 - p) * math.log(2) + torch.log(2 / (1 + p))) / 2
    torch.testing.assert_close(loss, want, **CLOSE)


def test_descending_the_loss_reaches_the_judges_distribution() -> None:
    judge = normal(3, 4, seed=7)
    score = minimise(lambda score: judge_alignment(score, judge, temperature=0.5), (3, 4))
    got = (score / 0.5).softmax(-1)
    torch.testing.assert_close(got, (judge / 0.5).softmax(-1), atol=1e-4, rtol=0)


def test_planted_false_negatives_are_removed_by_an_oracle_and_the_others_stay() -> None:
    g = torch.Generator().manual_seed(0)
    relevant = torch.rand(200, 20, generator=g) < 0.15
    judge = torch.where(relevant, 0.9, 0.3) + 0.1 * torch.rand(200, 20, generator=g)
    positive = torch.full((200,), 0.9)
    drop = judged_false_negatives(positive, judge)
    assert torch.equal(drop, relevant)
    assert judged_false_negatives(torch.tensor(0.9), torch.tensor([0.9, 0.895, 0.88])).tolist() == [
        True,
        True,
        False,
    ]
    level = judged_false_negatives(torch.tensor(0.5), torch.tensor([0.5, 0.6]), margin=0.0)
    assert level.tolist() == [False, True]


@pytest.mark.parametrize("divergence", ["js", "symmetric_kl"])
def test_gradients_agree_with_finite_differences(divergence: str) -> None:
    score, judge = normal(2, 4, seed=8).requires_grad_(), normal(2, 4, seed=9)
    mask = torch.tensor([[False, True, False, False], [True] * 4])
    assert torch.autograd.gradcheck(
        lambda s: judge_alignment(s, judge, mask, temperature=0.6, divergence=divergence),  # type: ignore[arg-type]
        score,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    score = torch.tensor([[1e4, -1e4, 0], [1e4, 1e4, 1e4]], dtype=dtype, requires_grad=True)
    judge = torch.tensor([[-1e4, 1e4, 0], [0, 0, 1]], dtype=dtype)
    loss = judge_alignment(score, judge, temperature=1.0)
    loss.backward()
    assert loss.isfinite()
    assert score.grad.isfinite().all()


def test_candidates_left_out_may_be_anything_and_a_query_without_any_has_loss_zero() -> None:
    score = torch.tensor([[0.1, math.nan, 0.4], [1.0, 2.0, 3.0]], requires_grad=True)
    judge = torch.tensor([[0.3, 0.2, -math.inf], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[False, True, True], [True, True, True]])
    loss = judge_alignment(score, judge, mask, temperature=0.5, reduction="none")
    assert loss.tolist() == pytest.approx([0, 0])
    loss.sum().backward()
    assert score.grad.isfinite().all()
    assert score.grad[mask].abs().sum() == 0


def test_a_chance_of_zero_adds_nothing_to_the_js() -> None:
    score = torch.tensor([[0.0, 0.0, -math.inf, -math.inf]], requires_grad=True)
    judge = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    loss = judge_alignment(score, judge, temperature=1.0)
    loss.backward()
    # p = (1/2, 1/2, 0, 0), q = (1/2, 0, 1/2, 0), m = (1/2, 1/4, 1/4, 0)
    assert float(loss.detach()) == pytest.approx(0.5 * math.log(2))
    assert score.grad.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    score = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"\(\.\.\., N\)"):
        judge_alignment(score, torch.zeros(2, 4), temperature=1.0)
    with pytest.raises(ValueError, match="temperature"):
        judge_alignment(score, score, temperature=0.0)
    with pytest.raises(ValueError, match="divergence"):
        judge_alignment(score, score, temperature=1.0, divergence="kl")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        judged_false_negatives(torch.zeros(3), score)
    with pytest.raises(ValueError, match="margin"):
        judged_false_negatives(torch.zeros(2), score, margin=-0.1)
    with pytest.raises(ValueError, match="NaN"):
        judged_false_negatives(torch.tensor([0.0, math.nan]), score)
