"""gBCE learns the true chances as plain sampled cross-entropy does not; CCL pushes hard negatives only."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.binary import ccl, gbce
from steelyard.losses.noise_contrastive import sampled_bce
from tests.losses.minimising import minimise

POSTERIOR = torch.tensor([0.55, 0.25, 0.12, 0.06, 0.02], dtype=torch.float64)
K = 2


def optimum(t: float) -> Tensor:
    """Chances at which the exact expectation of gBCE is least, every pair of other items being equally likely."""
    target, draws, chance = [], [], []
    for i in range(5):
        for pair in itertools.combinations([j for j in range(5) if j != i], K):
            target.append(i)
            draws.append(pair)
            chance.append(float(POSTERIOR[i]) / math.comb(4, K))

    def expected(score: Tensor) -> Tensor:
        loss = gbce(score[target], score[torch.tensor(draws)], n_items=5, t=t, reduction="none")
        return (torch.tensor(chance) * loss).sum()

    return minimise(expected, (5,)).sigmoid()


def test_with_full_calibration_the_sigmoid_is_the_true_chance_and_without_it_is_overconfident() -> None:
    torch.testing.assert_close(optimum(1.0), POSTERIOR, atol=1e-6, rtol=0)
    alpha = K / 4
    torch.testing.assert_close(
        optimum(0.0), POSTERIOR / (POSTERIOR + alpha * (1 - POSTERIOR)), atol=1e-6, rtol=0
    )
    assert bool((optimum(0.0) > POSTERIOR + 0.01).all())
    beta = alpha * (0.6 * (1 - 1 / alpha) + 1 / alpha)  # as the paper writes it
    want = beta * POSTERIOR / (beta * POSTERIOR + alpha * (1 - POSTERIOR))
    torch.testing.assert_close(optimum(0.6), want, atol=1e-6, rtol=0)


def test_it_equals_the_plainest_loop_over_powers_of_chances() -> None:
    g = torch.Generator().manual_seed(0)
    positive = torch.randn(4, generator=g, dtype=torch.float64)
    negative = torch.randn(4, 3, generator=g, dtype=torch.float64) * 2
    mask = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
    got = gbce(positive, negative, mask, n_items=11, t=0.4, reduction="none")
    for b in range(4):
        kept = [float(negative[b, k]) for k in range(3) if not mask[b, k]]
        alpha = len(kept) / 10
        beta = alpha * (0.4 * (1 - 1 / alpha) + 1 / alpha) if kept else 1 - 0.4
        likelihood = (1 / (1 + math.exp(-positive[b]))) ** beta
        for s in kept:
            likelihood *= 1 - 1 / (1 + math.exp(-s))
        assert float(got[b]) == pytest.approx(-math.log(likelihood) / (len(kept) + 1), abs=1e-12)


def test_without_calibration_it_is_the_mean_binary_cross_entropy() -> None:
    positive, negative = torch.randn(4), torch.randn(4, 3)
    torch.testing.assert_close(
        gbce(positive, negative, n_items=9, t=0.0), sampled_bce(positive, negative) / 4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    for loss in (lambda p, n: gbce(p, n, n_items=10**6), ccl):
        positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
        negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
        value = loss(positive, negative)
        value.backward()
        assert value.isfinite()
        assert positive.grad.isfinite().all()
        assert negative.grad.isfinite().all()


def test_a_large_catalogue_keeps_the_positive_part_in_float32() -> None:
    positive = torch.tensor([12.0], requires_grad=True)
    gbce(positive, torch.full((1, 4), -20.0), n_items=10**7, t=1.0).backward()
    assert float(positive.grad) == pytest.approx(-(4 / (10**7 - 1)) / (1 + math.exp(12.0)) / 5, rel=1e-4)


def test_ccl_is_zero_for_an_aligned_positive_and_negatives_below_the_margin() -> None:
    below = torch.tensor([[0.2, -0.5, 0.39]])
    assert float(ccl(torch.ones(1), below, margin=0.4)) == 0
    assert float(ccl(torch.ones(1), below + 0.1, margin=0.4)) > 0


def test_only_negatives_above_the_margin_receive_a_gradient_and_with_margin_minus_one_all_do() -> None:
    negative = torch.tensor([[0.8, 0.3, 0.5, -0.9]], dtype=torch.float64, requires_grad=True)
    positive = torch.tensor([0.6], dtype=torch.float64)
    (got,) = torch.autograd.grad(ccl(positive, negative, margin=0.4, negative_weight=6.0), negative)
    assert got.tolist() == [[1.5, 0.0, 1.5, 0.0]]
    (got,) = torch.autograd.grad(ccl(positive, negative, margin=-1.0, negative_weight=6.0), negative)
    assert got.tolist() == [[1.5, 1.5, 1.5, 1.5]]


def test_ccl_equals_a_plain_loop_with_expected_counts() -> None:
    g = torch.Generator().manual_seed(1)
    positive = torch.rand(3, generator=g, dtype=torch.float64)
    negative = torch.rand(3, 5, generator=g, dtype=torch.float64) * 2 - 1
    log_expected = torch.randn(5, generator=g, dtype=torch.float64)
    mask = torch.rand(3, 5, generator=g) < 0.3
    mask[2] = True
    got = ccl(positive, negative, log_expected, mask, margin=0.1, negative_weight=3.0, reduction="none")
    for b in range(3):
        total = weight = 0.0
        for k in range(5):
            if not mask[b, k]:
                total += max(0.0, float(negative[b, k]) - 0.1) / math.exp(log_expected[k])
                weight += 1 / math.exp(log_expected[k])
        want = 1 - float(positive[b]) + (3 * total / weight if weight else 0)
        assert float(got[b]) == pytest.approx(want, abs=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    g = torch.Generator().manual_seed(2)
    positive = torch.rand(3, generator=g, dtype=torch.float64).requires_grad_()
    negative = (torch.rand(3, 5, generator=g, dtype=torch.float64) * 2 - 1).requires_grad_()
    mask = torch.rand(3, 5, generator=g) < 0.3
    assert torch.autograd.gradcheck(lambda p, n: gbce(p, n, mask, n_items=50), (positive, negative))
    assert torch.autograd.gradcheck(lambda p, n: ccl(p, n, None, mask, margin=0.1), (positive, negative))


def test_infinite_logits_of_what_cannot_be_and_of_what_is_left_out_do_no_harm() -> None:
    positive = torch.tensor([0.5])
    negative = torch.tensor([[0.3, -math.inf, math.nan]], requires_grad=True)
    mask = torch.tensor([[False, False, True]])
    for value in (gbce(positive, negative, mask, n_items=9), ccl(positive, negative, None, mask, margin=0.1)):
        (grad,) = torch.autograd.grad(value, negative)
        assert value.isfinite()
        assert grad.isfinite().all()
        assert float(grad[0, 0]) > 0


def test_what_does_not_fit_is_refused() -> None:
    positive, negative = torch.zeros(3), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="n_items"):
        gbce(positive, negative, n_items=4)
    with pytest.raises(ValueError, match="t must"):
        gbce(positive, negative, n_items=40, t=1.5)
    with pytest.raises(ValueError, match="broadcast"):
        gbce(positive, negative, torch.zeros(5, dtype=torch.bool), n_items=40)
    with pytest.raises(ValueError, match="margin"):
        ccl(positive, negative, margin=2.0)
    with pytest.raises(ValueError, match="negative_weight"):
        ccl(positive, negative, negative_weight=-1.0)
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        ccl(positive, torch.zeros(2, 4))
    with pytest.raises(TypeError, match="floating-point"):
        gbce(torch.zeros(3, dtype=torch.int64), negative, n_items=40)


def test_gbce_takes_everything_and_says_to_draw_fewer_where_there_are_more_draws_than_items() -> None:
    positive, negative = torch.zeros(2), torch.zeros(2, 5)
    hits = torch.eye(2, 5, dtype=torch.bool)
    everything = gbce(
        positive, negative, hits, n_items=5, t=1.0
    )  # alpha is 1, so this is plain cross-entropy
    assert float(everything) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match=r"draws of other items, 5, got 5: draw fewer"):
        gbce(positive, negative, n_items=5)
