"""The three small types that carry the idea: candidates drawn, samples weighed, estimates judged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

T = TypeVar("T")

RELIABLE_ESS = 10.0
RELIABLE_KHAT = 0.7
SHOWN = 10  # of many estimates, how many are printed


@dataclass(frozen=True)
class Draws:
    """Candidates drawn from a finite catalogue, each with the log of its expected count.

    The Horvitz-Thompson estimate of a sum over everything is the sum over the draws of
    `f(id) / expected(id)`, so `score - log_expected` stands for the terms of `Z = sum exp(score)`,
    `logsumexp` of it estimates `log Z`, and `softmax` of it is self-normalised importance sampling.

    Args:
        ids: int64, (..., n): the candidates.
        log_expected: float, broadcastable to `ids`: log of the expected number of times that the
            design draws this candidate. With replacement `log(n q)`; without replacement the log
            inclusion probability; 0 for a candidate taken with certainty; +inf for an empty slot, which
            fills up a row in a batch of draws of unequal size and weighs nothing (`score - inf = -inf`).
            An empty slot has id 0 by convention.
        design: answers the same for any ids, (..., m) -> (..., m), under the design as realised;
            -inf for a candidate that the design never draws, such as an id outside the catalogue.

    Raises:
        TypeError: `ids` is not int64 or `log_expected` is not floating point.
        ValueError: the shapes do not broadcast, or `log_expected` has NaN.

    Reference:
        Horvitz & Thompson (1952), A generalization of sampling without replacement from a finite
        universe, JASA 47(260).
    """

    ids: Tensor
    log_expected: Tensor
    design: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if self.ids.dtype != torch.int64:
            raise TypeError(f"Draws.ids must be int64, got {self.ids.dtype}.")
        if not self.log_expected.is_floating_point():
            raise TypeError(f"Draws.log_expected must be floating point, got {self.log_expected.dtype}.")
        if self.ids.ndim == 0:
            raise ValueError("Draws.ids needs a dimension of draws, got a single number.")
        if self.log_expected.numel() and bool(self.log_expected.amax().isnan()):  # a maximum keeps NaN
            raise ValueError(
                "log_expected has NaN. Mark an empty slot with +inf and a candidate never drawn with -inf."
            )
        try:
            object.__setattr__(self, "log_expected", self.log_expected.expand(self.ids.shape))
        except RuntimeError:
            raise ValueError(
                f"log_expected of shape {tuple(self.log_expected.shape)} does not broadcast to ids of shape "
                f"{tuple(self.ids.shape)}."
            ) from None

    def log_expected_of(self, ids: Tensor) -> Tensor:
        """Log expected count of any candidate, drawn or not, under the design as realised.

        Args:
            ids: int64, (..., m), leading dimensions broadcastable to those of the draws.

        Returns:
            float, (..., m); -inf for a candidate that the design never draws, such as an id outside the
            catalogue.
        """
        return self.design(ids)

    def weigh(self, score: Tensor) -> Weighted[Tensor]:
        """Properly weighted sample of the catalogue under weights `exp(score)`.

            log_weight = score - log_expected

        Args:
            score: float, broadcastable to `ids`.

        Returns:
            The ids with their log-weights, (..., n), and in `log_normalizer`, (...,), the `logsumexp` of these,
            which estimates `log Z`.
        """
        log_weight = score - self.log_expected
        return Weighted(self.ids, log_weight, torch.logsumexp(log_weight, -1))

    def to(self, device: torch.device | str) -> Draws:
        """The same draws on another device; the design is asked where it lives.

        Args:
            device: where the ids and the answers of the design shall be.
        """
        home, design = self.log_expected.device, self.design

        def design_there(ids: Tensor) -> Tensor:
            return design(ids.to(home)).to(device)

        return Draws(self.ids.to(device), self.log_expected.to(device), design_there)

    def __getitem__(self, index: Any) -> Draws:
        """Some of a batch of draws, with a design that still answers for them.

        The design asks that of the whole batch, so an answer costs as much as one for every row.

        Args:
            index: of the leading dimensions, as for a tensor: a number, a slice, a mask, a tensor of numbers.

        Returns:
            The draws of these rows; all their candidates are kept.

        Raises:
            TypeError: the draws have no leading dimension, being shared by the batch.
            IndexError: the index does not fit the leading dimensions.
        """
        lead, n = self.ids.shape[:-1], self.ids.shape[-1]
        if not lead:
            raise TypeError("These draws have no leading dimension to index: they are one row.")
        numbers = torch.arange(math.prod(lead), device=self.ids.device)
        rows = numbers.view(lead)[index]

        def design(asked: Tensor) -> Tensor:
            return _ask_rows(self.design, lead, rows, asked)

        return Draws(self.ids.reshape(-1, n)[rows], self.log_expected.reshape(-1, n)[rows], design)

    @staticmethod
    def merge(draws: Sequence[Draws]) -> Draws:
        """Draws of several designs as one: expected counts are summed over all designs.

            expected(j) = sum_d expected_d(j)

        This is the balance heuristic of multiple importance sampling: each candidate is weighed by
        all the ways in which it could have come, so hard negatives taken with certainty and random
        ones live in one estimate without bias.

        Args:
            draws: at least one; leading dimensions broadcast against each other.

        Returns:
            All candidates side by side, (..., sum of n), an item drawn by two designs standing twice and
            an empty slot staying empty, and a design that answers for the sum.

        Raises:
            ValueError: nothing to merge, or the leading dimensions do not broadcast.

        Reference:
            Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering,
            SIGGRAPH, section 3.3 (the balance heuristic).
        """
        if not draws:
            raise ValueError("Draws.merge needs at least one Draws.")
        if len(draws) == 1:
            return draws[0]
        try:
            lead = torch.broadcast_shapes(*(d.ids.shape[:-1] for d in draws))  # type: ignore[no-untyped-call]
        except RuntimeError:
            shapes = [tuple(d.ids.shape) for d in draws]
            raise ValueError(
                f"Draws of shapes {shapes} do not broadcast in their leading dimensions."
            ) from None
        ids = torch.cat([d.ids.expand(*lead, d.ids.shape[-1]) for d in draws], -1)

        def design(asked: Tensor) -> Tensor:
            total = draws[0].log_expected_of(asked)
            for other in draws[1:]:
                total = torch.logaddexp(total, other.log_expected_of(asked))
            return total

        # The design answers for the id in an empty slot as for any other; what is empty stays so.
        empty = torch.cat([(d.log_expected == math.inf).expand(*lead, d.ids.shape[-1]) for d in draws], -1)
        return Draws(ids, design(ids).masked_fill(empty, math.inf), design)


def _ask_rows(design: Callable[[Tensor], Tensor], lead: torch.Size, rows: Tensor, asked: Tensor) -> Tensor:
    """What a design for draws of leading shape `lead` answers for ids asked of some of its rows.

    Ids asked of the same row go side by side, so that one question to the whole batch answers all.
    """
    shape = torch.broadcast_shapes(asked.shape[:-1], rows.shape)  # type: ignore[no-untyped-call]
    m = asked.shape[-1]
    row = rows.expand(shape).reshape(-1)
    ordered, order = row.sort(stable=True)
    turn = torch.empty_like(order)
    turn[order] = torch.arange(len(row), device=row.device) - torch.searchsorted(ordered, ordered)
    turns = int(turn.max()) + 1 if len(row) else 0
    question = asked.new_zeros(math.prod(lead), turns, m)
    question[row, turn] = asked.expand(*shape, m).reshape(len(row), m)
    answer = design(question.view(*lead, turns * m)).expand(*lead, turns * m)
    return answer.reshape(question.shape)[row, turn].view(*shape, m)


@dataclass(frozen=True)
class Weighted(Generic[T]):
    """A properly weighted sample: `E[sum w f(x)]` is right though nobody knows the probability of x.

    Args:
        values: the sample: a tensor with the draws in dimension -1 of `log_weight`, or any sequence.
        log_weight: float, (..., n); -inf marks a dead particle, which is counted and never NaN.
        log_normalizer: float, (...,): the log of the estimated sum of everything, if known.

    Raises:
        ValueError: `log_weight` has NaN or +inf.
    """

    values: T
    log_weight: Tensor
    log_normalizer: Tensor | None = None

    def __post_init__(self) -> None:
        if bool((self.log_weight.isnan() | (self.log_weight == math.inf)).any()):
            raise ValueError("log_weight has NaN or +inf; mark a dead draw with -inf.")

    @property
    def dead(self) -> Tensor:
        """How many draws have weight zero, int64, (...,)."""
        return (self.log_weight == -math.inf).sum(-1)


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error and what speaks against it; or many of one shape at once.

    Of single numbers it holds floats. Where any argument is a tensor with dimensions, all become float64
    tensors of their common shape, `est[i]` is one of the estimates, and `reliable` a bool tensor.

    Args:
        value: the estimate.
        stderr: its standard error, in the units of `value`; inf where it is unknown.
        ess: effective number of independent draws behind it.
        khat: Pareto shape of the weights' tail; NaN where it was not computed, +inf where too few draws lie
            in the tail to judge it.
        khat_limit: largest `khat` that is trusted.

    Reference:
        The limit of 0.7 on k-hat: Vehtari et al. (2024), Pareto smoothed importance sampling, JMLR 25,
        arXiv 1507.02646. The limit of 10 effective draws is ours.
    """

    value: float | Tensor
    stderr: float | Tensor
    ess: float | Tensor
    khat: float | Tensor = math.nan
    khat_limit: float | Tensor = RELIABLE_KHAT

    def __post_init__(self) -> None:
        device = next((p.device for p in self._parts() if isinstance(p, Tensor)), None)
        parts = [torch.as_tensor(p, dtype=torch.float64, device=device).detach() for p in self._parts()]
        try:
            parts = list(torch.broadcast_tensors(*parts))  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ValueError(f"The parts of an Estimate do not broadcast: {error}.") from None
        for field, part in zip(fields(self), parts, strict=True):
            object.__setattr__(self, field.name, part if part.ndim else float(part))

    def _parts(self) -> list[float | Tensor]:
        return [self.value, self.stderr, self.ess, self.khat, self.khat_limit]

    @staticmethod
    def from_replicates(values: Tensor, dim: int = 0) -> Estimate:
        """Mean of independent replicates, with the standard error that they show.

            stderr = sqrt(sum_r (value_r - mean)^2 / (R (R - 1)))

        For designs whose draws depend on each other, such as systematic sampling: repeat the whole design R
        times, independently, since the formula for independent draws is wrong within each.

        Args:
            values: (..., R) along `dim`, one estimate from each replicate; at least 10 are called reliable.
            dim: dimension of the replicates.

        Returns:
            Estimate in the shape of `values` without `dim`.

        Raises:
            ValueError: fewer than two replicates.

        Reference:
            Mahalanobis (1946), Recent experiments in statistical sampling in the Indian Statistical
            Institute, JRSS 109(4) (interpenetrating samples).
        """
        values = torch.as_tensor(values).double()
        if values.ndim == 0 or values.shape[dim] < 2:
            raise ValueError(
                f"Give at least two replicates along dim {dim}, got shape {tuple(values.shape)}."
            )
        count = values.shape[dim]
        return Estimate(values.mean(dim), values.std(dim) / math.sqrt(count), float(count))

    @property
    def shape(self) -> torch.Size:
        """Shape of the estimates; () of a single one."""
        return torch.as_tensor(self.value).shape

    def __getitem__(self, index: Any) -> Estimate:
        """One or some of many estimates.

        Args:
            index: as of a tensor of this shape.

        Raises:
            TypeError: this is a single estimate.
        """
        if not self.shape:
            raise TypeError("This is a single estimate, there is nothing to index.")
        return Estimate(*(torch.as_tensor(part)[index] for part in self._parts()))

    @property
    def reliable(self) -> bool | Tensor:
        """False where the effective size is below 10, k-hat above its limit, or a number not finite."""
        bad = torch.stack([mask for mask, _ in self._found()]).any(0)
        return ~bad if bad.ndim else not bool(bad)

    def doubts(self) -> list[str]:
        """Why this must not be trusted, in words; empty if nothing speaks against it.

        Of many estimates each reason says how many it concerns.
        """
        found = [(int(mask.sum()), text) for mask, text in self._found()]
        if not self.shape:
            return [text for count, text in found if count]
        return [f"{count} of {math.prod(self.shape)}: {text}" for count, text in found if count]

    def _found(self) -> list[tuple[Tensor, str]]:
        """Each reason for doubt: where it holds, and its words."""
        value, stderr, ess, khat, limit = (torch.as_tensor(p, dtype=torch.float64) for p in self._parts())
        if self.shape:
            few, heavy = f"fewer than {RELIABLE_ESS:.0f} effective draws", "k-hat above its limit"
        else:
            few = f"{self.ess:.3g} effective draws (want {RELIABLE_ESS:.0f})"
            heavy = f"k-hat {self.khat:.2f} above {self.khat_limit:.2g}"
        return [
            (~value.isfinite(), "the estimate is not finite"),
            (~stderr.isfinite(), "its standard error is unknown"),
            (~(ess >= RELIABLE_ESS), f"it rests on {few}"),
            ((khat > limit) & (khat < math.inf), f"the weights' tail is too heavy ({heavy})"),
            (khat == math.inf, "too few draws lie in the weights' tail to judge it (no k-hat)"),
        ]

    def interval(self, level: float = 0.95) -> tuple[float | Tensor, float | Tensor]:
        """Normal confidence interval `value -+ z stderr`.

        Args:
            level: coverage aimed at, inside (0, 1).

        Returns:
            Lower and upper end.

        Raises:
            ValueError: `level` is not strictly between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"A confidence level lies strictly between 0 and 1, got {level}.")
        half = NormalDist().inv_cdf(0.5 + level / 2) * self.stderr
        return self.value - half, self.value + half

    def __str__(self) -> str:
        if not self.shape:
            low, high = self.interval()
            text = f"{self.value:.4g} (95% {low:.4g} to {high:.4g}, {self.ess:.4g} effective draws)"
            doubts = self.doubts()
            return f"{text}: do not trust this, {'; '.join(doubts)}" if doubts else text
        places = list(itertools.islice(itertools.product(*map(range, self.shape)), SHOWN))
        lines = [f"[{', '.join(map(str, place))}] {self[place]}" for place in places]
        more = math.prod(self.shape) - len(places)
        if more or not lines:
            bad = int((~torch.as_tensor(self.reliable)).sum())
            lines.append(f"and {more} more; do not trust {bad} of the {len(places) + more}")
        return "\n".join(lines)


@runtime_checkable
class Proposal(Protocol):
    """Anything that draws candidates and knows the probability of what it drew."""

    def sample(self, context: Any, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates for the queries of `context`.

        Args:
            context: what the proposal may look at, such as `steelyard.negatives.Context`.
            n: how many candidates: shared by the batch, or for each query.
            generator: source of randomness; torch's own where None.

        Returns:
            The candidates, (n,) shared or (B, n) per query, with their log expected counts.
        """
        ...
