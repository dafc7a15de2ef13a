"""Positive and negative pairs of labels, and sums over them that may be empty."""

import math

import pytest
import torch

from steelyard.losses.pairs import check_classes, check_number, label_pairs, log_sum_exp, widened


def test_pairs_are_those_of_a_plain_loop_and_leave_out_oneself_and_the_masked() -> None:
    labels = torch.tensor([0, 1, 0, 2, 1])
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[0, 2] = mask[3, 1] = True
    positive, negative = label_pairs(torch.zeros(5, 5), labels, mask=mask)
    for i in range(5):
        for j in range(5):
            kept = i != j and not mask[i, j]
            assert bool(positive[i, j]) == (kept and bool(labels[i] == labels[j]))
            assert bool(negative[i, j]) == (kept and bool(labels[i] != labels[j]))


def test_references_of_their_own_keep_every_pair() -> None:
    labels = torch.tensor([3, 1])
    positive, negative = label_pairs(torch.zeros(2, 3), labels, torch.tensor([1, 3, 3]))
    assert positive.tolist() == [[False, True, True], [True, False, False]]
    assert bool((positive ^ negative).all())


def test_an_empty_sum_has_log_minus_infinity_and_no_gradient() -> None:
    score = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    keep = torch.tensor([[True, True], [False, False]])
    for plus_one, want in ((False, -math.inf), (True, 0.0)):
        got = log_sum_exp(score, keep, plus_one=plus_one)
        assert float(got[1]) == want
        assert float(got[0]) == pytest.approx(math.log(math.exp(1) + math.exp(2) + plus_one))
        (gradient,) = torch.autograd.grad(got[0] + got[1].clamp(min=-1), score)
        assert gradient[1].tolist() == [0, 0]
    assert log_sum_exp(score[:, :0], keep[:, :0], plus_one=True).tolist() == [0, 0]
    assert log_sum_exp(score[:, :0], keep[:, :0]).tolist() == [-math.inf] * 2
    torch.testing.assert_close(log_sum_exp(score, keep, dim=0), torch.tensor([1.0, 2.0]))


def test_half_precision_is_widened_and_more_is_kept() -> None:
    kept = {torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}
    for given, want in kept.items():
        assert widened(torch.zeros(1, dtype=given)).dtype == want


def test_what_is_wrong_is_named() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(TypeError, match="floating point"):
        label_pairs(torch.zeros(2, 2, dtype=torch.long), labels)
    with pytest.raises(TypeError, match="integers"):
        label_pairs(torch.zeros(2, 2), labels.float())
    with pytest.raises(TypeError, match="bool"):
        label_pairs(torch.zeros(2, 2), labels, mask=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="without reference_labels"):
        label_pairs(torch.zeros(2, 3), labels)
    with pytest.raises(ValueError, match="broadcast"):
        label_pairs(torch.zeros(2, 2), labels, mask=torch.zeros(3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="0 to 1"):
        check_classes(torch.tensor([0, 2]), 2, 2)
    with pytest.raises(ValueError, match="0 to 1"):
        check_classes(torch.tensor([-1, 1]), 2, 2)
    with pytest.raises(ValueError, match="one for each"):
        check_classes(labels, 3, 2)
    check_classes(labels[:0], 0, 2)
    for wrong in (math.nan, math.inf, -1.0, 0.0):
        with pytest.raises(ValueError, match="above 0"):
            check_number("x", wrong, above=0)
    with pytest.raises(ValueError, match="at least 0"):
        check_number("x", -0.1, least=0)
    check_number("x", 0.0, least=0)
