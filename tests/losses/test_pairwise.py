"""BPR, TOP1 and their forms against the best negative."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from steelyard.losses.pairwise import bpr, bpr_max, top1, top1_max

Loss = Callable[..., Tensor]
LOSSES: list[Loss] = [bpr, top1, bpr_max, top1_max]


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64) * 2  # noqa: E731
    mask = torch.rand(5, 6, generator=g) < 0.3
    mask[4] = True
    return make(5), make(5, 6), make(6), mask


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def plain(name: str, p: float, scores: list[float], expected: list[float]) -> float:
    """The published formulas, with each negative counted 1 / expected times."""
    if not scores:
        return 0.0
    if name in ("bpr", "top1"):
        w = [1 / e for e in expected]
    else:
        w = [math.exp(s) / e for s, e in zip(scores, expected, strict=True)]
    w = [x / sum(w) for x in w]
    if name == "bpr":
        return -sum(a * math.log(sigmoid(p - s)) for a, s in zip(w, scores, strict=True))
    if name == "bpr_max":
        chance = sum(a * sigmoid(p - s) for a, s in zip(w, scores, strict=True))
        return -math.log(chance) + 0.3 * sum(a * s * s for a, s in zip(w, scores, strict=True))
    return sum(a * (sigmoid(s - p) + sigmoid(s * s)) for a, s in zip(w, scores, strict=True))


def options(loss: Loss) -> dict[str, float]:
    return {"regularization": 0.3} if loss is bpr_max else {}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_equals_the_plainest_loop(loss: Loss) -> None:
    positive, negative, log_expected, mask = case()
    got = loss(positive, negative, log_expected, mask, **options(loss), reduction="none")
    for b in range(5):
        kept = [k for k in range(6) if not mask[b, k]]
        want = plain(
            loss.__name__,
            float(positive[b]),
            [float(negative[b, k]) for k in kept],
            [math.exp(log_expected[k]) for k in kept],
        )
        assert float(got[b]) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_draws_with_expected_counts_stand_for_the_whole_catalogue(loss: Loss) -> None:
    g = torch.Generator().manual_seed(3)
    score = torch.randn(30, generator=g, dtype=torch.float64)
    q = 1 / torch.arange(1, 31, dtype=torch.float64)
    q /= q.sum()
    score += 2 * q / q.max()  # popular items score higher, so that uncorrected draws are wrong
    positive = torch.tensor([0.4], dtype=torch.float64)
    whole = float(loss(positive, score[None], **options(loss)))
    k = 200_000
    ids = torch.multinomial(q, k, replacement=True, generator=g)
    corrected = float(loss(positive, score[None, ids], (k * q[ids]).log(), **options(loss)))
    raw = float(loss(positive, score[None, ids], **options(loss)))
    assert corrected == pytest.approx(whole, rel=0.02)
    assert abs(raw - whole) > 0.1 * whole


def test_a_negative_adds_to_bpr_by_softplus_and_its_gradient_is_the_chance_of_the_wrong_order() -> None:
    positive, negative, _, _ = case()
    p = positive.clone().requires_grad_()
    bpr(p, negative, reduction="sum").backward()
    torch.testing.assert_close(p.grad, -torch.sigmoid(negative - positive[:, None]).mean(-1))


def test_the_max_forms_follow_the_best_negative_and_the_plain_ones_fade_among_many_easy_ones() -> None:
    positive = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    hard = torch.tensor([[3.0]], dtype=torch.float64)
    easy = torch.full((1, 2000), -12.0, dtype=torch.float64)
    both = torch.cat([hard, easy], 1)
    for plain_loss, best in ((bpr, bpr_max), (top1, top1_max)):
        (faded,) = torch.autograd.grad(plain_loss(positive, both), positive)
        (kept,) = torch.autograd.grad(best(positive, both), positive)
        (alone,) = torch.autograd.grad(best(positive, hard), positive)
        assert abs(float(faded)) < 2e-3
        assert float(kept) == pytest.approx(float(alone), rel=0.02)


def test_with_one_negative_the_max_forms_are_the_plain_ones() -> None:
    positive, negative, _, _ = case()
    one = negative[:, :1]
    torch.testing.assert_close(bpr_max(positive, one, regularization=0.0), bpr(positive, one))
    torch.testing.assert_close(top1_max(positive, one), top1(positive, one))


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_agree_with_finite_differences(loss: Loss) -> None:
    positive, negative, log_expected, mask = case()
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: loss(p, n, log_expected, mask, **options(loss)), inputs)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(loss: Loss, dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
    value = loss(positive, negative, torch.zeros(3, dtype=dtype))
    value.backward()
    assert value.isfinite()
    for leaf in (positive, negative):
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_candidate_with_score_minus_infinity_is_finite_and_one_left_out_may_hold_anything(
    loss: Loss,
) -> None:
    positive = torch.tensor([0.5], requires_grad=True)
    negative = torch.tensor([[0.3, -math.inf, math.nan, math.inf]], requires_grad=True)
    mask = torch.tensor([[False, False, True, True]])
    value = loss(positive, negative, None, mask)
    value.backward()
    assert value.isfinite()
    assert negative.grad.isfinite().all()
    assert negative.grad[0, 1:].tolist() == [0, 0, 0]
    if loss in (bpr_max, top1_max):
        torch.testing.assert_close(value, loss(positive, torch.tensor([[0.3]])))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_positive_without_negatives_has_loss_zero_and_no_gradient(loss: Loss) -> None:
    positive = torch.tensor([0.5, -math.inf], requires_grad=True)
    negative = torch.randn(2, 3, requires_grad=True)
    empty = torch.tensor([0.0, 0.0, math.inf])  # an empty slot has an infinite expected count
    value = loss(
        positive, negative, empty, torch.tensor([[True, True, False], [True, True, True]]), reduction="none"
    )
    assert value.tolist() == [0, 0]
    value.sum().backward()
    assert positive.grad.tolist() == [0, 0]
    assert negative.grad.abs().sum() == 0
    assert loss(torch.zeros(2), torch.zeros(2, 0), reduction="none").tolist() == [0, 0]
    assert float(loss(torch.zeros(0), torch.zeros(0, 3), reduction="sum")) == 0


def test_mixed_float_types_are_promoted_and_others_refused() -> None:
    for loss in LOSSES:
        assert loss(torch.zeros(2), torch.zeros(2, 3, dtype=torch.float64)).dtype == torch.float64
        with pytest.raises(TypeError, match="floating-point"):
            loss(torch.zeros(2), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("loss", LOSSES)
def test_what_does_not_fit_is_refused(loss: Loss) -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        loss(torch.zeros(3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="broadcast"):
        loss(torch.zeros(3), torch.zeros(3, 4), torch.zeros(5))
    with pytest.raises(ValueError, match="mask of shape"):
        loss(torch.zeros(3), torch.zeros(3, 4), None, torch.zeros(5, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask must be bool"):
        loss(torch.zeros(3), torch.zeros(3, 4), None, torch.zeros(4))
    with pytest.raises(ValueError, match="reduction"):
        loss(torch.zeros(3), torch.zeros(3, 4), reduction="avg")
    with pytest.raises(ValueError, match="no query"):
        loss(torch.zeros(0), torch.zeros(0, 4))
    if loss is bpr_max:
        with pytest.raises(ValueError, match="regularization"):
            loss(torch.zeros(3), torch.zeros(3, 4), regularization=-1.0)
