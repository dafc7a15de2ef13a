"""Bounds by codes hold, and leave few pairs to score."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from steelyard.ragged import Ragged
from steelyard.retrieval import bounded_search, index
from steelyard.retrieval.bounded_search import CodedItems, _code_all, _Coded, _directions, _mixed, code_items
from steelyard.retrieval.index import top_k
from steelyard.retrieval.shortlist import Shortlist

needs_integers = pytest.mark.skipif(
    not bounded_search.fast_integers(), reason="no products of 8-bit numbers on this machine"
)
pytestmark = needs_integers


def clustered(n: int, d: int, seed: int, spread: float = 0.6) -> Tensor:
    """Unit vectors around centres whose own coordinates decay, as those of texts do."""
    g = torch.Generator().manual_seed(seed)
    shape = torch.linspace(1, 0.05, d)
    centres = torch.randn(60, d, generator=torch.Generator().manual_seed(99)) * shape
    noise = torch.randn(n, d, generator=g) * shape
    return functional.normalize(centres[torch.randint(0, 60, (n,), generator=g)] + spread * noise, dim=1)


def coded_with(items: Tensor, p: int | None) -> CodedItems:
    basis = None if p is None else _mixed(_directions(items, items[:50])[:, :p])
    sample = torch.arange(512) * len(items) // 512
    made = _code_all(items, basis, sample)
    assert made is not None
    return made


def check_best(queries: Tensor, items: Tensor, exclude: Ragged | None, got: tuple[Tensor, Tensor]) -> None:
    """Scores are the best float64 ones up to float32 rounding, each is its row's own, and no row is banned or twice."""
    exact = queries.double() @ items.double().T
    if exclude is not None:
        exact[exclude.row_index(), exclude.values] = -math.inf
    scores, rows = got
    want = exact.sort(dim=1, descending=True, stable=True).values[:, : scores.shape[1]]
    real = want > -math.inf
    assert bool(((rows >= 0) == real).all())
    assert not bool(scores.isnan().any())
    size = queries.double().norm(dim=1, keepdim=True) * items.double().norm(dim=1).max()
    slack = 2 * items.shape[1] * 2.0**-24 * size
    assert bool(((scores.double() - want).abs() <= slack)[real].all())
    own = exact.gather(1, rows.clamp(min=0))
    assert bool(((scores.double() - own).abs() <= slack)[real].all())
    assert all(len(set(r[r >= 0].tolist())) == int((r >= 0).sum()) for r in rows)


def kinds() -> dict[str, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(5)
    random = torch.randn(3000, 70, generator=g)
    few = clustered(40, 70, 1)[torch.randint(0, 40, (3000,), generator=g)]
    uneven = random * torch.logspace(-6, 3, 3000)[torch.randperm(3000, generator=g)].unsqueeze(1)
    spiked = random.clone()
    spiked[::7, 3] = 500.0
    zeros = random.clone()
    zeros[::2] = 0
    queries = torch.randn(40, 70, generator=g)
    return {
        "clustered": (clustered(40, 70, 2), clustered(3000, 70, 3)),
        "random": (queries, random),
        "copies": (few[:40].clone(), few),
        "zero": (torch.cat([queries[:38], torch.zeros(2, 70)]), zeros),
        "uneven": (queries * torch.logspace(-5, 5, 40).unsqueeze(1), uneven),
        "spiked": (queries, spiked),
        "opposed": (-few[:40], few),
    }


@pytest.mark.parametrize("kind", list(kinds()))
@pytest.mark.parametrize("p", [None, 16, 64])
@pytest.mark.parametrize("k", [1, 30, 700])
def test_it_equals_the_plain_search_bit_by_bit_and_a_sort_in_float64(
    kind: str, p: int | None, k: int
) -> None:
    queries, items = kinds()[kind]
    g = torch.Generator().manual_seed(k)
    pairs = torch.randint(0, 40, (2000,), generator=g), torch.randint(0, 3000, (2000,), generator=g)
    for exclude in (None, Ragged.from_pairs(*pairs, 40)):
        plain = top_k(queries, items, k, exclude=exclude)
        found = top_k(queries, items, k, exclude=exclude, coded=coded_with(items, p))
        assert torch.equal(found[1], plain[1])
        assert torch.equal(found[0], plain[0])
        check_best(queries, items, exclude, found)


@pytest.mark.parametrize("shape", ["random", "aligned", "parallel", "tiny part"])
@pytest.mark.parametrize("p", [None, 8, 40])
def test_the_bound_of_a_pair_is_never_below_its_product(shape: str, p: int | None) -> None:
    g = torch.Generator().manual_seed(3)
    items = torch.randn(600, 48, generator=g)
    queries = torch.randn(50, 48, generator=g)
    basis = None if p is None else _mixed(_directions(items, queries)[:, :p])
    if shape == "aligned":  # rounding errors of one side along the other side
        own = _Coded.of(items, basis)
        inside = items if basis is None else items @ basis
        gap = inside - own.codes.float() * torch.from_numpy(own.scale).unsqueeze(1)
        queries = (gap if basis is None else gap @ basis.T)[:50].contiguous()
    if shape == "parallel" and basis is not None:  # what lies outside points the same way
        outside = items - (items @ basis) @ basis.T
        items, queries = outside, outside[:50].contiguous()
    if shape == "tiny part" and basis is not None:
        items = (items @ basis) @ basis.T
    a, b = _Coded.of(queries, basis), _Coded.of(items, basis)
    exact = queries.double() @ items.double().T
    unit = bounded_search.rounding(48) + 2.0**-20
    for cut in (exact, torch.nextafter((queries @ items.T), torch.tensor(-math.inf))):
        # Each pair stands alone against a bar at its own product: it has to come through.
        for i in range(0, 600, 7):
            bar = np.nextafter(cut[:, i].numpy().astype(np.float32), np.float32(-np.inf))
            own = b.scale[i : i + 1], b.rest[i : i + 1], b.error[i], b.length[i], unit
            made = (a.codes.int() @ b.codes[i : i + 1].int().T).numpy()
            pairs = np.empty(64, np.int32), np.empty(64, np.int32)
            _, size = bounded_search._above_bound(made, *a.lengths(), *own, bar, i, 0, *pairs)
            assert size == 50


def test_the_bound_covers_the_rounding_of_long_sums() -> None:
    # Codes are nearly exact here, and all terms positive: what is left is the error of the score itself.
    x = 0.1 * torch.randint(100, 128, (300, 4096), generator=torch.Generator().manual_seed(0))
    coded = _Coded.of(x, None)
    one, summed = torch.zeros(300, dtype=torch.float32), x * x
    for j in range(4096):  # the plainest order of summation errs the most
        one += summed[:, j]
    missed = 0
    for i in range(300):
        made = (coded.codes[i : i + 1].double() @ coded.codes[i : i + 1].double().T).int().numpy()
        bar = np.nextafter(one[i : i + 1].numpy(), np.float32(-np.inf))
        side = tuple(v[i : i + 1] for v in coded.lengths())
        to, unit = (coded.scale[i : i + 1], coded.rest[i : i + 1], coded.error[i], coded.length[i]), 2.0**-20
        pairs = np.empty(64, np.int32), np.empty(64, np.int32)
        whole = bounded_search.rounding(4096) + unit
        assert bounded_search._above_bound(made, *side, *to, whole, bar, i, 0, *pairs)[1] == 1
        missed += bounded_search._above_bound(made, *side, *to, 0.0, bar, i, 0, *pairs)[1] == 0
    assert missed > 0  # without the margin some would be lost


def test_few_pairs_are_scored_on_clustered_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, items = clustered(300, 128, 1), clustered(20000, 128, 2)
    coded = code_items(items, queries, 10)
    assert coded is not None
    scored = []
    push = Shortlist.push

    def counting(self: Shortlist, row: Any, item: Any, count: int) -> None:
        scored.append(count)
        push(self, row, item, count)

    monkeypatch.setattr(Shortlist, "push", counting)
    found = top_k(queries, items, 10, coded=coded)
    assert sum(scored) < 0.02 * len(queries) * len(items)
    check_best(queries, items, None, found)


def test_a_query_whose_guess_was_too_high_is_searched_again() -> None:
    # All that a query wants stands at the rows of the sample, so the sample promises far too much.
    g = torch.Generator().manual_seed(0)
    items = torch.randn(6000, 64, generator=g)
    coded = coded_with(items, None)
    items[coded.sample] += 3 * functional.normalize(torch.ones(64), dim=0)
    coded = coded_with(items, None)
    queries = torch.ones(5, 64) + 0.1 * torch.randn(5, 64, generator=g)
    plain = top_k(queries, items, 600)
    blocks = []
    search = bounded_search.search_block

    def watched(*args: Any) -> Tensor:
        blocks.append(args[-1])
        return search(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "search_block", watched)
        found = top_k(queries, items, 600, coded=coded)
    assert max(blocks) > 0
    assert torch.equal(plain[1], found[1])


def test_threads_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, items = clustered(90, 64, 1), clustered(5000, 64, 2)
    coded = coded_with(items, 32)
    one = top_k(queries, items, 7, coded=coded)
    monkeypatch.setattr(index, "BLOCK", 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    many = top_k(queries, items, 7, coded=coded)
    assert torch.equal(one[0], many[0])
    assert torch.equal(one[1], many[1])


def test_codes_are_made_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, items = clustered(3000, 256, 1), clustered(6000, 256, 2)
    coded = code_items(items, queries, 10)
    assert coded.codes.shape[1] < 256
    used = []
    monkeypatch.setattr(index, "WORTH_CODING", 1.0)
    monkeypatch.setattr(index, "code_items", lambda *given: used.append(given) or coded)
    top_k(queries[:10], items, 10)
    assert used
    assert code_items(items[:100], queries, 10) is None  # few items
    assert code_items(items * math.nan, queries, 10) is None
    assert code_items(items * 1e30, queries, 10) is None
    lone = items.clone()
    lone[1, 0] = math.inf  # not among the sample
    assert code_items(lone, queries, 10) is None
    alike = 1 + 1e-4 * torch.randn(5000, 64, generator=torch.Generator().manual_seed(0))
    assert code_items(alike, alike[:50], 10) is None  # all pairs come through: the plain search is best


def test_codes_of_other_items_are_refused() -> None:
    items = clustered(5000, 64, 1)
    coded = coded_with(items, None)
    with pytest.raises(ValueError, match="other items"):
        top_k(items[:3], items.clone(), 3, coded=coded)
