"""What a miner is asked: scores, distances and labels that fit, and nothing that is not a number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor


def check_count(name: str, count: object, least: int = 1) -> None:
    """Refuse a count that is no integer or too small.

    Args:
        name: of the argument, for the message.
        count: what was given.
        least: the smallest that makes sense.

    Raises:
        TypeError: `count` is not an integer.
        ValueError: `count` is below `least`.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {count!r}.")
    if count < least:
        raise ValueError(f"{name} must be {least} or more, got {count}.")


def floating(name: str, value: Any) -> Tensor:
    """The value as a floating point tensor, with its gradient.

    Args:
        name: of the argument, for the message.
        value: tensor or array-like.

    Returns:
        The tensor.

    Raises:
        TypeError: it is not floating point.
    """
    tensor = torch.as_tensor(value)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}.")
    return tensor


def all_finite(name: str, value: Any) -> Tensor:
    """The value as a floating point tensor without NaN or infinity.

    Args:
        name: of the argument, for the message.
        value: tensor or array-like.

    Returns:
        The tensor.

    Raises:
        TypeError: it is not floating point.
        ValueError: it has NaN or an infinity.
    """
    tensor = floating(name, value)
    if not bool(tensor.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got {int((~tensor.isfinite()).sum())} entries that are not."
        )
    return tensor


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the widest dtype of theirs, for a product of them."""
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def masked_score(score: Any, mask: Any = None) -> Tensor:
    """Scores without gradient, -inf where they are masked.

    Args:
        score: float, (..., n); -inf for a candidate that must not be taken.
        mask: bool, broadcastable to `score`, True where a candidate must not be taken.

    Returns:
        float, (..., n), a new tensor where there is a mask.

    Raises:
        TypeError: scores that are not floating point, or a mask that is not bool.
        ValueError: no dimension of candidates, a mask that does not broadcast, or NaN or +inf in a score
            that is not masked.
    """
    tensor = floating("score", score).detach()
    if tensor.ndim == 0:
        raise ValueError("score needs a dimension of candidates, got a single number.")
    if mask is not None:
        left_out = torch.as_tensor(mask)
        if left_out.dtype != torch.bool:
            raise TypeError(f"mask must be bool, True to leave a candidate out, got {left_out.dtype}.")
        try:
            left_out = left_out.expand(tensor.shape)
        except RuntimeError:
            raise ValueError(
                f"mask of shape {tuple(left_out.shape)} does not broadcast to score {tuple(tensor.shape)}."
            ) from None
        tensor = tensor.masked_fill(left_out, -math.inf)
    if tensor.numel() and not bool(tensor.amax() < math.inf):  # a maximum keeps NaN
        raise ValueError("score has NaN or +inf; mark what must not be taken by -inf or in the mask.")
    return tensor


def labelled(name: str, matrix: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """A square matrix between the members of a batch, and their labels.

    Args:
        name: of the matrix, for the message.
        matrix: float, (B, B), finite.
        labels: integers, (B,).

    Returns:
        Both as tensors, the matrix with its gradient.

    Raises:
        TypeError: a matrix that is not floating point, labels that are not integers.
        ValueError: other shapes, or an entry that is not finite.
    """
    between, of_each = all_finite(name, matrix), torch.as_tensor(labels)
    if of_each.is_floating_point() or of_each.is_complex() or of_each.dtype == torch.bool:
        raise TypeError(f"labels must be integers, got {of_each.dtype}.")
    if of_each.ndim != 1 or between.shape != (len(of_each), len(of_each)):
        raise ValueError(
            f"{name} must be (B, B) with labels (B,), got {tuple(between.shape)} and {tuple(of_each.shape)}."
        )
    return between, of_each


def labelled_distance(distance: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """A matrix of distances without gradient, and the labels.

    Args:
        distance: float, (B, B), finite and not negative.
        labels: integers, (B,).

    Returns:
        Both as tensors.

    Raises:
        TypeError: distances that are not floating point, labels that are not integers.
        ValueError: other shapes, or a distance that is negative or not finite.
    """
    between, of_each = labelled("distance", distance, labels)
    if between.numel() and float(between.detach().amin()) < 0:
        raise ValueError(
            f"Distances are not negative, got {float(between.detach().amin())}; give distances, not scores."
        )
    return between.detach(), of_each
