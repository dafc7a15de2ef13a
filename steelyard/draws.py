"""The three small types that carry the idea: candidates drawn, samples weighed, estimates judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

T = TypeVar("T")

RELIABLE_ESS = 10.0
RELIABLE_KHAT = 0.7


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
            inclusion probability; 0 for a candidate taken with certainty.
        design: answers the same for any ids, (..., m) -> (..., m), under the design as realised;
            -inf for a candidate that the design never draws, such as an id outside the catalogue.

    Raises:
        TypeError: `ids` is not int64 or `log_expected` is not floating point.
        ValueError: the shapes do not broadcast, or `log_expected` has NaN or +inf.

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
        if not bool((self.log_expected < math.inf).all()):  # NaN is not below anything
            raise ValueError("log_expected has NaN or +inf: an expected count is a finite number.")
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
            All candidates side by side, (..., sum of n), an item drawn by two designs standing twice, and
            a design that answers for the sum.

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

        return Draws(ids, design(ids), design)


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
    """An estimate with its standard error and what speaks against it.

    Args:
        value: the estimate.
        stderr: its standard error, in the units of `value`.
        ess: effective number of independent draws behind it.
        khat: Pareto shape of the weights' tail; NaN where it was not computed.

    Reference:
        The limit of 0.7 on k-hat: Vehtari et al. (2024), Pareto smoothed importance sampling, JMLR 25,
        arXiv 1507.02646. The limit of 10 effective draws is ours.
    """

    value: float
    stderr: float
    ess: float
    khat: float = math.nan

    @property
    def reliable(self) -> bool:
        """False where the effective size is below 10, k-hat above 0.7, or the error not finite."""
        return not self.doubts()

    def doubts(self) -> list[str]:
        """Why this estimate must not be trusted, in words; empty if nothing speaks against it."""
        found = []
        if not math.isfinite(self.value):
            found.append("the estimate is not finite")
        if not math.isfinite(self.stderr):
            found.append("its standard error is unknown")
        if not self.ess >= RELIABLE_ESS:
            found.append(f"it rests on {self.ess:.3g} effective draws (want {RELIABLE_ESS:.0f})")
        if self.khat > RELIABLE_KHAT:
            found.append(f"the weights' tail is too heavy (k-hat {self.khat:.2f} above {RELIABLE_KHAT})")
        return found

    def interval(self, level: float = 0.95) -> tuple[float, float]:
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
        low, high = self.interval()
        text = f"{self.value:.4g} (95% {low:.4g} to {high:.4g}, {self.ess:.4g} effective draws)"
        doubts = self.doubts()
        return f"{text}: do not trust this, {'; '.join(doubts)}" if doubts else text


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
