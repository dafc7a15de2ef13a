"""A negative gives way to the next of its list exactly when it has become easy."""

import math

import pytest
import torch

from steelyard.negatives.schedules.conan import conan_replace


def test_the_rule_fires_exactly_on_constructed_scores() -> None:
    start = torch.tensor([[0.6, 0.6, 0.95, -0.1, 0.6, 0.6]], dtype=torch.float64)
    now = torch.tensor([[0.5, 0.53, 0.81, -0.1, -0.7, -0.81]], dtype=torch.float64)
    # falls enough; not enough; beyond the ceiling; -0.115 < -0.1; falls far; beyond the ceiling below 0
    done = conan_replace(now, start, torch.arange(6).unsqueeze(0), torch.tensor([6]), 100)
    assert done.replaced.tolist() == [[True, False, False, True, True, False]]
    assert done.position.tolist() == [[6, 1, 2, 7, 8, 5]]
    assert done.cursor.tolist() == [9]
    assert not bool(done.exhausted.any())


def test_equality_at_the_thresholds_keeps_a_negative() -> None:
    start, now = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.8]])
    done = conan_replace(now, start, torch.tensor([[0, 1]]), torch.tensor([2]), 9, factor=2.0)
    assert done.replaced.tolist() == [[False, False]]


def test_at_the_end_of_a_list_negatives_stay_and_are_reported() -> None:
    start, now = torch.full((2, 3), 0.7), torch.full((2, 3), 0.1)
    position = torch.tensor([[0, 1, 2], [4, 1, 9]])
    done = conan_replace(now, start, position, torch.tensor([3, 10]), torch.tensor([5, 10]))
    assert done.position.tolist() == [[3, 4, 2], [4, 1, 9]]
    assert done.replaced.tolist() == [[True, True, False], [False] * 3]
    assert done.exhausted.tolist() == [[False, False, True], [True] * 3]
    assert done.cursor.tolist() == [5, 10]


def test_negatives_stay_harder_than_without_replacement() -> None:
    # Training on a negative lowers its score; those never used keep theirs.
    generator = torch.Generator().manual_seed(0)
    mined = (
        torch.rand(16, 60, generator=generator, dtype=torch.float64).mul(0.3).add(0.45).sort(1, True).values
    )
    means = []
    for replace in (True, False):
        score = mined.clone()
        position, cursor = torch.arange(4).repeat(16, 1), torch.full((16,), 4)
        start, hardness = score.gather(1, position), []
        for _ in range(40):
            now = score.gather(1, position) * 0.97
            score.scatter_(1, position, now)
            hardness.append(float(now.mean()))
            if replace:
                done = conan_replace(now, start, position, cursor, 60)
                position, cursor = done.position, done.cursor
                start = torch.where(done.replaced, score.gather(1, position), start)
        means.append(sum(hardness) / 40)
    assert means[0] > 1.3 * means[1]


def test_inputs_stay_as_they_are_and_wrong_ones_are_refused() -> None:
    score, place, cursor = torch.full((1, 2), 0.1), torch.tensor([[0, 1]]), torch.tensor([2])
    conan_replace(score, score + 0.5, place, cursor, 9)
    assert place.tolist() == [[0, 1]]
    assert cursor.tolist() == [2]
    nothing = conan_replace(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0, 2).long(), cursor[:0], 9)
    assert nothing.position.shape == (0, 2)
    for arguments, kind, said in (
        ((score.long(), score, place, cursor, 9), TypeError, "floating"),
        ((score, score, place.int(), cursor, 9), TypeError, "int64"),
        ((score, score[:, :1], place, cursor, 9), ValueError, r"\(B, H\)"),
        ((score * math.nan, score, place, cursor, 9), ValueError, "NaN"),
    ):
        with pytest.raises(kind, match=said):
            conan_replace(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="factor"):
        conan_replace(score, score, place, cursor, 9, factor=0.9)


@pytest.mark.parametrize("length", [torch.tensor([5]), torch.tensor([5, 6, 7]), torch.tensor([[5, 6]])])
def test_lists_of_other_numbers_of_queries_are_refused_in_words(length: torch.Tensor) -> None:
    score = torch.zeros(2, 3)
    position, cursor = torch.arange(3).repeat(2, 1), torch.full((2,), 3)
    if length.shape == (1,):
        assert conan_replace(score, score, position, cursor, length).cursor.shape == (2,)
        with pytest.raises(ValueError, match=r"cursors \(B,\)"):
            conan_replace(score, score, position, cursor[:1], length)
    else:
        with pytest.raises(ValueError, match="length must be one number"):
            conan_replace(score, score, position, cursor, length)
