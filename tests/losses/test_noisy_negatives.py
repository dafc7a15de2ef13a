"""Losses for negatives that may be unlabelled positives."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from steelyard.losses import sampled_softmax
from steelyard.losses.noisy_negatives import (
    FalseNegativeHead,
    cluster_log_weight,
    false_negative_weighted,
    nbpo,
    weighted_info_nce,
)
from tests.losses.minimising import fit
from tests.statistical import assert_unbiased

CLOSE = {"atol": 1e-11, "rtol": 1e-11}
NEVER = -math.inf


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = mask[2, 4] = True
    return normal(3, seed=1), normal(3, 5, seed=2, scale=3), normal(5, seed=3), mask


def test_a_weighted_sum_equals_a_plain_loop() -> None:
    positive, negative, log_expected, mask = case()
    weight, v = torch.tensor([0.0, 1.0, 0.3, 2.0, 0.7], dtype=torch.float64), 0.4
    got = weighted_info_nce(
        positive,
        negative,
        weight.log(),
        log_expected,
        mask,
        positive_log_weight=math.log(v),
        reduction="none",
    )
    for b in range(3):
        z = v * math.exp(positive[b])
        for k in range(5):
            if not mask[b, k]:
                z += weight[k] * math.exp(negative[b, k]) / math.exp(log_expected[k])
        assert float(got[b]) == pytest.approx(math.log(z) - float(positive[b]), abs=1e-12)


def test_without_doubt_the_weighted_losses_are_the_sampled_softmax() -> None:
    positive, negative, log_expected, mask = case()
    want = sampled_softmax(positive, negative, log_expected, mask)
    got = weighted_info_nce(positive, negative, torch.zeros(()), log_expected, mask)
    torch.testing.assert_close(got, want, **CLOSE)
    got = false_negative_weighted(positive, negative, torch.tensor(NEVER), log_expected, mask)
    torch.testing.assert_close(got, want, **CLOSE)


def test_a_weight_of_zero_is_a_mask_for_the_loss_and_its_gradient() -> None:
    positive, negative, log_expected, mask = case()
    negative.requires_grad_()
    weight = (~mask).double().log()
    got = weighted_info_nce(positive, negative, weight, log_expected)
    want = sampled_softmax(positive, negative, log_expected, mask)
    torch.testing.assert_close(got, want, **CLOSE)
    sure = torch.where(mask, math.inf, NEVER)
    dropped = false_negative_weighted(positive, negative, sure, log_expected)
    for loss in (got, dropped):
        (gradient,) = torch.autograd.grad(loss, negative)
        assert gradient[mask].tolist() == [0, 0, 0]
        torch.testing.assert_close(gradient, torch.autograd.grad(want, negative, retain_graph=True)[0])


def test_a_candidates_gradient_is_its_weighted_share_of_the_denominator() -> None:
    positive, negative, _, _ = case()
    negative.requires_grad_()
    weight = torch.tensor([0.1, 1.0, 0.3, 2.0, 0.7], dtype=torch.float64)
    loss = weighted_info_nce(positive, negative, weight.log(), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, negative)
    terms = weight * negative.exp()
    torch.testing.assert_close(gradient, terms / (terms.sum(-1) + positive.exp())[:, None], **CLOSE)


def test_weighted_draws_estimate_the_weighted_sum_over_everything() -> None:
    score, runs, k = normal(30, seed=4), 20_000, 6
    weight = torch.linspace(0.05, 1, 30, dtype=torch.float64)
    q = (score * 0.5).softmax(0)
    ids = torch.multinomial(q, runs * k, replacement=True, generator=torch.Generator().manual_seed(2))
    ids = ids.view(runs, k)
    loss = weighted_info_nce(
        torch.zeros(runs, dtype=torch.float64),
        score[ids],
        weight[ids].log(),
        (k * q[ids]).log(),
        reduction="none",
    )
    assert_unbiased(loss.expm1(), (weight * score.exp()).sum())


def test_cluster_weights_count_the_clusterings_that_tell_two_apart() -> None:
    anchor = torch.tensor([[0, 1, 2], [0, 0, 1]])
    got = cluster_log_weight(anchor, anchor).exp()
    assert got.tolist() == [[0, 0.5, 1], [0.5, 0, 1], [1, 1, 0]]
    assert cluster_log_weight(anchor, torch.zeros(2, 0, dtype=torch.int64)).shape == (3, 0)


def test_planted_clusters_are_pushed_apart_less_under_cluster_weights() -> None:
    label = torch.arange(12) % 3
    centre = torch.nn.functional.one_hot(label, 3).double()
    x = torch.nn.functional.normalize(centre + normal(12, 3, seed=5, scale=0.2), dim=-1)
    score = (x @ x.T / 0.5).requires_grad_()
    same = (label[:, None] == label) & ~torch.eye(12, dtype=torch.bool)
    noisy = label.clone()
    noisy[:2] = 2  # a clustering with mistakes
    weight = cluster_log_weight(torch.stack([label, noisy]), torch.stack([label, noisy]))
    itself = torch.eye(12, dtype=torch.bool)
    pushes = []
    for log_weight in (weight.double(), torch.zeros(12, 12, dtype=torch.float64)):
        loss = weighted_info_nce(score.diagonal(), score, log_weight, mask=itself)
        (gradient,) = torch.autograd.grad(loss, score)
        pushes.append(float(gradient[same].sum() / gradient[~itself].sum()))
    assert pushes[0] < pushes[1] / 2


def test_a_denominator_with_nothing_in_it_is_refused() -> None:
    with pytest.raises(ValueError, match="denominator"):
        weighted_info_nce(torch.zeros(1), torch.zeros(1, 2), torch.tensor(NEVER), positive_log_weight=NEVER)


def test_a_trained_head_finds_false_negatives_that_scores_do_not_and_finds_more_when_it_reranks() -> None:
    g = torch.Generator().manual_seed(0)

    def mined(n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates all near their query; relevant are those that share its sign on the last axis."""
        queries = torch.randn(n, 6, generator=g)
        candidates = queries[:, None] + 0.7 * torch.randn(n, 10, 6, generator=g)
        last = torch.randn(n, 10, generator=g).sign()
        candidates[..., -1] = last * queries[:, None, -1].abs()
        return queries, candidates, last == queries[:, -1:].sign()

    torch.manual_seed(0)
    head = FalseNegativeHead(6, 16)
    queries, candidates, relevant = mined(300)
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(head(queries, candidates), relevant.float()).backward()
        optimizer.step()
    queries, candidates, relevant = mined(200)
    logit = head(queries, candidates).detach()
    score = torch.einsum("bd,bkd->bk", queries, candidates)

    def area(by: Tensor) -> float:
        return float((by[relevant][:, None] > by[~relevant]).double().mean())

    def recall(by: Tensor) -> float:
        return float(relevant.gather(1, by.topk(5).indices).sum() / relevant.sum())

    assert area(logit) > 0.9 > area(score) + 0.15
    assert recall(score + 10 * logit.sigmoid()) > recall(score) + 0.1
    shared = head(queries, candidates[0])
    torch.testing.assert_close(shared[3, 2], head(queries[3], candidates[0, 2:3])[0])


def test_the_odds_of_being_false_get_no_gradient() -> None:
    logit = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    positive, negative, _, _ = case()
    assert not false_negative_weighted(positive, negative, logit).requires_grad


def test_nbpo_equals_a_plain_loop_and_without_flips_the_logistic_loss() -> None:
    positive, negative, log_expected, mask = case()
    flip_p, flip_n = normal(3, seed=6), normal(3, 5, seed=7)
    got = nbpo(positive, negative, flip_p, flip_n, log_expected, mask, reduction="none")

    def sigmoid(x: float | Tensor) -> float:
        return 1 / (1 + math.exp(-x))

    for b in range(3):
        want = -math.log(sigmoid(positive[b]) * (1 - sigmoid(flip_p[b])))
        for k in range(5):
            if not mask[b, k]:
                p, gamma = sigmoid(negative[b, k]), sigmoid(flip_n[b, k])
                want -= math.log(1 - p + gamma * p) / math.exp(log_expected[k])
        assert float(got[b]) == pytest.approx(want, abs=1e-11)
    plain = -logsigmoid(positive) - logsigmoid(-negative).sum(-1)
    torch.testing.assert_close(nbpo(positive, negative, NEVER, NEVER, reduction="none"), plain, **CLOSE)


def test_nbpo_pushes_high_scores_on_unlabelled_items_less_the_likelier_a_lost_label_is() -> None:
    score = torch.tensor([[4.0, 4.0, 4.0, -2.0]], dtype=torch.float64, requires_grad=True)
    flip = torch.tensor([[NEVER, -3.0, 0.0, 0.0]])
    (push,) = torch.autograd.grad(nbpo(torch.zeros(1).double(), score, 0.0, flip), score)
    assert float(push[0, 0]) > 3 * float(push[0, 1]) > 9 * float(push[0, 2])
    gentle = torch.linspace(-6, 12, 40, dtype=torch.float64).requires_grad_()
    (push,) = torch.autograd.grad(nbpo(torch.zeros(1).double(), gentle[None], 0.0, -2.0), gentle)
    assert int(push.argmax()) < 30  # rises, then falls again towards 0, unlike the logistic loss
    assert float(push[-1]) < float(push.max()) / 50


@pytest.mark.parametrize("learned", [False, True])
def test_with_lost_labels_nbpo_recovers_the_preference_and_bpr_and_the_logistic_loss_do_not(
    learned: bool,
) -> None:
    x = normal(80, 3, seed=8)
    truth = torch.tensor([1.5, -1.0, 0.5], dtype=torch.float64)
    # known chances of losing a label may hang on the features; an unknown one is the same for all
    flip = torch.full((80,), 0.4, dtype=torch.float64) if learned else x[:, 1] * 1.5
    p_label = (x @ truth).sigmoid() * (-flip).sigmoid()
    none = torch.zeros(80, 0, dtype=torch.float64)

    def expected(w: Tensor, gamma: Tensor) -> Tensor:
        """The loss over all labels that may come, each with its probability."""
        s = x @ w
        labelled = nbpo(s, none, gamma, gamma[:, None][:, :0], reduction="none")
        both = nbpo(s, s[:, None], gamma, gamma[:, None], -torch.log1p(-p_label)[:, None], reduction="none")
        return (p_label * labelled + both - labelled).sum()

    def bpr(w: Tensor) -> Tensor:
        s = x @ w
        return -(p_label[:, None] * (1 - p_label) * logsigmoid(s[:, None] - s)).sum()

    robust, plain, pair = (torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    level = torch.zeros((), dtype=torch.float64, requires_grad=True)
    if learned:
        fit([robust, level], lambda: expected(robust, level.expand(80)))
        assert float(level.detach()) == pytest.approx(0.4, abs=1e-3)
    else:
        fit([robust], lambda: expected(robust, flip))
    fit([plain], lambda: expected(plain, torch.full((80,), NEVER, dtype=torch.float64)))
    fit([pair], lambda: bpr(pair))
    torch.testing.assert_close(robust.detach(), truth, atol=1e-3, rtol=0)
    assert float((plain - truth).detach().norm()) > 0.3
    assert float((pair - truth).detach().norm()) > 0.3


def test_gradients_agree_with_finite_differences() -> None:
    positive, negative, log_expected, mask = case()
    weight = normal(3, 5, seed=9)
    weight[1, 1] = NEVER
    flips = normal(3, seed=10), normal(3, 5, seed=11)
    for x in (positive, negative, *flips):
        x.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda p, n: weighted_info_nce(p, n, weight, log_expected, mask), (positive, negative)
    )
    assert torch.autograd.gradcheck(
        lambda w: weighted_info_nce(positive, negative, w, log_expected, mask), flips[1]
    )
    assert torch.autograd.gradcheck(lambda *x: nbpo(*x, log_expected, mask), (positive, negative, *flips))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
    odds = torch.tensor([0.0, -200.0, 200.0], dtype=dtype)
    for loss in (
        false_negative_weighted(positive, negative, odds),
        nbpo(positive, negative, -1.0, odds),
        nbpo(positive, negative, NEVER, NEVER),
    ):
        assert loss.isfinite()
        for gradient in torch.autograd.grad(loss, (positive, negative)):
            assert gradient.isfinite().all()


def test_no_candidates_and_empty_slots() -> None:
    positive, nothing = torch.zeros(2), torch.zeros(2, 0)
    assert false_negative_weighted(positive, nothing, torch.zeros(0), reduction="none").tolist() == [0, 0]
    assert float(nbpo(positive, nothing, NEVER, NEVER)) == pytest.approx(math.log(2))
    slots = torch.tensor([0.0, math.inf])
    got = nbpo(positive, torch.zeros(2, 2), NEVER, NEVER, slots)
    assert float(got) == pytest.approx(2 * math.log(2))
    got = weighted_info_nce(positive, torch.zeros(2, 2), torch.zeros(2), slots)
    assert float(got) == pytest.approx(math.log(2))


def test_what_does_not_fit_is_refused() -> None:
    positive, negative = torch.zeros(3), torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        weighted_info_nce(positive, torch.zeros(2, 4), torch.zeros(4))
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        nbpo(positive, torch.zeros(2, 4), 0.0, 0.0)
    with pytest.raises(ValueError, match="log_weight"):
        weighted_info_nce(positive, negative, torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="negative_flip"):
        nbpo(positive, negative, 0.0, torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="log_expected"):
        nbpo(positive, negative, 0.0, 0.0, torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="M > 0"):
        cluster_log_weight(torch.zeros(1, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="Sizes"):
        FalseNegativeHead(0)
    assert isinstance(FalseNegativeHead(2), nn.Module)
