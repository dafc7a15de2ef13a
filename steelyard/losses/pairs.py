"""Which pairs of a labelled batch belong together and which do not, for losses on similarities."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def label_pairs(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Masks of the positive pairs, of one label, and of the negative pairs, of two.

        positive_ij = (y_i = y_j),   negative_ij = (y_i != y_j);   neither: i = j within one batch, masked pairs

    Args:
        similarity: float, (B, N): of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references (a memory, proxies); default the batch itself,
            whose pairs of a member with itself are then left out.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.

    Returns:
        Two bool tensors, (B, N).

    Raises:
        TypeError: a similarity that is not floating point, labels that are not integers, or a mask not bool.
        ValueError: shapes do not fit.
    """
    if not similarity.is_floating_point():
        raise TypeError(f"Similarities must be floating point, got {similarity.dtype}.")
    check_integers("labels", labels)
    other = labels if reference_labels is None else reference_labels
    check_integers("reference_labels", other)
    if similarity.shape != (*labels.shape, *other.shape) or labels.ndim != 1:
        raise ValueError(
            f"Wanted (B, N) similarities with labels (B,) and reference_labels (N,), got {tuple(similarity.shape)}, "
            f"{tuple(labels.shape)} and {tuple(other.shape)}; without reference_labels N is B."
        )
    same = labels.unsqueeze(1) == other
    out = torch.zeros_like(same)
    if reference_labels is None:
        out.fill_diagonal_(True)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool, True to leave a pair out, got {mask.dtype}.")
        try:
            out = out | mask.expand(same.shape)
        except RuntimeError:
            raise ValueError(
                f"mask of shape {tuple(mask.shape)} does not broadcast to similarities of shape {tuple(same.shape)}."
            ) from None
    return same & ~out, ~same & ~out


def check_integers(name: str, labels: Tensor) -> None:
    """Refuse labels that are not integers.

    Raises:
        TypeError: they are floating point, complex or bool.
    """
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {labels.dtype}.")


def check_classes(labels: Tensor, size: int, n_classes: int) -> None:
    """Refuse labels that are not one class of `n_classes` for each of `size` examples.

    Raises:
        TypeError: labels that are not integers.
        ValueError: another shape, or a label outside 0 to n_classes - 1.
    """
    check_integers("labels", labels)
    if labels.shape != (size,):
        raise ValueError(f"labels must be ({size},), one for each example, got {tuple(labels.shape)}.")
    if size and not (int(labels.min()) >= 0 and int(labels.max()) < n_classes):
        raise ValueError(
            f"labels must lie in 0 to {n_classes - 1}, got {int(labels.min())} to {int(labels.max())}."
        )


def check_number(name: str, value: float, *, least: float = -math.inf, above: float = -math.inf) -> None:
    """Refuse a parameter that is not finite, below `least`, or not above `above`.

    Raises:
        ValueError: as said.
    """
    if not (math.isfinite(value) and value >= least and value > above):
        bound = f" and above {above:g}" if above > -math.inf else f" and at least {least:g}"
        raise ValueError(
            f"{name} must be finite{bound if max(least, above) > -math.inf else ''}, got {value}."
        )


def widened(score: Tensor) -> Tensor:
    """In float32 at least: scaled by 50 or 256, a half-precision similarity has no digits left to sum."""
    return score.to(torch.promote_types(score.dtype, torch.float32))


def widened_alike(*given: Tensor) -> tuple[Tensor, ...]:
    """All in the widest dtype of theirs, float32 at least, for a product of them."""
    dtype = torch.float32
    for tensor in given:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in given)


def log_sum_exp(score: Tensor, keep: Tensor, *, plus_one: bool = False, dim: int = 1) -> Tensor:
    """log of the sum of exp over what is kept (and of 1), with gradient 0, not NaN, where that is nothing.

    Args:
        score: float, (B, N).
        keep: bool, (B, N).
        plus_one: add 1 to the sum.
        dim: dimension of the sum.

    Returns:
        float, (B,) or (N,); without `plus_one`, -inf where nothing is kept.
    """
    kept = score.masked_fill(~keep, -math.inf)
    if plus_one:
        shape = list(kept.shape)
        shape[dim] = 1
        return torch.cat([kept.new_zeros(shape), kept], dim).logsumexp(dim)
    empty = ~keep.any(dim, keepdim=True)
    return kept.masked_fill(empty, 0.0).logsumexp(dim).masked_fill(empty.squeeze(dim), -math.inf)
