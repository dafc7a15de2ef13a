"""Unified pairs: the margin softmax without pairs, a box plot against outliers, only ever a larger loss."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from steelyard.negatives.hard.unpg import inside_whiskers, unpg_loss

X = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=1)
W = normalize(torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64), dim=1)
LABELS = torch.tensor([0, 1, 2, 0, 1, 0])
OWN = X @ W.T - 0.2 * torch.eye(3, dtype=torch.float64)[LABELS]


def plain(whisker: float, scale: float) -> list[float]:
    pairs = [float(X[k] @ X[j]) for k in range(6) for j in range(k + 1, 6) if LABELS[k] != LABELS[j]]
    ordered = sorted(pairs)
    low, high = ordered[len(pairs) // 4], ordered[3 * len(pairs) // 4]
    kept = [s for s in pairs if low - whisker * (high - low) <= s <= high + whisker * (high - low)]
    shared = sum(math.exp(scale * s) for s in kept)
    losses = []
    for i in range(6):
        terms = [math.exp(scale * float(s)) for s in OWN[i]]
        losses.append(math.log((sum(terms) + shared) / terms[int(LABELS[i])]))
    return losses


@pytest.mark.parametrize("whisker", [0.0, 0.3, 1.0, 50.0])
def test_the_loss_is_the_written_out_sum(whisker: float) -> None:
    got = unpg_loss(OWN, X @ X.T, LABELS, whisker, 5.0, reduction="none")
    assert got.tolist() == pytest.approx(plain(whisker, 5.0))


def test_one_label_in_the_batch_gives_the_margin_softmax_exactly() -> None:
    same = torch.full((6,), 1)
    got = unpg_loss(OWN, X @ X.T, same, 1.0, 8.0)
    torch.testing.assert_close(got, cross_entropy(OWN * 8.0, same), rtol=0, atol=1e-15)


def test_wider_whiskers_keep_more_and_never_lower_the_loss_and_infinite_ones_keep_all() -> None:
    losses = [
        float(unpg_loss(OWN, X @ X.T, LABELS, r, 5.0)) for r in (0.0, 0.1, 0.3, 0.6, 1.0, 2.0, math.inf)
    ]
    assert losses == sorted(losses)
    assert losses[0] > float(cross_entropy(OWN * 5.0, LABELS))
    pairs = (X @ X.T)[(LABELS.unsqueeze(1) != LABELS).triu(1)] * 5
    terms = torch.cat([OWN * 5, pairs.expand(6, -1)], 1)
    assert losses[-1] == pytest.approx(float(cross_entropy(terms, LABELS)))


def test_whiskers_are_those_of_a_hand_made_box_plot() -> None:
    values = torch.tensor([5.0, 1.0, 2.0, 3.0, 4.0, 100.0, -50.0, 6.0])  # Q1 = rank 2 = 2, Q3 = rank 6 = 6
    assert inside_whiskers(values, 0.0).tolist() == [True, False, True, True, True, False, False, True]
    assert inside_whiskers(values, 1.0).tolist() == [True] * 5 + [False, False, True]
    assert bool(inside_whiskers(values, math.inf).all())
    assert inside_whiskers(torch.ones(3), math.inf).tolist() == [True] * 3
    assert inside_whiskers(torch.tensor([1.0, 1.0, 1.0, 1.0, 9.0]), 7.0).tolist() == [True] * 4 + [False]
    assert inside_whiskers(torch.zeros(0), 1.0).shape == (0,)
    assert inside_whiskers(torch.tensor([3.0]), 0.0).tolist() == [True]


def test_gradients_reach_kept_pairs_alone() -> None:
    similarity = (X @ X.T).requires_grad_()
    unpg_loss(OWN, similarity, LABELS, 0.0, 5.0).backward()
    pairs = (LABELS.unsqueeze(1) != LABELS).triu(1)
    kept = inside_whiskers(similarity[pairs], 0.0)
    assert 0 < int(kept.sum()) < len(kept)
    assert ((similarity.grad[pairs] > 0) == kept).all()
    assert not bool(similarity.grad[~pairs].any())


def test_what_does_not_fit_is_refused() -> None:
    for bad, said in (
        ({"labels": LABELS + 1}, "labels must"),
        ({"class_similarity": OWN[:5]}, r"\(6, C\)"),
        ({"sample_similarity": OWN}, r"\(B, B\)"),
        ({"sample_similarity": X @ X.T * math.nan}, "finite"),
        ({"scale": 0.0}, "scale"),
        ({"whisker": -1.0}, "whisker"),
    ):
        given = {"class_similarity": OWN, "sample_similarity": X @ X.T, "labels": LABELS} | bad
        with pytest.raises(ValueError, match=said):
            unpg_loss(**given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integers"):
        unpg_loss(OWN, X @ X.T, LABELS.double())
