"""Coupled estimation of relevance and selection under pooling bias."""

import math

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.pooling_bias import cet, mean_shares, pooling_log_weight
from tests.losses.minimising import minimise
from tests.statistical import assert_unbiased

CLOSE = {"atol": 1e-11, "rtol": 1e-11}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return normal(3, seed=1), normal(3, 4, seed=2), normal(3, seed=3), normal(3, 4, seed=4)


@pytest.mark.parametrize("relative", [False, True])
def test_it_equals_a_plain_loop(relative: bool) -> None:
    r_p, r_n, s_p, s_n = case()
    log_expected = normal(4, seed=5)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = True
    t, limit = 1.5, 2.0

    def weight(x: Tensor) -> float:
        return min(1 / (1 - 1 / (1 + math.exp(-x / t))), limit)

    got = cet(
        r_p,
        r_n,
        s_p,
        s_n,
        log_expected,
        mask,
        temperature=t,
        limit=limit,
        relative=relative,
        reduction="none",
    )
    for loss, p, n, other_p, other_n in ((got[0], r_p, r_n, s_p, s_n), (got[1], s_p, s_n, r_p, r_n)):
        for b in range(3):
            top = bottom = 0.0
            for k in range(4):
                if not mask[b, k]:
                    w = weight(other_n[b, k]) / (weight(other_p[b]) if relative else 1)
                    top += w * math.log(1 + math.exp(n[b, k] - p[b])) / math.exp(log_expected[k])
                    bottom += 1 / math.exp(log_expected[k])
            assert float(loss[b]) == pytest.approx(top / bottom, abs=1e-11)


def test_a_selection_that_is_the_same_for_all_gives_the_plain_loss() -> None:
    r_p, r_n, _, _ = case()
    same_p, same_n = torch.full_like(r_p, 0.8), torch.full_like(r_n, 0.8)
    plain = softplus(r_n - r_p[:, None]).mean()
    torch.testing.assert_close(cet(r_p, r_n, same_p, same_n, relative=True)[0], plain, **CLOSE)
    factor = 1 + math.exp(0.8 / 2)
    torch.testing.assert_close(cet(r_p, r_n, same_p, same_n)[0], factor * plain, **CLOSE)
    never = torch.full_like(r_n, -math.inf)
    torch.testing.assert_close(cet(r_p, r_n, same_p, never)[0], plain, **CLOSE)


def test_unjudged_candidates_weighed_by_the_known_selection_estimate_the_sum_over_all() -> None:
    logit = normal(30, seed=6) - 0.5
    value = normal(30, seed=7).exp()
    g = torch.Generator().manual_seed(8)
    judged = torch.rand(20_000, 30, generator=g, dtype=torch.float64) < logit.sigmoid()
    weight = pooling_log_weight(logit, temperature=1.0).exp()
    assert_unbiased((~judged * weight * value).sum(-1), value.sum())
    with pytest.raises(AssertionError):
        assert_unbiased((~judged * value).sum(-1), value.sum())


def test_with_known_selection_the_learned_ranking_is_nearer_that_of_full_labels() -> None:
    """Free scores trained on the expectation over judged pools: a document is labelled if judged and relevant."""
    g = torch.Generator().manual_seed(9)
    relevant = torch.rand(25, generator=g, dtype=torch.float64) * 0.9 + 0.05
    selected = torch.rand(25, generator=g, dtype=torch.float64) * 0.9 + 0.05
    labelled = relevant * selected

    def rank_correlation(selection: Tensor) -> float:
        others = (1 - labelled).log().neg()  # each is an unlabelled candidate with this probability

        def expected(score: Tensor) -> Tensor:
            n = score.expand(25, 25)
            loss = cet(
                score, n, selection, selection.expand(25, 25), others, temperature=1.0, reduction="none"
            )[0]
            return (labelled * loss).sum()

        score = minimise(expected, (25,))
        return float(kendalltau(score.numpy(), relevant.numpy()).statistic)

    corrected = rank_correlation(selected.logit())
    naive = rank_correlation(torch.full((25,), -math.inf, dtype=torch.float64))
    assert corrected > naive + 0.05


def test_each_loss_trains_its_own_model_alone() -> None:
    inputs = [x.requires_grad_() for x in case()]
    relevance, selection = cet(*inputs, relative=True)
    own = torch.autograd.grad(relevance, inputs, allow_unused=True, retain_graph=True)
    assert own[0] is not None
    assert own[1] is not None
    assert own[2] is None
    assert own[3] is None
    own = torch.autograd.grad(selection, inputs, allow_unused=True)
    assert own[0] is None
    assert own[1] is None
    assert own[2] is not None


def test_a_document_that_would_have_been_judged_is_the_stronger_negative() -> None:
    r_n = torch.zeros(1, 2, requires_grad=True)
    loss = cet(torch.zeros(1), r_n, torch.zeros(1), torch.tensor([[3.0, -3.0]]))[0]
    (push,) = torch.autograd.grad(loss, r_n)
    assert float(push[0, 0]) > 3 * float(push[0, 1]) > 0


def test_gradients_agree_with_finite_differences() -> None:
    r_p, r_n, s_p, s_n = case()
    r_p.requires_grad_()
    r_n.requires_grad_()
    assert torch.autograd.gradcheck(lambda p, n: cet(p, n, s_p, s_n, limit=2.0)[0], (r_p, r_n))
    assert torch.autograd.gradcheck(lambda p, n: cet(s_p, s_n, p, n, relative=True)[1], (r_p, r_n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_want_a_limit_and_are_finite_with_it(dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4], [1e4, 0]], dtype=dtype)
    with pytest.raises(ValueError, match="limit"):
        cet(positive, negative, positive, negative)
    loss = cet(positive, negative, positive.detach(), negative, limit=100.0)[0]
    loss.backward()
    assert loss.isfinite()
    assert positive.grad.isfinite().all()


def test_candidates_left_out_and_empty_slots_count_for_nothing() -> None:
    r_p, r_n, s_p, s_n = case()
    r_n[0, 0] = s_n[0, 0] = math.nan
    r_n[1, 3] = s_n[1, 3] = math.inf
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 0] = mask[1, 3] = True
    mask[2] = True
    r_n.requires_grad_()
    got = cet(r_p, r_n, s_p, s_n, torch.tensor([0.0, math.inf, 0, 0]), mask, reduction="none")[0]
    assert got.isfinite().all()
    (gradient,) = torch.autograd.grad(got.sum(), r_n, retain_graph=True)
    assert gradient[mask].abs().sum() == 0
    assert float(got[2].detach()) == 0
    assert mean_shares(r_n, None, mask).sum(-1).tolist() == pytest.approx([1, 1, 0])
    nothing = torch.zeros(3, 0, dtype=torch.float64)
    assert cet(r_p, nothing, s_p, nothing, reduction="none")[0].tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused() -> None:
    r_p, r_n, s_p, s_n = case()
    with pytest.raises(ValueError, match="same documents"):
        cet(r_p, r_n, s_p, s_n[:, :2])
    with pytest.raises(ValueError, match="log_expected"):
        cet(r_p, r_n, s_p, s_n, torch.zeros(5))
    with pytest.raises(ValueError, match="temperature"):
        cet(r_p, r_n, s_p, s_n, temperature=0.0)
    with pytest.raises(ValueError, match="limit"):
        cet(r_p, r_n, s_p, s_n, limit=0.5)
