"""Adam in a small subspace of each weight matrix, its directions drawn by singular value of the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.sampling.successive import without_replacement

Choice = Literal["sample", "top"]


def draw_subspace(
    gradient: Tensor, rank: int, *, choice: Choice = "sample", generator: torch.Generator | None = None
) -> Tensor:
    """Directions of the shorter side of a gradient, drawn without replacement by singular value.

        G = U diag(sigma) V^T,    P = r columns of U, one after the other with probability ~ sigma among those left

    The r leading directions soon stop changing in training, and with them the subspace in which the weights
    move; drawn ones give all directions a turn.

    Args:
        gradient: G, (a, b), finite. Where a > b the columns are right singular vectors.
        rank: r, 1 to min(a, b).
        choice: "sample", or "top" for the r largest singular values.
        generator: source of randomness; torch's own where None.

    Returns:
        P, (min(a, b), r), orthonormal columns by falling singular value, in the dtype of the gradient (float32
        for a shorter one). Where fewer than r singular values are above 0, directions of singular value 0 fill up.

    Raises:
        ValueError: not a finite matrix, r out of range, or an unknown choice.

    Reference:
        Zhang, Yin, Wang, Liu, Yang, Zhang, Shrivastava & Braverman (2025), Breaking the frozen subspace:
        importance sampling for low-rank optimization in LLM pretraining (SARA), NeurIPS, arXiv 2502.05790; "top":
        Zhao et al. (2024), GaLore, ICML, arXiv 2403.03507.
    """
    if gradient.ndim != 2 or not 1 <= rank <= min(gradient.shape):
        raise ValueError(
            f"Give a matrix and a rank from 1 to its shorter side: {tuple(gradient.shape)}, {rank}."
        )
    if not bool(gradient.isfinite().all()):
        raise ValueError("The gradient must be finite, got NaN or an infinity.")
    g = gradient.detach().to(torch.promote_types(gradient.dtype, torch.float32))
    u, sigma, _ = torch.linalg.svd(g if g.shape[0] <= g.shape[1] else g.T, full_matrices=False)
    ids = torch.arange(rank)
    if choice == "sample":
        draws = without_replacement(sigma.log(), rank, generator=generator)
        # Where a slot is empty, all that are above 0 were drawn, and they lead.
        if bool((draws.log_expected < math.inf).all()):
            ids = draws.ids
    elif choice != "top":
        raise ValueError(f'choice is "sample" or "top", got {choice!r}.')
    return torch.index_select(u, 1, ids.to(u.device))


def subspace_overlap(p: Tensor, q: Tensor) -> Tensor:
    """How much of one subspace lies in another: the mean squared cosine of their principal angles.

        |P^T Q|_F^2 / r

    Args:
        p: orthonormal columns, (a, r).
        q: orthonormal columns, (a, r).

    Returns:
        A scalar: 1 for the same subspace, r / a on average for a random one.

    Reference:
        Björck & Golub (1973), Numerical methods for computing angles between linear subspaces, Mathematics of
        Computation 27.
    """
    return (p.mT @ q).square().sum((-2, -1)) / p.shape[-1]


class SubspaceAdam(Optimizer):
    """Adam whose moments live in a subspace of each weight matrix, redrawn from time to time.

        P <- draw_subspace(G, r) every tau steps;    R = P^T G
        M <- b1 M + (1 - b1) R,    V <- b2 V + (1 - b2) R^2
        W <- W - lr scale P (M / (1 - b1^t)) / (sqrt(V / (1 - b2^t)) + eps)

    (R = G P, and the update times P^T, where W has more rows than columns.) The state of an a x b matrix, a <= b,
    is r (a + 2 b) numbers in place of 2 a b. Parameters that are not matrices, or whose shorter side is not above
    r, get plain Adam. Moments are carried over to a new subspace as they are, the j-th direction's to the j-th, as
    in GaLore. Directions follow from one seed, drawn from the generator at the start and kept in the state,
    so that a run that is saved and loaded goes on as if nothing had been.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: learning rate, positive.
        rank: r, at least 1.
        every: tau, steps between two draws, at least 1.
        scale: of the update in a subspace, positive; GaLore takes 0.25 and a larger learning rate.
        betas: decay of both moments, in [0, 1).
        eps: added to the root, positive.
        weight_decay: share of a weight, times lr, taken off at each step; not part of the gradient.
        choice: "sample", or "top" for the leading directions (GaLore).
        generator: source of the seed; torch's own where None.

    Raises:
        ValueError: an argument out of its range.

    Reference:
        Zhang et al. (2025), Breaking the frozen subspace: importance sampling for low-rank optimization in LLM
        pretraining (SARA), NeurIPS, arXiv 2502.05790; Zhao et al. (2024), GaLore, ICML, arXiv 2403.03507.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        rank: int = 128,
        *,
        every: int = 200,
        scale: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        choice: Choice = "sample",
        generator: torch.Generator | None = None,
    ) -> None:
        for name, value in {"lr": lr, "scale": scale, "eps": eps}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}.")
        if rank < 1 or every < 1 or not 0 <= weight_decay < math.inf:
            raise ValueError(
                "rank and every must be at least 1 and weight_decay not negative, got "
                f"{rank}, {every} and {weight_decay}."
            )
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas}.")
        if choice not in ("sample", "top"):
            raise ValueError(f'choice is "sample" or "top", got {choice!r}.')
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        defaults = {"lr": lr, "rank": rank, "every": every, "scale": scale, "betas": betas, "eps": eps}
        defaults |= {"weight_decay": weight_decay, "choice": choice, "seed": seed}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override, unused-ignore]
        """Move the parameters that have a gradient.

        Args:
            closure: computes the loss anew, as in `torch.optim`.

        Returns:
            The loss of the closure, if there is one.

        Raises:
            TypeError: a sparse gradient.
            ValueError: a gradient that is not finite where a subspace is drawn.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        number = 0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, group, number)
                number += 1
        return loss

    def _move(self, p: Tensor, group: dict[str, Any], number: int) -> None:
        grad, state = p.grad, self.state[p]
        assert grad is not None
        if grad.is_sparse:
            raise TypeError("SubspaceAdam takes dense gradients; for sparse ones see steelyard.optim.")
        low_rank = p.ndim == 2 and min(p.shape) > group["rank"]
        wide = low_rank and p.shape[0] <= p.shape[1]
        step = int(state.get("step", 0))
        if low_rank and step % group["every"] == 0:
            # The seed of a draw is its place, not its turn: the same after loading, in whatever order.
            entropy = np.random.SeedSequence([group["seed"], number, step]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(entropy[0]))
            basis = draw_subspace(grad, group["rank"], choice=group["choice"], generator=generator)
            state["basis"] = basis.to(p.dtype)
        if low_rank:
            grad = state["basis"].T @ grad if wide else grad @ state["basis"]
        if not step:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(grad), torch.zeros_like(grad)
        state["step"] = step + 1
        beta1, beta2 = group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (square.sqrt() / math.sqrt(1 - beta2 ** state["step"])).add_(group["eps"])
        update = mean / root
        rate = group["lr"] / (1 - beta1 ** state["step"])
        if low_rank:
            update = state["basis"] @ update if wide else update @ state["basis"].T
            rate *= group["scale"]
        if group["weight_decay"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(update, alpha=-rate)
