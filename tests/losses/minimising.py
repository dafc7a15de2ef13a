"""The least of a loss, to the last digits: what it learns where nothing is sampled."""

from collections.abc import Callable

import torch
from torch import Tensor


def fit(parameters: list[Tensor], loss: Callable[[], Tensor]) -> None:
    """Move leaf tensors to where a loss of them is least."""
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=1000, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def minimise(loss: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The scores that make a loss least, each free."""
    score = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    fit([score], lambda: loss(score))
    return score.detach()
