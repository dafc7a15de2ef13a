"""Hard negatives for a block of queries: search, rules that drop what may be relevant, a draw with its probability."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from steelyard.negatives.filters import (
    AbsoluteMargin,
    Duplicates,
    Filter,
    Mined,
    PercentageOfPositive,
    RankWindow,
    ScoreRange,
    first_refusal,
)
from steelyard.negatives.top_k import simans_weights
from steelyard.ragged import Ragged
from steelyard.retrieval.index import top_k
from steelyard.retrieval.shortlist import pair_scores
from steelyard.sampling import without_replacement

Search = Callable[[Tensor, Ragged], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class MiningRules:
    """What is looked at, what goes, and what is taken.

    Args:
        negatives: how many are taken of each query at most.
        range_min: first rank that is kept, from 0; the first ranks hold most of the unlabelled positives.
        range_max: how many ranks are looked at; the positives of a query take no rank.
        min_score: a floor.
        max_score: a ceiling.
        absolute_margin: keep what scores below the positive by this much; None for no such rule.
        percentage: keep what scores at most this share of the positive (0.95, say); None for no such rule.
        pick: "top" (the best of what is left), "random" (equal chances), or "simans" with optional numbers
            "simans:a:b" (chances of exp(-a (score - positive - b)^2); a = 100 and b = 0 by default, for cosines:
            a tenth away from the positive a candidate then has the e-th part of the chance).
        seed: seed of the draw.

    Raises:
        TypeError: a value of another type.
        ValueError: a value outside its range, said with the mend.
    """

    negatives: int = 3
    range_min: int = 0
    range_max: int = 100
    min_score: float = -math.inf
    max_score: float = math.inf
    absolute_margin: float | None = None
    percentage: float | None = None
    pick: str = "top"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("negatives", "range_min", "range_max", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, got {value!r}.")
        if self.negatives < 1:
            raise ValueError(f"negatives must be at least 1, got {self.negatives}.")
        if not 0 <= self.range_min < self.range_max:
            raise ValueError(
                f"Ranks run from range_min to range_max, 0 <= min < max; got {self.range_min} and {self.range_max}."
            )
        if self.negatives > self.range_max - self.range_min:
            raise ValueError(
                f"{self.negatives} negatives do not fit the {self.range_max - self.range_min} ranks that are "
                "looked at: raise range_max."
            )
        if not 0 <= self.seed < 2**40:
            raise ValueError(f"seed must lie in [0, {2**40}), got {self.seed}.")
        self.filters()
        self.simans()

    def filters(self) -> list[Filter]:
        """The rules in their order, without the one about copies of positives."""
        rules: list[Filter] = [RankWindow(self.range_min, self.range_max)]
        if (self.min_score, self.max_score) != (-math.inf, math.inf):
            rules.append(ScoreRange(self.min_score, self.max_score))
        if self.absolute_margin is not None:
            rules.append(AbsoluteMargin(self.absolute_margin))
        if self.percentage is not None:
            rules.append(PercentageOfPositive(self.percentage))
        return rules

    def simans(self) -> tuple[float, float] | None:
        """The numbers a and b of SimANS, or None for another way to pick."""
        name, *numbers = self.pick.split(":")
        if name in ("top", "random") and not numbers:
            return None
        try:
            a, b = (float(x) for x in [*numbers, *("100", "0")[len(numbers) :]])
        except ValueError:
            a = math.nan
        if name != "simans" or not (0 <= a < math.inf and math.isfinite(b)):
            raise ValueError(
                f"pick must be top, random, simans or simans:a:b with a >= 0, got {self.pick!r}."
            )
        return a, b

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an open limit is null."""
        return {k: None if v in (math.inf, -math.inf) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Negatives:
    """What was mined for some queries: one entry a (query, document) pair, by query, the best first.

    Args:
        query: int64, (m,): row of the query.
        document: int64, (m,): row of the document.
        rank: int64, (m,): from 0, positives left out.
        score: float, (m,).
        positive_score: float, (m,): the lowest score among the query's positives.
        log_expected: float, (m,): the log of the chance that the draw took it; 0 for "top".
        refused: int64, (m,): place in `rules` of the rule that dropped it, -1 for one that was taken, -2 for
            one that passed and was not drawn.
        rules: names of the rules.
    """

    query: Tensor
    document: Tensor
    rank: Tensor
    score: Tensor
    positive_score: Tensor
    log_expected: Tensor
    refused: Tensor
    rules: tuple[str, ...]

    def where(self, kept: Tensor) -> Negatives:
        """The entries that a mask keeps, bool, (m,)."""
        columns = {f.name: getattr(self, f.name)[kept] for f in fields(self) if f.name != "rules"}
        return Negatives(**columns, rules=self.rules)

    @property
    def taken(self) -> Tensor:
        """Which entries were taken, bool, (m,)."""
        return self.refused == -1


def mine_negatives(
    queries: Tensor,
    documents: Tensor,
    positives: Ragged,
    rules: MiningRules | None = None,
    *,
    alike: Tensor | None = None,
    search: Search | None = None,
    generator: torch.Generator | None = None,
) -> Negatives:
    """Hard negatives of each query among the documents, with the chance that each was taken.

        candidates(q) = the range_max best documents by <q, d>, without q's positives
        kept(q)       = candidates that pass the rules;   positive(q) = min over positives of <q, p>
        taken(q)      = the n best of kept(q), or n of them drawn without replacement
        expected(d)   = 1 for "top";  n / |kept(q)| for "random";  P(d is drawn | threshold) for "simans"

    Taken negatives are hard and thereby biased: alone they make another loss than the softmax over all
    documents. With their expected counts they merge into an unbiased sum once another design covers the
    rest (see `steelyard.negatives.TopK` and `Mixture`).

    Args:
        queries: float, (B, d).
        documents: float, (I, d).
        positives: rows of `documents` that each query is known to want, B rows, sorted.
        rules: what is looked at and taken.
        alike: int64, (I,): the group of each document; one of equal text with a positive is dropped.
        search: from queries and their positives to scores and rows, (B, range_max), falling; exact search
            where None.
        generator: source of randomness for "random" and "simans".

    Returns:
        All candidates of all queries with the reason of each; `where(taken)` for the negatives.

    Raises:
        ValueError: shapes do not fit, vectors with NaN or infinity, or a query without a positive.

    Reference:
        Moreira et al. (2024), NV-Retriever, arXiv 2407.15831 (the rules); Zhou et al. (2022), SimANS, EMNLP
        industry track, arXiv 2210.11773 (the pick); expected counts of what is picked are ours.
    """
    rules = rules or MiningRules()
    check_vectors(queries, documents, positives)
    if search is None:
        found = top_k(queries, documents, rules.range_max, exclude=positives)
    else:
        found = search(queries, positives)
    return pick_negatives(queries, documents, positives, rules, found, alike=alike, generator=generator)


def pick_negatives(
    queries: Tensor,
    documents: Tensor,
    positives: Ragged,
    rules: MiningRules,
    found: tuple[Tensor, Tensor],
    *,
    alike: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Negatives:
    """The second half of `mine_negatives`: rules and pick on what a search found, inputs unchecked.

    Args:
        queries: float, (B, d).
        documents: float, (I, d).
        positives: B rows, none empty.
        rules: what is looked at and taken.
        found: scores and rows of documents, (B, k), scores falling.
        alike: int64, (I,): the group of each document.
        generator: source of randomness.
    """
    score, ids = found
    positive = lowest_positive(queries, documents, positives)
    mined = Mined(ids, score, positive)
    chain = rules.filters()
    if alike is not None:
        chain.append(Duplicates(alike, positives))
    refused, names = first_refusal(chain, mined)
    occupied = mined.occupied
    kept = occupied & (refused == -1)
    taken, log_expected = _pick(rules, kept, mined, generator)
    refused = torch.where(kept & ~taken, -2, refused)
    query, rank = occupied.nonzero(as_tuple=True)
    return Negatives(
        query,
        ids[occupied],
        rank,
        score[occupied],
        positive[query],
        log_expected[occupied],
        refused[occupied],
        tuple(names),
    )


def _pick(
    rules: MiningRules, kept: Tensor, mined: Mined, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Which of the kept are taken, and the log of the chance that each of the kept had."""
    n = min(rules.negatives, kept.shape[1])
    if rules.pick == "top":
        taken = kept & (kept.cumsum(1) <= n)
        return taken, torch.where(taken, 0.0, -math.inf)
    simans = rules.simans()
    if simans is None:
        log_p = torch.zeros(kept.shape, dtype=torch.float64)
    else:
        score = mined.score.double().where(kept, -math.inf)
        log_p = simans_weights(score, mined.positive_score.double(), *simans)
    log_p = log_p.masked_fill(~kept, -math.inf)
    draws = without_replacement(log_p, n, generator=generator)
    real = draws.log_expected < math.inf
    row = torch.arange(len(kept)).unsqueeze(1).expand_as(draws.ids)
    taken = torch.zeros_like(kept)
    taken[row[real], draws.ids[real]] = True
    if simans is None:  # equal chances are known without a threshold
        chance = (n / kept.sum(1, keepdim=True).clamp(min=n)).log()
        return taken, torch.where(kept, chance, -math.inf)
    log_expected = draws.log_expected_of(torch.arange(kept.shape[1]).expand(kept.shape))
    return taken, log_expected


def lowest_positive(queries: Tensor, documents: Tensor, positives: Ragged) -> Tensor:
    """The lowest score among each query's positives, the safe reference for a margin.

    Args:
        queries: float, (B, d).
        documents: float, (I, d).
        positives: B rows, none empty.

    Returns:
        float, (B,).
    """
    row = positives.row_index()
    score = pair_scores(queries, documents, row, positives.values)
    return torch.full((len(queries),), math.inf).scatter_reduce_(0, row, score, "amin")


def check_vectors(queries: Tensor, documents: Tensor, positives: Ragged) -> None:
    """Refuse vectors that cannot be searched.

    Raises:
        TypeError: not floating point.
        ValueError: shapes do not fit, NaN or infinity, a query without a positive or one that is no document.
    """
    for name, vectors in (("queries", queries), ("documents", documents)):
        if not vectors.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {vectors.dtype}.")
        if vectors.ndim != 2:
            raise ValueError(f"{name} must be (n, d), got {tuple(vectors.shape)}.")
        # A sum is finite only if all are, unless it overflows: then look at each.
        if not bool(vectors.sum().isfinite()) and not bool(vectors.isfinite().all()):
            bad = int((~vectors.isfinite().all(1)).nonzero()[0])
            raise ValueError(f"Row {bad} of the {name} has NaN or infinity: leave it out or encode it again.")
    if queries.shape[1] != documents.shape[1]:
        raise ValueError(
            f"Queries of length {queries.shape[1]} do not fit documents of length {documents.shape[1]}: were "
            "they encoded by the same model?"
        )
    if len(positives) != len(queries):
        raise ValueError(f"{len(positives)} rows of positives do not fit {len(queries)} queries.")
    if len(queries) and int(positives.counts.min()) == 0:
        bad = int((positives.counts == 0).nonzero()[0])
        raise ValueError(f"Query {bad} has no positive to be compared with: leave it out.")
    if len(positives.values):
        low, high = (int(x) for x in positives.values.aminmax())
        if low < 0 or high >= len(documents):
            raise ValueError(
                f"Positive {low if low < 0 else high} is none of the {len(documents)} documents: the vectors and the "
                "pairs come from different catalogues."
            )
