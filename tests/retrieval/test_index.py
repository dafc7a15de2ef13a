"""Exact search equals a full sort."""

import pytest
import torch

from steelyard.ragged import Ragged
from steelyard.retrieval import index
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


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="k must"):
        top_k(torch.zeros(1, 2), torch.zeros(3, 2), 0)
    with pytest.raises(ValueError, match="no item"):
        top_k(torch.zeros(1, 2), torch.zeros(0, 2), 1)
