"""Optimisers for embedding tables that read and write only the rows that a step touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

Ints = NDArray[np.int64]
Clock = NDArray[np.int32]
Floats = NDArray[np.float32]


def _gather_rows(grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Put the entries of a sparse gradient in the order of their rows, entries of one row in the order they came.

    Args:
        grad: sparse COO with one sparse dimension, coalesced or not, (rows, d).

    Returns:
        The touched rows, int64, (m,), ascending; where each one's entries start, int64, (m + 1,); and the
        positions of the entries in the gradient's values, int64, (n,).

    Raises:
        TypeError: the gradient is dense, sparse in more than its first dimension, or neither float32 nor float64.
    """
    if not grad.is_sparse or grad.sparse_dim() != 1 or grad.ndim != 2:
        raise TypeError(
            "Row-sparse optimisers take gradients of tables that are sparse in their first dimension, as "
            "torch.nn.Embedding(sparse=True) makes them; give other parameters to torch.optim."
        )
    if grad.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"Row-sparse optimisers take float32 or float64 tables, got {grad.dtype}.")
    rows, order = grad._indices()[0].sort(stable=True)
    rows, counts = rows.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
    return rows, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order


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
        Lerer et al. (2019), PyTorch-BigGraph, arXiv 1903.12287, whose code names it RowAdagrad
        (with eps 1e-10).
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
        for group, p, entries in _touched(self):
            state = self.state[p]
            if not state:
                state["sum"] = p.new_zeros(len(p))
            numbers = [group["lr"], group["eps"]]
            _adagrad(*_arrays(*entries, p, state["sum"]), *numbers)
        return loss


class RowAdam(Optimizer):
    """Adam without momentum, with one second moment a row that forgets as time passes.

        v_r <- beta2^(t - t_r) v_r + (1 - beta2) mean_i g_ri^2          t_r <- t
        w_r <- w_r - lr g_r / (sqrt(v_r / (1 - beta2^t)) + eps)

    t counts the steps of the table and t_r is the last one that touched row r. Steps without a gradient
    for the row count as gradients of zero, as in dense Adam, so with d = 1 it equals `torch.optim.Adam`
    with betas (0, beta2), whose rows without a gradient do not move either. With a clock of the row's
    own, a row touched once in s steps would move sqrt(s) times less than in dense Adam, and rare users
    and items would lag behind. Momentum is left out: dense Adam pays a row's step out over the
    following ones, in which a rare row has no gradient; here it is paid at once. State: 8 bytes a row.

    Args:
        params: embedding tables, or groups of them.
        lr: learning rate, positive.
        beta2: decay of the second moment, in [0, 1).
        eps: added to the root, positive.

    Raises:
        ValueError: a learning rate or eps that is not positive, or a beta2 outside [0, 1).

    Reference:
        Kingma & Ba (2015), Adam, arXiv 1412.6980, algorithm 1 with beta1 = 0; one second moment a row as
        in FBGEMM's partial row-wise Adam. The closed form for steps without a gradient is ours.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        _check(lr=lr, eps=eps)
        if not 0 <= beta2 < 1:
            raise ValueError(f"beta2 must lie in [0, 1), got {beta2}.")
        super().__init__(params, {"lr": lr, "beta2": beta2, "eps": eps})

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
        for group, p, entries in _touched(self):
            state = self.state[p]
            if not state:
                # t_r of each row and, last, t: only state named "step" keeps its integers when torch loads it.
                state["step"] = torch.zeros(len(p) + 1, dtype=torch.int32)
                state["second"] = p.new_zeros(len(p))
            state["step"][-1] += 1
            arrays = _arrays(*entries, p, state["step"], state["second"])
            numbers = [group["lr"], group["beta2"], group["eps"]]
            _adam(*arrays, *numbers)
        return loss


def _touched(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], Tensor, tuple[Tensor, ...]]]:
    """Group, table and gradient entries (rows, starts, order, values) of every table that has a gradient."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                yield group, p, (*_gather_rows(p.grad), p.grad._values())


def _arrays(*tensors: Tensor) -> list[Any]:
    """The tensors' own memory as NumPy arrays."""
    return [t.detach().numpy() for t in tensors]


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _adagrad(
    rows: Ints, starts: Ints, order: Ints, grad: Floats, table: Floats, total: Floats, lr: float, eps: float
) -> None:
    d = table.shape[1]
    g = np.empty(d, grad.dtype)
    for i in range(len(rows)):
        row = rows[i]
        g[:] = 0
        for e in range(starts[i], starts[i + 1]):
            for k in range(d):
                g[k] += grad[order[e], k]
        square = 0.0
        for k in range(d):
            square += g[k] * g[k]
        total[row] += square / d
        step = lr / (math.sqrt(total[row]) + eps)
        for k in range(d):
            table[row, k] -= step * g[k]


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _adam(
    rows: Ints,
    starts: Ints,
    order: Ints,
    grad: Floats,
    table: Floats,
    last: Clock,
    second: Floats,
    lr: float,
    beta2: float,
    eps: float,
) -> None:
    d = table.shape[1]
    g = np.empty(d, grad.dtype)
    # Powers through exp: numba's fast-math integer power has no implementation.
    log_beta2 = math.log(beta2) if beta2 > 0 else -math.inf
    time = last[-1]
    correction = -math.expm1(time * log_beta2)
    for i in range(len(rows)):
        row = rows[i]
        g[:] = 0
        for e in range(starts[i], starts[i + 1]):
            for k in range(d):
                g[k] += grad[order[e], k]
        square = 0.0
        for k in range(d):
            square += g[k] * g[k]
        kept = math.exp((time - last[row]) * log_beta2)
        second[row] = kept * second[row] + (1 - beta2) * square / d
        last[row] = time
        step = lr / (math.sqrt(second[row] / correction) + eps)
        for k in range(d):
            table[row, k] -= step * g[k]


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _check(**positive: float) -> None:
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}.")
