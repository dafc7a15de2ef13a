"""A caption's sentence embedding as a second target of its decoder, beside the words."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from steelyard.losses.pairs import check_integers, check_number, widened, widened_alike
from steelyard.losses.softmax import Reduction, check_fits, reduce


def sentence_cosine(summary: Tensor, reference: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """One minus the cosine of a decoder's summary of a caption and the embedding of its reference.

        L_i = 1 - (u_i . e_i) / (|u_i| |e_i|)

    0 where they point the same way, whatever their lengths, and at most 2.

    Args:
        summary: float, (..., D): the decoder's state, projected to the space of the embeddings. One of length
            0 has cosine 0 and no gradient.
        reference: float, (..., D): embeddings of the reference sentences, by a frozen encoder; taken as
            constants.
        reduction: "mean" over captions, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none".

    Raises:
        TypeError: a summary or reference that is not floating point.
        ValueError: shapes do not fit, a reference of length 0 or not finite, an unknown reduction, or the
            mean over no captions.

    Reference:
        Reconstructed: cosine regression to a frozen sentence encoder, of which no paper was found.
    """
    for name, given in (("summary", summary), ("reference", reference)):
        if not given.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {given.dtype}; call .float() on it.")
    if summary.shape != reference.shape or summary.ndim == 0 or summary.shape[-1] == 0:
        raise ValueError(
            f"summary and reference must both be (..., D), D above 0, got {tuple(summary.shape)} and "
            f"{tuple(reference.shape)}; project the summary to the embedding's dimension first."
        )
    u, e = widened_alike(summary, reference.detach())
    if not bool((e.isfinite().all(-1) & (e != 0).any(-1)).all()):
        raise ValueError(
            "A reference embedding has length 0 or is not finite; leave out captions without words."
        )
    return reduce(1 - (_direction(u) * _direction(e)).sum(-1), reduction)


def captioning_loss(
    logits: Tensor,
    tokens: Tensor,
    summary: Tensor,
    reference: Tensor,
    mask: Tensor | None = None,
    *,
    weight: float,
) -> Tensor:
    """Cross-entropy of a caption's words plus how far its decoder's summary is from the sentence's embedding.

        L = mean over words of  -log softmax(z)_w   +   weight * mean over captions of  1 - cos(u, e)

    The embedding says the same of all captions that mean the same, so that the decoder's state may not tell
    apart what only the words of the training set do. That acts against overfitting, as weight decay does:
    compare with a decay that was tuned before crediting the term.

    Args:
        logits: float, (B, T, V).
        tokens: integers, (B, T): the reference's words.
        summary: float, (B, D): the decoder's state after the caption, or a mean of its states without
            padding, projected to the embedding's dimension by a layer that is trained along.
        reference: float, (B, D): embedding of each reference by a frozen encoder; taken as constants.
        mask: bool, broadcastable to (B, T): True leaves a word out (padding). Masked words may hold anything,
            and a caption with none left is no part of either mean.
        weight: of the embedding's term, at least 0; 0 is cross-entropy.

    Returns:
        The loss, a scalar in float32 at least.

    Raises:
        TypeError: logits, a summary or reference that is not floating point, tokens that are not integers, or
            a mask that is not bool.
        ValueError: shapes do not fit, a token or the weight out of range, a reference of length 0, or no
            word.

    Reference:
        Reconstructed: the usual form of an embedding target beside the words, as no paper was found.
    """
    if not logits.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {logits.dtype}; call .float() on it.")
    check_integers("tokens", tokens)
    check_number("weight", weight, least=0)
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"Wanted logits (B, T, V) and tokens (B, T), got {tuple(logits.shape)} and {tuple(tokens.shape)}."
        )
    for name, given in (("summary", summary), ("reference", reference)):
        if given.ndim != 2 or len(given) != len(tokens):
            raise ValueError(f"{name} must be (B, D) with B = {len(tokens)}, got {tuple(given.shape)}.")
    kept = torch.ones_like(tokens, dtype=torch.bool)
    if mask is not None:
        check_fits("mask", mask, tokens, of="tokens")
        kept = ~mask.to(kept.device).expand(tokens.shape)
    words = tokens[kept].long()
    if len(words) == 0:
        raise ValueError(
            "No word is left to take a mean over: the batch is empty or the mask is True all over."
        )
    if int(words.min()) < 0 or int(words.max()) >= logits.shape[-1]:
        raise ValueError(
            f"tokens must lie in 0 to {logits.shape[-1] - 1}, got {int(words.min())} to {int(words.max())}; mask "
            "what is padding."
        )
    loss = cross_entropy(widened(logits[kept]), words)
    some = kept.any(1)
    term = sentence_cosine(summary[some], reference[some])
    return loss if weight == 0 else loss + weight * term


def _direction(vectors: Tensor) -> Tensor:
    """Of length 1, and 0 for 0.

    Over the largest entry first, since squares of small or large ones leave the range of floats. It is taken
    as a constant: directions do not depend on it.
    """
    empty = (vectors == 0).all(-1, keepdim=True)
    scale = vectors.detach().abs().max(-1, keepdim=True).values.masked_fill(empty, 1.0)
    scaled = (vectors / scale).masked_fill(empty, 1.0)
    unit: Tensor = scaled / scaled.norm(dim=-1, keepdim=True)
    return unit.masked_fill(empty, 0.0)
