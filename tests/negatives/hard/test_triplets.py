"""Triplets equal the plainest loops, and the hardest of them bound the distance to an ideal embedding."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.negatives.hard.triplets import Triplets, batch_hard, semi_hard, triplet_loss

LABELS = torch.tensor([0, 1, 0, 1, 2, 0, 1])


def embeddings(seed: int, n: int = 7, dim: int = 3) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distances(x: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(1) - x).norm(dim=2)


D = distances(embeddings(0))


def others(labels: torch.Tensor, a: int) -> tuple[list[int], list[int]]:
    same = [p for p in range(len(labels)) if labels[p] == labels[a] and p != a]
    return same, [n for n in range(len(labels)) if labels[n] != labels[a]]


def test_batch_hard_is_the_largest_violation_of_all_triplets() -> None:
    losses = triplet_loss(D, batch_hard(D, LABELS), 0.5, reduction="none").tolist()
    for a, loss in enumerate(losses):
        same, other = others(LABELS, a)
        every = [max(0.0, 0.5 + float(D[a, p] - D[a, n])) for p, n in product(same, other)]
        assert loss == pytest.approx(max(every, default=0.0))
    mined = batch_hard(D, LABELS)
    assert mined.mask.tolist() == [False] * 4 + [True] + [False] * 2
    mean = triplet_loss(D, mined, 0.5)
    assert float(mean) == pytest.approx(sum(losses) / 6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.floats(0.1, 3), st.floats(0.05, 3))
def test_the_hardest_loss_is_below_the_distances_to_any_ideal_embedding(
    seed: int, margin: float, spread: float
) -> None:
    """Ideal: far apart by label, tight within, so that every triplet keeps the margin."""
    x = embeddings(seed) * spread
    corners = torch.eye(3, dtype=torch.float64)[LABELS] * (margin + 0.2) / math.sqrt(2)
    ideal = corners + torch.nn.functional.normalize(embeddings(seed + 1), dim=1) * 0.02
    d, goal = distances(x), distances(ideal)
    assert float(triplet_loss(goal, batch_hard(goal, LABELS), margin, reduction="sum")) == 0
    hardest = float(triplet_loss(d, batch_hard(d, LABELS), margin, reduction="none").max())
    isometric = float((d - goal).abs().max())
    assert hardest <= 2 * isometric + 1e-12
    assert 2 * isometric <= 4 * float((x - ideal).norm(dim=1).max()) + 1e-12


def test_a_collapsed_embedding_has_just_the_margin_and_no_triplet_has_more_than_the_hardest() -> None:
    nothing = torch.zeros(7, 7)
    assert triplet_loss(nothing, batch_hard(nothing, LABELS), 0.3, reduction="none").tolist() == (
        pytest.approx([0.3] * 4 + [0] + [0.3] * 2)
    )
    hard = triplet_loss(D, batch_hard(D, LABELS), 0.3, reduction="none")
    semi = semi_hard(D, LABELS, or_farthest=True)
    assert bool((triplet_loss(D, semi, 0.3, reduction="none") <= hard[semi.anchor]).all())


@pytest.mark.parametrize("margin", [0.05, 0.4, math.inf])
@pytest.mark.parametrize("or_farthest", [False, True])
def test_semi_hard_equals_the_plain_search(margin: float, or_farthest: bool) -> None:
    d = (D * 8).round() / 8  # ties: as far as the positive is not beyond it
    mined = semi_hard(d, LABELS, margin, or_farthest=or_farthest)
    pairs = [(a, p) for a in range(7) for p in others(LABELS, a)[0]]
    assert list(zip(mined.anchor.tolist(), mined.positive.tolist(), strict=True)) == pairs
    empty = 0
    for (a, p), n, mask in zip(pairs, mined.negative.tolist(), mined.mask.tolist(), strict=True):
        candidates = [float(d[a, j]) for j in others(LABELS, a)[1]]
        wanted = [c for c in candidates if d[a, p] < c < d[a, p] + margin]
        empty += not wanted
        if not wanted and not or_farthest:
            assert mask
            assert n == 0
        else:
            assert not mask
            assert LABELS[n] != LABELS[a]
            assert float(d[a, n]) == (min(wanted) if wanted else max(candidates))
    assert empty > 0 or margin == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_mine_the_same(dtype: torch.dtype) -> None:
    d = ((D * 8).round() / 8).to(dtype)  # eighths are exact in each
    for one, other in (
        (semi_hard(d, LABELS), semi_hard(d.double(), LABELS)),
        (batch_hard(d, LABELS), batch_hard(d.double(), LABELS)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_gradients_pull_the_positive_and_push_the_negative() -> None:
    x = embeddings(3).requires_grad_()
    gram = x @ x.T
    d = gram.diagonal().unsqueeze(1) + gram.diagonal() - 2 * gram  # squared, so smooth on the diagonal
    d = d.clamp(min=0)
    loss = triplet_loss(d, batch_hard(d, LABELS))
    loss.backward()
    assert bool(x.grad.isfinite().all())
    step = (x - 1e-3 * x.grad).detach()
    after = distances(step).square()
    assert float(triplet_loss(after, batch_hard(d, LABELS))) < float(loss.detach())
    plain = [
        math.log1p(math.exp(float(d.detach()[a, p] - d.detach()[a, n])))
        for a, p, n, m in zip(*(t.tolist() for t in batch_hard(d, LABELS)), strict=True)
        if not m
    ]
    assert float(loss.detach()) == pytest.approx(sum(plain) / len(plain))


@pytest.mark.parametrize("labels", [[], [3], [1, 1, 1], [0, 1, 2]])
def test_batches_without_triplets_have_empty_slots_or_none(labels: list[int]) -> None:
    d = torch.ones(len(labels), len(labels), dtype=torch.float32)
    for mined in (
        batch_hard(d, torch.tensor(labels, dtype=torch.int64)),
        semi_hard(d, torch.tensor(labels, dtype=torch.int64), or_farthest=True),
    ):
        assert isinstance(mined, Triplets)
        assert bool(mined.mask.all())
        assert float(triplet_loss(d, mined, 0.1, reduction="sum")) == 0
        with pytest.raises(ValueError, match="mean"):
            triplet_loss(d, mined, 0.1)


def test_what_does_not_fit_is_refused() -> None:
    for mine in (batch_hard, semi_hard):
        with pytest.raises(ValueError, match=r"\(B, B\)"):
            mine(D[:3], LABELS)
        with pytest.raises(TypeError, match="integers"):
            mine(D, LABELS.double())
        with pytest.raises(TypeError, match="floating"):
            mine(D.long(), LABELS)
        with pytest.raises(ValueError, match="not negative"):
            mine(-D, LABELS)
        with pytest.raises(ValueError, match="finite"):
            mine(D * math.nan, LABELS)
    with pytest.raises(ValueError, match="margin"):
        semi_hard(D, LABELS, 0.0)
    with pytest.raises(ValueError, match="margin"):
        triplet_loss(D, batch_hard(D, LABELS), -1.0)
