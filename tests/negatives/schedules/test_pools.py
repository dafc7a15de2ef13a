"""Draws from the lists of several retrievers know the probability of all the ways they could have come."""

import math

import pytest
import torch

from steelyard.draws import Draws
from steelyard.negatives.context import Context
from steelyard.negatives.schedules.pools import pooled_negatives
from steelyard.negatives.uniform import Uniform
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased

LISTS = [
    torch.tensor([[3, 0, 7, 5], [1, 2, 9, -1]]),
    torch.tensor([[7, 8], [-1, -1]]),
    torch.tensor([[0, 5, 6, 8], [2, 4, 1, 6]]),
]
CONTEXT = Context(torch.tensor([0, 9]), Ragged.from_pairs(torch.tensor([0, 1]), torch.tensor([3, 4]), 2))
WEIGHTS = [1.0, 2.0, 0.5]


def law(weights: list[float] = WEIGHTS) -> torch.Tensor:
    """In plain loops, (2, 10)."""
    p = torch.zeros(2, 10, dtype=torch.float64)
    wanted = [{0, 3}, {9, 4}]
    for b in range(2):
        for weight, found in zip(weights, LISTS, strict=True):
            left = [j for j in found[b].tolist() if j >= 0 and j not in wanted[b]]
            for j in left:
                p[b, j] += weight / len(left)
        p[b] /= p[b].sum()
    return p


def again(n: int) -> tuple[list[torch.Tensor], Context]:
    rows = torch.arange(2).repeat(n)
    return [found[rows] for found in LISTS], Context(CONTEXT.positives[rows], CONTEXT.known.take(rows))


def test_expected_counts_equal_plain_loops() -> None:
    draws = pooled_negatives(LISTS, CONTEXT, 5, weights=WEIGHTS)
    asked = torch.tensor([*range(10), -1, 10, 2**62])
    want = torch.cat([5 * law(), torch.zeros(2, 3)], 1)
    torch.testing.assert_close(draws.log_expected_of(asked).exp().double(), want, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    assert not bool(CONTEXT.mask(draws.ids).any())


def test_drawn_frequencies_match_the_mixture() -> None:
    lists, context = again(8000)
    generator = torch.Generator().manual_seed(0)
    draws = pooled_negatives(lists, context, 3, weights=WEIGHTS, generator=generator)
    counts = torch.zeros(16000, 10).scatter_add(1, draws.ids, torch.ones(16000, 3))
    assert_unbiased(counts.view(8000, 2, 10), 3 * law())


@pytest.mark.parametrize("replacement", [True, False])
def test_sums_over_the_union_are_unbiased(replacement: bool) -> None:
    value = torch.tensor([3.0, -1, 2, 0.5, 4, 1, -2, 5, 0.1, 7])
    lists, context = again(8000)
    generator = torch.Generator().manual_seed(1)
    draws = pooled_negatives(lists, context, 2, weights=WEIGHTS, replacement=replacement, generator=generator)
    weighed = (value[draws.ids] * (-draws.log_expected).exp()).sum(1)
    assert_unbiased(weighed.view(-1, 2), (value * (law() > 0)).sum(1))
    if not replacement:
        assert bool((draws.ids[:, 0] != draws.ids[:, 1]).all())


def test_one_retriever_is_uniform_over_its_list() -> None:
    draws = pooled_negatives(LISTS[:1], CONTEXT, 4)
    answer = draws.log_expected_of(torch.arange(10)).exp()
    assert answer[0].tolist() == pytest.approx([0, 0, 0, 0, 0, 2, 0, 2, 0, 0])
    assert answer[1].tolist() == pytest.approx([0, 2, 2, 0, 0, 0, 0, 0, 0, 0])


def test_beside_uniform_draws_the_sum_over_the_catalogue_is_unbiased() -> None:
    score = torch.tensor([3.0, -1, 2, 0.5, 4, 1, -2, 5, 0.1, 2])
    lists, context = again(6000)
    generator = torch.Generator().manual_seed(2)
    hard = pooled_negatives(lists, context, 3, generator=generator)
    rest = Uniform(10, per_query=True).sample(context, 4, generator=generator)
    draws = Draws.merge([hard, rest])
    weight = (score[draws.ids] - draws.log_expected).exp().masked_fill(context.mask(draws.ids), 0)
    assert_unbiased(
        weight.sum(1).view(-1, 2), score.exp().masked_fill(CONTEXT.mask(torch.arange(10)), 0).sum(1)
    )


@pytest.mark.parametrize("replacement", [True, False])
def test_a_query_without_candidates_has_empty_slots(replacement: bool) -> None:
    context = Context(torch.tensor([1, 2]))
    lists = [torch.tensor([[1, -1], [3, 2]]), torch.tensor([[1], [-1]])]
    draws = pooled_negatives(lists, context, 2, replacement=replacement)
    assert draws.log_expected[0].tolist() == [math.inf] * 2
    assert draws.ids[0].tolist() == [0, 0]
    assert draws.ids[1, 0] == 3
    assert draws.log_expected_of(torch.tensor([1, 2, 3]))[0].tolist() == [-math.inf] * 3
    for n in (0, 2):
        nothing = pooled_negatives([torch.zeros(2, 0).long()], context, n, replacement=replacement)
        assert bool((nothing.log_expected == math.inf).all())
        assert nothing.log_expected_of(torch.tensor([4])).tolist() == [[-math.inf]] * 2


def test_a_ranker_trained_on_the_pool_holds_up_on_every_source() -> None:
    # Retriever r finds look-alikes that differ from the positive in feature r only.
    generator = torch.Generator().manual_seed(3)
    positive = torch.tensor([1.0, 1, 1])
    negatives = [
        positive - 2 * torch.eye(3)[r] + 0.3 * torch.randn(40, 3, generator=generator) for r in range(3)
    ]
    documents = torch.cat([positive.unsqueeze(0), *negatives])
    lists = [torch.arange(1 + 40 * r, 41 + 40 * r).unsqueeze(0) for r in range(3)]

    def worst(sources: list[int]) -> float:
        """The least share of a source's negatives that the trained ranker puts below the positive."""
        w = torch.zeros(3, requires_grad=True)
        for _ in range(60):
            context = Context(torch.tensor([0]))
            ids = pooled_negatives([lists[r] for r in sources], context, 8, generator=generator).ids[0]
            loss = torch.logsumexp(torch.cat([documents[:1], documents[ids]]) @ w, 0) - documents[0] @ w
            (gradient,) = torch.autograd.grad(loss + 0.1 * w.square().sum(), w)
            w = (w - 0.3 * gradient).detach().requires_grad_()
        margin = documents[0] @ w - documents @ w
        return min(float((margin[lists[r]] > 0.3).double().mean()) for r in range(3))

    assert worst([0, 1, 2]) > 0.95
    assert max(worst([r]) for r in range(3)) < 0.7


def test_wrong_input_is_refused() -> None:
    context = Context(torch.tensor([1, 2]))
    good = torch.tensor([[1, 2], [3, 4]])
    for lists, weights, kind, said in (
        ([], None, ValueError, "Give lists"),
        ([good], [0.0], ValueError, "positive weight"),
        ([good], [1.0, 1.0], ValueError, "1 lists"),
        ([good.float()], None, TypeError, "int64"),
        ([good[:1]], None, ValueError, r"\(2, N\)"),
        ([good - 4], None, ValueError, "-1 in an empty slot"),
        ([torch.tensor([[1, 1], [2, 3]])], None, ValueError, "twice"),
    ):
        with pytest.raises(kind, match=said):
            pooled_negatives(lists, context, 2, weights=weights)
    with pytest.raises(ValueError, match="negative"):
        pooled_negatives([good], context, -1)
