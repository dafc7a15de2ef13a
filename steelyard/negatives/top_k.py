"""Hard candidates: the best by score with certainty beside a random rest, or the ambiguous ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.context import Context, among
from steelyard.negatives.uniform import known_before
from steelyard.ragged import Ragged
from steelyard.sampling.successive import without_replacement


@dataclass(frozen=True)
class TopK:
    """Take each query's k best items with certainty, and draw the rest uniformly from the others.

        expected(j) = 1                    j in top_b
                      (n - k) / |rest_b|   j in rest_b = everything but top_b and what query b is known to want
                      0                    j known

    The certainty stratum of stratified sampling: the largest terms of a sum are added up exactly and the
    others estimated, with replacement, so that hard negatives leave the sum without bias. Where the scores
    are peaked its variance is far below that of uniform draws; the scores may be stale or another model's,
    which costs variance only. What a query is known to want, its positive included, is no negative: it takes
    no place among the best (the next one moves up), is not drawn and has expected count 0. Where `top` is
    given, a known item in it leaves its slot empty.

    Args:
        n_items: size of the catalogue, I.
        k: how many of the best, 1 or more.
        score: from the batch to float scores (B, I); of equal ones any may be taken.
        top: instead of `score`: from the batch to int64 ids (B, k), the best items of each query as an index
            finds them; -1 where it found fewer.

    Raises:
        ValueError: an empty catalogue, a `k` outside 1 .. I, both or neither of `score` and `top`.

    Reference:
        Cochran (1977), Sampling techniques, 3rd edition, section 5A.8 (a stratum taken whole). Hard negatives
        with certainty beside random ones, each at its expected count, are ours.
    """

    n_items: int
    k: int
    score: Callable[[Context], Tensor] | None = None
    top: Callable[[Context], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ValueError(f"A catalogue needs at least one item, got n_items={self.n_items}.")
        if not 1 <= self.k <= self.n_items:
            raise ValueError(f"k must lie between 1 and the {self.n_items} items, got {self.k}.")
        if (self.score is None) == (self.top is None):
            raise ValueError("Give either score or top, and not both.")

    @property
    def certain(self) -> int:
        """How many are taken with certainty: k."""
        return self.k

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """The k best of each query and n - k of the others.

        Args:
            context: the batch.
            n: how many candidates of a query: 0, or k or more. With just k the others are never drawn, and
                another proposal must cover them (`Mixture`).
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n), the best first. Slots are empty where a query has fewer than k items
            for the best, or none are left for the rest.

        Raises:
            TypeError: `n` is not an integer; scores or ids of another dtype.
            ValueError: an `n` between 1 and k - 1, scores or ids of another shape, NaN scores, ids outside
                the catalogue or twice in a row, positives or known items outside the catalogue.
        """
        check_number(n)
        if n == 0:
            nothing = torch.zeros(len(context), 0)
            return Draws(nothing.long(), nothing, lambda asked: torch.full(asked.shape, -math.inf))
        if n < self.k:
            raise ValueError(f"n must be 0 or at least k={self.k}, the items taken with certainty, got {n}.")
        known = wanted_rows(context, self.n_items)
        best = self._best(context, known)
        taken = _join(known, best)
        left = self.n_items - taken.counts.unsqueeze(1)
        u = torch.rand(len(context), n - self.k, generator=generator, dtype=torch.float64)
        r = torch.minimum((u * left).long(), (left - 1).clamp(min=0))
        rest = r + known_before(taken, r, self.n_items)
        value = math.log(max(n - self.k, 1)) - left.to(torch.float32).log()  # +inf, empty, where none is left
        certain = torch.zeros(best.shape).masked_fill_(best < 0, math.inf)
        ids = torch.cat([best.clamp(min=0), rest.masked_fill(left == 0, 0)], 1)
        drawn = value.masked_fill(left == 0, -math.inf) if n > self.k else torch.full_like(value, -math.inf)

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(len(context), asked.shape[-1])
            within = inside(asked, self.n_items)
            answer = torch.where(within & ~among(taken, asked.clamp(min=0)), drawn, -math.inf)
            return answer.masked_fill(among(_join(None, best), asked.clamp(min=0)) & within, 0.0)

        return Draws(ids, torch.cat([certain, value.expand(-1, n - self.k)], 1), design)

    def _best(self, context: Context, known: Ragged) -> Tensor:
        """The best items of each query that are not known, (B, k); -1 in an empty slot."""
        if self.score is not None:
            return _best_of(checked_scores(self.score, context, self.n_items), known, self.k)[0]
        assert self.top is not None
        best = torch.as_tensor(self.top(context))
        if best.dtype != torch.int64:
            raise TypeError(f"top must give int64 ids, got {best.dtype}.")
        if best.shape != (len(context), self.k):
            raise ValueError(f"top must give ({len(context)}, {self.k}) ids, got {tuple(best.shape)}.")
        if not bool((inside(best, self.n_items) | (best == -1)).all()):
            raise ValueError(
                f"top must give ids in [0, {self.n_items}), or -1 for none, got {int(best.min())} to "
                f"{int(best.max())}."
            )
        ordered = best.sort(1).values
        if bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any()):
            raise ValueError("top must not give an item twice to a query.")
        return best.masked_fill(among(known, best.clamp(min=0)), -1)


def simans_weights(scores: Tensor, positive: Tensor, a: float = 1.0, b: float = 0.0) -> Tensor:
    """Log-probabilities by which SimANS draws negatives: near the positive's score.

        p_i = exp(-a (s_i - s_pos - b)^2) / sum_k exp(-a (s_k - s_pos - b)^2)

    Neither the easy ones far below, which teach nothing, nor those far above, which are likely unlabelled
    positives. a = 0 is uniform over the candidates, a large `a` picks those nearest to s_pos + b.

    Args:
        scores: float, (..., n), of the candidates; -inf for one that must not be drawn.
        positive: float, (...), score of the positive, finite.
        a: concentration, finite, 0 or more.
        b: where the most likely score lies, above the positive's; finite.

    Returns:
        float64, (..., n), normalised; -inf throughout where there is no candidate.

    Raises:
        TypeError: scores that are not floating point.
        ValueError: NaN or +inf in `scores`, `positive` or `b` not finite, `a` negative or not finite.

    Reference:
        Zhou et al. (2022), SimANS: simple ambiguous negatives sampling for dense text retrieval, EMNLP
        industry track, arXiv 2210.11773. Its code has exp(-3 |s_i - s_pos|); this is the paper's form.
    """
    scores, positive = torch.as_tensor(scores).detach(), torch.as_tensor(positive).detach()
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}.")
    if not (0 <= a < math.inf and math.isfinite(b)):
        raise ValueError(f"a must be finite and not negative, b finite, got a={a}, b={b}.")
    if bool((scores.isnan() | (scores == math.inf)).any()):
        raise ValueError("scores have NaN or +inf; give -inf for a candidate that must not be drawn.")
    if not bool(positive.isfinite().all()):
        raise ValueError("The scores of the positives must be finite.")
    live = scores > -math.inf
    far = (scores.double() - positive.double().unsqueeze(-1) - b).abs()
    nearest = far.amin(-1, keepdim=True) if far.shape[-1] else far
    # The difference of the squares as a product, which keeps the digits of two that are large and near.
    log_w = torch.nan_to_num(-a * (far - nearest) * (far + nearest), nan=0.0)  # inf - inf, or 0 inf: ties
    log_w = torch.where(live, log_w, -math.inf)
    return torch.where(live, torch.log_softmax(log_w, -1), -math.inf)


@dataclass(frozen=True)
class SimANS:
    """Draw each query's negatives among its best items, near the positive's score, without replacement.

        p_i proportional to exp(-a (s_i - s_pos - b)^2)    i among the k best that are not known

    Where a query has many positives, s_pos is the lowest of their scores: what lies far above it may lie near
    another positive, and is the likelier to be one itself. The draws have no support outside the k candidates: what is estimated without bias is the sum over these,
    not the softmax over the catalogue. Mix them with a proposal that covers everything (`Mixture`) for that.

    Args:
        n_items: size of the catalogue, I.
        k: how many candidates a query has, 1 .. I.
        score: from the batch to float scores (B, I), finite at the positives.
        a: concentration, as for `simans_weights`.
        b: where the most likely score lies above the positive's.

    Raises:
        ValueError: an empty catalogue, a `k` outside 1 .. I, `a` or `b` out of range.

    Reference:
        Zhou et al. (2022), SimANS: simple ambiguous negatives sampling for dense text retrieval, EMNLP
        industry track, arXiv 2210.11773. Draws without replacement have the inclusion probabilities of
        `steelyard.sampling.without_replacement`. The paper has one positive a query; the lowest of many is
        ours.
    """

    n_items: int
    k: int
    score: Callable[[Context], Tensor]
    a: float = 1.0
    b: float = 0.0

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ValueError(f"A catalogue needs at least one item, got n_items={self.n_items}.")
        if not 1 <= self.k <= self.n_items:
            raise ValueError(f"k must lie between 1 and the {self.n_items} items, got {self.k}.")
        if not (0 <= self.a < math.inf and math.isfinite(self.b)):
            raise ValueError(f"a must be finite and not negative, b finite, got a={self.a}, b={self.b}.")

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` different candidates for each query.

        Args:
            context: the batch, one or more positives a query.
            n: how many candidates of a query; at most k are found.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, min(n, k)), ascending; slots at the end are empty where a query has fewer
            candidates.

        Raises:
            TypeError: `n` is not an integer, or scores that are not floating point.
            ValueError: a negative `n`; scores of another shape, NaN or +inf, or not finite at a positive;
                positives or known items outside the catalogue; a query without a positive.
        """
        check_number(n)
        scores = checked_scores(self.score, context, self.n_items)
        known = wanted_rows(context, self.n_items)
        positive = _lowest_positive(scores, context)
        best, score = _best_of(scores, known, self.k)
        # Ascending ids, so that a candidate is found by a binary search; nothing lies past the catalogue.
        candidates, order = best.masked_fill(best < 0, self.n_items).sort(1)
        score = score.masked_fill(best < 0, -math.inf).gather(1, order)
        log_p = simans_weights(score, positive, self.a, self.b)
        draws = without_replacement(log_p, min(n, self.k), generator=generator)
        empty = draws.log_expected == math.inf
        ids = candidates.gather(1, draws.ids).masked_fill(empty, 0)

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(len(candidates), asked.shape[-1]).contiguous()
            place = torch.searchsorted(candidates, asked).clamp_(max=self.k - 1)
            found = (candidates.gather(1, place) == asked) & (asked < self.n_items)
            return torch.where(found, draws.log_expected_of(place), -math.inf).float()

        return Draws(ids, draws.log_expected.float(), design)


def wanted_rows(context: Context, n_items: int) -> Ragged:
    """What each query is known to want, its positive included; one row a query.

    Raises:
        ValueError: a positive or a known item outside the catalogue.
    """
    rows, values = torch.arange(len(context)), context.positives
    if context.owner is not None:
        rows = context.owner
    if context.known is not None:
        rows = torch.cat([rows, context.known.row_index()])
        values = torch.cat([values, context.known.values])
    if not bool(inside(values, n_items).all()):
        raise ValueError(
            f"positives and known must lie in [0, {n_items}), got {int(values.min())} to {int(values.max())}."
        )
    return Ragged.from_pairs(rows, values, len(context))


def _lowest_positive(scores: Tensor, context: Context) -> Tensor:
    """The score of each query's positive, (B,), the lowest where there are many."""
    if context.owner is None:
        return scores.gather(1, context.positives.unsqueeze(1)).squeeze(1)
    without = torch.bincount(context.owner, minlength=len(context)) == 0
    if bool(without.any()):
        raise ValueError(
            f"SimANS compares with a positive, and query {int(without.nonzero()[0])} has none among the "
            "positives; leave such queries out of training."
        )
    own = scores[context.owner, context.positives]
    if not bool(own.isfinite().all()):
        raise ValueError("The scores of the positives must be finite.")
    return torch.full_like(scores[:, 0], math.inf).scatter_reduce(0, context.owner, own, "amin")


def _join(known: Ragged | None, best: Tensor) -> Ragged:
    """The rows of `known` with the ids of `best`, (B, k), that are none of an empty slot."""
    rows, slots = (best >= 0).nonzero(as_tuple=True)
    values = best[rows, slots]
    if known is not None:
        rows, values = torch.cat([known.row_index(), rows]), torch.cat([known.values, values])
    return Ragged.from_pairs(rows, values, len(best))


def checked_scores(score: Callable[[Context], Tensor], context: Context, n_items: int) -> Tensor:
    """What `score` says of a batch, refused unless it is one number for each query and item."""
    scores = torch.as_tensor(score(context)).detach()
    if not scores.is_floating_point():
        raise TypeError(f"score must give floating point, got {scores.dtype}.")
    if scores.shape != (len(context), n_items):
        raise ValueError(f"score must give ({len(context)}, {n_items}), got {tuple(scores.shape)}.")
    if scores.numel() and bool(scores.amax().isnan()):  # a maximum keeps NaN
        raise ValueError("The scores have NaN.")
    return scores


def _best_of(scores: Tensor, known: Ragged, k: int) -> tuple[Tensor, Tensor]:
    """The k best items of each row that are not known, (B, k) ids, -1 in an empty slot, and their scores."""
    masked = scores.clone()
    masked[known.row_index(), known.values] = -math.inf
    score, best = masked.topk(k, 1)
    return best.masked_fill(among(known, best), -1), score
