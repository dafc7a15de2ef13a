"""Threshold consistency: hard pairs alone are paid for, and unequal classes are measured."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.multi_similarity import multi_similarity
from steelyard.losses.threshold_consistent import (
    false_accept_threshold,
    operating_points,
    threshold_consistent_margin,
)


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(12, 5, generator=g, dtype=torch.float64), dim=1)
    return x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4])


def test_it_equals_pytorch_metric_learning() -> None:
    s, y = batch()  # ThresholdConsistentMarginLoss of version 2.9.0
    assert float(threshold_consistent_margin(s, y)) == pytest.approx(0.9922652669929806, abs=1e-12)
    got = threshold_consistent_margin(
        s, y, positive_margin=0.8, negative_margin=0.1, positive_weight=2.0, negative_weight=0.5
    )
    assert float(got) == pytest.approx(1.6578757654243534, abs=1e-12)


def test_the_loss_is_zero_where_the_margins_hold_and_moves_hard_pairs_alone() -> None:
    y = torch.tensor([0, 0, 1, 1])
    same = y[:, None] == y
    s = torch.where(same, 0.95, 0.3).double().requires_grad_()
    loss = threshold_consistent_margin(s, y)
    assert float(loss) == 0
    assert not torch.autograd.grad(loss, s)[0].any()
    hard = s.detach().clone()
    hard[0, 1], hard[2, 0] = 0.5, 0.7
    hard.requires_grad_()
    (gradient,) = torch.autograd.grad(threshold_consistent_margin(hard, y), hard)
    want = torch.zeros(4, 4, dtype=torch.float64)
    want[0, 1], want[2, 0] = -1.0, 1.0
    torch.testing.assert_close(gradient, want)


def test_gradients_agree_with_finite_differences() -> None:
    s, y = batch()
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: threshold_consistent_margin(x, y), (s,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_of_one_side_or_none_and_low_precision_stay_finite(dtype: torch.dtype) -> None:
    s, _ = batch()
    low = s.to(dtype).requires_grad_()
    for labels in (torch.zeros(12, dtype=torch.long), torch.arange(12)):
        loss = threshold_consistent_margin(low, labels)
        assert torch.autograd.grad(loss, low)[0].isfinite().all()
        want = threshold_consistent_margin(low.detach().double(), labels)
        assert float(loss) == pytest.approx(float(want), rel=1e-5)
    empty = torch.zeros(0, 0)
    assert float(threshold_consistent_margin(empty, torch.zeros(0, dtype=torch.long))) == 0


def plain_opis(s: Tensor, y: Tensor, low: float, high: float, n: int, b: float) -> float:
    total = 0.0
    for k in range(n):
        t = low + (high - low) * (k + 0.5) / n
        utilities = []
        for c in sorted(set(y.tolist())):
            rows = [i for i in range(len(y)) if y[i] == c]
            pos = [float(s[i, j]) for i in rows for j in rows if i != j]
            neg = [float(s[i, j]) for i in rows for j in range(len(y)) if y[j] != c]
            if not pos or not neg:
                continue
            sens = sum(v >= t for v in pos) / len(pos)
            spec = sum(v < t for v in neg) / len(neg)
            whole = b**2 * spec + sens
            utilities.append((1 + b**2) * spec * sens / whole if whole else 0.0)
        mean = sum(utilities) / len(utilities)
        total += sum((u - mean) ** 2 for u in utilities) / len(utilities) / n
    return total


def test_opis_equals_brute_force_and_names_the_classes_it_skips() -> None:
    s, y = batch()
    got = operating_points(s, y, low=-0.5, high=0.8, n_thresholds=37, balance=1.4)
    assert got.inconsistency == pytest.approx(plain_opis(s, y, -0.5, 0.8, 37, 1.4), abs=1e-14)
    assert got.inconsistency > 0.001
    assert got.classes.tolist() == [0, 1, 2, 3]
    assert got.skipped.tolist() == [4]
    assert got.utility.shape == (4, 37)


def test_opis_is_zero_for_classes_that_are_alike() -> None:
    s = torch.full((6, 6), 0.1)
    s[:3, :3] = s[3:, 3:] = torch.tensor([[1.0, 0.4, 0.7], [0.4, 1.0, 0.6], [0.7, 0.6, 1.0]])
    y = torch.tensor([5, 5, 5, 9, 9, 9])
    assert operating_points(s, y, low=0.0, high=1.0).inconsistency == 0
    s[0, 1] = s[1, 0] = 0.2
    assert operating_points(s, y, low=0.0, high=1.0).inconsistency > 0


def test_adding_the_loss_evens_out_classes_of_unlike_spread() -> None:
    g = torch.Generator().manual_seed(4)
    y = torch.arange(4).repeat_interleave(10)
    centres = normalize(torch.randn(4, 8, generator=g), dim=1)[y]
    spread = torch.tensor([0.1, 0.2, 0.5, 0.6])[y, None]
    start = centres + spread * torch.randn(40, 8, generator=g)
    found = []
    for weight in (0.0, 1.0):
        x = start.clone().requires_grad_()
        optimiser = torch.optim.SGD([x], lr=1.0)
        for _ in range(30):
            z = normalize(x, dim=1)
            s = z @ z.T
            loss = multi_similarity(s, y) + weight * threshold_consistent_margin(s, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        z = normalize(x.detach(), dim=1)
        s = z @ z.T
        nearest = s.clone().fill_diagonal_(-2).argmax(1)
        found.append(
            (
                operating_points(s, y, low=0.3, high=0.95).inconsistency,
                float((y[nearest] == y).float().mean()),
            )
        )
    assert found[1][0] < found[0][0] / 2
    assert found[1][1] >= found[0][1]


def test_a_threshold_accepts_at_most_its_share_of_negatives_and_no_smaller_one_does() -> None:
    s, y = batch()
    others = s[y[:, None] != y]
    for rate in (0.0, 0.01, 0.1, 0.5):
        t = false_accept_threshold(s, y, rate)
        assert float((others >= t).double().mean()) <= rate
        below = math.nextafter(t, -math.inf)
        assert float((others >= below).double().mean()) > rate


def test_what_is_wrong_is_named() -> None:
    s, y = batch()
    with pytest.raises(ValueError, match="positive_weight"):
        threshold_consistent_margin(s, y, positive_weight=-1.0)
    with pytest.raises(ValueError, match="high"):
        operating_points(s, y, low=0.5, high=0.5)
    with pytest.raises(ValueError, match="n_thresholds"):
        operating_points(s, y, low=0.0, high=0.5, n_thresholds=0)
    with pytest.raises(ValueError, match="No class"):
        operating_points(s, torch.arange(12), low=0.0, high=0.5)
    with pytest.raises(ValueError, match="NaN"):
        operating_points(s * math.nan, y, low=0.0, high=0.5)
    with pytest.raises(ValueError, match="rate"):
        false_accept_threshold(s, y, 1.0)
    with pytest.raises(ValueError, match="negative pairs"):
        false_accept_threshold(s, torch.zeros(12, dtype=torch.long), 0.1)


def test_a_similarity_that_is_nan_is_seen_in_the_loss() -> None:
    labels = torch.tensor([0, 0, 1])
    for place in ((0, 1), (0, 2)):
        similarity = torch.full((3, 3), 0.6)
        similarity[place] = math.nan
        assert math.isnan(float(threshold_consistent_margin(similarity, labels)))
