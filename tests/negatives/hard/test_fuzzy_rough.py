"""Fuzzy rough negatives are non-edges by the lower approximation written out, and surer than random ones."""

import math

import pytest
import torch

from steelyard.negatives.hard.fuzzy_rough import fuzzy_rough_negatives, fuzzy_similarity

X = torch.rand(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
EDGES = torch.tensor([[0, 1, 2, 5, 1], [1, 2, 5, 0, 0]])


def test_the_similarity_is_reflexive_symmetric_and_the_worst_agreement() -> None:
    r = fuzzy_similarity(X)
    assert r.diagonal().tolist() == [1.0] * 7
    assert torch.equal(r, r.T)
    assert float(r.min()) >= 0
    spread = X.amax(0) - X.amin(0)
    for u in range(7):
        for v in range(7):
            plain = min(1 - abs(float(X[u, f] - X[v, f])) / float(spread[f]) for f in range(3))
            assert float(r[u, v]) == pytest.approx(plain)


def test_crisp_features_make_classes_of_equals() -> None:
    crisp = torch.tensor([[0.0, 5.0, 3.0], [0.0, 5.0, 3.0], [1.0, 5.0, 3.0], [0.0, 7.0, 3.0]])
    assert fuzzy_similarity(crisp).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert fuzzy_similarity(torch.zeros(2, 0)).tolist() == [[1, 1], [1, 1]]
    assert fuzzy_similarity(torch.zeros(0, 2)).shape == (0, 0)


@pytest.mark.parametrize("share", [0.5, 0.2, 1.0])
def test_the_best_non_edges_by_the_formula_are_taken(share: float) -> None:
    r = fuzzy_similarity(X)
    linked = {tuple(sorted(pair)) for pair in EDGES.T.tolist()}
    neighbours = {v: [w for w in range(7) if tuple(sorted((v, w))) in linked] for v in range(7)}

    def low(u: int, v: int) -> float:
        return min((1 - float(r[u, w]) for w in neighbours[v]), default=1.0)

    quality = {
        (u, v): share * low(u, v) + (1 - share) * low(v, u)
        for u in range(7)
        for v in range(u + 1, 7)
        if (u, v) not in linked
    }
    pairs, got = fuzzy_rough_negatives(r, EDGES, 5, share)
    assert got.tolist() == pytest.approx(sorted(quality.values(), reverse=True)[:5])
    assert [quality[u, v] for u, v in pairs.tolist()] == pytest.approx(got.tolist())
    every, _ = fuzzy_rough_negatives(r, EDGES, 99, share)
    assert {(u, v) for u, v in every.tolist()} == set(quality)


def test_on_blocks_they_hold_fewer_missing_links_than_random_non_edges() -> None:
    """Two blocks, dense inside; half the edges are hidden. The negatives should lie between the blocks."""
    generator = torch.Generator().manual_seed(2)
    block = torch.arange(40) // 20
    chance = torch.where(block.unsqueeze(1) == block, 0.5, 0.02)
    edges = (torch.rand(40, 40, generator=generator) < chance).triu(1)
    seen = (edges & (torch.rand(40, 40, generator=generator) < 0.5)).nonzero().T
    features = block.unsqueeze(1) + 0.3 * torch.randn(40, 3, generator=generator)
    pairs, _ = fuzzy_rough_negatives(fuzzy_similarity(features), seen, 100)
    wrong = float(edges[pairs[:, 0], pairs[:, 1]].double().mean())
    between = float((block[pairs[:, 0]] != block[pairs[:, 1]]).double().mean())
    held = torch.zeros(40, 40, dtype=torch.bool)
    held[seen[0], seen[1]] = True
    others = torch.ones(40, 40, dtype=torch.bool).triu(1) & ~held
    assert wrong < float(edges[others].double().mean()) / 2
    assert between > 0.8


def test_what_does_not_fit_is_refused() -> None:
    r = fuzzy_similarity(X)
    assert fuzzy_rough_negatives(r, EDGES[:, :0], 0)[0].shape == (0, 2)
    assert fuzzy_rough_negatives(r[:0, :0], EDGES[:, :0], 3)[0].shape == (0, 2)
    for bad, said in (
        ({"similarity": r[:3]}, r"\(V, V\)"),
        ({"similarity": r * 2}, r"\[0, 1\]"),
        ({"edges": EDGES + 4}, "nodes in"),
        ({"share": 1.5}, "share"),
        ({"n": -1}, "n must"),
        ({"similarity": r * math.nan}, "finite"),
    ):
        given = {"similarity": r, "edges": EDGES, "n": 2} | bad
        with pytest.raises(ValueError, match=said):
            fuzzy_rough_negatives(**given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int64"):
        fuzzy_rough_negatives(r, EDGES.double(), 2)
    with pytest.raises(ValueError, match="features must"):
        fuzzy_similarity(X[0])
