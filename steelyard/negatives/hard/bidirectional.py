"""Symmetric image-text contrast with generated near misses as further columns."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, sampled_softmax
from steelyard.negatives.hard.asked import all_finite, masked_score


def bidirectional_loss(
    similarity: Any,
    extra_texts: Any = None,
    extra_images: Any = None,
    temperature: float = 0.07,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Contrast each image with the texts and each text with the images, made-up ones among them.

        L_i = ( l(s_ii; s_i1 .. s_iB, s(I_i, T'_1) ..) + l(s_ii; s_1i .. s_Bi, s(T_i, I'_1) ..) ) / 2
        l(p; x) = -p/t + log sum exp(x/t)

    The made-up texts T' differ from the right one in an attribute, a relation or the order of words, the
    made-up images I' likewise, so that the contrast is about composition. Without extras it is the loss of
    CLIP. What it does to the softmax: terms are added, so the loss lies above the one over the batch; no item
    of a catalogue stands behind them, so neither estimates a sum over one.

    Args:
        similarity: float, (B, B): row i image i, column j text j; pairs on the diagonal.
        extra_texts: float, (B, M): similarities of image i with its made-up texts; -inf where it has fewer.
            All made-up texts of the batch may be given to all images.
        extra_images: float, (B, N): similarities of text i with its made-up images, likewise.
        temperature: positive.
        reduction: "mean" over the batch, "sum" or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        TypeError: similarities that are not floating point.
        ValueError: shapes that do not fit, NaN or +inf, a similarity of the batch that is not finite, a
            temperature that is not positive.

    Reference:
        Radford et al. (2021), Learning transferable visual models from natural language supervision (CLIP),
        ICML, arXiv 2103.00020; the texts' columns as in Yuksekgonul et al. (2023), When and why
        vision-language models behave like bags-of-words (NegCLIP), ICLR, arXiv 2210.01936; the images' are
        their mirror, reconstructed.
    """
    s = all_finite("similarity", similarity)
    if s.ndim != 2 or s.shape[0] != s.shape[1]:
        raise ValueError(f"similarity must be (B, B), got {tuple(s.shape)}.")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    own = torch.eye(len(s), dtype=torch.bool)
    halves = []
    for name, score, extra in (("extra_texts", s, extra_texts), ("extra_images", s.T, extra_images)):
        columns, mask = score, own
        if extra is not None:
            more = torch.as_tensor(extra)
            masked_score(more)
            if more.ndim != 2 or len(more) != len(s):
                raise ValueError(f"{name} must be ({len(s)}, M), got {tuple(more.shape)}.")
            columns, mask = torch.cat([score, more], 1), torch.cat([own, more == -math.inf], 1)
        columns = columns / temperature
        halves.append(
            sampled_softmax(
                s.diagonal() / temperature, columns, columns.new_zeros(1), mask, reduction=reduction
            )
        )
    return (halves[0] + halves[1]) / 2
