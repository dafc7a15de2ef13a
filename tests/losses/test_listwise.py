"""Listwise losses against plain loops over lists, pairs and orders."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from steelyard.losses.listwise import lambda_loss, listmle, listnet, ranknet

Loss = Callable[..., Tensor]
WEIGHTINGS = ["lambdarank", "ndcg_loss1", "ndcg_loss2", "ndcg_loss2++", "none"]
LOSSES: list[Loss] = [listnet, listmle, ranknet, *(partial(lambda_loss, weighting=w) for w in WEIGHTINGS)]


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    score = torch.randn(4, 7, generator=g, dtype=torch.float64) * 2
    relevance = torch.randint(0, 4, (4, 7), generator=g)
    return score, relevance, torch.rand(4, 7, generator=g) < 0.25


def lists(score: Tensor, relevance: Tensor, mask: Tensor) -> list[tuple[list[float], list[int]]]:
    out = []
    for s, y, m in zip(score.tolist(), relevance.tolist(), mask.tolist(), strict=True):
        kept = [i for i in range(len(m)) if not m[i]]
        out.append(([s[i] for i in kept], [y[i] for i in kept]))
    return out


def ndcg(order: list[int], y: list[int], k: int | None = None) -> float:
    dcg = lambda ys: sum((2**v - 1) / math.log2(r + 2) for r, v in enumerate(ys[:k]))  # noqa: E731
    return dcg([y[i] for i in order]) / dcg(sorted(y, reverse=True))


def test_listnet_is_the_cross_entropy_of_top_one_chances() -> None:
    got = listnet(*case(), reduction="none")
    for b, (s, y) in enumerate(lists(*case())):
        z, t = sum(map(math.exp, s)), sum(map(math.exp, y))
        want = -sum(math.exp(a) / t * math.log(math.exp(c) / z) for a, c in zip(y, s, strict=True))
        assert float(got[b]) == pytest.approx(want, abs=1e-12)


def test_listmle_without_ties_is_minus_the_log_chance_of_the_right_order() -> None:
    g = torch.Generator().manual_seed(1)
    score = torch.randn(3, 5, generator=g, dtype=torch.float64)
    relevance = torch.stack([torch.randperm(5, generator=g) for _ in range(3)])
    got = listmle(score, relevance, reduction="none")
    for b in range(3):
        left = relevance[b].argsort(descending=True).tolist()
        chance = 1.0
        while left:
            chance *= float(score[b, left].softmax(0)[0])
            left.pop(0)
        assert float(got[b]) == pytest.approx(-math.log(chance), abs=1e-12)


def test_listmle_with_one_relevant_candidate_is_the_softmax_loss_and_bounds_the_chance_of_any_right_order() -> (
    None
):
    score = torch.tensor([[0.3, -1.0, 2.0, 0.7]], dtype=torch.float64)
    one = torch.tensor([[0, 0, 1, 0]])
    torch.testing.assert_close(
        listmle(score, one), torch.nn.functional.cross_entropy(score, torch.tensor([2]))
    )
    grades = torch.tensor([2, 2, 1, 0])
    chance = 0.0  # of all orders that the grades allow
    for order in itertools.permutations(range(4)):
        if sorted(grades.tolist(), reverse=True) == grades[list(order)].tolist():
            left, p = list(order), 1.0
            while left:
                p *= float(score[0, left].softmax(0)[0])
                left.pop(0)
            chance += p
    assert float(listmle(score, grades[None])) > -math.log(chance)
    alone = torch.tensor([[1, 0, 0, 0]])  # the least grade may come in any order: exact
    assert float(listmle(score, alone)) == pytest.approx(-math.log(float(score[0].softmax(0)[0])), abs=1e-12)


def test_ranknet_is_the_mean_logistic_loss_of_the_ordered_pairs() -> None:
    got = ranknet(*case(), sigma=1.5, reduction="none")
    for b, (s, y) in enumerate(lists(*case())):
        n = range(len(s))
        pairs = [math.log(1 + math.exp(-1.5 * (s[i] - s[j]))) for i in n for j in n if y[i] > y[j]]
        assert float(got[b]) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def plain_lambda(s: list[float], y: list[int], weighting: str, k: int | None, mu: float) -> float:
    order = sorted(range(len(s)), key=lambda i: -s[i])
    rank = {i: order.index(i) + 1 for i in order}
    cut = k or len(s)
    best = sum((2**v - 1) / math.log2(r + 2) for r, v in enumerate(sorted(y, reverse=True)[:cut]))
    gain = [(2**v - 1) / best for v in y]
    d = lambda r: math.log2(1 + r)  # noqa: E731
    total = 0.0
    for i in order:
        for j in order:
            if i == j or rank[i] > cut or rank[j] > cut:
                continue
            if y[i] <= y[j] and weighting != "ndcg_loss1":
                continue
            far = abs(rank[i] - rank[j])
            swap = abs(gain[i] - gain[j]) * abs(1 / d(rank[i]) - 1 / d(rank[j]))
            two = abs(gain[i] - gain[j]) * abs(1 / d(far) - 1 / d(far + 1))
            w = {"lambdarank": swap, "ndcg_loss2": two, "ndcg_loss2++": swap + mu * two, "none": 1.0}
            w["ndcg_loss1"] = gain[i] / d(rank[i])
            total += w[weighting] * math.log2(1 + math.exp(-(s[i] - s[j])))
    return total


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("k", [None, 3])
def test_lambda_loss_equals_the_plainest_loop(weighting: str, k: int | None) -> None:
    got = lambda_loss(*case(), weighting=weighting, k=k, mu=5.0, reduction="none")  # type: ignore[arg-type]
    for b, (s, y) in enumerate(lists(*case())):
        assert float(got[b]) == pytest.approx(plain_lambda(s, y, weighting, k, 5.0), abs=1e-12)


def test_lambdarank_weighs_a_pair_by_the_ndcg_that_swapping_it_would_cost() -> None:
    score = torch.tensor([[0.3, -1.0, 2.0, 0.7]], dtype=torch.float64, requires_grad=True)
    y = [3, 1, 0, 2]
    order = score[0].argsort(descending=True).tolist()
    want = [0.0] * 4
    for a, b in itertools.combinations(range(4), 2):
        swapped = list(order)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        i, j = (order[a], order[b]) if y[order[a]] > y[order[b]] else (order[b], order[a])
        change = abs(ndcg(swapped, y) - ndcg(order, y))
        pull = change / (1 + math.exp((score[0, i] - score[0, j]).item())) / math.log(2)
        want[i] -= pull
        want[j] += pull
    (grad,) = torch.autograd.grad(lambda_loss(score, torch.tensor([y]), weighting="lambdarank"), score)
    assert grad[0].tolist() == pytest.approx(want, abs=1e-12)


def test_training_on_lambda_loss_puts_the_most_relevant_candidate_first() -> None:
    score = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    relevance = torch.tensor([[0, 3, 1, 0, 2, 0]])
    for _ in range(50):
        (grad,) = torch.autograd.grad(lambda_loss(score, relevance), score)
        score = (score - 0.3 * grad).detach().requires_grad_()
    assert ndcg(score[0].argsort(descending=True).tolist(), relevance[0].tolist()) == pytest.approx(1.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_list_that_orders_nothing_has_loss_zero_and_no_gradient(loss: Loss) -> None:
    g = torch.Generator().manual_seed(2)
    score = torch.randn(5, 4, generator=g).requires_grad_()
    relevance = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 2, 0], [5, 1, 1, 0], [0, 0, 1, 1]])
    mask = torch.zeros(5, 4, dtype=torch.bool)
    mask[2] = True  # nothing left
    mask[3] = torch.tensor([True, False, False, True])  # the rest is equal
    value = loss(score, relevance, mask, reduction="none")
    assert value[:4].tolist() == [0, 0, 0, 0]
    assert float(value[4].detach()) > 0
    (grad,) = torch.autograd.grad(value.sum(), score)
    assert grad[:4].abs().sum() == 0
    assert grad[4].abs().sum() > 0
    assert loss(torch.zeros(2, 0), torch.zeros(2, 0), reduction="none").tolist() == [0, 0]
    assert loss(torch.zeros(2, 1), torch.ones(2, 1), reduction="none").tolist() == [0, 0]


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_and_the_order_of_the_list_change_nothing(loss: Loss) -> None:
    score, relevance, mask = case()
    want = loss(score, relevance, mask, reduction="none")
    junk = torch.full((4, 3), math.nan, dtype=torch.float64)
    longer = (
        torch.cat([junk, score], 1).requires_grad_(),
        torch.cat([torch.full((4, 3), 99), relevance], 1),
        torch.cat([torch.ones(4, 3, dtype=torch.bool), mask], 1),
    )
    got = loss(*longer, reduction="none")
    torch.testing.assert_close(got, want)
    (grad,) = torch.autograd.grad(got.sum(), longer[0])
    assert grad[:, :3].abs().sum() == 0
    assert grad.isfinite().all()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        loss(score[:, order], relevance[:, order], mask[:, order], reduction="none"), want
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_agree_with_finite_differences(loss: Loss) -> None:
    score, relevance, mask = case()
    assert torch.autograd.gradcheck(lambda s: loss(s, relevance, mask), (score.requires_grad_(),))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_and_tied_scores_give_finite_losses_and_gradients(loss: Loss, dtype: torch.dtype) -> None:
    score = torch.tensor([[1e4, -1e4, 0, 1e4], [0, 0, 0, 0]], dtype=dtype, requires_grad=True)
    value = loss(score, torch.tensor([[0, 2, 1, 0], [0, 2, 1, 0]]))
    value.backward()
    assert value.isfinite()
    assert score.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_what_does_not_fit_is_refused(loss: Loss) -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., N\)"):
        loss(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="broadcast"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="not finite"):
        loss(torch.tensor([[0.0, -math.inf]]), torch.zeros(1, 2))
    with pytest.raises(TypeError, match="floating point"):
        loss(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))
    with pytest.raises(TypeError, match="bool"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="reduction"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3), reduction="avg")
    with pytest.raises(ValueError, match="no query"):
        loss(torch.zeros(0, 3), torch.zeros(0, 3))


def test_options_out_of_range_are_refused() -> None:
    lists_ = (torch.zeros(1, 2), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="sigma"):
        ranknet(*lists_, sigma=0.0)
    with pytest.raises(ValueError, match="weighting"):
        lambda_loss(*lists_, weighting="ndcg")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gain"):
        lambda_loss(*lists_, gain="square")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must"):
        lambda_loss(*lists_, k=0)
    with pytest.raises(ValueError, match="mu"):
        lambda_loss(*lists_, mu=-1.0)
    with pytest.raises(ValueError, match="at least 0"):
        lambda_loss(lists_[0], torch.tensor([[-1, 1]]))


@pytest.mark.parametrize("weighting", ["lambdarank", "ndcg_loss1", "ndcg_loss2", "ndcg_loss2++"])
def test_counts_given_for_grades_are_refused_where_their_gain_overflows(weighting: str) -> None:
    score, clicks = torch.randn(1, 3, requires_grad=True), torch.tensor([[0.0, 3.0, 200.0]])
    with pytest.raises(ValueError, match=r"200 is too large.*linear"):
        lambda_loss(score, clicks, weighting=weighting)  # type: ignore[arg-type]
    loss = lambda_loss(score, clicks, weighting=weighting, gain="linear")  # type: ignore[arg-type]
    loss.backward()
    assert bool(score.grad.isfinite().all())
    masked = torch.tensor([[False, False, True]])
    assert bool(lambda_loss(score, clicks, masked, weighting=weighting).isfinite())  # type: ignore[arg-type]
