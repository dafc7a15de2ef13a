"""Self-aware mining drops planted duplicates of positives and is else the plain top k."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from steelyard.negatives.hard.hardest import hardest
from steelyard.negatives.hard.self_aware import self_aware


def random(*shape: int, seed: int) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(made, dim=1)


QUERY = random(4, 6, seed=1)
POSITIVE = normalize(QUERY + 0.3 * random(4, 6, seed=2), dim=1)
DOCUMENTS = torch.cat([POSITIVE, POSITIVE[[2, 0]] + 1e-3, random(20, 6, seed=3)])
OWNER = torch.tensor([0, 1, 2, 3] + [-1] * 22)
SCORE = QUERY @ DOCUMENTS.T
OF_POSITIVE = (QUERY * POSITIVE).sum(1)


def test_planted_duplicates_are_left_out_and_the_order_of_the_rest_is_that_of_brute_force() -> None:
    columns, empty = self_aware(SCORE, OF_POSITIVE, 5, 0.95, OWNER)
    assert not bool(empty.any())
    for b in range(4):
        rest = [
            j for j in range(26) if float(SCORE[b, j]) <= 0.95 * float(OF_POSITIVE[b]) and int(OWNER[j]) != b
        ]
        assert columns[b].tolist() == sorted(rest, key=lambda j, b=b: -float(SCORE[b, j]))[:5]
    assert 4 not in columns[2].tolist()
    assert 5 not in columns[0].tolist()
    plain = self_aware(SCORE, OF_POSITIVE, 5, math.inf, OWNER)[0]
    assert int(plain[2, 0]) == 4
    assert int(plain[0, 0]) == 5


def test_an_infinite_factor_is_plain_hard_mining() -> None:
    for got, want in zip(self_aware(SCORE, OF_POSITIVE, 7, math.inf), hardest(SCORE, 7), strict=True):
        assert torch.equal(got, want)


def test_positives_of_near_queries_are_left_out() -> None:
    """Query 1 becomes a paraphrase of query 0: each loses the other's positive, and nothing else changes."""
    near = torch.eye(4, dtype=torch.float64)
    near[0, 1] = near[1, 0] = 0.95
    far = self_aware(SCORE, OF_POSITIVE, 26, math.inf, OWNER, near, 0.99)
    cut = self_aware(SCORE, OF_POSITIVE, 26, math.inf, OWNER, near, 0.9)
    for b in range(4):
        before = [c for c, e in zip(far[0][b].tolist(), far[1][b].tolist(), strict=True) if not e]
        after = [c for c, e in zip(cut[0][b].tolist(), cut[1][b].tolist(), strict=True) if not e]
        assert after == [c for c in before if (b, c) not in {(0, 1), (1, 0)}]
        assert len(before) == 25


def test_a_negative_positive_score_keeps_its_distance() -> None:
    score = torch.tensor([[-1.0, -1.02, -1.2, -3.0]])
    columns, empty = self_aware(score, torch.tensor([-1.0]), 2, 0.9)
    assert columns.tolist() == [[2, 3]]
    assert not bool(empty.any())
    assert self_aware(score, torch.tensor([-4.0]), 2, 1.0)[1].tolist() == [[True, True]]
    assert self_aware(score, torch.tensor([-1.0]), 2, 1.0, mask=score > -1.1)[0].tolist() == [[2, 3]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs owner"):
        self_aware(SCORE, OF_POSITIVE, 2, max_query_similarity=0.5)
    with pytest.raises(ValueError, match="needs query_similarity"):
        self_aware(SCORE, OF_POSITIVE, 2, owner=OWNER, max_query_similarity=0.5)
    with pytest.raises(ValueError, match="owner must"):
        self_aware(SCORE, OF_POSITIVE, 2, owner=OWNER + 1)
    with pytest.raises(TypeError, match="int64"):
        self_aware(SCORE, OF_POSITIVE, 2, owner=OWNER.double())
    with pytest.raises(ValueError, match=r"\(B, C\)"):
        self_aware(SCORE, OF_POSITIVE[:2], 2)
    with pytest.raises(ValueError, match="query_similarity must"):
        self_aware(SCORE, OF_POSITIVE, 2, 0.9, OWNER, SCORE, 0.5)
    with pytest.raises(ValueError, match="NaN"):
        self_aware(SCORE, OF_POSITIVE, 2, math.nan)


def test_a_mask_that_does_not_fit_is_refused_in_words() -> None:
    score, positive = torch.zeros(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match=r"mask of shape .* does not broadcast"):
        self_aware(score, positive, 2, mask=torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask must be bool"):
        self_aware(score, positive, 2, mask=torch.zeros(2, 3))
