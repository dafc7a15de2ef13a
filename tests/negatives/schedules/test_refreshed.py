"""A table rebuilt every m steps: exact, without positives, as stale as it says, and drawn with known counts."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.negatives.context import Context
from steelyard.negatives.schedules.refreshed import Refreshed, pool_overlap
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased


class Toy:
    """A linear encoder for queries and documents, and exact search with it."""

    def __init__(self, n_queries: int = 12, n_documents: int = 300) -> None:
        generator = torch.Generator().manual_seed(0)
        self.documents = torch.randn(n_documents, 6, generator=generator)
        self.queries = torch.randn(n_queries, 6, generator=generator)
        self.weight = torch.eye(6)
        self.encoded = 0

    def encode_documents(self) -> Tensor:
        self.encoded += 1
        return self.documents @ self.weight

    def search(self, documents: Tensor, k: int) -> Tensor:
        return (self.queries @ self.weight @ documents.T).topk(k, 1).indices

    def train(self, seed: int) -> None:
        self.weight = self.weight + 0.15 * torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))


def wanted(n: int) -> Context:
    return Context(torch.arange(n) * 7, Ragged.from_pairs(torch.arange(n), torch.arange(n) * 11 % 300, n))


def test_negatives_are_the_exact_top_k_without_positives_and_counts_are_exact() -> None:
    toy = Toy()
    schedule = Refreshed(toy.encode_documents, toy.search, k=20, every=5)
    assert schedule.step()
    queries = torch.tensor([3, 0, 3])
    context = Context(torch.zeros(3).long(), Ragged.from_pairs(torch.arange(3), torch.tensor([0, 0, 0]), 3))
    positive = schedule.top[queries, 4]
    context = Context(positive, Ragged.from_pairs(torch.arange(3), schedule.top[queries, 1], 3))
    draws = schedule.sample(queries, context, 6, generator=torch.Generator().manual_seed(1))
    answer = draws.log_expected_of(torch.arange(300)).exp()
    for b, q in enumerate(queries.tolist()):
        ordered = sorted(range(300), key=lambda j: -float(toy.queries[q] @ toy.documents[j]))
        left = {j for i, j in enumerate(ordered[:20]) if i not in (1, 4)}
        assert set(draws.ids[b].tolist()) <= left
        assert len(set(draws.ids[b].tolist())) == 6
        assert {j for j in range(300) if answer[b, j] > 0} == left
        assert answer[b].sum().item() == pytest.approx(6)
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))


def test_each_of_the_table_is_drawn_equally_often() -> None:
    schedule = Refreshed(lambda: torch.zeros(9, 1), lambda _, k: torch.arange(k).repeat(1, 1), k=7)
    schedule.step()
    context = Context(torch.full((6000,), 2))
    draws = schedule.sample(torch.zeros(6000).long(), context, 4, generator=torch.Generator().manual_seed(2))
    counts = torch.zeros(6000, 9).scatter_add(1, draws.ids, torch.ones(6000, 4))
    assert_unbiased(counts, [4 / 6, 4 / 6, 0, 4 / 6, 4 / 6, 4 / 6, 4 / 6, 0, 0])
    assert draws.log_expected.exp().unique().tolist() == pytest.approx([4 / 6])


def test_staleness_counts_the_steps_since_the_last_refresh_and_one_is_never_stale() -> None:
    for every, want in ((1, [0] * 7), (3, [0, 1, 2, 0, 1, 2, 0])):
        toy = Toy()
        schedule = Refreshed(toy.encode_documents, toy.search, k=5, every=every)
        seen = []
        for step in range(7):
            assert schedule.step() == (want[step] == 0)
            seen.append(schedule.staleness)
            if want[step] == 0:
                assert schedule.top is not None
                assert torch.equal(schedule.top, toy.search(toy.documents @ toy.weight, 5))
            toy.train(step)
        assert seen == want
        assert toy.encoded == schedule.refreshes == want.count(0)


def test_overlap_with_the_present_falls_as_the_table_gets_older() -> None:
    overlap = []
    for every in (1, 3, 12):
        toy = Toy()
        schedule = Refreshed(toy.encode_documents, toy.search, k=20, every=every)
        shares = []
        for step in range(24):
            schedule.step()
            assert schedule.top is not None
            now = toy.search(toy.documents @ toy.weight, 20)
            shares.append(float(pool_overlap(now, schedule.top).mean()))
            toy.train(step)
        overlap.append(sum(shares) / len(shares))
    assert overlap[0] == 1
    assert overlap[0] > overlap[1] + 0.1 > overlap[2] + 0.2


def test_gradients_are_larger_than_on_random_negatives() -> None:
    toy = Toy()
    schedule = Refreshed(toy.encode_documents, toy.search, k=20)
    schedule.step()
    context, norms = wanted(12), []
    generator = torch.Generator().manual_seed(3)
    hard = schedule.sample(torch.arange(12), context, 5, generator=generator).ids
    for ids in (hard, torch.randint(300, (12, 5), generator=generator)):
        weight = toy.weight.clone().requires_grad_()
        encoded = toy.queries @ weight
        positive = (encoded * toy.documents[context.positives]).sum(1, keepdim=True)
        score = torch.cat([positive, torch.einsum("qd,qnd->qn", encoded, toy.documents[ids])], 1)
        loss = -torch.log_softmax(score, 1)[:, 0].mean()
        norms.append(float(torch.autograd.grad(loss, weight)[0].norm()))
    assert norms[0] > 1.5 * norms[1]


def test_training_goes_on_where_it_stopped() -> None:
    toy = Toy()
    one = Refreshed(toy.encode_documents, toy.search, k=5, every=4)
    for step in range(6):
        one.step()
        toy.train(step)
    other = Refreshed(toy.encode_documents, toy.search, k=5, every=4)
    other.load_state_dict(one.state_dict())
    assert toy.encoded == 2
    draws = [
        s.sample(torch.arange(12), wanted(12), 3, generator=torch.Generator().manual_seed(4)).ids
        for s in (one, other)
    ]
    assert torch.equal(*draws)
    assert (
        [one.step(), one.step(), one.step()]
        == [other.step(), other.step(), other.step()]
        == [False, False, True]
    )
    with pytest.raises(ValueError, match="k=5, not 6"):
        Refreshed(toy.encode_documents, toy.search, k=6).load_state_dict(one.state_dict())


def test_few_candidates_leave_slots_empty() -> None:
    table = torch.tensor([[4, 2, -1], [1, 3, 5]])
    schedule = Refreshed(lambda: torch.zeros(6, 1), lambda *_: table, k=3)
    schedule.step()
    draws = schedule.sample(torch.arange(2), Context(torch.tensor([4, 0])), 5)
    assert draws.ids[0].tolist() == [2, 0, 0]
    assert draws.log_expected[0].tolist() == [0, math.inf, math.inf]
    assert sorted(draws.ids[1].tolist()) == [1, 3, 5]
    assert draws.log_expected[1].tolist() == [0, 0, 0]
    assert schedule.sample(torch.arange(2), Context(torch.tensor([4, 0])), 0).ids.shape == (2, 0)


def test_wrong_input_is_refused() -> None:
    toy = Toy()
    schedule = Refreshed(toy.encode_documents, toy.search, k=5)
    with pytest.raises(ValueError, match="call step"):
        schedule.sample(torch.arange(2), wanted(2), 3)
    schedule.step()
    with pytest.raises(ValueError, match=r"\[0, 12\)"):
        schedule.sample(torch.tensor([12]), wanted(1), 3)
    with pytest.raises(ValueError, match=r"\(3, N\)"):
        schedule.sample(torch.arange(2), wanted(3), 3)
    for search, kind, said in (
        (lambda *_: torch.zeros(3, 4).long(), ValueError, r"\(queries, 5\)"),
        (lambda *_: torch.zeros(3, 5), TypeError, "int64"),
    ):
        with pytest.raises(kind, match=said):
            Refreshed(toy.encode_documents, search, k=5).step()
    for arguments, kind, said in (
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"every": 0}, ValueError, "every must be"),
        ({"every": 1.5}, TypeError, "every must be an integer"),
    ):
        with pytest.raises(kind, match=said):
            Refreshed(toy.encode_documents, toy.search, **arguments)  # type: ignore[arg-type]


def test_overlap_is_a_share_of_the_first_pool() -> None:
    pool = torch.tensor([[1, 2, 3, -1], [4, -1, -1, -1], [-1] * 4])
    other = torch.tensor([[3, 9, 1], [-1, -1, -1], [1, 2, 3]])
    assert pool_overlap(pool, other).tolist() == pytest.approx([2 / 3, 0, 1])
    assert pool_overlap(pool, other[:, :0]).tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="Pools must be"):
        pool_overlap(pool, other[:2])
