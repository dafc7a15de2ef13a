"""Selection after sampling: a partial softmax below the full one, whichever side it is taken on."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.losses import sampled_softmax
from steelyard.negatives.hard.hardest import dual_view_loss, hardest

POSITIVE = torch.tensor([1.5, -0.5], dtype=torch.float64)
SCORE = torch.tensor([[2.0, -1.0, 0.3, 1.7, 0.3], [-2.0, 0.1, -0.4, 3.0, -1.1]], dtype=torch.float64)
LOG_EXPECTED = torch.tensor([[2.0, -2.0, 0.0, 0.5, 0.1], [0.0, -3.0, 1.0, 4.0, -1.0]], dtype=torch.float64)


def loss_of(
    k: int, log_expected: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    columns, empty = hardest(SCORE, k, mask, log_expected)
    weight = torch.zeros_like(SCORE) if log_expected is None else log_expected
    return sampled_softmax(
        POSITIVE, SCORE.gather(1, columns), weight.gather(1, columns), empty, reduction="none"
    )


@pytest.mark.parametrize("log_expected", [None, LOG_EXPECTED])
def test_the_loss_rises_with_k_and_meets_the_loss_over_all_draws(log_expected: torch.Tensor | None) -> None:
    weight = torch.zeros_like(SCORE) if log_expected is None else log_expected
    full = sampled_softmax(POSITIVE, SCORE, weight, reduction="none")
    losses = torch.stack([loss_of(k, log_expected) for k in range(1, 8)])
    assert bool((losses.diff(dim=0)[:4] > 0).all())
    assert bool((losses[:4] < full).all())
    torch.testing.assert_close(losses[4:], full.expand(3, 2))


def test_the_kept_loss_is_the_written_out_sum_and_the_tightest_of_all_subsets() -> None:
    for row, k in itertools.product(range(2), range(1, 5)):
        terms = [
            math.exp(s - w) for s, w in zip(SCORE[row].tolist(), LOG_EXPECTED[row].tolist(), strict=True)
        ]
        positive = float(POSITIVE[row])
        bounds = [
            math.log(math.exp(positive) + sum(some)) - positive for some in itertools.combinations(terms, k)
        ]
        assert float(loss_of(k, LOG_EXPECTED)[row]) == pytest.approx(max(bounds))


def test_gradients_reach_the_kept_scores_alone() -> None:
    score = SCORE.clone().requires_grad_()
    columns, empty = hardest(score, 2)
    sampled_softmax(POSITIVE, score.gather(1, columns), torch.zeros(2, 2), empty).backward()
    assert (score.grad != 0).nonzero().tolist() == [[0, 0], [0, 3], [1, 1], [1, 3]]


def test_masked_and_missing_candidates_leave_empty_slots() -> None:
    mask = torch.tensor([[True, True, True, False, True], [False] * 5])
    columns, empty = hardest(SCORE, 3, mask)
    assert columns.tolist() == [[3, 0, 0], [3, 1, 2]]
    assert empty.tolist() == [[False, True, True], [False] * 3]
    everything = hardest(SCORE, 3, torch.tensor([True]))
    assert bool(everything[1].all())
    assert float(loss_of(3, mask=torch.ones(5, dtype=torch.bool)).sum()) == 0
    weights = torch.tensor([[0, 0, 0, math.inf, 0.0]] * 2)
    assert hardest(SCORE, 2, log_expected=weights)[0].tolist() == [[0, 2], [1, 2]]
    assert hardest(torch.zeros(2, 0), 3)[0].shape == (2, 0)
    assert hardest(torch.tensor([4.0]), 1)[0].tolist() == [0]


def test_masked_values_are_never_looked_at_and_nothing_is_changed() -> None:
    score = SCORE.clone()
    score[0, 1] = math.nan
    mask = score.isnan()
    kept = score.clone()
    assert hardest(score, 1, mask)[0].tolist() == [[0], [3]]
    torch.testing.assert_close(score, kept, equal_nan=True)


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.0, 2.0]), min_size=1, max_size=8), st.integers(1, 9))
def test_what_is_kept_has_the_largest_scores_whatever_the_ties(scores: list[float], k: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        score = torch.tensor(scores, dtype=dtype)
        columns, empty = hardest(score, k)
        kept = columns[~empty].tolist()
        assert len(set(kept)) == len(kept)
        finite = sorted((s for s in scores if s > -math.inf), reverse=True)
        assert [scores[c] for c in kept] == finite[:k]


def test_what_cannot_be_ranked_is_refused() -> None:
    for score, said, error in (
        (torch.tensor([[1]]), "floating", TypeError),
        (torch.tensor(1.0), "dimension", ValueError),
        (torch.tensor([math.nan, 1.0]), "NaN", ValueError),
        (torch.tensor([math.inf, 1.0]), "inf", ValueError),
    ):
        with pytest.raises(error, match=said):
            hardest(score, 1)
    for k, error in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="k must"):
            hardest(SCORE, k)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bool"):
        hardest(SCORE, 1, torch.zeros(5))
    with pytest.raises(ValueError, match="broadcast"):
        hardest(SCORE, 1, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="broadcast"):
        hardest(SCORE[0], 1, log_expected=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="NaN"):
        hardest(SCORE, 1, log_expected=torch.full((5,), math.nan))


def unit(*shape: int, seed: int) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(made, dim=-1)


def plain_dual_view(q: Any, key: Any, queue: Any, k: int, t: float) -> list[float]:
    losses = []
    for a, b in zip(q, key, strict=True):
        total = 0.0
        for one, other in ((a, b), (b, a)):
            near = sorted((float(one @ entry) / t for entry in queue), reverse=True)[:k]
            pos = float(one @ other) / t
            total += math.log(math.exp(pos) + sum(map(math.exp, near))) - pos
        losses.append(total / 2)
    return losses


def test_the_dual_view_loss_is_symmetric_rises_with_k_and_meets_the_full_one() -> None:
    q, key, queue = unit(3, 4, seed=1), unit(3, 4, seed=2), unit(7, 4, seed=3)
    losses = []
    for k in range(1, 8):
        loss = dual_view_loss(q, key, queue, k, 0.3, reduction="none")
        assert loss.tolist() == pytest.approx(plain_dual_view(q, key, queue, k, 0.3))
        torch.testing.assert_close(loss, dual_view_loss(key, q, queue, k, 0.3, reduction="none"))
        losses.append(loss)
    assert bool((torch.stack(losses).diff(dim=0) > 0).all())
    torch.testing.assert_close(losses[-1], dual_view_loss(q, key, queue, 99, 0.3, reduction="none"))


def test_the_dual_view_loss_refuses_what_does_not_fit() -> None:
    q, queue = unit(3, 4, seed=1), unit(7, 4, seed=3)
    with pytest.raises(ValueError, match=r"\(B, D\)"):
        dual_view_loss(q, q[:2], queue, 1)
    with pytest.raises(ValueError, match="temperature"):
        dual_view_loss(q, q, queue, 1, 0.0)
    with pytest.raises(ValueError, match="finite"):
        dual_view_loss(q, q, queue * math.nan, 1)
    assert float(dual_view_loss(q, q, queue[:0], 1)) == pytest.approx(0)


def test_expected_counts_of_other_shapes_are_refused_in_words() -> None:
    for shape in ((2, 4), (3, 5), (1, 3, 4)):
        with pytest.raises(ValueError, match=r"log_expected of shape .* does not broadcast"):
            hardest(torch.zeros(3, 4), 2, log_expected=torch.zeros(shape))


def test_views_of_two_precisions_meet_in_the_wider_one() -> None:
    g = torch.Generator().manual_seed(0)
    query, key, queue = (torch.randn(n, 4, generator=g) for n in (3, 3, 6))
    expected = float(dual_view_loss(query, key, queue, 2))
    for mixed in ((query.double(), key, queue), (query, key, queue.double())):
        assert float(dual_view_loss(*mixed, 2)) == pytest.approx(expected, rel=1e-5)
