"""Optimisers for embedding tables that read and write only the rows that a step touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def merge_rows(grad: Tensor) -> tuple[Tensor, Tensor]:
    """The touched rows of a sparse gradient, each once, and the sum of their gradients.

    Args:
        grad: sparse COO with one sparse dimension, coalesced or not, (rows, d).

    Returns:
        Rows, int64, (m,), ascending, and gradients, (m, d).

    Raises:
        TypeError: the gradient is dense, or sparse in more than its first dimension.
    """
    if not grad.is_sparse or grad.sparse_dim() != 1:
        raise TypeError(
            "Row-sparse optimisers take gradients that are sparse in their first dimension, as "
            "torch.nn.Embedding(sparse=True) makes them; give other parameters to torch.optim."
        )
    rows, values = grad._indices()[0], grad._values()
    if grad.is_coalesced() or len(rows) == 0:
        return rows, values
    unique, inverse = torch.unique(rows, return_inverse=True)
    if len(unique) == len(rows):
        order = torch.empty_like(inverse)
        order[inverse] = torch.arange(len(rows))
        return unique, values[order]
    return unique, values.new_zeros(len(unique), *values.shape[1:]).index_add_(0, inverse, values)


class RowAdagrad(Optimizer):
    """Adagrad with one accumulator a row.

        a_r <- a_r + mean_i g_ri^2
        w_r <- w_r - lr g_r / (sqrt(a_r) + eps)

    A row that a step did not touch has gradient zero, which leaves Adagrad's row as it is, so skipping
    it is exact. State: 4 bytes a row.

    Args:
        params: embedding tables, or groups of them.
        lr: learning rate, positive.
        eps: added to the root, positive.

    Raises:
        ValueError: a learning rate or eps that is not positive.

    Reference:
        Duchi, Hazan & Singer (2011), Adaptive subgradient methods, JMLR 12; one accumulator a row as in
        Lerer et al. (2019), PyTorch-BigGraph, arXiv 1903.12287, whose code names it RowAdagrad.
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.1, eps: float = 1e-8) -> None:
        _check(lr=lr, eps=eps)
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override, unused-ignore]
        """Move the rows that have a gradient.

        Args:
            closure: computes the loss anew, as in `torch.optim`.

        Returns:
            The loss of the closure, if there is one.

        Raises:
            TypeError: a gradient that is not sparse in its first dimension alone.
        """
        loss = _evaluate(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                rows, grad = merge_rows(p.grad)
                state = self.state[p]
                if not state:
                    state["sum"] = p.new_zeros(len(p))
                total = state["sum"].index_select(0, rows) + _mean_square(grad)
                state["sum"].index_copy_(0, rows, total)
                step = -group["lr"] / (total.sqrt() + group["eps"])
                p.index_add_(0, rows, grad * step.view(-1, *[1] * (grad.ndim - 1)))
        return loss


class RowAdam(Optimizer):
    """Adam with one second moment a row, whose clock ticks only when the row is touched.

        t_r <- t_r + 1
        m_r <- beta1 m_r + (1 - beta1) g_r             v_r <- beta2 v_r + (1 - beta2) mean_i g_ri^2
        w_r <- w_r - lr (m_r / (1 - beta1^t_r)) / (sqrt(v_r / (1 - beta2^t_r)) + eps)

    The bias correction counts the row's own steps. Under a clock that all rows share, the first step
    of a row touched late would be `(1 - beta1) / sqrt(1 - beta2)` times lr (3.2 with the defaults) in
    place of lr. A row that is not touched neither moves nor forgets, unlike in dense Adam, which
    moves rows that had no gradient. With d = 1 and every row touched at every step it equals Adam.

    Args:
        params: embedding tables, or groups of them.
        lr: learning rate, positive.
        betas: decay of the first and second moment, in [0, 1).
        eps: added to the root, positive.

    Raises:
        ValueError: a learning rate or eps that is not positive, or a beta outside [0, 1).

    Reference:
        Kingma & Ba (2015), Adam, arXiv 1412.6980, algorithm 1; one second moment a row as in FBGEMM's
        partial row-wise Adam. The row's own clock is ours.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        _check(lr=lr, eps=eps)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas}.")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override, unused-ignore]
        """Move the rows that have a gradient.

        Args:
            closure: computes the loss anew, as in `torch.optim`.

        Returns:
            The loss of the closure, if there is one.

        Raises:
            TypeError: a gradient that is not sparse in its first dimension alone.
        """
        loss = _evaluate(closure)
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                rows, grad = merge_rows(p.grad)
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(len(p), dtype=torch.int32)
                    state["first"], state["second"] = torch.zeros_like(p), p.new_zeros(len(p))
                steps = state["step"].index_select(0, rows) + 1
                first = state["first"].index_select(0, rows).lerp_(grad, 1 - beta1)
                second = state["second"].index_select(0, rows).lerp_(_mean_square(grad), 1 - beta2)
                for name, value in (("step", steps), ("first", first), ("second", second)):
                    state[name].index_copy_(0, rows, value)
                t = steps.to(p.dtype)
                root = (second / (1 - beta2**t)).sqrt_() + group["eps"]
                step = -group["lr"] / ((1 - beta1**t) * root)
                p.index_add_(0, rows, first.mul_(step.view(-1, *[1] * (grad.ndim - 1))))
        return loss


def _mean_square(grad: Tensor) -> Tensor:
    return grad.flatten(1).square().mean(1) if grad.ndim > 1 else grad.square()


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _check(**positive: float) -> None:
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}.")
