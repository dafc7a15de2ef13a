"""False-negative rules: each keeps what its formula says, and the counts say where the others went."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from steelyard.negatives.context import Context
from steelyard.negatives.filters import (
    AbsoluteMargin,
    Duplicates,
    Filter,
    GuideModel,
    KnownPositives,
    Mined,
    PercentageOfPositive,
    RankWindow,
    ScoreRange,
    apply_filters,
)
from steelyard.ragged import Ragged

# Two queries: the first with cosines above zero, the second with scores below; both end in an empty slot.
IDS = torch.tensor([[4, 1, 0, 7, -1], [2, 6, 3, 5, 9]])
SCORE = torch.tensor(
    [[0.9, 0.78, 0.76, 0.1, 0.0], [-0.4, -0.49, -0.51, -0.8, -math.inf]], dtype=torch.float64
)
POSITIVE = torch.tensor([0.8, -0.5], dtype=torch.float64)
MINED = Mined(IDS, SCORE, POSITIVE)

cents = st.integers(-100, 100).map(lambda cent: cent / 100)


def kept(rule: Filter, mined: Mined = MINED) -> list[list[int]]:
    keep, counts = apply_filters([rule], mined)
    assert counts == {rule.name: int(mined.occupied.sum() - keep.sum())}
    return [row[mask].tolist() for row, mask in zip(mined.ids, keep, strict=True)]


def one_query(scores: list[float], positive: float, dtype: torch.dtype = torch.float64) -> Mined:
    score = torch.tensor([sorted(scores, reverse=True)], dtype=dtype)
    return Mined(torch.arange(len(scores)).view(1, -1), score, torch.tensor([positive], dtype=dtype))


def peers_relative_margin(mined: Mined, margin: float) -> Tensor:
    """What mine_hard_negatives of sentence-transformers kept before it minded the sign, in a plain loop."""
    rows = zip(mined.score.tolist(), mined.positive_score.tolist(), strict=True)
    return torch.tensor([[not score > positive * (1 - margin) for score in row] for row, positive in rows])


def test_each_rule_keeps_what_its_formula_says() -> None:
    assert kept(RankWindow(1, 3)) == [[1, 0], [6, 3]]
    assert kept(RankWindow(2)) == [[0, 7], [3, 5]]
    assert kept(ScoreRange(min_score=-0.49, max_score=0.78)) == [[1, 0, 7], [2, 6]]
    assert kept(ScoreRange(max_score=0.1, score=torch.tensor([[0.0, 0.2, 0.05, 0.9, 7]] * 2))) == [
        [4, 0],
        [2, 3],
    ]
    assert kept(AbsoluteMargin(0.0)) == [[1, 0, 7], [3, 5]]
    assert kept(AbsoluteMargin(0.05)) == [[7], [5]]
    assert kept(PercentageOfPositive(0.95)) == [[0, 7], [5]]
    assert kept(PercentageOfPositive(1.0)) == kept(AbsoluteMargin(0.0))


@given(st.lists(cents, min_size=1, max_size=8), cents, st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_the_percentage_equals_the_published_product_for_a_positive_score(
    scores: list[float], positive: float, percentage: float
) -> None:
    tie = percentage * abs(positive)
    mined = one_query([*scores, tie, math.nextafter(tie, math.inf)], abs(positive))
    keep = PercentageOfPositive(percentage)(mined)
    assert keep.tolist() == [[s <= tie for s in mined.score[0].tolist()]]
    assert torch.equal(keep, peers_relative_margin(mined, 1 - percentage))


@given(st.lists(cents, min_size=1, max_size=8), cents, st.floats(0, 1))
def test_no_candidate_above_the_positive_survives_a_percentage_whatever_the_sign(
    scores: list[float], positive: float, percentage: float
) -> None:
    mined = one_query(scores, positive)
    keep = PercentageOfPositive(percentage)(mined)
    assert bool((mined.score[keep] <= positive).all())
    # Lower percentages keep less.
    assert not bool((PercentageOfPositive(percentage / 2)(mined) & ~keep).any())


def test_the_peers_product_keeps_a_candidate_that_beats_a_negative_positive_and_ours_does_not() -> None:
    mined = one_query([-0.4, -0.49, -0.51, -0.525, -0.53, -0.8], -0.5)
    assert peers_relative_margin(mined, 0.05).tolist() == [[False, True, True, True, True, True]]
    assert PercentageOfPositive(0.95)(mined).tolist() == [[False, False, False, True, True, True]]


@given(st.lists(cents, min_size=1, max_size=8), cents)
def test_the_percentage_equals_the_stated_formula_away_from_ties(
    scores: list[float], positive: float
) -> None:
    mined = one_query(scores, positive)
    threshold = positive - (1 - 0.93) * abs(positive)
    for score, keep in zip(
        mined.score[0].tolist(), PercentageOfPositive(0.93)(mined)[0].tolist(), strict=True
    ):
        if abs(score - threshold) > 1e-9:
            assert keep == (score <= threshold)


def test_known_positives_go_by_context_with_one_or_many_positives_or_by_rows() -> None:
    rows = Ragged.from_pairs(torch.tensor([0, 1, 1, 1]), torch.tensor([7, 6, 2, 8]), 2)
    assert kept(KnownPositives(rows)) == [[4, 1, 0], [3, 5]]
    assert kept(KnownPositives(Context(torch.tensor([1, 8])))) == [[4, 0, 7], [2, 6, 3, 5]]
    assert kept(KnownPositives(Context(torch.tensor([1, 8]), rows))) == [[4, 0], [3, 5]]
    many = Context(rows.values, rows, rows.row_index())
    assert kept(KnownPositives(many)) == [[4, 1, 0], [3, 5]]


def test_an_empty_slot_is_not_taken_for_the_first_item() -> None:
    mined = Mined(torch.tensor([[3, -1]]), torch.tensor([[0.5, 0.4]]), torch.tensor([0.9]))
    assert apply_filters([KnownPositives(Context(torch.tensor([0])))], mined)[1] == {"known_positives": 0}


def test_duplicates_of_any_wanted_item_go_with_it() -> None:
    #                     0  1  2  3  4  5  6  7  8  9
    alike = torch.tensor([5, 0, 5, 1, 0, 2, 3, 4, 3, 6])
    assert kept(Duplicates(alike, Context(torch.tensor([1, 8])))) == [[0, 7], [2, 3, 5]]
    rows = Ragged.from_pairs(torch.tensor([0, 1]), torch.tensor([7, 0]), 2)
    assert kept(Duplicates(alike, rows)) == [[4, 1, 0], [6, 3, 5]]
    assert kept(Duplicates(alike, Context(torch.tensor([1, 8]), rows))) == [[0], [3, 5]]
    many = Context(rows.values, rows, rows.row_index())
    assert kept(Duplicates(alike, many)) == kept(Duplicates(alike, rows))
    assert kept(Duplicates(torch.arange(10), rows)) == kept(KnownPositives(rows))


def test_the_guide_drops_what_it_ranks_with_or_above_the_positive_less_a_margin() -> None:
    guide = torch.tensor([[0.2, 0.6, 0.5, 0.44, math.nan], [3.0, -1.0, -0.9, -1.2, math.nan]])
    positive = torch.tensor([0.5, -1.0])
    assert kept(GuideModel(guide, positive)) == [[4, 7], [5]]
    assert kept(GuideModel(guide, positive, margin=0.1)) == [[4], [5]]
    # The model as its own guide without a margin is the absolute margin without ties.
    assert kept(GuideModel(SCORE, POSITIVE)) == kept(AbsoluteMargin(1e-12))


@dataclass(frozen=True)
class Fixed:
    """A rule that answers what it is told."""

    answer: Tensor
    name: str = "fixed"

    def __call__(self, mined: Mined) -> Tensor:
        assert mined is MINED
        return self.answer


@given(st.lists(st.lists(st.booleans(), min_size=10, max_size=10), max_size=4))
def test_each_candidate_is_counted_once_for_the_first_rule_that_removes_it(answers: list[list[bool]]) -> None:
    rules = [Fixed(torch.tensor(a).view(2, 5), f"rule {k}") for k, a in enumerate(answers)]
    want = {rule.name: 0 for rule in rules}
    left = []
    for slot, (item, score) in enumerate(zip(IDS.flatten().tolist(), SCORE.flatten().tolist(), strict=True)):
        if item == -1 or score == -math.inf:
            continue
        removed_by = next((rule.name for rule, a in zip(rules, answers, strict=True) if not a[slot]), None)
        if removed_by is None:
            left.append(slot)
        else:
            want[removed_by] += 1
    keep, counts = apply_filters(rules, MINED)
    assert counts == want
    assert keep.flatten().nonzero().flatten().tolist() == left


def test_the_order_of_the_rules_moves_the_counts_and_not_the_mask() -> None:
    rules: Sequence[Filter] = [RankWindow(1), AbsoluteMargin(0.0), ScoreRange(min_score=-0.6)]
    keep, counts = apply_filters(rules, MINED)
    assert counts == {"rank_window": 2, "absolute_margin": 1, "score_range": 1}
    other, turned = apply_filters(rules[::-1], MINED)
    assert torch.equal(keep, other)
    assert turned == {"score_range": 1, "absolute_margin": 3, "rank_window": 0}


def test_a_rule_that_comes_twice_is_counted_under_two_names() -> None:
    rules = [ScoreRange(max_score=0.8), ScoreRange(min_score=0.0), ScoreRange(min_score=0.77)]
    assert apply_filters(rules, MINED)[1] == {"score_range": 1, "score_range_2": 4, "score_range_3": 2}


def test_the_lowest_of_many_positives_stands_for_all_as_documented() -> None:
    scores, owner = torch.tensor([0.9, -0.2, 0.4, 0.3]), torch.tensor([0, 1, 0, 1])
    lowest = torch.full((2,), torch.inf).scatter_reduce(0, owner, scores, "amin")
    assert lowest.tolist() == pytest.approx([0.4, -0.2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_thresholds_lose_no_digits_to_the_scores_type(dtype: torch.dtype) -> None:
    # Near 1000 float16 counts in halves: 999.4 would become 999.5 and keep what scores that.
    mined = one_query([1000.0, 999.5, 999.0], 1000.0, dtype)
    assert AbsoluteMargin(0.4)(mined).tolist() == [[False, True, True]]
    assert AbsoluteMargin(0.6)(mined).tolist() == [[False, False, True]]
    assert PercentageOfPositive(0.9994)(mined).tolist() == [[False, False, True]]


def test_the_inputs_are_not_changed_and_plain_lists_do() -> None:
    before = [t.clone() for t in (IDS, SCORE, POSITIVE)]
    apply_filters(
        [RankWindow(1), PercentageOfPositive(), KnownPositives(Context(torch.tensor([1, 2])))], MINED
    )
    for then, now in zip(before, (IDS, SCORE, POSITIVE), strict=True):
        assert torch.equal(then, now)
    plain = Mined([[3, 1]], [[0.5, 0.2]], [0.4])  # type: ignore[arg-type]
    assert apply_filters([AbsoluteMargin(0.1)], plain)[0].tolist() == [[False, True]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_nothing_mined_is_nothing_removed(shape: tuple[int, int]) -> None:
    mined = Mined(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape), torch.zeros(shape[0]))
    known = Ragged.from_pairs(torch.zeros(0).long(), torch.zeros(0).long(), shape[0])
    alike = torch.zeros(0, dtype=torch.int64)
    rules: list[Filter] = [RankWindow(1, 2), ScoreRange(), AbsoluteMargin(0.1), PercentageOfPositive()]
    rules += [KnownPositives(known), Duplicates(alike, known), GuideModel(mined.score, mined.positive_score)]
    keep, counts = apply_filters(rules, mined)
    assert keep.shape == shape
    assert set(counts.values()) == {0}
    assert apply_filters([], MINED)[1] == {}


def test_candidates_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        replace(MINED, ids=IDS.int())
    with pytest.raises(TypeError, match="floating"):
        replace(MINED, score=SCORE.nan_to_num().long())
    with pytest.raises(ValueError, match=r"must be \(B, n\)"):
        replace(MINED, ids=IDS[0])
    with pytest.raises(ValueError, match=r"score must be \(2, 5\)"):
        replace(MINED, score=SCORE[:, :4])
    with pytest.raises(ValueError, match="mark an empty slot with -1"):
        replace(MINED, ids=IDS - 1)
    with pytest.raises(ValueError, match=r"positive_score must be \(2,\)"):
        replace(MINED, positive_score=POSITIVE[:1])
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"Mined.score must be finite"):
            replace(MINED, score=SCORE.masked_fill(SCORE == 0.9, bad))
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="positive_score must be finite"):
            replace(MINED, positive_score=torch.tensor([0.8, bad]))
    with pytest.raises(ValueError, match="must fall along each row"):
        replace(MINED, score=SCORE.flip(1))


def test_an_empty_slot_amid_the_row_hides_no_rise_and_makes_none() -> None:
    score = torch.tensor([[0.9, -math.inf, 0.7, 0.7]])
    mined = Mined(torch.tensor([[1, 2, 3, 4]]), score, torch.tensor([0.8]))
    assert apply_filters([AbsoluteMargin(0.0)], mined)[0].tolist() == [[False, False, True, True]]
    with pytest.raises(ValueError, match="must fall"):
        replace(mined, score=torch.tensor([[0.7, -math.inf, 0.9, 0.1]]))


def test_rules_that_make_no_sense_are_refused() -> None:
    for window in ((-1, 3), (2, 2), (3, 1)):
        with pytest.raises(ValueError, match="range_min < range_max"):
            RankWindow(*window)
    with pytest.raises(TypeError, match="integers"):
        RankWindow(1.0)  # type: ignore[arg-type]
    for limits in ((0.5, 0.4), (math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(ValueError, match="min_score <= max_score"):
            ScoreRange(*limits)
    for margin in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin must be finite"):
            AbsoluteMargin(margin)
        with pytest.raises(ValueError, match="margin must be finite"):
            GuideModel(SCORE, POSITIVE, margin)
    for percentage in (95, -0.1, math.nan):
        with pytest.raises(ValueError, match="share in"):
            PercentageOfPositive(percentage)
    with pytest.raises(ValueError, match="sorted"):
        KnownPositives(Ragged(torch.tensor([0, 2]), torch.tensor([5, 3])))
    with pytest.raises(ValueError, match="number of its own"):
        Duplicates(torch.tensor([0, -1]), Context(torch.tensor([1])))
    with pytest.raises(ValueError, match="int64"):
        Duplicates(torch.zeros(3), Context(torch.tensor([1])))


def test_rules_that_do_not_fit_the_candidates_are_refused() -> None:
    one = Context(torch.tensor([1]))
    for rule in (KnownPositives(one), Duplicates(torch.arange(10), one)):
        with pytest.raises(ValueError, match="1 queries do not fit candidates of 2"):
            apply_filters([rule], MINED)
    with pytest.raises(ValueError, match="groups of 7 items, got ids 0 to 7"):
        apply_filters([Duplicates(torch.arange(7), Context(torch.tensor([1, 2])))], MINED)
    with pytest.raises(ValueError, match="groups of 10 items, got ids 1 to 12"):
        apply_filters([Duplicates(torch.arange(10), Context(torch.tensor([1, 12])))], MINED)
    with pytest.raises(ValueError, match=r"guide_score must be \(2, 5\)"):
        apply_filters([GuideModel(SCORE[:, :2], POSITIVE)], MINED)
    with pytest.raises(ValueError, match=r"guide_positive_score must be \(2,\)"):
        apply_filters([GuideModel(SCORE, POSITIVE[:1])], MINED)
    with pytest.raises(ValueError, match="guide_score must be finite"):
        apply_filters([GuideModel(SCORE * math.nan, POSITIVE)], MINED)
    with pytest.raises(ValueError, match=r"ScoreRange.score must be finite"):
        apply_filters([ScoreRange(score=SCORE * math.nan)], MINED)
    with pytest.raises(TypeError, match="bool"):
        apply_filters([Fixed(SCORE)], MINED)
    with pytest.raises(ValueError, match=r"answered \(5,\)"):
        apply_filters([Fixed(torch.ones(5, dtype=torch.bool))], MINED)
