"""The MW loss: a bound on one minus the AUC, and sensitive to what a threshold needs."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from steelyard.losses.auc import mann_whitney
from steelyard.losses.softmax import sampled_softmax


def case(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(6, generator=g, dtype=torch.float64) + 1,
        torch.randn(6, 4, generator=g, dtype=torch.float64),
    )


def test_it_equals_the_plainest_loop_over_pairs_of_all_queries() -> None:
    positive, negative = case()
    g = torch.Generator().manual_seed(1)
    log_expected = torch.randn(6, 1, generator=g, dtype=torch.float64)
    mask = torch.rand(6, 4, generator=g) < 0.3
    got = mann_whitney(positive, negative, log_expected, mask, temperature=0.5, reduction="none")
    for i in range(6):
        total = weight = 0.0
        for b in range(6):
            for k in range(4):
                if not mask[b, k]:
                    w = math.exp(-log_expected[b, 0])
                    total += w * math.log(1 + math.exp((float(negative[b, k]) - float(positive[i])) / 0.5))
                    weight += w
        assert float(got[i]) == pytest.approx(total / weight, abs=1e-12)


def test_over_log_two_it_bounds_one_minus_the_auc_whatever_the_scores() -> None:
    g = torch.Generator().manual_seed(2)
    nearest = math.inf
    for trial in range(200):
        scale = 10 ** float(torch.rand((), generator=g) * 4 - 2)
        positive = torch.randn(5, generator=g, dtype=torch.float64) * scale + trial % 3
        negative = (torch.randn(5, 3, generator=g, dtype=torch.float64) * scale).round()  # ties
        positive = positive.round()
        u = stats.mannwhitneyu(positive.numpy(), negative.flatten().numpy()).statistic
        auc = u / 75
        bound = float(mann_whitney(positive, negative)) / math.log(2)
        assert bound >= 1 - auc - 1e-12
        nearest = min(nearest, bound - (1 - auc))
    assert nearest < 0.2


def test_shifting_the_scores_of_one_query_changes_it_and_not_the_softmax_loss() -> None:
    positive, negative = case()
    shift = torch.tensor([3.0, 0, 0, -2, 0, 0], dtype=torch.float64)
    shifted = (positive + shift, negative + shift[:, None])
    zero = torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(sampled_softmax(*shifted, zero), sampled_softmax(positive, negative, zero))
    assert abs(float(mann_whitney(*shifted) - mann_whitney(positive, negative))) > 0.1


def test_chunks_change_neither_value_nor_gradients() -> None:
    inputs = [x.requires_grad_() for x in case()]
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(3)) < 0.3
    whole = mann_whitney(*inputs, None, mask)
    parts = mann_whitney(*inputs, None, mask, chunk_pairs=35)
    torch.testing.assert_close(whole, parts)
    for a, b in zip(torch.autograd.grad(whole, inputs), torch.autograd.grad(parts, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_agree_with_finite_differences() -> None:
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(3)) < 0.3
    inputs = [x.requires_grad_() for x in case()]
    assert torch.autograd.gradcheck(lambda p, n: mann_whitney(p, n, None, mask, temperature=0.7), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, -math.inf, -1e4]], dtype=dtype, requires_grad=True)
    value = mann_whitney(positive, negative)
    value.backward()
    assert value.isfinite()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


def test_without_negatives_it_is_zero_and_what_is_masked_may_hold_anything() -> None:
    positive = torch.tensor([0.5, 1.0], requires_grad=True)
    negative = torch.tensor([[math.nan], [math.inf]], requires_grad=True)
    value = mann_whitney(positive, negative, None, torch.ones(2, 1, dtype=torch.bool), reduction="none")
    assert value.tolist() == [0, 0]
    for grad in torch.autograd.grad(value.sum(), (positive, negative)):
        assert grad.abs().sum() == 0
    assert mann_whitney(torch.zeros(2), torch.zeros(2, 0)).item() == 0


def test_what_does_not_fit_is_refused() -> None:
    positive, negative = case()
    with pytest.raises(ValueError, match="temperature"):
        mann_whitney(positive, negative, temperature=0.0)
    with pytest.raises(ValueError, match="chunk_pairs"):
        mann_whitney(positive, negative, chunk_pairs=0)
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        mann_whitney(positive[:2], negative)
    with pytest.raises(ValueError, match="broadcast"):
        mann_whitney(positive, negative, torch.zeros(5))
    with pytest.raises(ValueError, match="broadcast"):
        mann_whitney(positive, negative, None, torch.zeros(5, dtype=torch.bool))
    with pytest.raises(TypeError, match="floating-point"):
        mann_whitney(positive.long(), negative)
