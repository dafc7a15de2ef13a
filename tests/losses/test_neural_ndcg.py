"""NeuralNDCG: NDCG in the limit, with a useful gradient before it."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.neural_ndcg import neural_ndcg
from steelyard.losses.soft_sorting import log_soft_permutation


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    score = torch.randn(5, 7, generator=g, dtype=torch.float64) * 2
    return score, torch.randint(0, 4, (5, 7), generator=g), torch.rand(5, 7, generator=g) < 0.25


def exact_ndcg(score: Tensor, relevance: Tensor, mask: Tensor, k: int | None, linear: bool) -> float:
    kept = [j for j in range(len(score)) if not mask[j]]
    gain = [float(relevance[j]) if linear else 2 ** float(relevance[j]) - 1 for j in kept]
    by_score = sorted(range(len(kept)), key=lambda i: -float(score[kept[i]]))
    dcg = sum(gain[i] / math.log2(r + 2) for r, i in enumerate(by_score[:k]))
    return dcg / sum(g / math.log2(r + 2) for r, g in enumerate(sorted(gain, reverse=True)[:k]))


@pytest.mark.parametrize("k", [None, 1, 3])
@pytest.mark.parametrize("linear", [False, True])
def test_at_a_low_temperature_it_is_one_minus_the_exact_ndcg(k: int | None, linear: bool) -> None:
    score, relevance, mask = case()
    got = neural_ndcg(score, relevance, mask, temperature=1e-4, k=k, gain="linear" if linear else "exponential",
                      reduction="none")  # fmt: skip
    for b in range(5):
        assert float(got[b]) == pytest.approx(
            1 - exact_ndcg(score[b], relevance[b], mask[b], k, linear), abs=1e-9
        )


def test_at_any_temperature_it_is_the_dcg_of_the_softly_sorted_gains_in_both_directions() -> None:
    score, relevance, mask = case()
    p = log_soft_permutation(score, mask, temperature=1.3).exp()
    got = neural_ndcg(score, relevance, mask, temperature=1.3, k=4, reduction="none")
    for b in range(5):
        gain = [0.0 if mask[b, j] else 2.0 ** int(relevance[b, j]) - 1 for j in range(7)]
        ideal = sum(g / math.log2(r + 2) for r, g in enumerate(sorted(gain, reverse=True)[:4]))
        forth = sum(float(p[b, i, j]) * gain[j] / math.log2(i + 2) for i in range(4) for j in range(7))
        back = sum(gain[j] * sum(float(p[b, i, j]) / math.log2(i + 2) for i in range(4)) for j in range(7))
        assert float(got[b]) == pytest.approx(1 - forth / ideal, abs=1e-12)
        assert back == pytest.approx(forth, abs=1e-12)


def test_training_on_it_sorts_a_list_that_starts_in_the_wrong_order() -> None:
    relevance = torch.tensor([[0, 3, 1, 0, 2]])
    score = torch.tensor([[2.0, -1.0, 0.0, 1.0, -0.5]], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([score], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        neural_ndcg(score, relevance, temperature=2.0).backward()
        optimizer.step()
    assert float(neural_ndcg(score.detach(), relevance, temperature=1e-4)) == pytest.approx(0, abs=1e-9)


def test_gradients_agree_with_finite_differences() -> None:
    score, relevance, mask = case()
    assert torch.autograd.gradcheck(
        lambda s: neural_ndcg(s, relevance, mask, k=3, temperature=2.0, sinkhorn_steps=4),
        (score.requires_grad_(),),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e5])
def test_huge_and_tied_scores_give_finite_losses_and_gradients(
    dtype: torch.dtype, temperature: float
) -> None:
    score = torch.tensor([[1e4, -1e4, 0, 1e4], [0, 0, 0, 0]], dtype=dtype, requires_grad=True)
    value = neural_ndcg(score, torch.tensor([[0, 2, 1, 0], [0, 2, 1, 0]]), temperature=temperature)
    value.backward()
    assert value.isfinite()
    assert score.grad.isfinite().all()


def test_a_list_that_orders_nothing_has_loss_zero_and_no_gradient() -> None:
    score = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    relevance = torch.tensor([[0, 0, 0], [2, 2, 2], [0, 1, 2], [0, 1, 0]])
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[2] = True
    value = neural_ndcg(score, relevance, mask, reduction="none")
    assert value[:3].tolist() == [0, 0, 0]
    (grad,) = torch.autograd.grad(value.sum(), score)
    assert grad[:3].abs().sum() == 0
    assert grad[3].abs().sum() > 0
    assert neural_ndcg(torch.zeros(2, 0), torch.zeros(2, 0), reduction="none").tolist() == [0, 0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        neural_ndcg(torch.zeros(1, 3), torch.ones(1, 3), temperature=0.0)
    with pytest.raises(ValueError, match="k must"):
        neural_ndcg(torch.zeros(1, 3), torch.ones(1, 3), k=0)
    with pytest.raises(ValueError, match="not finite"):
        neural_ndcg(torch.tensor([[0.0, math.nan]]), torch.ones(1, 2))
    with pytest.raises(ValueError, match="at least 0"):
        neural_ndcg(torch.zeros(1, 2), torch.tensor([[-1, 1]]))


def test_counts_given_for_grades_are_refused_where_their_gain_overflows() -> None:
    with pytest.raises(ValueError, match=r"200 is too large.*linear"):
        neural_ndcg(torch.randn(1, 3), torch.tensor([[0.0, 3.0, 200.0]]))
    with pytest.raises(ValueError, match="scale them down"):
        neural_ndcg(torch.randn(1, 2), torch.tensor([[3e38, 3e38]]), gain="linear")
