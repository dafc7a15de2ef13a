"""What a proposal does to the gradient: its bias, its noise and its cost, measured against the sum over everything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws, Proposal
from steelyard.negatives import Context, InBatch, Mixture, StreamingFrequency
from steelyard.negatives.context import among
from steelyard.ragged import Ragged
from steelyard.weights import effective_sample_size, khat_threshold, pareto_khat

CHUNK = 64
WEIGHED_REPEATS = 4
"""Repetitions whose weights are looked at for the effective size and k-hat."""


@dataclass(frozen=True)
class Scene:
    """Queries with a model's vectors, to audit proposals on.

    Args:
        queries: float, (B, d).
        items: float, (I, d).
        positives: int64, (B,): the positive whose gradient is taken.
        known: what each query is known to want, B rows; masked in training.
        held_out: what each query wants unknown to the training, B rows: false negatives when drawn.
        population: int64, (N,): the positives of all training pairs, whence in-batch candidates come.
        scale: inverse temperature.

    Raises:
        ValueError: shapes do not fit.
    """

    queries: Tensor
    items: Tensor
    positives: Tensor
    known: Ragged
    held_out: Ragged
    population: Tensor
    scale: float

    def __post_init__(self) -> None:
        b = len(self.queries)
        if self.queries.ndim != 2 or self.items.ndim != 2 or self.queries.shape[1] != self.items.shape[1]:
            raise ValueError(
                f"queries (B, d) and items (I, d) must share d, got {tuple(self.queries.shape)} and "
                f"{tuple(self.items.shape)}."
            )
        if b == 0:
            raise ValueError("There is no query to audit on.")
        for name, rows in (("positives", self.positives), ("known", self.known), ("held_out", self.held_out)):
            if len(rows) != b:
                raise ValueError(f"{name} has {len(rows)} rows for {b} queries.")

    def take(self, rows: Tensor) -> Scene:
        """Some of the queries, int64 (m,)."""
        return Scene(
            self.queries[rows],
            self.items,
            self.positives[rows],
            self.known.take(rows),
            self.held_out.take(rows),
            self.population,
            self.scale,
        )


@dataclass(frozen=True)
class ProposalAudit:
    """What was measured of one proposal; the share of a gradient is of its root mean square over queries.

    Args:
        name: as it was asked for.
        draws: mean number of candidates of a query, accidental hits left out.
        bias: |E g_sampled - g| / |g| with the draws weighed by what they stand for.
        bias_low: lower end of its 95 % interval over queries.
        bias_high: upper end.
        bias_unweighed: the same with all draws weighed alike, as a loss does that knows no probabilities.
        noise: sqrt(tr Var g_sampled) / |g|: the error of one step.
        ess: mean effective number of the weighed draws.
        khat: median Pareto shape of the weights.
        unreliable: share of queries whose k-hat lies above the threshold for their number of draws.
        false_negatives: share of draws that are held-out positives.
        false_push: share of the negatives' gradient that pushes held-out positives away.
        microseconds: for drawing and scoring the candidates of one query of a batch.
    """

    name: str
    draws: float
    bias: float
    bias_low: float
    bias_high: float
    bias_unweighed: float
    noise: float
    ess: float
    khat: float
    unreliable: float
    false_negatives: float | None
    false_push: float | None
    microseconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what could not be measured is null."""
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()
        }


def audit_proposals(
    scene: Scene,
    proposals: Mapping[str, Proposal],
    candidates: int,
    *,
    repeats: int = 32,
    batch: int = 256,
    generator: torch.Generator | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> list[ProposalAudit]:
    """Measure proposals against the full softmax gradient on the same queries.

        g(q)   = scale (sum_j p_j v_j - v_+),   p = softmax of scale <q, v_j> over the positive and all unknown items
        g~(q)  = the same over the positive and the drawn candidates, weighed by -log_expected
        bias^2 = mean_{r != s} sum_q <g~_r - g, g~_s - g> / sum_q |g|^2,   noise^2 = sum_q tr Var / sum_q |g|^2

    The gradient is that of a query's vector. Repetitions are independent, so the products of two different ones
    estimate the squared bias without bias, however few they are; its interval is over repetitions (jackknife)
    and queries. Each of `repeats` repetitions draws anew: with shared draws
    for a batch of random training pairs, or for each query of the audit. Time: the full sum once, B I d
    multiplications, and `repeats` sampled ones.

    Args:
        scene: queries with the model's vectors.
        proposals: by name.
        candidates: draws of a query, K.
        repeats: repetitions of each proposal, 2 or more.
        batch: queries of a training batch, which share draws where a proposal shares them; in-batch
            candidates come from at least K.
        generator: source of randomness; torch's own where None.
        watch: called with the number of repetitions done and in all.

    Returns:
        One audit a proposal, in the order given.

    Raises:
        ValueError: fewer than two repetitions, no candidates, and what a proposal raises.
    """
    if repeats < 2:
        raise ValueError(f"A variance needs two repetitions at least, got {repeats}.")
    if candidates < 1:
        raise ValueError(f"candidates must be at least 1, got {candidates}.")
    full = torch.cat([_full_gradient(part) for part in _parts(scene)])
    audits = []
    for place, (name, proposal) in enumerate(proposals.items()):
        tally = _Tally(scene, full, repeats)
        for r in range(repeats):
            for part, rows in zip(_parts(scene), _rows(scene), strict=True):
                ids, log_expected, seconds = _draw(proposal, part, candidates, batch, generator)
                tally.seconds.append(seconds + tally.add(part, rows, ids, log_expected, r))
            if watch is not None:
                watch(place * repeats + r + 1, len(proposals) * repeats)
        audits.append(tally.audit(name))
    return audits


def _rows(scene: Scene) -> list[Tensor]:
    n = len(scene.queries)
    return [torch.arange(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]


def _parts(scene: Scene) -> list[Scene]:
    return [scene.take(rows) for rows in _rows(scene)]


def _full_gradient(part: Scene) -> Tensor:
    """g(q) of some queries, (b, d), in float64."""
    logits = (part.scale * part.queries @ part.items.T).double()
    logits[part.known.row_index(), part.known.values] = -math.inf
    row = torch.arange(len(part.queries))
    logits[row, part.positives] = (part.scale * (part.queries * part.items[part.positives]).sum(1)).double()
    share = torch.softmax(logits, 1)
    share[row, part.positives] -= 1
    return part.scale * (share @ part.items.double())


def _draw(
    proposal: Proposal, part: Scene, n: int, batch: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, float]:
    """Candidates for some queries with their log expected counts, and the seconds for each query of a batch.

    In-batch candidates are random only as far as the batch is, so theirs is one of random training pairs; where
    a mixture of them draws for each query, the audit's own queries come first in it and are cut out.
    """
    b = len(part.queries)
    context = Context(part.positives, part.known, vectors=part.queries)
    if _looks_at_the_batch(proposal):
        more = part.population[torch.randint(len(part.population), (max(n, batch),), generator=generator)]
        vectors = part.queries[torch.arange(len(more)) % b]
        context = Context(more, vectors=vectors)
        draws, seconds = _timed(proposal, context, n, generator)
        if draws.ids.ndim == 1:
            return draws.ids, draws.log_expected, seconds / batch
        rows = torch.cat([part.known.row_index(), torch.arange(b, b + len(more))])
        known = Ragged.from_pairs(rows, torch.cat([part.known.values, more]), b + len(more))
        vectors = torch.cat([part.queries, vectors])
        context = Context(torch.cat([part.positives, more]), known, vectors=vectors)
    draws, seconds = _timed(proposal, context, n, generator)
    if draws.ids.ndim == 1:
        return draws.ids, draws.log_expected, seconds / batch
    return draws.ids[:b], draws.log_expected[:b], seconds / len(context)


def _timed(
    proposal: Proposal, context: Context, n: int, generator: torch.Generator | None
) -> tuple[Draws, float]:
    started = time.perf_counter()
    draws = proposal.sample(context, n, generator=generator)
    return draws, time.perf_counter() - started


def _looks_at_the_batch(proposal: Proposal) -> bool:
    parts = proposal.parts if isinstance(proposal, Mixture) else [proposal]
    return any(isinstance(part, InBatch | StreamingFrequency) for part in parts)


class _Tally:
    """Sums over the repetitions of one proposal."""

    def __init__(self, scene: Scene, full: Tensor, repeats: int) -> None:
        self.full = full
        self.weighed, self.unweighed = (full.new_zeros(repeats, *full.shape) for _ in range(2))
        self.ess: list[Tensor] = []
        self.khat: list[Tensor] = []
        self.limit: list[Tensor] = []
        self.drawn = self.false = 0.0
        self.rows = 0
        self.push: list[Tensor] = []
        self.seconds: list[float] = []
        self.has_held_out = len(scene.held_out.values) > 0

    def add(self, part: Scene, rows: Tensor, ids: Tensor, log_expected: Tensor, repeat: int) -> float:
        """Take in one repetition; gives the seconds a query for scoring its candidates."""
        context = Context(part.positives, part.known)
        hit = context.mask(ids)
        started = time.perf_counter()
        vectors = part.items[ids]
        if ids.ndim == 1:
            score = part.scale * part.queries @ vectors.T
        else:
            score = part.scale * torch.einsum("bd,bnd->bn", part.queries, vectors)
        seconds = (time.perf_counter() - started) / len(rows)
        log_expected = log_expected.expand(score.shape)
        hit = hit | (log_expected == math.inf)
        positive = part.scale * (part.queries * part.items[part.positives]).sum(1)
        for plain, errors in ((False, self.weighed), (True, self.unweighed)):
            log_weight = (score if plain else score - log_expected).masked_fill(hit, -math.inf)
            share = torch.softmax(torch.cat([positive.unsqueeze(1), log_weight], 1).double(), 1)
            pull = part.items[part.positives].double() * (share[:, :1] - 1)
            push = share[:, 1:]
            made = (
                push @ vectors.double()
                if ids.ndim == 1
                else torch.einsum("bn,bnd->bd", push, vectors.double())
            )
            errors[repeat, rows] = part.scale * (made + pull) - self.full[rows]
            if not plain:
                self._look(part, ids, hit, log_weight, push, repeat < WEIGHED_REPEATS)
        return seconds

    def _look(
        self, part: Scene, ids: Tensor, hit: Tensor, log_weight: Tensor, push: Tensor, weighed: bool
    ) -> None:
        real = (~hit).sum(1)
        self.drawn += float(real.sum())
        self.rows += len(real)
        if self.has_held_out:
            false = among(part.held_out, ids) & ~hit
            self.false += float(false.sum())
            of_all = push.sum(1)
            share = (push * false).sum(1) / of_all.clamp(min=1e-300)
            self.push.append(share[of_all > 0])
        if weighed and log_weight.shape[1]:
            some = real > 0
            self.ess.append(effective_sample_size(log_weight[some].double()))
            if log_weight.shape[1] >= 25:
                self.khat.append(pareto_khat(log_weight[some].double()))
                self.limit.append(khat_threshold(real[some]))

    def audit(self, name: str) -> ProposalAudit:
        bias, low, high, noise = self._bias(self.weighed)
        unweighed, *_ = self._bias(self.unweighed)
        khat = torch.cat(self.khat) if self.khat else torch.full((1,), math.nan)
        limit = torch.cat(self.limit) if self.limit else torch.full((1,), math.nan)
        return ProposalAudit(
            name=name,
            draws=self.drawn / max(self.rows, 1),
            bias=bias,
            bias_low=low,
            bias_high=high,
            bias_unweighed=unweighed,
            noise=noise,
            ess=float(torch.cat(self.ess).mean()) if self.ess else 0.0,
            khat=float(khat.nanmedian()),
            unreliable=float((khat > limit).float().mean()),
            false_negatives=self.false / self.drawn if self.has_held_out and self.drawn else None,
            false_push=float(torch.cat(self.push).mean()) if self.has_held_out and self.push else None,
            microseconds=1e6 * sorted(self.seconds)[len(self.seconds) // 2],
        )

    def _bias(self, errors: Tensor) -> tuple[float, float, float, float]:
        """Relative bias with its interval, and relative noise, from errors (R, B, d) of one gradient a repetition.

        The squared bias is the mean inner product of two different repetitions' errors. Repetitions share
        draws among queries, and queries are a sample: both add to the interval's width, the first by the
        jackknife.
        """
        repeats, queries, _ = errors.shape
        size = self.full.square().sum()
        flat = errors.flatten(1)
        gram = flat @ flat.T
        total, own = gram.sum(), gram.diagonal()
        squared = (total - own.sum()) / (repeats * (repeats - 1)) / size
        noise = (own.sum() - total / repeats) / (repeats - 1) / size
        if repeats > 2:
            without = total - 2 * gram.sum(1) + own - (own.sum() - own)
            left = without / ((repeats - 1) * (repeats - 2)) / size
            over_repeats = (left - left.mean()).square().sum() * (repeats - 1) / repeats
        else:
            over_repeats = squared.square()
        mean = errors.mean(0)
        each = (mean.square().sum(1) - errors.var(0).sum(1) / repeats) / size
        over_queries = each.var() * queries if queries > 1 else squared.square()
        width = 1.96 * (over_repeats + over_queries).sqrt()
        root = [float(x.clamp(min=0).sqrt()) for x in (squared, squared - width, squared + width)]
        return root[0], root[1], root[2], float(noise.clamp(min=0).sqrt())
