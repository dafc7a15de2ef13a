"""Contrast given a condition: a kernel on conditions stands in for draws that share the anchor's."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from steelyard.losses.pairs import check_number, log_sum_exp, widened
from steelyard.losses.softmax import Reduction, reduce


def kernel_weights(kernel: Tensor, *, ridge: float = 0.1) -> Tensor:
    """Weights by which all members of a batch stand for draws given one member's condition.

        W = (K + lambda I)^-1 K,      E[ g(y) | z = z_i ]  is about  sum_j W_ji g(y_j)

    Kernel ridge regression. For conditions of a few values and the kernel [z = z'], W_ji is 1 / (n + lambda)
    for the n members that share z_i, their plain mean as lambda falls to 0; a constant kernel gives the mean
    over all; a large lambda shrinks every weight. Weights may be negative.

    Args:
        kernel: float, (B, B): K, symmetric and positive semidefinite, between conditions.
        ridge: lambda, above 0.

    Returns:
        float64, (B, B), without gradient: column i for anchor i.

    Raises:
        TypeError: a kernel that is not floating point.
        ValueError: another shape, a ridge out of range, or a kernel that is not positive semidefinite.

    Reference:
        Tsai et al. (2022), Conditional contrastive learning with kernel, ICLR, arXiv 2202.05458; after the
        kernel conditional embedding operator of Song, Fukumizu and Gretton (2013), IEEE Signal Processing
        Magazine 30(4).
    """
    if not kernel.is_floating_point():
        raise TypeError(f"The kernel must be floating point, got {kernel.dtype}.")
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(f"The kernel must be (B, B), got {tuple(kernel.shape)}.")
    check_number("ridge", ridge, above=0)
    k = kernel.detach().double()
    factor, info = torch.linalg.cholesky_ex(k + ridge * torch.eye(len(k), dtype=k.dtype, device=k.device))
    if int(info) != 0:
        raise ValueError(
            f"kernel + {ridge:g} I is not positive definite; give a kernel (of inner products, or exp(-d^2)), or "
            "raise the ridge."
        )
    return torch.cholesky_solve(k, factor)


def conditional_contrastive(
    similarity: Tensor,
    weight: Tensor,
    *,
    conditional: Literal["negatives", "positives"] = "negatives",
    temperature: float = 0.5,
    with_own: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE whose negatives, or positives, are those that share the anchor's condition, by weight.

        c_i = sum_j [W_ji]_+ exp(s_ij / t)
        negatives:   L_i = -log( exp(s_ii / t) / ( exp(s_ii / t) + (B - 1) c_i ) )
        positives:   L_i = -log( c_i / ( c_i + sum_{j != i} exp(s_ij / t) ) )

    Conditional negatives keep a protected attribute out of the representation (it does not help to tell them
    apart) or make negatives hard (conditions learned as well); conditional positives use auxiliary
    information. A negative weight would make the sum negative, and its log NaN, so it counts as 0, as in the
    authors' code.

    Args:
        similarity: float, (B, B): of the i-th x and the j-th y; the pairs lie on the diagonal.
        weight: float, (B, B): `kernel_weights` of the conditions.
        conditional: which of the two.
        temperature: t, above 0.
        with_own: let the anchor's own y, which has a condition like its own, count in c_i too, as in the
            paper's estimator; the authors' code leaves it out.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor whose c_i has no weight has loss
        0.

    Raises:
        TypeError: similarities or weights that are not floating point.
        ValueError: shapes do not fit, a temperature out of range, an unknown mode or reduction, or the mean
            over no anchors.

    Reference:
        Tsai et al. (2022), Conditional contrastive learning with kernel, ICLR, arXiv 2202.05458.
    """
    if not (similarity.is_floating_point() and weight.is_floating_point()):
        raise TypeError(
            f"Similarities and weights must be floating point, got {similarity.dtype} and {weight.dtype}."
        )
    size = len(similarity)
    if not similarity.shape == weight.shape == (size, size):
        raise ValueError(
            f"Wanted (B, B) similarities and weights, got {tuple(similarity.shape)} and {tuple(weight.shape)}."
        )
    if conditional not in ("negatives", "positives"):
        raise ValueError(f'conditional must be "negatives" or "positives", got {conditional!r}.')
    check_number("temperature", temperature, above=0)
    if bool(weight.isnan().any()):
        raise ValueError("A weight is NaN.")
    score = widened(similarity) / temperature
    own = torch.eye(size, dtype=torch.bool, device=score.device)
    w = weight.detach().T.to(score.device, torch.float64)
    counted = (w > 0) & (with_own | ~own)
    log_weight = torch.where(counted, w, 1.0).log().to(score.dtype)
    given = log_sum_exp(score + log_weight, counted)
    some = counted.any(1)
    given = torch.where(some, given, 0.0)
    if conditional == "negatives":
        rest = given + torch.log(given.new_tensor(float(max(size - 1, 1))))
        return reduce(
            torch.where(some, torch.logaddexp(rest, score.diagonal()) - score.diagonal(), 0.0), reduction
        )
    others = log_sum_exp(score, ~own)
    return reduce(torch.where(some, torch.logaddexp(given, others) - given, 0.0), reduction)
