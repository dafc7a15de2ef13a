"""The two losses of the game equal their sums and gradients by enumeration."""

import math

import pytest
import torch

from steelyard.negatives.schedules.ar2 import ar2_ranker_loss, ar2_retriever_loss

S = torch.tensor([[1.0, 0.3, 2.0, -1.0], [0.2, 0.1, -0.4, 3.0]], dtype=torch.float64)
R = torch.tensor([[2.0, 1.5, -0.5, 0.7], [-1.0, 0.4, 2.0, 0.3]], dtype=torch.float64)


def plain(s: torch.Tensor, r: torch.Tensor, kl_weight: float) -> float:
    """One query, the positive first, in plain loops."""
    z = sum(math.exp(v) for v in s[1:])
    adversarial = sum(
        math.exp(s[j]) / z * math.log(math.exp(r[0]) / (math.exp(r[0]) + math.exp(r[j])))
        for j in range(1, len(s))
    )
    p, q = torch.softmax(r, 0), torch.softmax(s, 0)
    return adversarial + kl_weight * sum(float(p[j]) * math.log(float(p[j] / q[j])) for j in range(len(s)))


def test_the_retriever_loss_equals_plain_loops() -> None:
    got = ar2_retriever_loss(S[:, 0], S[:, 1:], R[:, 0], R[:, 1:], kl_weight=0.7, reduction="none")
    assert got.tolist() == pytest.approx([plain(S[b], R[b], 0.7) for b in range(2)])
    mean = ar2_retriever_loss(S[:, 0], S[:, 1:], R[:, 0], R[:, 1:], kl_weight=0.7)
    assert float(mean) == pytest.approx(float(got.mean()))


def test_the_adversarial_gradient_is_the_score_function_summed_over_all_negatives() -> None:
    s = S[0].clone().requires_grad_()
    loss = ar2_retriever_loss(s[:1], s[None, 1:], R[:1, 0], R[:1, 1:], kl_weight=0.0)
    (got,) = torch.autograd.grad(loss, s)
    want = torch.zeros(4, dtype=torch.float64)
    p = torch.softmax(S[0, 1:], 0)
    for j in range(3):  # p_j reward_j times the gradient of log p_j
        reward = math.log(1 / (1 + math.exp(R[0, j + 1] - R[0, 0])))
        for i in range(3):
            want[i + 1] += p[j] * reward * (float(i == j) - p[i])
    torch.testing.assert_close(got, want)


def test_gradients_pass_finite_differences_and_none_reaches_the_ranker() -> None:
    s, r = S.clone().requires_grad_(), R.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ar2_retriever_loss(t[:, 0], t[:, 1:], R[:, 0], R[:, 1:]), (s,))
    loss = ar2_retriever_loss(s[:, 0], s[:, 1:], r[:, 0], r[:, 1:])
    assert torch.autograd.grad(loss, r, allow_unused=True) == (None,)
    loss = ar2_ranker_loss(r[:, 0], r[:, 1:], reduction="sum")
    (got,) = torch.autograd.grad(loss, r)
    want = torch.softmax(R, 1)
    want[:, 0] -= 1
    torch.testing.assert_close(got, want)


def test_a_uniform_ranker_leaves_only_the_kl_term() -> None:
    flat = torch.zeros(2, 4, dtype=torch.float64)
    gradients = []
    for kl_weight in (0.0, 1.0):
        s = S.clone().requires_grad_()
        loss = ar2_retriever_loss(s[:, 0], s[:, 1:], flat[:, 0], flat[:, 1:], kl_weight=kl_weight)
        gradients.append(torch.autograd.grad(loss, s)[0])
    torch.testing.assert_close(gradients[0], torch.zeros_like(S))
    torch.testing.assert_close(gradients[1], (torch.softmax(S, 1) - 0.25) / 2)


def test_weighed_draws_stand_for_everything_and_empty_slots_for_nothing() -> None:
    # A negative that stands for two counts as two.
    log_expected = torch.tensor([0.0, math.log(0.5), 0.0, math.inf], dtype=torch.float64)
    s = torch.cat([S, torch.full((2, 1), math.nan, dtype=torch.float64)], 1)
    r = torch.cat([R, torch.full((2, 1), 7.0, dtype=torch.float64)], 1)
    twice = [0, 1, 2, 2, 3]
    mask = torch.tensor([False, False, False, True])
    got = ar2_retriever_loss(
        s[:, 0], s[:, 1:], r[:, 0], r[:, 1:], log_expected.expand(2, 4), mask, reduction="none"
    )
    p, q = torch.softmax(R[:, twice], 1), torch.softmax(S[:, twice], 1)
    kl = (p * (p / q).log()).sum(1)
    reward = torch.nn.functional.logsigmoid(R[:, :1] - R[:, twice[1:]])
    want = kl + (torch.softmax(S[:, twice[1:]], 1) * reward).sum(1)
    torch.testing.assert_close(got, want)


def test_no_negatives_give_loss_zero_and_finite_gradients() -> None:
    s = S.clone().requires_grad_()
    mask = torch.tensor([[True, True, True], [False, True, False]])
    loss = ar2_retriever_loss(s[:, 0], s[:, 1:], R[:, 0], R[:, 1:], mask=mask, reduction="none")
    assert loss[0].item() == 0
    (gradient,) = torch.autograd.grad(loss.sum(), s)
    assert bool(gradient.isfinite().all())
    assert gradient[0].tolist() == [0] * 4
    assert gradient[1, 2] == 0
    assert ar2_retriever_loss(S[:, 0], S[:, :0], R[:, 0], R[:, :0]).item() == 0
    for bad, said in (
        (lambda: ar2_retriever_loss(S[:, 0], S[:, 1:], R[:, 0], R), "same passages"),
        (lambda: ar2_retriever_loss(S[:, 0], S[:, 1:], R[:, 0], R[:, 1:], kl_weight=-1), "kl_weight"),
        (lambda: ar2_ranker_loss(S[:, 0], S[0]), "negative must be"),
    ):
        with pytest.raises(ValueError, match=said):
            bad()


def test_the_game_makes_harder_negatives_and_raises_recall() -> None:
    # The positive has all features of the query, the negatives some: the retriever knows only the first two.
    generator = torch.Generator().manual_seed(0)
    documents = (torch.rand(200, 6, generator=generator) < 0.6).double()
    documents[0] = 1
    truth = torch.ones(6, dtype=torch.float64)
    w = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
    v = torch.zeros(6, dtype=torch.float64)

    def hardness(w: torch.Tensor) -> float:
        """Mean number of true features of the ten best negatives."""
        return float((documents[1:][(documents[1:] @ w).topk(10).indices] @ truth).mean())

    before, rank_before = hardness(w), int((documents @ w > documents[0] @ w - 1e-9).sum())
    for _ in range(200):
        top = (documents[1:] @ w).topk(20).indices + 1
        s = w.clone().requires_grad_()
        r = v.clone().requires_grad_()
        ranker = ar2_ranker_loss(documents[:1] @ r, (documents[top] @ r).unsqueeze(0))
        v = v - 0.2 * torch.autograd.grad(ranker, r)[0]
        loss = ar2_retriever_loss(
            documents[:1] @ s,
            (documents[top] @ s).unsqueeze(0),
            documents[:1] @ v,
            (documents[top] @ v).unsqueeze(0),
        )
        w = w - 0.2 * torch.autograd.grad(loss, s)[0]
    assert hardness(w) > before + 0.5
    assert int((documents @ w > documents[0] @ w - 1e-9).sum()) < rank_before / 5
