"""Contrast for sequence generation, with a negative that is hardly moved and a positive that is far off."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.contrastive import check_views
from steelyard.losses.pairs import check_number, widened, widened_alike
from steelyard.losses.softmax import Reduction, reduce

Score = Callable[[Tensor], Tensor]


def adversarial_negative(hidden: Tensor, log_likelihood: Score, *, epsilon: float = 3.0) -> Tensor:
    """Hidden states that are near the target's, yet make the target unlikely: an imposter.

        h~ = h - e g / |g|,    g = grad_h log p(y | x)

    To first order the log-likelihood falls by e |g|, the most of all steps of length e. Each sequence is
    moved as a whole, by a step of its own.

    Args:
        hidden: float, (B, ...): decoder states of the target sequences.
        log_likelihood: of states (B, ...), gives (B,) or a sum over sequences; log p(y | x).
        epsilon: e, length of the step, at least 0; 0 changes nothing.

    Returns:
        float, like `hidden`, without gradient. A sequence whose gradient is 0 stays.

    Raises:
        TypeError: states that are not floating point.
        ValueError: no dimension besides the batch's, an epsilon out of range, or a gradient that is not
            finite.

    Reference:
        Lee, Lee and Hwang (2021), Contrastive learning with adversarial perturbations for conditional text
        generation (CLAPS), ICLR, arXiv 2012.07280.
    """
    return _stepped(hidden, log_likelihood, epsilon, "epsilon")


def adversarial_positive(
    hidden: Tensor, similarity: Score, divergence: Score, *, step: float = 3.0, correction: float = 3.0
) -> Tensor:
    """Hidden states that are far from the source, yet say what the target says: a distant positive.

        h- = h - e f / |f|,       f = grad_h of the similarity with the source
        h^ = h- - r k / |k|,      k = grad at h- of KL( p(. | h) | p(. | h-) )

    Args:
        hidden: float, (B, ...): decoder states of the target sequences.
        similarity: of states, gives (B,) or a sum: with the source, such as the contrastive log-likelihood.
        divergence: of states, gives (B,) or a sum: from the predictions at `hidden` to those at the states.
        step: e, at least 0.
        correction: r, at least 0.

    Returns:
        float, like `hidden`, without gradient.

    Raises:
        TypeError: states that are not floating point.
        ValueError: no dimension besides the batch's, lengths out of range, or a gradient that is not finite.

    Reference:
        Lee, Lee and Hwang (2021), CLAPS, ICLR, arXiv 2012.07280. Reconstructed: the two lengths, one in the
        paper.
    """
    away = _stepped(hidden, similarity, step, "step")
    return _stepped(away, divergence, correction, "correction")


def adversarial_contrast(
    source: Tensor,
    target: Tensor,
    negative: Tensor | None = None,
    positive: Tensor | None = None,
    *,
    temperature: float = 0.1,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE of source and target sequences, with an imposter as negative and a distant positive.

        L_i = l(t_i) + l(p_i)
        l(u) = -log( exp(s(x_i, u) / t) / ( exp(s(x_i, u) / t) + sum over negatives ) )
        negatives: t_j of the other sequences, and n_i;   s cosines

    Args:
        source: float, (B, d): pooled source embeddings.
        target: float, (B, d): of the targets.
        negative: float, (B, d): of the imposters; None leaves them out.
        positive: float, (B, d): of the distant positives; None leaves the second part out.
        temperature: t, above 0.
        reduction: "mean" over sequences, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. With neither it is InfoNCE.

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: shapes do not fit, a temperature out of range, an unknown reduction, or the mean over no
            sequences.

    Reference:
        Lee, Lee and Hwang (2021), CLAPS, ICLR, arXiv 2012.07280.
    """
    check_number("temperature", temperature, above=0)
    for other in (target, negative, positive):
        if other is not None:
            check_views(source, other)
    source, target = widened_alike(source, target)
    x = normalize(source, dim=1)
    score = x @ normalize(target, dim=1).T / temperature
    own = torch.eye(len(score), dtype=torch.bool, device=score.device)
    parts = [score.masked_fill(own, -torch.inf)]
    if negative is not None:
        parts.append((x * normalize(widened(negative), dim=1)).sum(1, keepdim=True) / temperature)
    against = torch.cat(parts, 1)
    wanted = [score.diagonal()]
    if positive is not None:
        wanted.append((x * normalize(widened(positive), dim=1)).sum(1) / temperature)
    losses = [torch.cat([s.unsqueeze(1), against], 1).logsumexp(1) - s for s in wanted]
    return reduce(torch.stack(losses).sum(0), reduction)


def _stepped(hidden: Tensor, score: Score, length: float, name: str) -> Tensor:
    """States one step of a length down the gradient of their score."""
    if not hidden.is_floating_point():
        raise TypeError(f"Hidden states must be floating point, got {hidden.dtype}.")
    if hidden.ndim < 2:
        raise ValueError(f"Hidden states must be (B, ...), got {tuple(hidden.shape)}.")
    check_number(name, length, least=0)
    with torch.enable_grad():
        h = hidden.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(score(h).sum(), h)
    if not bool(gradient.isfinite().all()):
        raise ValueError(
            "The gradient of the score at the hidden states is not finite, so it has no direction."
        )
    flat = widened(gradient).flatten(1)
    norm = flat.norm(dim=1, keepdim=True)
    unit = torch.where(norm > 0, flat / torch.where(norm > 0, norm, 1.0), 0.0).view_as(h)
    return (h.detach() - length * unit).to(hidden.dtype)
