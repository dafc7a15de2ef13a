"""Exact search equals a full sort."""

import math

import pytest
import torch

from steelyard.ragged import Ragged
from steelyard.retrieval import index
from steelyard.retrieval.bounded_search import rounding
from steelyard.retrieval.index import top_k


@pytest.mark.parametrize("chunk", [1 << 8, 1 << 26])
@pytest.mark.parametrize("k", [1, 4, 23, 50])
def test_it_equals_a_full_stable_sort_whatever_the_chunk(
    monkeypatch: pytest.MonkeyPatch, k: int, chunk: int
) -> None:
    monkeypatch.setattr(index, "CHUNK_BYTES", chunk)
    g = torch.Generator().manual_seed(0)
    queries = torch.randint(-2, 3, (7, 3), generator=g).float()  # whole numbers: many ties
    items = torch.randint(-2, 3, (23, 3), generator=g).float()
    pairs = torch.randint(0, 7, (30,), generator=g), torch.randint(0, 23, (30,), generator=g)
    exclude = Ragged.from_pairs(*pairs, 7)
    scores, rows = top_k(queries, items, k, exclude=exclude)
    assert rows.shape == (7, min(k, 23))
    for q in range(7):
        left = [j for j in range(23) if j not in set(exclude.row(q).tolist())]
        value = {j: float(queries[q] @ items[j]) for j in left}
        want = sorted(left, key=lambda j: (-value[j], j))[:k]
        got = rows[q].tolist()
        assert got[: len(want)] == want
        assert got[len(want) :] == [-1] * (len(got) - len(want))
        assert scores[q, : len(want)].tolist() == [value[j] for j in want]


def test_the_score_of_a_pair_depends_on_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(1)
    items = torch.randn(300, 384, generator=g)[torch.randint(0, 300, (1000,), generator=g)]
    queries = torch.randn(33, 384, generator=g)
    scores, rows = top_k(queries, items, 100)
    monkeypatch.setattr(index, "WIDTH", 70)
    monkeypatch.setattr(index, "CHUNK_BYTES", 1 << 10)
    for q in (0, 7, 32):
        alone, found = top_k(queries[q : q + 1], items, 100)
        assert torch.equal(alone[0], scores[q])
        assert torch.equal(found[0], rows[q])
    copies = (items[rows[:, :-1]] == items[rows[:, 1:]]).all(-1)
    assert int(copies.sum()) > 1000
    assert torch.equal(
        copies, scores[:, :-1] == scores[:, 1:]
    )  # equal vectors tie exactly, and others do not
    assert bool((rows.diff()[copies] > 0).all())


@pytest.mark.parametrize("size", [1e18, 1e-18, 1e-25])
@pytest.mark.parametrize("other", [1e18, 1.0, 1e-25])
def test_huge_and_tiny_vectors_are_ordered_as_in_float64(size: float, other: float) -> None:
    g = torch.Generator().manual_seed(2)
    queries, items = other * torch.randn(20, 40, generator=g), size * torch.randn(500, 40, generator=g)
    scores, rows = top_k(queries, items, 9)
    want, order = (queries.double() @ items.double().T).topk(9, dim=1)
    assert torch.equal(rows, order)
    kept = want.abs() > 1e-35  # float32 has few digits or none below
    torch.testing.assert_close(scores.double()[kept], want[kept], rtol=1e-4, atol=0.0)


def test_a_score_that_is_no_number_is_no_answer() -> None:
    g = torch.Generator().manual_seed(3)
    queries, items = torch.randn(6, 10, generator=g), torch.randn(200, 10, generator=g)
    clean = top_k(queries, items, 5)
    items[50], items[51, 3] = math.nan, math.nan
    queries[2, 0] = math.nan
    scores, rows = top_k(queries, items, 200)
    assert rows[2].tolist() == [-1] * 200
    assert bool((scores[2] == -math.inf).all())
    rest = [0, 1, 3, 4, 5]
    assert not bool(scores.isnan().any())
    assert not bool(((rows == 50) | (rows == 51)).any())
    assert bool((rows[rest, :198] >= 0).all())
    assert bool((rows[rest, 198:] == -1).all())
    for q in rest:
        left = [r for r in clean[1][q].tolist() if r not in (50, 51)]
        assert rows[q, : len(left)].tolist() == left
    items[60] = math.inf
    scores, rows = top_k(queries, items, 20)
    assert not bool(scores.isnan().any())


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_products_that_err_within_their_margin_change_nothing(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    g = torch.Generator().manual_seed(4)
    queries, items = torch.randn(64, 128, generator=g), torch.randn(3000, 128, generator=g)
    items = items[torch.randint(0, 900, (3000,), generator=g)]  # copies stand at the edge of the k best
    fine = top_k(queries, items, 20)
    lengths = torch.outer(queries.norm(dim=1), items.norm(dim=1))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)  # "medium": bfloat16 where the machine has it
        margin = rounding(128)
        error = 0.9 * margin * lengths * torch.randn(64, 3000, generator=g).sign()
        monkeypatch.setattr(index, "WIDTH", 3000)
        monkeypatch.setattr(index, "FIRST", 3000)
        monkeypatch.setattr(index, "CHUNK_BYTES", 1 << 30)
        monkeypatch.setattr(index, "_product", lambda q, chunk, _made: q @ chunk.T + error)
        rough = top_k(queries, items, 20)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(fine[0], rough[0])
    assert torch.equal(fine[1], rough[1])
    assert margin > 2.0**-8 if precision == "medium" else margin < 1e-5


def test_rows_to_leave_out_may_come_in_any_order() -> None:
    items = torch.arange(6.0).unsqueeze(1)
    exclude = Ragged(torch.tensor([0, 3, 3]), torch.tensor([5, 0, 3]))
    scores, rows = top_k(torch.ones(2, 1), items, 4, exclude=exclude)
    assert rows.tolist() == [[4, 2, 1, -1], [5, 4, 3, 2]]
    assert scores[0].tolist() == [4.0, 2.0, 1.0, -math.inf]


def test_half_double_strided_and_no_vectors_are_searched() -> None:
    items = torch.randn(12, 6, generator=torch.Generator().manual_seed(5))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        own = items.to(dtype)
        _, rows = top_k(own[:3], own, 2)
        assert torch.equal(rows, (own[:3].double() @ own.double().T).topk(2, dim=1).indices)
    assert torch.equal(
        top_k(items[:, ::2], items[:, ::2], 3)[1],
        top_k(items[:, ::2].contiguous(), items[:, ::2].contiguous(), 3)[1],
    )
    scores, rows = top_k(items[:0], items, 3)
    assert scores.shape == rows.shape == (0, 3)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="k must"):
        top_k(torch.zeros(1, 2), torch.zeros(3, 2), 0)
    with pytest.raises(ValueError, match="no item"):
        top_k(torch.zeros(1, 2), torch.zeros(0, 2), 1)
