"""An output layer trained by losses of the spherical family at a cost that does not depend on the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from steelyard.losses.pairs import check_classes, check_number
from steelyard.losses.spherical import LogitMoments

BLOCK = 65_536  # rows at a time where all classes are visited, so that no second table is needed


class _Pending(NamedTuple):
    """What a backward pass left for the next step."""

    hidden: Tensor
    labels: Tensor
    own: Tensor
    mean: Tensor
    variance: Tensor


class FactoredOutput(nn.Module):
    """Weights of all classes as a product, so that a step of exact SGD rewrites only the rows of its labels.

        W = V U + 1 b^T,    V (C, d), U (d, d), b (d)
        m = mean of the rows of W,    S = sum_c (w_c - m)(w_c - m)^T
        logits of h:  own = w_y . h,   mean = m . h,   variance = h^T S h / C

        step, with M = 2 eta / C sum_i L'_variance,i h_i h_i^T,  p = sum_i L'_mean,i h_i,
        R_i = eta L'_own,i h_i in row y_i (rows of one label added up),  s = sum_i R_i:
        U <- U (I - M),   V_y <- V_y - R_y U^-1,   m' = m - (eta p + s) / C,   b <- m' + s / C - (I - M)(m - b)
        S <- (I - M) S (I - M) - (I - M) D - D^T (I - M) + R^T R - s s^T / C,   D = sum_y (w_y - m) R_y^T

    The gradient of a variance or a mean moves all rows alike, which U and b take; that of an own logit moves
    one row. A step costs O(d^2) an example, and no row of another class is read or written. `weight()` after a step is what plain SGD on all of W gives, up to rounding.

    S is the centred scatter in place of W^T W, which has no digits where the mean is large. U, its inverse
    (by Woodbury's identity for batches smaller than d, fresh otherwise), b, m and S are kept in double
    precision. What rounding adds up is taken out by `refresh`: after as many examples as there are classes,
    which comes to O(d^2) an example; and V takes U over whenever U's condition or scale passes a bound.

    Use: `loss = z_loss(layer.moments(hidden, labels), b=...)`, `loss.backward()`, `layer.step(learning_rate)`;
    several backward passes before a step add up, as gradients do. The weights are buffers, no parameters: the
    update is plain SGD, without momentum, and no other optimiser can take its place. For biases give `weight`
    another column and `hidden` ones.

    Args:
        weight: float, (C, d): the initial weights, copied.
        max_condition: bound of |U| |U^-1| / d in Frobenius norms, above 1; rounding of V grows with it.
        refresh_after: examples between refreshes, at least 1; default C.

    Raises:
        TypeError: weights that are not floating point.
        ValueError: weights that are no (C, d) matrix of finite numbers with C and d above 0, or a parameter
            out of range.

    Reference:
        Vincent, de Brébisson and Bouthillier (2015), Efficient exact gradient update for training deep
        networks with very large sparse targets, NeurIPS, arXiv 1412.7091; for the whole family, (2016), Exact
        gradient updates in time independent of output size for the spherical loss family, arXiv 1606.08061.
        Reconstructed: the centred scatter and the shift b, derived here in place of Q = W^T W and the sum of
        rows; and U's conditioning, there by its singular values one at a time.
    """

    factor: Tensor
    mixing: Tensor
    inverse: Tensor
    shift: Tensor
    mean: Tensor
    scatter: Tensor
    seen: Tensor

    def __init__(
        self, weight: Tensor, *, max_condition: float = 100.0, refresh_after: int | None = None
    ) -> None:
        super().__init__()
        weight = torch.as_tensor(weight)
        if not weight.is_floating_point():
            raise TypeError(f"Weights must be floating point, got {weight.dtype}.")
        if weight.ndim != 2 or weight.numel() == 0 or not bool(weight.isfinite().all()):
            raise ValueError(
                f"Wanted finite weights (C, d), C and d above 0, got {tuple(weight.shape)}, or NaN or infinity."
            )
        check_number("max_condition", max_condition, above=1)
        if refresh_after is not None and refresh_after < 1:
            raise ValueError(f"refresh_after must be at least 1, got {refresh_after}.")
        self.max_condition = float(max_condition)
        self.refresh_after = len(weight) if refresh_after is None else refresh_after
        eye = torch.eye(weight.shape[1], dtype=torch.float64, device=weight.device)
        self.register_buffer("factor", weight.detach().clone(memory_format=torch.contiguous_format))
        self.register_buffer("mixing", eye)
        self.register_buffer("inverse", eye.clone())
        for name in ("shift", "mean"):
            self.register_buffer(name, eye.new_zeros(len(eye)))
        self.register_buffer("scatter", torch.zeros_like(eye))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self._pending: list[_Pending] = []
        self._version = 0
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]
        self.recompute()

    def moments(self, hidden: Tensor, labels: Tensor) -> LogitMoments:
        """Moments of the logits of all classes, as `logit_moments(hidden, layer.weight(), labels)`.

        A backward pass through them gives the gradient of `hidden`, and leaves that of the weights for `step`.

        Args:
            hidden: float, (B, d).
            labels: integers, (B,).

        Returns:
            The moments, in float32 at least.

        Raises:
            TypeError: hidden states that are not floating point, or labels that are not integers.
            ValueError: shapes do not fit, or a label out of range. In the backward pass: the weights have
                changed since.
        """
        if not hidden.is_floating_point():
            raise TypeError(f"Hidden states must be floating point, got {hidden.dtype}.")
        n_classes, d = self.factor.shape
        if hidden.ndim != 2 or hidden.shape[1] != d:
            raise ValueError(f"Wanted hidden states (B, {d}), got {tuple(hidden.shape)}.")
        check_classes(labels, len(hidden), n_classes)
        # the weights are no parameters: without this, hidden states without gradient would skip the backward
        anchor = torch.empty(0, requires_grad=True)
        own, mean, variance = _Moments.apply(hidden, anchor, labels.long(), self)  # type: ignore[no-untyped-call]
        return LogitMoments(own, mean, variance, n_classes)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step of SGD, on all classes, with the gradients of the backward passes since the last step.

            W <- W - learning_rate dL/dW

        Args:
            learning_rate: at least 0.

        Raises:
            ValueError: no backward pass since the last step, a gradient that is not finite, or a learning rate
                out of range; the weights are then as before.
        """
        check_number("learning_rate", learning_rate, least=0)
        if not self._pending:
            raise ValueError("Nothing to step on: call backward on a loss of this layer's moments first.")
        h, labels, own, mean, variance = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        if not all(bool(v.isfinite().all()) for v in (h, own, mean, variance)):
            raise ValueError(
                "A hidden state or a gradient is NaN or infinite; drop it by zero_grad() and lower the learning "
                "rate or clip."
            )
        n_classes = len(self.factor)
        ids, place = torch.unique(labels, return_inverse=True)
        rows = self.rows(ids) - self.mean
        shrunk = self._mix(h, 2 * learning_rate / n_classes * variance)
        moved = h.new_zeros(len(ids), h.shape[1]).index_add_(0, place, learning_rate * own.unsqueeze(1) * h)
        self.factor[ids] = (self.factor[ids].to(h.dtype) - moved @ self.inverse).to(self.factor.dtype)

        total = moved.sum(0)
        # the mean of what mixing and shift alone make of W
        centre = self.mean - learning_rate / n_classes * (mean @ h)
        self.shift = centre - shrunk(self.mean - self.shift)
        self.mean = centre - total / n_classes
        cross = shrunk(moved.T @ rows)
        scatter = shrunk(shrunk(self.scatter).T) - cross - cross.T
        scatter = scatter + moved.T @ moved - torch.outer(total, total) / n_classes
        self.scatter = (scatter + scatter.T) / 2
        self.zero_grad()
        self._version += 1
        self.seen += len(h)
        if int(self.seen) >= self.refresh_after:
            self.refresh()

    def _mix(self, h: Tensor, strength: Tensor) -> Callable[[Tensor], Tensor]:
        """U <- U (I - M), and its inverse; returns what multiplies rows by I - M, at O(d min(B, d)) a row.

        Where U becomes ill-conditioned, V takes it and U starts anew.
        """
        pulled = h.T * strength
        eye = torch.eye(min(h.shape), dtype=h.dtype, device=h.device)
        if len(h) < h.shape[1]:

            def shrunk(x: Tensor) -> Tensor:
                return x - (x @ pulled) @ h

            solved, _ = torch.linalg.solve_ex(eye - h @ pulled, h @ self.inverse)
            inverse = self.inverse + pulled @ solved
            self.mixing = shrunk(self.mixing)
        else:
            shrink = eye - pulled @ h

            def shrunk(x: Tensor) -> Tensor:
                return x @ shrink

            self.mixing = shrunk(self.mixing)
            inverse, _ = torch.linalg.inv_ex(self.mixing)
        self.inverse = inverse
        # a singular I - M, too, whose inverse is not finite; and U that shrinks in all directions alike, which
        # has a good condition until V overflows
        scale = torch.finfo(self.factor.dtype).max ** 0.5
        if not (self.condition() <= self.max_condition and float(inverse.norm()) <= scale):
            self._fold()
        return shrunk

    def condition(self) -> float:
        """|U| |U^-1| / d in Frobenius norms: 1 after a refresh, and d times it bounds the condition number."""
        return float(self.mixing.norm() * self.inverse.norm() / len(self.mixing))

    def rows(self, ids: Tensor) -> Tensor:
        """Weights of some classes, W[ids], in the precision of the small state, (n, d)."""
        return self.factor[ids].to(self.mixing.dtype) @ self.mixing + self.shift

    def weight(self) -> Tensor:
        """All weights W, (C, d), a new tensor; O(C d^2)."""
        out = torch.empty_like(self.factor)
        for start, block in self._blocks():
            out[start : start + len(block)] = (block @ self.mixing + self.shift).to(out.dtype)
        return out

    @torch.no_grad()
    def refresh(self) -> None:
        """Set V to V U and U to I, and recompute mean and scatter; W stays. O(C d^2)."""
        self._fold()
        self.recompute()

    @torch.no_grad()
    def recompute(self) -> None:
        """Mean and scatter from the rows, which takes out what rounding has added up. O(C d^2)."""
        total = torch.zeros_like(self.mean)
        for _, block in self._blocks():
            total += block.sum(0)
        centre = total / len(self.factor)
        scatter = torch.zeros_like(self.scatter)
        for _, block in self._blocks():
            apart = block - centre
            scatter += apart.T @ apart
        self.mean = centre @ self.mixing + self.shift
        self.scatter = self.mixing.T @ scatter @ self.mixing
        self.seen.zero_()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what backward passes have left for the next step; an optimiser's `zero_grad` does not."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    def _fold(self) -> None:
        for start, block in self._blocks():
            self.factor[start : start + len(block)] = (block @ self.mixing).to(self.factor.dtype)
        self.mixing = torch.eye(len(self.mixing), dtype=self.mixing.dtype, device=self.mixing.device)
        self.inverse = self.mixing.clone()

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(self.factor), BLOCK):
            yield start, self.factor[start : start + BLOCK].to(self.mixing.dtype)


def _forget(layer: nn.Module, _: Any) -> None:
    """After other weights are loaded, gradients of the old ones are stale."""
    assert isinstance(layer, FactoredOutput)
    layer.zero_grad()
    layer._version += 1


class _Moments(torch.autograd.Function):
    """Moments of the logits, whose backward pass leaves the gradients of the moments with the layer."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, _anchor: Tensor, labels: Tensor, layer: FactoredOutput
    ) -> tuple[Tensor, ...]:
        h = hidden.to(layer.mixing.dtype)
        rows = layer.rows(labels)
        spread = h @ layer.scatter / len(layer.factor)
        ctx.save_for_backward(h, labels, rows, layer.mean, spread)
        ctx.layer, ctx.version, ctx.dtype = layer, layer._version, hidden.dtype
        wide = torch.promote_types(hidden.dtype, torch.float32)
        found = ((h * rows).sum(1), h @ layer.mean, (spread * h).sum(1).clamp(min=0))
        return tuple(v.to(wide) for v in found)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, misc, unused-ignore]
    def backward(ctx: Any, own: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.version != ctx.layer._version:
            raise ValueError(
                "The layer's weights have changed since these moments; take the moments again after each step."
            )
        h, labels, rows, centre, spread = ctx.saved_tensors
        own, mean, variance = (g.to(h.dtype) for g in (own, mean, variance))
        ctx.layer._pending.append(_Pending(h, labels, own, mean, variance))
        grad = None
        if ctx.needs_input_grad[0]:
            grad = own.unsqueeze(1) * rows + torch.outer(mean, centre) + 2 * variance.unsqueeze(1) * spread
            grad = grad.to(ctx.dtype)
        return grad, None, None, None
