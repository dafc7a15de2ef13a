"""A temperature for each anchor: the multiplier of a robust contrast, learned with small batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from steelyard.losses.pairs import check_integers, check_number, widened
from steelyard.losses.softmax import Reduction, check_fits, log_weights, reduce


def robust_contrastive(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float | Tensor,
    rho: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """The worst weighted mean of how far negatives exceed the positive, weights near the uniform ones.

        L_i = t_i log sum_j w_j exp((s_ij - s_i+) / t_i) + t_i rho,     w_j proportional to 1 / expected_j
            >= max over p with KL(p | w) <= rho of  sum_j p_j (s_ij - s_i+),   equal at the best t_i

    The temperature is the multiplier of the constraint. The best one is proportional to the spread of an
    anchor's similarities (for normal ones about their deviation over sqrt(2 rho)): large where its semantics
    are frequent and some negatives come near, small where all are far. A fixed one, rho 0, is the global
    contrastive loss. `robust_temperature` finds the best; `IndividualTemperatures` learns it.

    Args:
        positive: float, (...): similarity of the positive.
        negative: float, (..., K): similarities of the negatives, not divided by the temperature.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a negative out.
        temperature: t, above 0, one or (...); a tensor receives its gradient.
        rho: radius of the ball, at least 0.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none", in float32 at least. An anchor without negatives has loss 0.

    Raises:
        ValueError: shapes do not fit, parameters out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Qiu et al. (2023), Not all semantics are created equal: contrastive self-supervised learning with
        automatic temperature individualization (iSogCLR), ICML, arXiv 2305.11965.
    """
    check_number("rho", rho, least=0)
    gap, log_w = _gaps(positive, negative, log_expected, mask)
    t = _temperatures(temperature, gap)
    some = (log_w != -math.inf).any(-1)  # NaN is something
    log_w = log_w.masked_fill(~some.unsqueeze(-1), 0.0)
    mean = torch.logsumexp(log_w + gap / t.unsqueeze(-1), -1) if gap.shape[-1] else gap.sum(-1)
    return reduce(torch.where(some, t * (mean + rho), 0.0), reduction)


def robust_temperature(
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    rho: float,
    least: float = 1e-3,
    most: float = 1e3,
) -> Tensor:
    """The temperature that makes `robust_contrastive` least: the one whose softmax is rho away from uniform.

        KL( softmax(log w + s / t) | w ) = rho,    or an end where the divergence cannot be rho in between

    The divergence falls as t grows, so that halving the interval, 60 times in the log, finds it.

    Args:
        negative: float, (..., K): similarities of the negatives; the positive plays no part.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a negative out.
        rho: radius, above 0; from -log of the largest negative's weight on, the answer is `least`.
        least: smallest temperature, above 0.
        most: largest, above `least`; also the answer without negatives.

    Returns:
        float, (...), without gradient (at the optimum the loss's slope in t is 0), in float32 at least.

    Raises:
        ValueError: shapes do not fit, or parameters out of range.

    Reference:
        Qiu et al. (2023), iSogCLR, ICML, arXiv 2305.11965.
    """
    for name, value in (("rho", rho), ("least", least)):
        check_number(name, value, above=0)
    check_number("most", most, above=least)
    zero = torch.zeros(negative.shape[:-1], dtype=negative.dtype, device=negative.device)
    gap, log_w = _gaps(zero, negative.detach(), log_expected, mask)
    gap, log_w = gap.double(), log_w.double()
    some = (log_w != -math.inf).any(-1)  # NaN is something
    log_w = log_w.masked_fill(~some.unsqueeze(-1), 0.0)
    low = torch.full_like(gap.sum(-1), math.log(least))
    high = torch.full_like(low, math.log(most))
    for _ in range(60):
        middle = (low + high) / 2
        tilt = gap * torch.exp(-middle).unsqueeze(-1)
        p = torch.softmax(log_w + tilt, -1)
        divergence = (p * tilt).sum(-1) - torch.logsumexp(log_w + tilt, -1)
        colder = divergence > rho  # too far from uniform: a larger temperature
        low, high = torch.where(colder, middle, low), torch.where(colder, high, middle)
    found = torch.where(some, ((low + high) / 2).exp(), most).masked_fill(divergence.isnan(), math.nan)
    return found.to(torch.promote_types(negative.dtype, torch.float32))


class IndividualTemperatures(nn.Module):
    """Learns a temperature for each training example, with moving averages in place of large batches.

        u_i <- (1 - g) u_i + g mean_j exp(h_ij / t_i),    h_ij = s_ij - s_i+
        gradient of the encoder:      sum_j exp(h_ij / t_i) / (K u_i) grad h_ij
        gradient of the temperature:  log u_i + rho - sum_j exp(h_ij / t_i) / (K u_i) h_ij / t_i

    u_i remembers negatives of earlier batches, so that the estimate of log of the mean does not keep the bias
    of a small batch. u is kept in logs. In evaluation nothing is updated and u_i is the batch's own mean.

    Args:
        size: training examples N.
        temperature: first temperature.
        least: smallest temperature, above 0.
        most: largest.
        rho: radius of the ball, at least 0.
        decay: g, weight of the new batch, in (0, 1].
        learning_rate: of the temperatures, at least 0; 0 keeps them as they are.
        momentum: weight of the new gradient in its moving average, in (0, 1].

    Raises:
        ValueError: parameters out of range.

    Reference:
        Qiu et al. (2023), iSogCLR, ICML, arXiv 2305.11965; with a fixed temperature Yuan et al. (2022),
        Provable stochastic optimization for global contrastive learning (SogCLR), ICML, arXiv 2202.12387.
        Unlike in the authors' code, h is taken less the positive's similarity, as in the paper, and gradients
        are not clipped.
    """

    temperature: Tensor
    log_mean: Tensor
    slope: Tensor

    def __init__(
        self,
        size: int,
        *,
        temperature: float = 0.07,
        least: float = 0.05,
        most: float = 1.0,
        rho: float = 6.0,
        decay: float = 0.8,
        learning_rate: float = 0.001,
        momentum: float = 0.9,
    ) -> None:
        super().__init__()
        check_number("least", least, above=0)
        if size < 1 or not least <= temperature <= most < math.inf:
            raise ValueError(
                f"Wanted size >= 1 and least <= temperature <= most, got {size}, {least}, {temperature} and {most}."
            )
        check_number("rho", rho, least=0)
        check_number("learning_rate", learning_rate, least=0)
        if not (0 < decay <= 1 and 0 < momentum <= 1):
            raise ValueError(f"decay and momentum must lie in (0, 1], got {decay} and {momentum}.")
        self.least, self.most, self.rho = least, most, rho
        self.decay, self.learning_rate, self.momentum = decay, learning_rate, momentum
        self.register_buffer("temperature", torch.full((size,), temperature))
        self.register_buffer("log_mean", torch.full((size,), math.nan))
        self.register_buffer("slope", torch.zeros(size))

    def forward(
        self,
        index: Tensor,
        positive: Tensor,
        negative: Tensor,
        log_expected: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """The loss of a batch, with the gradient above; in training, u and the temperatures move on.

        Args:
            index: integers, (B,): which training examples the anchors are, each once.
            positive: float, (B,).
            negative: float, (B, K).
            log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default
                0.
            mask: bool, broadcastable to `negative`: True leaves a negative out.
            reduction: "mean" over anchors, "sum", or "none".

        Returns:
            t (log u + rho), a scalar or (B,) for "none", in float32 at least; 0 for an anchor without
            negatives.

        Raises:
            TypeError: an index that is not of integers.
            ValueError: shapes do not fit, an index out of range or twice, a similarity or expected count that is
                not finite and not masked, an unknown reduction, or the mean over no anchors.
        """
        check_integers("index", index)
        if index.shape != positive.shape or index.ndim != 1:
            raise ValueError(
                f"Wanted (B,) index and positives, got {tuple(index.shape)} and {tuple(positive.shape)}."
            )
        if len(index) and not (int(index.min()) >= 0 and int(index.max()) < len(self.temperature)):
            raise ValueError(f"index must lie in 0 to {len(self.temperature) - 1}.")
        if len(torch.unique(index)) != len(index):
            raise ValueError("An example is twice in the batch; put its negatives into one row.")
        gap, log_w = _gaps(positive, negative, log_expected, mask)
        if not bool(gap.isfinite().all()) or bool(log_w.isnan().any()):
            raise ValueError(
                "A similarity or expected count is not finite, and would stay in the averages; mask it."
            )
        some = (log_w != -math.inf).any(-1)  # NaN is something
        log_w = log_w.masked_fill(~some.unsqueeze(-1), 0.0)
        t = self.temperature[index].to(gap.dtype)
        tilt = gap.detach() / t.unsqueeze(-1)
        log_now = torch.logsumexp(log_w + tilt, -1) if gap.shape[-1] else tilt.sum(-1)
        log_u = log_now
        if self.training:
            old = self.log_mean[index].to(gap.dtype)
            log_old = math.log1p(-self.decay) + old if self.decay < 1 else torch.full_like(old, -math.inf)
            moved = torch.logaddexp(log_old, math.log(self.decay) + log_now)
            log_u = torch.where(old.isnan(), log_now, moved)
        p = (log_w + tilt - log_u.unsqueeze(-1)).exp()
        if self.training:
            self._move(index[some], log_u[some], (p * tilt).sum(-1)[some])
        pulled = (p * gap).sum(-1)
        value = t * (log_u + self.rho)
        return reduce(torch.where(some, value + pulled - pulled.detach(), 0.0), reduction)

    @torch.no_grad()
    def _move(self, index: Tensor, log_u: Tensor, tilted: Tensor) -> None:
        self.log_mean[index] = log_u.to(self.log_mean.dtype)
        gradient = (log_u + self.rho - tilted).to(self.slope.dtype)
        self.slope[index] += self.momentum * (gradient - self.slope[index])
        moved = self.temperature[index] - self.learning_rate * self.slope[index]
        self.temperature[index] = moved.clamp(self.least, self.most)


def _gaps(
    positive: Tensor, negative: Tensor, log_expected: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """How far each negative exceeds the positive and its log-weight; 0 and -inf where left out."""
    check_fits("log_expected", log_expected, negative)
    s = widened(negative)
    zero = torch.zeros_like(s)
    expected = s.new_zeros(()) if log_expected is None else log_expected.to(s.dtype)
    log_w = log_weights(positive, zero, expected, mask)
    out = log_w == -math.inf
    gap = (s - widened(positive).unsqueeze(-1)).masked_fill(out, 0.0)
    empty = out.all(-1, keepdim=True)
    total = log_w.masked_fill(empty, 0.0).logsumexp(-1, keepdim=True) if s.shape[-1] else 0.0
    return gap, log_w - total


def _temperatures(temperature: float | Tensor, gap: Tensor) -> Tensor:
    t = torch.as_tensor(temperature).to(gap.device, gap.dtype)
    if not bool(((t > 0) & (t < math.inf)).all()):
        raise ValueError("Each temperature must be positive and finite.")
    try:
        return t.expand(gap.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"temperature of shape {tuple(t.shape)} does not broadcast to anchors {tuple(gap.shape[:-1])}."
        ) from None
