"""Debiased and hardness-weighted contrastive losses: their limits, and what they are without bias for."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from steelyard.losses import sampled_softmax
from steelyard.losses.debiased import debiased_contrastive, diht, hard_contrastive, hasa
from tests.statistical import assert_unbiased

T = 0.5
CLOSE = {"atol": 1e-11, "rtol": 1e-11}


def cosines(*shape: int, seed: int = 0) -> Tensor:
    """Skewed similarities in [-1, 1]."""
    g = torch.Generator().manual_seed(seed)
    return torch.tanh(torch.randn(*shape, generator=g, dtype=torch.float64) + 0.4)


def plain(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor,
    mask: Tensor,
    samples: Tensor,
    tau: float,
    beta: float,
    odds: Tensor | None = None,
    least: float = -1.0,
) -> list[float]:
    """The formulas of the module, query by query and candidate by candidate."""
    losses = []
    for b in range(len(positive)):
        kept = [k for k in range(negative.shape[1]) if not mask[b, k]]
        e = {k: math.exp(negative[b, k] / T) for k in kept}
        stands = {k: math.exp(-log_expected[b, k]) for k in kept}
        w = {k: e[k] ** beta * stands[k] for k in kept}
        mean = sum(w[k] * e[k] for k in kept) / sum(w.values())
        if odds is None:
            p = [math.exp(s / T) for s in samples[b]]
            false = sum(x ** (1 + beta) for x in p) / sum(x**beta for x in p)
        else:
            false = sum(w[k] * odds[b, k] * e[k] for k in kept) / sum(w[k] * odds[b, k] for k in kept)
        g = mean if tau == 0 else max((mean - tau * false) / (1 - tau), math.exp(least / T))
        e_p = math.exp(positive[b] / T)
        losses.append(-math.log(e_p / (e_p + sum(stands.values()) * float(g))))
    return losses


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    log_expected = torch.randn(4, 6, generator=g, dtype=torch.float64)
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, 0] = mask[1, 2] = mask[1, 3] = True
    return cosines(4, seed=1), cosines(4, 6, seed=2), log_expected, mask


@pytest.mark.parametrize("tau", [0.0, 0.1, 0.4, 0.9])
@pytest.mark.parametrize("beta", [0.0, 0.7, 3.0])
def test_it_equals_a_plain_loop(tau: float, beta: float) -> None:
    positive, negative, log_expected, mask = case()
    samples = cosines(4, 3, seed=5)
    got = hard_contrastive(
        positive,
        negative,
        log_expected,
        mask,
        temperature=T,
        beta=beta,
        tau_plus=tau,
        positive_samples=samples,
        reduction="none",
    )
    assert got.tolist() == pytest.approx(
        plain(positive, negative, log_expected, mask, samples, tau, beta), abs=1e-11
    )


def test_the_authors_defaults_equal_a_plain_loop_over_one_positive_sample() -> None:
    positive, negative, _, _ = case()
    nothing = torch.zeros(4, 6, dtype=torch.float64)
    got = debiased_contrastive(positive, negative, temperature=T, reduction="none")
    want = plain(positive, negative, nothing, nothing.bool(), positive[:, None], 0.1, 0.0)
    assert got.tolist() == pytest.approx(want, abs=1e-11)
    got = hard_contrastive(positive, negative, temperature=T, reduction="none")
    want = plain(positive, negative, nothing, nothing.bool(), positive[:, None], 0.1, 1.0)
    assert got.tolist() == pytest.approx(want, abs=1e-11)


def test_without_false_negatives_and_hardness_it_is_the_sampled_softmax() -> None:
    positive, negative, log_expected, mask = case()
    want = sampled_softmax(positive / T, negative / T, log_expected, mask, reduction="none")
    got = debiased_contrastive(
        positive, negative, log_expected, mask, temperature=T, tau_plus=0.0, reduction="none"
    )
    torch.testing.assert_close(got, want, **CLOSE)
    got = hasa(
        positive,
        negative,
        torch.zeros(6),
        log_expected,
        mask,
        temperature=T,
        tau=0.0,
        beta=0.0,
        reduction="none",
    )
    torch.testing.assert_close(got, want, **CLOSE)
    square = cosines(5, 5, seed=9)
    rows = torch.nn.functional.cross_entropy(square / T, torch.arange(5), reduction="none")
    columns = torch.nn.functional.cross_entropy(square.T / T, torch.arange(5), reduction="none")
    got = diht(square, temperature=T, beta=0.0, reduction="none")
    torch.testing.assert_close(got, (rows + columns) / 2, **CLOSE)


def test_before_the_floor_the_negative_term_is_unbiased_for_the_mean_over_true_negatives() -> None:
    tau, runs, k, m = 0.3, 20_000, 12, 8
    g = torch.Generator().manual_seed(0)
    own, other = cosines(40, seed=6), cosines(60, seed=7) - 0.2  # every item of the two classes, by score
    is_own = torch.rand(runs, k, generator=g) < tau
    drawn_own = own[torch.randint(40, (runs, k), generator=g)]
    drawn_other = other[torch.randint(60, (runs, k), generator=g)]
    negative = torch.where(is_own, drawn_own, drawn_other)
    samples = own[torch.randint(40, (runs, m), generator=g)]
    positive = torch.zeros(runs, dtype=torch.float64)

    def term(tau_plus: float) -> Tensor:
        loss = debiased_contrastive(
            positive,
            negative,
            temperature=4.0,
            tau_plus=tau_plus,
            positive_samples=samples,
            min_score=-math.inf,
            reduction="none",
        )
        return loss.expm1() / k  # g, since the positive's term is 1

    truth = (other / 4).exp().mean()
    assert float(term(tau).min()) > 0.1  # so that the floor at 0 never came in
    assert_unbiased(term(tau), truth)
    with pytest.raises(AssertionError):
        assert_unbiased(term(0.0), truth)


def test_draws_with_known_counts_give_the_same_negative_term_as_everything() -> None:
    score, runs, k = cosines(50, seed=8), 20_000, 20
    q = 1 / torch.arange(1, 51, dtype=torch.float64)
    q /= q.sum()
    ids = torch.multinomial(q, runs * k, replacement=True, generator=torch.Generator().manual_seed(1))
    ids = ids.view(runs, k)
    positive = torch.zeros(runs, dtype=torch.float64)
    settings = {"temperature": T, "tau_plus": 0.2, "min_score": -math.inf}
    # S - tau N e_+ is linear in the draws, both being Horvitz-Thompson sums, so N g is unbiased
    got = debiased_contrastive(
        positive,
        score[ids],
        (k * q[ids]).log(),
        **settings,  # type: ignore[arg-type]
        positive_samples=torch.full((runs, 1), -0.9, dtype=torch.float64),
        reduction="none",
    ).expm1()
    whole = debiased_contrastive(
        positive[0],
        score,
        **settings,  # type: ignore[arg-type]
        positive_samples=torch.tensor([-0.9], dtype=torch.float64),
    ).expm1()
    assert float(got.min()) > 0
    assert_unbiased(got, whole)


def test_the_floor_is_taken_only_below_the_lowest_a_term_can_be() -> None:
    negative = torch.full((1, 3), 0.1, dtype=torch.float64)
    high, low = torch.tensor([0.9], dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64)
    floored = debiased_contrastive(high, negative, temperature=T, tau_plus=0.5)
    want = math.log1p(3 * math.exp(-1 / T) / math.exp(0.9 / T))
    assert float(floored) == pytest.approx(want, abs=1e-12)
    free = debiased_contrastive(low, negative, temperature=T, tau_plus=0.5)
    mean = (math.exp(0.1 / T) - 0.5 * math.exp(-0.5 / T)) / 0.5
    assert mean > math.exp(-1 / T)
    assert float(free) == pytest.approx(math.log1p(3 * mean / math.exp(-0.5 / T)), abs=1e-12)
    unbounded = debiased_contrastive(high, negative, temperature=T, tau_plus=0.5, min_score=-math.inf)
    assert float(unbounded) == 0


def test_a_large_beta_leaves_the_hardest_negative_alone() -> None:
    positive, negative, _, mask = case()
    got = hard_contrastive(
        positive, negative, None, mask, temperature=T, beta=1e6, tau_plus=0.0, reduction="none"
    )
    hardest = negative.masked_fill(mask, -math.inf).amax(-1)
    n = (~mask).sum(-1)
    torch.testing.assert_close(got, torch.log1p(n * ((hardest - positive) / T).exp()), **CLOSE)
    matrix = cosines(5, 5, seed=10)
    got = diht(matrix, temperature=T, beta=1e6, reduction="none")
    off = matrix.masked_fill(torch.eye(5, dtype=torch.bool), -math.inf)
    want = sum(torch.log1p(4 * ((off.amax(d) - matrix.diagonal()) / T).exp()) / 2 for d in (0, 1))
    torch.testing.assert_close(got, want, **CLOSE)


def test_the_loss_rises_with_hardness_and_falls_with_the_share_of_false_negatives() -> None:
    positive, negative, _, _ = case()
    by_beta = [
        float(hard_contrastive(positive, negative, temperature=T, beta=b, tau_plus=0.0))
        for b in (0.0, 0.5, 1.0, 4.0)
    ]
    assert by_beta == sorted(by_beta)
    assert len(set(by_beta)) == 4
    easy = torch.full((4,), 0.9, dtype=torch.float64)
    by_tau = [
        float(debiased_contrastive(easy, negative, temperature=T, tau_plus=x)) for x in (0.0, 0.05, 0.1, 0.2)
    ]
    assert by_tau == sorted(by_tau, reverse=True)
    assert len(set(by_tau)) == 4


def test_a_share_of_false_negatives_may_differ_by_query() -> None:
    positive, negative, log_expected, mask = case()
    shares = torch.tensor([0.0, 0.1, 0.3, 0.0], dtype=torch.float64)
    got = debiased_contrastive(
        positive, negative, log_expected, mask, temperature=T, tau_plus=shares, reduction="none"
    )
    for b in range(4):
        want = debiased_contrastive(
            positive[b], negative[b], log_expected[b], mask[b], temperature=T, tau_plus=float(shares[b])
        )
        torch.testing.assert_close(got[b], want, **CLOSE)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_two_directions_of_diht_equal_plain_loops(alpha: float) -> None:
    score, n, beta = cosines(4, 4, seed=11), 4, 0.6
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[0, 2] = mask[3, 1] = True
    want = []
    for i in range(n):
        both = 0.0
        for line, dropped in ((score[i], mask[i]), (score[:, i], mask[:, i])):
            others = [j for j in range(n) if j != i and not dropped[j]]
            total = sum(math.exp(beta * line[j] / T) for j in others)
            w = {j: len(others) * math.exp(beta * line[j] / T) / total for j in others}
            assert sum(w.values()) / len(w) == pytest.approx(1)
            e = math.exp(line[i] / T)
            both -= math.log(e / (alpha * e + sum(w[j] * math.exp(line[j] / T) for j in others)))
        want.append(both / 2)
    got = diht(score, mask, temperature=T, alpha=alpha, beta=beta, reduction="none")
    assert got.tolist() == pytest.approx(want, abs=1e-11)
    turned = diht(score.T, mask.T, temperature=T, alpha=alpha, beta=beta, reduction="none")
    torch.testing.assert_close(turned, got, **CLOSE)


@pytest.mark.parametrize("beta", [0.0, 1.5])
def test_hasa_equals_a_plain_loop(beta: float) -> None:
    positive, negative, log_expected, mask = case()
    odds = torch.tensor([1.0, 0.0, 0.5, 0.0, 2.0, 0.1], dtype=torch.float64).expand(4, 6)
    got = hasa(
        positive,
        negative,
        odds.log(),
        log_expected,
        mask,
        temperature=T,
        tau=0.2,
        beta=beta,
        reduction="none",
    )
    want = plain(positive, negative, log_expected, mask, negative, 0.2, beta, odds)
    assert got.tolist() == pytest.approx(want, abs=1e-11)


def test_with_the_right_odds_hasa_averages_over_the_true_negatives() -> None:
    negative, positive = cosines(1, 10, seed=12), torch.zeros(1, dtype=torch.float64)
    false = torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0, 1, 0]], dtype=torch.bool)
    got = hasa(positive, negative, false.double().log(), temperature=T, tau=0.3, beta=0.0)
    want = sampled_softmax(
        positive, negative[~false][None] / T, torch.full((7,), math.log(0.7), dtype=torch.float64)
    )
    torch.testing.assert_close(got, want, **CLOSE)  # 7 true negatives stand for 10


def test_hasa_pushes_a_removed_triple_less_than_a_false_one_of_the_same_score() -> None:
    score = torch.tensor([[0.6, 0.6, 0.1, -0.3, 0.2]], dtype=torch.float64, requires_grad=True)
    positive = torch.tensor([0.7], dtype=torch.float64)
    hops = torch.tensor([[2, 4, 3, 4, 4]])  # the first is a fact taken out of the graph
    odds = torch.where(hops == 2, 0.0, -torch.inf).double()
    with_odds, without = (
        torch.autograd.grad(hasa(positive, score, odds, temperature=T, tau=tau, beta=0.5), score)[0][0]
        for tau in (0.2, 0.0)
    )
    assert float(with_odds[0]) < float(with_odds[1]) / 2
    assert float(with_odds[0]) < float(without[0]) / 2
    assert float(without[0]) == pytest.approx(float(without[1]))


def test_where_no_candidate_is_likely_true_hasa_takes_nothing_off() -> None:
    positive, negative, _, _ = case()
    none = torch.full((4, 6), -math.inf, dtype=torch.float64)
    got = hasa(positive, negative, none, temperature=T, tau=0.3)
    torch.testing.assert_close(
        got, hard_contrastive(positive, negative, temperature=T, tau_plus=0.0), **CLOSE
    )


Loss = Callable[..., Tensor]


@pytest.mark.parametrize("min_score", [-1.0, 0.4])
@pytest.mark.parametrize("beta", [0.0, 1.3])
def test_gradients_agree_with_finite_differences_on_both_sides_of_the_floor(
    beta: float, min_score: float
) -> None:
    positive, negative, log_expected, mask = case()
    temperature = torch.tensor(T, dtype=torch.float64, requires_grad=True)
    odds = torch.tensor([0.0, -1.0, -math.inf, -2.0, -0.5, -math.inf], dtype=torch.float64)

    def hard(p: Tensor, n: Tensor, t: Tensor) -> Tensor:
        return hard_contrastive(
            p, n, log_expected, mask, temperature=t, beta=beta, tau_plus=0.15, min_score=min_score
        )

    def structured(p: Tensor, n: Tensor, t: Tensor) -> Tensor:
        return hasa(p, n, odds, log_expected, mask, temperature=t, tau=0.15, beta=beta, min_score=min_score)

    inputs = (positive.requires_grad_(), negative.requires_grad_(), temperature)
    assert torch.autograd.gradcheck(hard, inputs)
    assert torch.autograd.gradcheck(structured, inputs)
    matrix = cosines(4, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, t: diht(s, temperature=t, beta=beta), (matrix, temperature))


LOSSES: list[Loss] = [
    partial(debiased_contrastive, temperature=0.07),
    partial(hard_contrastive, temperature=0.07, beta=2.0),
    lambda p, n, e=None, m=None, **kw: hasa(
        p, n, torch.zeros(n.shape[-1]), e, m, temperature=0.07, tau=0.1, **kw
    ),
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(loss: Loss, dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4, 1.0], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4], [1, 1, 1]], dtype=dtype, requires_grad=True)
    value = loss(positive, negative)
    value.backward()
    assert value.isfinite()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_query_without_candidates_has_loss_zero_and_no_gradient(loss: Loss) -> None:
    positive = torch.tensor([0.5, 0.5], requires_grad=True)
    negative = torch.randn(2, 3, requires_grad=True)
    empty = torch.tensor([0.0, 0.0, math.inf])  # an empty slot has an infinite expected count
    mask = torch.tensor([[True, True, False], [True, True, True]])
    value = loss(positive, negative, empty, mask, reduction="none")
    assert value.tolist() == [0, 0]
    value.sum().backward()
    assert positive.grad.tolist() == [0, 0]
    assert negative.grad.abs().sum() == 0
    assert loss(torch.zeros(2), torch.zeros(2, 0), reduction="none").tolist() == [0, 0]


def test_many_positives_of_a_query_share_its_candidates() -> None:
    positive = cosines(4, 3, seed=13)
    _, negative, log_expected, mask = case()
    shared = [x[:, None].expand(4, 3, 6) for x in (negative, log_expected, mask)]
    got = hard_contrastive(positive, *shared, temperature=T, reduction="none")
    for m in range(3):
        want = hard_contrastive(positive[:, m], negative, log_expected, mask, temperature=T, reduction="none")
        torch.testing.assert_close(got[:, m], want, **CLOSE)


def test_a_score_that_is_left_out_may_be_anything() -> None:
    negative = torch.tensor([[0.3, math.nan, math.inf]], requires_grad=True)
    mask = torch.tensor([[False, True, True]])
    value = hard_contrastive(torch.tensor([0.5]), negative, None, mask, temperature=T)
    value.backward()
    torch.testing.assert_close(
        value, hard_contrastive(torch.tensor([0.5]), torch.tensor([[0.3]]), temperature=T)
    )
    assert negative.grad[0, 1:].tolist() == [0, 0]


def test_what_does_not_fit_is_refused() -> None:
    positive, negative = torch.zeros(3), torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        debiased_contrastive(positive, torch.zeros(2, 4), temperature=T)
    with pytest.raises(ValueError, match="log_expected"):
        debiased_contrastive(positive, negative, torch.zeros(5), temperature=T)
    with pytest.raises(ValueError, match="temperature"):
        debiased_contrastive(positive, negative, temperature=0.0)
    with pytest.raises(ValueError, match="beta"):
        hard_contrastive(positive, negative, temperature=T, beta=-1.0)
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        debiased_contrastive(positive, negative, temperature=T, tau_plus=1.0)
    with pytest.raises(ValueError, match="positive_samples"):
        debiased_contrastive(positive, negative, temperature=T, positive_samples=torch.zeros(3, 0))
    with pytest.raises(ValueError, match="log_odds"):
        hasa(positive, negative, torch.zeros(2, 3, 4), temperature=T, tau=0.1)
    with pytest.raises(ValueError, match=r"\(B, B\)"):
        diht(negative, temperature=T)
    with pytest.raises(ValueError, match="alpha"):
        diht(torch.zeros(1, 1), temperature=T, alpha=0.0)
    with pytest.raises(ValueError, match="reduction"):
        debiased_contrastive(positive, negative, temperature=T, reduction="avg")  # type: ignore[arg-type]


def test_a_score_that_is_none_is_not_hidden_by_the_floor() -> None:
    for loss in (debiased_contrastive, hard_contrastive):
        value = loss(torch.ones(2), torch.full((2, 3), math.nan), temperature=0.1)
        assert bool(value.isnan())
        negative = torch.tensor([[-math.inf, -math.inf], [0.2, -math.inf]]).requires_grad_()
        value = loss(torch.ones(2), negative, temperature=0.1)
        (gradient,) = torch.autograd.grad(value, negative)
        assert bool(gradient.isfinite().all())
        masked = torch.tensor([[True, True], [False, True]])
        same = loss(torch.ones(2), torch.tensor([[0.0, 0.0], [0.2, 0.0]]), mask=masked, temperature=0.1)
        torch.testing.assert_close(value, same)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_samples_of_no_weight_leave_a_finite_gradient(beta: float) -> None:
    positive, negative = torch.tensor([0.5, 0.2]), torch.tensor([[0.1, 0.3], [0.2, 0.1]])
    samples = torch.tensor([[-math.inf, -math.inf], [0.1, 0.2]], requires_grad=True)
    loss = hard_contrastive(positive, negative, temperature=0.5, beta=beta, positive_samples=samples)
    loss.backward()
    assert bool(samples.grad.isfinite().all())
    none = hard_contrastive(
        positive, negative, temperature=0.5, beta=beta, positive_samples=samples, tau_plus=0.1
    )
    # nothing is taken off the first query's mean, which is then divided by 1 - tau_plus
    e, weight = (negative[0] / 0.5).exp(), (beta * negative[0] / 0.5).softmax(0)
    g = 2 * float((weight * e).sum()) / 0.9
    first = math.log1p(g / math.exp(1.0))
    each = hard_contrastive(
        positive, negative, temperature=0.5, beta=beta, positive_samples=samples, reduction="none"
    )
    assert float(each[0].detach()) == pytest.approx(first, rel=1e-5)
    assert float(none) == pytest.approx(float(each.mean()))
