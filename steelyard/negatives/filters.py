"""False-negative rules: which mined candidates are too likely relevant, or too easy, to be negatives.

A mined table goes through a chain of small filters, and `apply_filters` says what each of them removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from steelyard.negatives.asked import inside
from steelyard.negatives.context import Context
from steelyard.ragged import Ragged


@dataclass(frozen=True)
class Mined:
    """Candidates mined for a batch of queries, hardest first, with the score of each query's positive.

    A slot is empty where its id is -1 or its score -inf. Of a query's several positives the lowest score
    stands for all: `torch.full((B,), torch.inf).scatter_reduce(0, owner, scores, "amin")`.

    Args:
        ids: int64, (B, n): the candidates; the rank of a candidate is its column, from 0.
        score: float, (B, n): their scores, falling along each row.
        positive_score: float, (B,): the score of each query's positive by the same model, finite.

    Raises:
        TypeError: `ids` is not int64, or a score is not floating point.
        ValueError: the shapes do not fit, an id is below -1, the score of a candidate or of a positive is not
            finite, or the scores of a row do not fall.
    """

    ids: Tensor
    score: Tensor
    positive_score: Tensor

    def __post_init__(self) -> None:
        for field in ("ids", "score", "positive_score"):
            object.__setattr__(self, field, torch.as_tensor(getattr(self, field)))
        if self.ids.dtype != torch.int64:
            raise TypeError(f"Mined.ids must be int64, got {self.ids.dtype}.")
        if self.ids.ndim != 2:
            raise ValueError(f"Mined.ids must be (B, n), got {tuple(self.ids.shape)}.")
        if self.ids.numel() and int(self.ids.min()) < -1:
            raise ValueError(f"Mined.ids has {int(self.ids.min())}; mark an empty slot with -1.")
        occupied = self.occupied if self.score.shape == self.ids.shape else self.ids != -1
        _check_scores("Mined.score", self.score, occupied)
        _check_scores("Mined.positive_score", self.positive_score, self.ids.new_ones(len(self.ids)).bool())
        lowest_so_far = self.score.masked_fill(~occupied, math.inf).cummin(1).values
        if bool((occupied & (self.score > lowest_so_far)).any()):
            raise ValueError(
                "Mined.score must fall along each row, since a candidate's rank is its column: sort the "
                "candidates, and give the scores of another model to GuideModel."
            )

    @property
    def occupied(self) -> Tensor:
        """Which slots hold a candidate, bool, (B, n)."""
        return (self.ids != -1) & (self.score != -math.inf)


class Filter(Protocol):
    """One rule: says which candidates may stay. Its answer for an empty slot is not looked at."""

    @property
    def name(self) -> str:
        """What `apply_filters` counts under."""

    def __call__(self, mined: Mined) -> Tensor:
        """The rule's answer, bool, (B, n), True where the candidate is kept."""


def apply_filters(filters: Sequence[Filter], mined: Mined) -> tuple[Tensor, dict[str, int]]:
    """Run mined candidates through a chain of filters and count what each removes.

        keep = occupied and filter_1 and ... and filter_k
        counts[k] = candidates that pass filter_1 to filter_{k-1} and fail filter_k

    Each candidate is counted once, for the first filter that removes it, and an empty slot never, so the
    counts and the kept candidates add up to the occupied slots.

    Args:
        filters: the rules, in order; a name that comes again is counted as `name_2`, `name_3`.
        mined: the candidates.

    Returns:
        The keep mask, bool, (B, n), False at an empty slot; and for each filter how many it removed.

    Raises:
        TypeError: a filter answers with anything but a bool tensor.
        ValueError: a filter answers in another shape, or does not fit the candidates.
    """
    refused, names = first_refusal(filters, mined)
    removed = torch.bincount(refused[mined.occupied] + 1, minlength=len(names) + 1)[1:]
    return (refused == -1) & mined.occupied, dict(zip(names, removed.tolist(), strict=True))


def first_refusal(filters: Sequence[Filter], mined: Mined) -> tuple[Tensor, list[str]]:
    """The first filter of a chain that refuses each candidate: the reason why it goes.

        refused[b, j] = min { k : not filter_k[b, j] },   -1 where all let it pass

    Args:
        filters: the rules, in order; a name that comes again is called `name_2`, `name_3`.
        mined: the candidates.

    Returns:
        Place of the filter in the chain, int64, (B, n), without meaning in an empty slot; and the names.

    Raises:
        TypeError: a filter answers with anything but a bool tensor.
        ValueError: a filter answers in another shape, or does not fit the candidates.
    """
    refused = torch.full_like(mined.ids, -1)
    names: list[str] = []
    for place, rule in enumerate(filters):
        name, turn = rule.name, 1
        while name in names:
            turn += 1
            name = f"{rule.name}_{turn}"
        names.append(name)
        answer = rule(mined)
        if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
            raise TypeError(f"Filter {name} must answer with a bool tensor, got {answer!r:.80}.")
        if answer.shape != refused.shape:
            raise ValueError(
                f"Filter {name} answered {tuple(answer.shape)} for candidates {tuple(refused.shape)}."
            )
        refused[(refused == -1) & ~answer] = place
    return refused, names


@dataclass(frozen=True)
class RankWindow:
    """Keep the candidates whose rank lies in a window: shifted top-k.

        range_min <= rank < range_max

    The first ranks hold most of the unlabelled positives. The rank is that of the mined table, and other
    filters do not change it.

    Args:
        range_min: first rank that is kept, from 0.
        range_max: first rank that is not; None for no end.

    Raises:
        TypeError: a rank is not an integer.
        ValueError: a negative rank or an empty window.

    Reference:
        Moreira et al. (2024), NV-Retriever: Improving text embedding models with effective hard-negative
        mining, arXiv 2407.15831 (top-k shifted by N).
    """

    name: ClassVar[str] = "rank_window"
    range_min: int = 0
    range_max: int | None = None

    def __post_init__(self) -> None:
        end = self.range_min + 1 if self.range_max is None else self.range_max
        for rank in (self.range_min, end):
            if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
                raise TypeError(f"range_min and range_max must be integers, got {rank!r}.")
        if not 0 <= self.range_min < end:
            raise ValueError(
                f"The window wants 0 <= range_min < range_max, got {self.range_min} and {self.range_max}."
            )

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        rank = torch.arange(mined.ids.shape[1], device=mined.ids.device)
        end = len(rank) if self.range_max is None else self.range_max
        return ((rank >= self.range_min) & (rank < end)).expand(mined.ids.shape)


@dataclass(frozen=True)
class ScoreRange:
    """Keep the candidates whose score lies between a floor and a ceiling.

        min_score <= score <= max_score

    The floor drops what is too easy to teach anything, the ceiling (TopK-Abs) what is too likely relevant. With
    a cross-encoder's probabilities as `score`, a ceiling of 0.1 gives the denoised hard negatives of RocketQA.

    Args:
        min_score: the floor.
        max_score: the ceiling.
        score: float, (B, n): another model's scores of the candidates, in any order; default the mined ones.

    Raises:
        ValueError: a limit is NaN, or the floor lies above the ceiling; called: `score` does not fit the
            candidates or is not finite for one.

    Reference:
        Moreira et al. (2024), arXiv 2407.15831 (TopK-Abs). Qu et al. (2021), RocketQA: An optimized training
        approach to dense passage retrieval for open-domain question answering, NAACL, arXiv 2010.08191.
    """

    name: ClassVar[str] = "score_range"
    min_score: float = -math.inf
    max_score: float = math.inf
    score: Tensor | None = None

    def __post_init__(self) -> None:
        if self.score is not None:
            object.__setattr__(self, "score", torch.as_tensor(self.score))
        if not self.min_score <= self.max_score:  # also refuses NaN
            raise ValueError(
                f"The range wants min_score <= max_score, got {self.min_score} and {self.max_score}."
            )

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        score = mined.score if self.score is None else self.score
        _check_scores("ScoreRange.score", score, mined.occupied)
        return (score >= self.min_score) & (score <= self.max_score)


@dataclass(frozen=True)
class AbsoluteMargin:
    """Keep the candidates that score below the positive by a margin: TopK-MarginPos.

        score <= positive - margin

    Args:
        margin: in the units of the score, not negative; 0 keeps ties with the positive.

    Raises:
        ValueError: the margin is negative or not finite.

    Reference:
        Moreira et al. (2024), arXiv 2407.15831 (TopK-MarginPos, best at 0.05 there).
    """

    name: ClassVar[str] = "absolute_margin"
    margin: float

    def __post_init__(self) -> None:
        _check_margin(self.margin)

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        return mined.score <= (mined.positive_score.double() - self.margin).unsqueeze(1)


@dataclass(frozen=True)
class PercentageOfPositive:
    """Keep the candidates that score at most a percentage of the positive: TopK-PercPos, safe for any sign.

        score <= positive - (1 - percentage) |positive|

    For a positive score this is `percentage * positive`, as published. Of a negative one that product lies
    above the positive and would keep candidates that beat it; here the threshold stays below by the same
    share of its size (the reading for negative scores is ours). A share of a score means something only where
    0 does, as with cosines: for a positive that scores about 0 it leaves no margin, whatever the percentage.

    Args:
        percentage: as a share in [0, 1]; 0.95 is the paper's.

    Raises:
        ValueError: the share lies outside [0, 1].

    Reference:
        Moreira et al. (2024), arXiv 2407.15831 (TopK-PercPos).
    """

    name: ClassVar[str] = "percentage_of_positive"
    percentage: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.percentage <= 1:
            raise ValueError(f"percentage must be a share in [0, 1] such as 0.95, got {self.percentage}.")

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        positive = mined.positive_score.double()
        # One product for each sign is the formula without its cancellation.
        limit = torch.where(positive < 0, (2 - self.percentage) * positive, self.percentage * positive)
        return mined.score <= limit.unsqueeze(1)


@dataclass(frozen=True)
class KnownPositives:
    """Drop the candidates that their query is known to want.

        keep = id not in known(query)

    Args:
        known: what each query wants, B rows; a `Context` brings its positives too.

    Raises:
        ValueError: the rows of known items are not sorted; called: another number of queries.
    """

    name: ClassVar[str] = "known_positives"
    known: Context | Ragged

    def __post_init__(self) -> None:
        rows = self.known.known if isinstance(self.known, Context) else self.known
        if rows is not None and len(rows.values):
            # An unsorted row would silently hide some of its items from the search.
            same_row = rows.row_index().diff() == 0
            if bool((same_row & (rows.values.diff() < 0)).any()):
                raise ValueError("The rows of known items must be sorted; make them by Ragged.from_pairs.")

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        context = self.known
        if isinstance(context, Ragged):
            context = Context(context.values, context, context.row_index())
        if len(context) != len(mined.ids):
            raise ValueError(
                f"Known items of {len(context)} queries do not fit candidates of {len(mined.ids)}."
            )
        return ~context.mask(mined.ids.clamp(min=0))  # what is said of an empty slot does not count


@dataclass(frozen=True)
class Duplicates:
    """Drop the candidates that are alike to an item which their query wants: copies and near-copies of it.

        keep = alike[id] not in {alike[p] : p wanted by the query}

    Args:
        alike: int64, (I,), non-negative: the group of each item; items of equal text share one.
        known: what each query wants: a `Context`, or B rows.

    Raises:
        ValueError: `alike` is not int64 (I,) or has a negative group; called: another number of queries, or an
            id outside the catalogue of `alike`.
    """

    name: ClassVar[str] = "duplicates"
    alike: Tensor
    known: Context | Ragged

    def __post_init__(self) -> None:
        object.__setattr__(self, "alike", torch.as_tensor(self.alike))
        if self.alike.dtype != torch.int64 or self.alike.ndim != 1:
            raise ValueError(f"alike must be int64 (I,), got {self.alike.dtype} {tuple(self.alike.shape)}.")
        if len(self.alike) and int(self.alike.min()) < 0:
            raise ValueError(
                f"alike has group {int(self.alike.min())}; give an item without copies a number of its own."
            )

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        rows, wanted = _wanted(self.known)
        groups = Ragged.from_pairs(rows, self._group(wanted), len(self.known))
        occupied = mined.occupied
        of_candidates = torch.full_like(mined.ids, -1)
        of_candidates[occupied] = self._group(mined.ids[occupied])
        # To share a group with a wanted item is to want the group.
        return KnownPositives(groups)(Mined(of_candidates, mined.score, mined.positive_score))

    def _group(self, ids: Tensor) -> Tensor:
        if not bool(inside(ids, len(self.alike)).all()):
            raise ValueError(
                f"alike names the groups of {len(self.alike)} items, got ids {int(ids.min())} to {int(ids.max())}."
            )
        return self.alike[ids]


@dataclass(frozen=True)
class GuideModel:
    """Drop the candidates that another model, the guide, does not rank below the positive by a margin.

        keep = guide_score < guide_positive_score - margin

    The paper masks in-batch candidates that the guide puts strictly above the positive, without a margin. Here
    a tie goes too, since what the guide cannot tell from the positive is most often its copy.

    Args:
        guide_score: float, (B, n): the guide's scores of the candidates, in any order.
        guide_positive_score: float, (B,): the guide's score of each query's positive (the lowest of several).
        margin: in the units of the guide's score, not negative.

    Raises:
        ValueError: the margin is negative or not finite; called: the scores do not fit the candidates or are
            not finite for one.
        TypeError: called: a score is not floating point.

    Reference:
        Solatorio (2024), GISTEmbed: Guided in-sample selection of training negatives for text embedding
        fine-tuning, arXiv 2402.16829.
    """

    name: ClassVar[str] = "guide_model"
    guide_score: Tensor
    guide_positive_score: Tensor
    margin: float = 0.0

    def __post_init__(self) -> None:
        for field in ("guide_score", "guide_positive_score"):
            object.__setattr__(self, field, torch.as_tensor(getattr(self, field)))
        _check_margin(self.margin)

    def __call__(self, mined: Mined) -> Tensor:
        """The keep mask, bool, (B, n)."""
        occupied = mined.occupied
        _check_scores("guide_score", self.guide_score, occupied)
        _check_scores("guide_positive_score", self.guide_positive_score, occupied.new_ones(len(occupied)))
        return self.guide_score < (self.guide_positive_score.double() - self.margin).unsqueeze(1)


def _wanted(known: Context | Ragged) -> tuple[Tensor, Tensor]:
    """The (query, item) pairs that are known; a pair may come twice."""
    if isinstance(known, Ragged):
        return known.row_index(), known.values
    rows = torch.arange(len(known)) if known.owner is None else known.owner
    if known.known is None:
        return rows, known.positives
    return torch.cat([rows, known.known.row_index()]), torch.cat([known.positives, known.known.values])


def _check_margin(margin: float) -> None:
    if not 0 <= margin < math.inf:
        raise ValueError(
            f"margin must be finite and not negative, got {margin}; it is subtracted from the positive's score."
        )


def _check_scores(name: str, score: Tensor, asked: Tensor) -> None:
    """Refuse scores of another type or shape than are asked for, and any that is asked for and not finite."""
    if not score.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {score.dtype}.")
    if score.shape != asked.shape:
        raise ValueError(f"{name} must be {tuple(asked.shape)}, got {tuple(score.shape)}.")
    if bool((asked & ~score.isfinite()).any()):
        raise ValueError(
            f"{name} must be finite: mark an empty slot by id -1 or a mined score of -inf, and leave out a "
            "query whose positive has no score."
        )
