"""A policy that learns at which distance negatives help: bins of distance, drawn and rewarded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import inside
from steelyard.negatives.hard.asked import all_finite, check_count


@dataclass(frozen=True)
class DistancePolicy:
    """Draw negatives from bins of distance to the anchor, and shift the odds of the bins by a reward.

        p(bin) = softmax(theta) over the bins that hold a candidate,   P(j) = p(bin_j) / |candidates in bin_j|
        theta <- theta + rate (R - baseline) mean over draws of grad log p(bin)
        baseline <- decay baseline + (1 - decay) R

    The reward is whatever should grow, such as the change of recall on held-out queries since the last
    update. What it does to the softmax: weighed by `log_expected` the draws estimate the sum over the
    candidates of bins without bias, whatever the policy has learned; unweighed, as published, the loss
    follows the policy.

    Args:
        edges: float, (K - 1,), rising: inner bounds of the K bins; a distance on a bound belongs to the bin
            above.
        theta: float64, (K,), logits of the bins; zeros (equal odds) where None.
        rate: of learning, positive.
        baseline: running mean of the reward; None until the first reward, which then is its own baseline.
        decay: of the baseline, in [0, 1).

    Raises:
        TypeError: edges or logits that are not floating point.
        ValueError: bounds that do not rise, logits of another shape or not finite, a rate or a decay out of
            range.

    Reference:
        Dou, Pan, Bao, Mao, Luo & Mao (2022), Sampling through the lens of sequential decision making (ASR),
        arXiv, August 2022, its policy reconstructed; the update: Williams (1992), Simple statistical
        gradient-following algorithms for connectionist reinforcement learning, Machine Learning 8.
    """

    edges: Tensor
    theta: Tensor | None = None
    rate: float = 0.1
    baseline: float | None = None
    decay: float = 0.9

    def __post_init__(self) -> None:
        edges = all_finite("edges", self.edges)
        if edges.ndim != 1 or not bool((edges.diff() > 0).all()):
            raise ValueError(f"edges must be one rising row of bounds, got {edges.tolist()}.")
        theta = torch.zeros(len(edges) + 1, dtype=torch.float64) if self.theta is None else self.theta
        theta = all_finite("theta", theta).detach().double()
        if theta.shape != (len(edges) + 1,):
            raise ValueError(
                f"theta must be ({len(edges) + 1},), a logit for each bin, got {tuple(theta.shape)}."
            )
        if not (0 < self.rate < math.inf and 0 <= self.decay < 1):
            raise ValueError(f"rate must be positive and decay in [0, 1), got {self.rate} and {self.decay}.")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "theta", theta)

    def log_probability(self, distance: Any, mask: Any = None) -> Tensor:
        """Log-probability by which one draw takes each candidate.

        Args:
            distance: float, (B, n), finite where it is not masked.
            mask: bool, (B, n), True where a candidate must not be drawn.

        Returns:
            float64, (B, n); -inf where masked.

        Raises:
            TypeError: distances that are not floating point, a mask that is not bool.
            ValueError: shapes that do not fit, or distances that are not finite.
        """
        bins, log_bin, count = self._law(distance, mask)
        gone = bins == len(self.edges) + 1
        place = bins.masked_fill(gone, 0)
        answer = log_bin.gather(1, place) - count.gather(1, place).double().log()
        return answer.masked_fill(gone, -math.inf)

    def sample(
        self, distance: Any, n: int = 1, mask: Any = None, *, generator: torch.Generator | None = None
    ) -> Draws:
        """Draw candidates for each anchor, with replacement.

        Args:
            distance: float, (B, m), of the candidates to the anchors.
            n: how many for each anchor.
            mask: bool, (B, m), True where a candidate must not be drawn.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per anchor, ids (B, n) into the candidates; empty for an anchor without any.

        Raises:
            TypeError: distances that are not floating point, a mask that is not bool, an `n` that is no
                integer.
            ValueError: shapes that do not fit, distances that are not finite, a negative `n`.
        """
        check_count("n", n, 0)
        log_p = self.log_probability(distance, mask)
        rows, width = log_p.shape
        alive = (log_p > -math.inf).any(1)
        ids = torch.zeros(rows, n, dtype=torch.int64)
        if n and bool(alive.any()):
            ids[alive] = torch.multinomial(log_p[alive].exp(), n, replacement=True, generator=generator)
        log_n = math.log(n) if n else -math.inf
        drawn = log_p.gather(1, ids) if width else ids.double()
        log_expected = (drawn + log_n).masked_fill(~alive.unsqueeze(1), math.inf)

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(rows, asked.shape[-1])
            answer = log_p.gather(1, asked.clamp(0, max(width - 1, 0))) if width else asked.double()
            return (answer + log_n).masked_fill(~inside(asked, width), -math.inf)

        return Draws(ids, log_expected, design)

    def score_gradient(self, distance: Any, columns: Tensor, mask: Any = None) -> Tensor:
        """Gradient of the mean log-probability of the bins of what was drawn, by theta.

            d log p(b) / d theta_k = [k = b] - p(k)       over the anchor's bins that hold a candidate

        Args:
            distance: float, (B, m), as given to `sample`.
            columns: int64, (B, n), what was drawn; anchors without candidates are left out.
            mask: bool, (B, m), as given to `sample`.

        Returns:
            float64, (K,); zeros where nothing was drawn.

        Raises:
            TypeError: distances that are not floating point, a mask that is not bool.
            ValueError: shapes that do not fit, or a column that is masked.
        """
        bins, log_bin, count = self._law(distance, mask)
        alive = (count > 0).any(1)
        taken = bins[alive].gather(1, columns[alive])
        if taken.numel() == 0:
            return torch.zeros(len(self.edges) + 1, dtype=torch.float64)
        if bool((taken == len(self.edges) + 1).any()):
            raise ValueError("columns has a candidate that is masked, which the policy never draws.")
        share = torch.bincount(taken.flatten(), minlength=len(self.edges) + 1).double() / taken.numel()
        return share - log_bin[alive].exp().mean(0)

    def updated(self, distance: Any, columns: Tensor, reward: float, mask: Any = None) -> DistancePolicy:
        """The policy after one reward for what was drawn.

        Args:
            distance: float, (B, m), as given to `sample`.
            columns: int64, (B, n), what was drawn.
            reward: finite; what came of training on the draws.
            mask: bool, (B, m), as given to `sample`.

        Returns:
            A new policy; the first reward only sets the baseline.

        Raises:
            TypeError: distances that are not floating point, a mask that is not bool.
            ValueError: shapes that do not fit, a reward that is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"reward must be finite, got {reward}.")
        base = reward if self.baseline is None else self.baseline
        assert self.theta is not None
        step = self.rate * (reward - base) * self.score_gradient(distance, columns, mask)
        return replace(self, theta=self.theta + step, baseline=self.decay * base + (1 - self.decay) * reward)

    def state_dict(self) -> dict[str, Tensor]:
        """All there is to the policy as tensors; `DistancePolicy.from_state_dict` takes it back."""
        assert self.theta is not None
        base = math.nan if self.baseline is None else self.baseline
        numbers = torch.tensor([self.rate, base, self.decay], dtype=torch.float64)
        return {"edges": self.edges.clone(), "theta": self.theta.clone(), "rate_baseline_decay": numbers}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> DistancePolicy:
        """The policy that a `state_dict` describes.

        Args:
            state: as `state_dict` gives it.

        Returns:
            The policy.
        """
        rate, base, decay = state["rate_baseline_decay"].tolist()
        return cls(state["edges"], state["theta"], rate, None if math.isnan(base) else base, decay)

    def _law(self, distance: Any, mask: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The bin of each candidate, K for one that is masked; log p(bin) and count of each anchor's bins."""
        d = torch.as_tensor(distance)
        out = torch.zeros(d.shape, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
        if d.ndim != 2 or out.shape != d.shape:
            raise ValueError(
                f"distance and mask must be (B, n), got {tuple(d.shape)} and {tuple(out.shape)}."
            )
        if out.dtype != torch.bool:
            raise TypeError(f"mask must be bool, got {out.dtype}.")
        d = all_finite("distance", d.masked_fill(out, 0) if d.is_floating_point() else d).detach()
        k = len(self.edges) + 1
        bins = torch.bucketize(d, self.edges.to(d.dtype), right=True).masked_fill_(out, k)
        count = torch.zeros(len(d), k + 1, dtype=torch.int64).scatter_add_(1, bins, torch.ones_like(bins))[
            :, :k
        ]
        assert self.theta is not None
        log_bin = self.theta.expand(len(d), k).masked_fill(count == 0, -math.inf)
        total = torch.logsumexp(log_bin, 1, keepdim=True)
        return bins, log_bin - total.masked_fill(total == -math.inf, 0.0), count
