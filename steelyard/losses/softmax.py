"""Softmax cross-entropy over a catalogue, estimated from a few weighed candidates."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def sampled_softmax(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of the positive against everything, from negatives weighed by what they stand for.

        L = -s_p + log( exp(s_p) + sum_n exp(s_n - log_expected_n) )

    The sum over negatives is the Horvitz-Thompson estimate of the sum over the whole catalogue but
    the positive, so the loss is a consistent estimate of the full softmax loss, and its gradient of
    the full gradient. The positive has a term of its own and stays uncorrected: correcting it too,
    or leaving out the number of draws (`log q` in place of `log(K q)`), biases the gradient as soon
    as the model gives the positive a probability that is no longer small. Draws that hit the positive
    are masked, and still count in K.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw.
        mask: bool, broadcastable to `negative`: True leaves a draw out (it is the positive, or known
            to be relevant).
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query all of whose draws are masked has loss 0.

    Raises:
        ValueError: shapes do not fit, the mean over no queries, or an unknown reduction.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Bengio & Senecal (2008), Adaptive importance sampling to accelerate training of a neural
        probabilistic language model, IEEE TNN 19(4); the positive's own term after Khrylchenko et al.
        (2025), Correcting the LogQ correction, arXiv 2507.09331, whose gradient this form shares
        (drawn from Q conditioned on not being the positive there, masked here).
    """
    logits = log_weights(positive, negative, log_expected, mask)
    everything = torch.cat([positive.unsqueeze(-1), logits], -1)
    return reduce(torch.logsumexp(everything, -1) - positive, reduction)


def log_weights(positive: Tensor, negative: Tensor, log_expected: Tensor, mask: Tensor | None) -> Tensor:
    """What each draw adds to the sum over everything: `s_n - log_expected_n`, -inf where it is masked.

    Args:
        positive: float, (...).
        negative: float, (..., K).
        log_expected: float, broadcastable to `negative`.
        mask: bool, broadcastable to `negative`, or None.

    Returns:
        float, (..., K).

    Raises:
        ValueError: shapes do not fit.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.
    """
    check_scores(positive, negative, log_expected, mask)
    logits = negative - log_expected
    return logits if mask is None else logits.masked_fill(mask, -math.inf)


def check_scores(
    positive: Tensor, negative: Tensor, log_expected: Tensor | None, mask: Tensor | None
) -> None:
    """Refuse scores of positives and their negatives that do not fit each other, or what weighs and masks them.

    Raises:
        ValueError: shapes do not fit.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.
    """
    if negative.shape[:-1] != positive.shape:
        raise ValueError(
            f"negative must be (..., K) over positive's shape {tuple(positive.shape)}, got {tuple(negative.shape)}."
        )
    for name, score in (("positive", positive), ("negative", negative)):
        if not score.is_floating_point():
            raise TypeError(
                f"{name} must hold floating-point scores, got {score.dtype}; call .float() on it."
            )
    check_fits("log_expected", log_expected, negative)
    check_fits("mask", mask, negative)


def check_fits(name: str, tensor: Tensor | None, like: Tensor, *, of: str = "negatives") -> None:
    """Refuse what does not broadcast to scores, a mask that is not bool, and anything else that is no float.

    Args:
        name: of the argument, "mask" for a mask.
        tensor: the argument; None fits always.
        like: the scores that it goes with.
        of: what the scores are called in the message.

    Raises:
        ValueError: the shape does not broadcast.
        TypeError: another dtype.
    """
    if tensor is None:
        return
    if name == "mask" and tensor.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True for what is left out, got {tensor.dtype}.")
    if name != "mask" and not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; call .float() on it.")
    aligned = zip(reversed(tensor.shape), reversed(like.shape), strict=False)
    if tensor.ndim > like.ndim or any(a not in (1, b) for a, b in aligned):
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} does not broadcast to {of} of shape {tuple(like.shape)}."
        )


def reduce(loss: Tensor, reduction: Reduction) -> Tensor:
    """Mean, sum or no reduction of a loss per query.

    Raises:
        ValueError: an unknown reduction, or the mean over no queries.
    """
    if reduction == "mean":
        if loss.numel() == 0:
            raise ValueError('There is no query to take a mean over; reduction="sum" gives 0.')
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}.')
