"""Click prediction for auctions: order bids times chances, where a wrong order costs welfare."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.listwise import check_lists
from steelyard.losses.softmax import Reduction, reduce


def welfare_rank(
    ctr: Tensor,
    bid: Tensor,
    label: Tensor,
    mask: Tensor | None = None,
    *,
    sigma: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Pairs of ads in an auction, weighed by the welfare that the wrong order loses.

        L = sum_{b_i y_i > b_j y_j} (b_i y_i - b_j y_j) log(1 + exp(-sigma (b_i p_i - b_j p_j)))

    `L / log 2` is at least the welfare lost over all pairs that bid times prediction puts in the wrong
    order, and so at least the welfare lost by showing the ad that comes first. Clicks are noisy labels; a
    teacher's predictions as labels give the same target with less noise, and predictions on its scale.

    Args:
        ctr: float, (..., N): predicted chances of a click, p.
        bid: (..., N): bids per click, at least 0.
        label: (..., N): clicks, or a teacher's chances of them, in [0, 1], y.
        mask: bool, broadcastable to `ctr`: True leaves an ad out (padding).
        sigma: scale of the differences, above 0; in units of one over a bid.
        reduction: "mean" over auctions, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none"; 0 for an auction without a pair that
        differs in value. Memory grows with N^2.

    Raises:
        ValueError: shapes do not fit, something that is not finite and not masked, a negative bid, a label
            outside [0, 1], a `sigma` that is not positive, an unknown reduction, or the mean over nothing.
        TypeError: predictions that are not floating point.

    Reference:
        Lyu, Feng, Robertson and Koyejo (2023), Pairwise ranking losses of click-through rates prediction for
        welfare maximization in ad auctions, ICML, arXiv 2306.01799. Reconstructed: the formula.
    """
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be positive and finite, got {sigma}.")
    _, bid, _, _ = check_lists(ctr, bid, mask)
    ctr, label, mask, _ = check_lists(ctr, label, mask)
    if not bool((bid >= 0).all()):
        raise ValueError("Bids must be at least 0.")
    if not bool(((label >= 0) & (label <= 1)).all()):
        raise ValueError("Labels are chances of a click and must lie between 0 and 1.")
    value, predicted = bid * label, bid * ctr
    kept = ~(mask.unsqueeze(-1) | mask.unsqueeze(-2))
    gain = (value.unsqueeze(-1) - value.unsqueeze(-2)).relu().masked_fill(~kept, 0.0)
    cost = softplus(-sigma * (predicted.unsqueeze(-1) - predicted.unsqueeze(-2)))
    return reduce((gain * cost).sum((-2, -1)), reduction)
