"""RCR: the listwise part and the regression agree on the optimum, as the softmax loss does not."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from steelyard.losses.regression_compatible import regression_compatible
from tests.losses.minimising import minimise
from tests.statistical import assert_unbiased


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    score = torch.randn(4, 6, generator=g, dtype=torch.float64) * 2
    label = torch.rand(4, 6, generator=g, dtype=torch.float64)
    return score, label, torch.rand(4, 6, generator=g) < 0.25


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_it_equals_the_plainest_loop(alpha: float) -> None:
    score, label, mask = case()
    log_expected = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = regression_compatible(score, label, log_expected, mask, alpha=alpha, reduction="none")
    for b in range(4):
        rows = [
            (1 / (1 + math.exp(-score[b, j])), float(label[b, j]), math.exp(-log_expected[j]))
            for j in range(6)
            if not mask[b, j]
        ]
        bce = -sum(w * (y * math.log(p) + (1 - y) * math.log(1 - p)) for p, y, w in rows)
        total, clicks = sum(w * p for p, _, w in rows), sum(w * y for _, y, w in rows)
        ranking = -sum(w * y * math.log(p / total) for p, y, w in rows) / clicks
        assert float(got[b]) == pytest.approx((1 - alpha) * bce + alpha * ranking, abs=1e-11)


def test_at_the_true_chances_its_gradient_vanishes_for_every_alpha_and_that_of_the_softmax_does_not() -> None:
    _, chance, _ = case()
    score = torch.logit(chance).requires_grad_()
    for alpha in (0.0, 0.5, 1.0):
        (grad,) = torch.autograd.grad(regression_compatible(score, chance, alpha=alpha), score)
        assert float(grad.abs().max()) < 1e-12
    target = chance / chance.sum(-1, keepdim=True)
    (grad,) = torch.autograd.grad(torch.nn.functional.cross_entropy(score, target), score)
    assert float(grad.abs().max()) > 0.01


def test_without_the_listwise_part_it_is_the_binary_cross_entropy() -> None:
    score, label, _ = case()
    torch.testing.assert_close(
        regression_compatible(score, label, alpha=0.0, reduction="sum"),
        binary_cross_entropy_with_logits(score, label, reduction="sum"),
    )


def test_chances_stay_calibrated_as_alpha_grows_and_drift_under_the_softmax() -> None:
    g = torch.Generator().manual_seed(4)
    feature = torch.randn(400, 8, generator=g, dtype=torch.float64)
    chance = torch.sigmoid(1.5 * feature - 1)
    label = torch.bernoulli(chance, generator=g)

    def error(alpha: float, softmax: bool) -> float:
        def value(theta: Tensor) -> Tensor:
            score = theta[0] * feature + theta[1]
            if not softmax:
                return regression_compatible(score, label, alpha=alpha)
            clicked = label.sum(-1) > 0
            target = (label / label.sum(-1, keepdim=True).clamp(min=1))[clicked]
            drifting = torch.nn.functional.cross_entropy(score[clicked], target)
            return (1 - alpha) * regression_compatible(score, label, alpha=0.0) + alpha * drifting

        theta = minimise(value, (2,))
        return float((torch.sigmoid(theta[0] * feature + theta[1]) - chance).abs().mean())

    assert error(0.9, softmax=False) < 0.03
    assert error(0.9, softmax=True) > 2 * error(0.9, softmax=False)


def test_with_draws_the_regression_part_is_unbiased_for_the_whole_list() -> None:
    g = torch.Generator().manual_seed(5)
    score, label = torch.randn(30, generator=g, dtype=torch.float64), torch.rand(30, generator=g).double()
    q = 1 / torch.arange(1, 31, dtype=torch.float64)
    q /= q.sum()
    ids = torch.multinomial(q, 4000 * 10, replacement=True, generator=g).view(4000, 10)
    got = regression_compatible(score[ids], label[ids], (10 * q[ids]).log(), alpha=0.0, reduction="none")
    whole = regression_compatible(score, label, alpha=0.0)
    assert_unbiased(got, whole)
    with pytest.raises(AssertionError):
        assert_unbiased(regression_compatible(score[ids], label[ids], alpha=0.0, reduction="none") * 3, whole)


def test_gradients_agree_with_finite_differences() -> None:
    score, label, mask = case()
    assert torch.autograd.gradcheck(
        lambda s: regression_compatible(s, label, None, mask), (score.requires_grad_(),)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    score = torch.tensor([[1e4, -1e4, 0], [-1e4, -1e4, -1e4]], dtype=dtype, requires_grad=True)
    value = regression_compatible(score, torch.tensor([[0.0, 1, 0], [0, 1, 1]]))
    value.backward()
    assert value.isfinite()
    assert score.grad.isfinite().all()


def test_a_list_without_clicks_keeps_its_regression_and_an_empty_one_costs_nothing() -> None:
    score = torch.tensor([[0.3, -1.0], [0.5, 2.0]], requires_grad=True)
    mask = torch.tensor([[False, False], [True, True]])
    for alpha in (0.0, 1.0):
        value = regression_compatible(score, torch.zeros(2, 2), None, mask, alpha=alpha, reduction="none")
        (grad,) = torch.autograd.grad(value.sum(), score)
        assert grad.isfinite().all()
        assert grad[1].abs().sum() == 0
        assert (value.detach() > 0).tolist() == [alpha == 0, False]
    assert regression_compatible(torch.zeros(2, 0), torch.zeros(2, 0), reduction="none").tolist() == [0, 0]


def test_what_does_not_fit_is_refused() -> None:
    score, label, _ = case()
    with pytest.raises(ValueError, match="alpha"):
        regression_compatible(score, label, alpha=2.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        regression_compatible(score, label + 1)
    with pytest.raises(ValueError, match="log_expected"):
        regression_compatible(score, label, torch.zeros(5))
    with pytest.raises(ValueError, match="not finite"):
        regression_compatible(score.masked_fill(score > 1, math.inf), label)
