"""Debiased sentence contrast: noise that climbs the loss as negatives, and a second model's suspects out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.softmax import Reduction, sampled_softmax
from steelyard.negatives.hard.asked import alike, all_finite, check_count, floating


def noise_negatives(
    query: Any,
    positive: Any,
    n: int,
    steps: int = 4,
    step_size: float = 1e-3,
    std: float = 1.0,
    temperature: float = 0.05,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Gaussian vectors moved by a few steps of gradient ascent on the contrastive loss.

        h_k ~ N(0, std^2 I),      then `steps` times      h_k <- h_k + step_size g_k / ||g_k||
        g_k = d/dh_k  mean_b -log( e^{cos(q_b, p_b)/t} / ( e^{cos(q_b, p_b)/t} + sum_k e^{cos(q_b, h_k)/t} ) )

    They search out where the embeddings leave room, so that pushing from them spreads the embeddings evenly.
    What it does to the softmax: terms of no item are added, so the loss lies above the one without them.

    Args:
        query: float, (B, D), any length; cosines are taken.
        positive: float, (B, D).
        n: how many vectors, shared by the batch.
        steps: of ascent; 0 leaves plain Gaussian noise.
        step_size: length of a step of each vector, not negative.
        std: standard deviation of each coordinate at first, positive.
        temperature: of the loss climbed, positive.
        generator: source of randomness; torch's own where None.

    Returns:
        (n, D) without gradient; a vector whose gradient vanishes stays where it is.

    Raises:
        TypeError: tensors that are not floating point, counts that are no integers.
        ValueError: shapes that do not fit, an empty batch, entries that are not finite, numbers out of range.

    Reference:
        Zhou, Zhang, Zhao & Wen (2022), Debiased contrastive learning of unsupervised sentence representations
        (DCLR), ACL, arXiv 2205.00656; that the batch shares its noise and climbs its mean loss is
        reconstructed.
    """
    check_count("n", n, 0)
    check_count("steps", steps, 0)
    q, p = _pairs(query, positive)
    if not (0 <= step_size < math.inf and 0 < std < math.inf and 0 < temperature < math.inf):
        raise ValueError(
            "step_size must be finite and not negative, std and temperature positive, got "
            f"{step_size}, {std}, {temperature}."
        )
    if len(q) == 0:
        raise ValueError("An empty batch has no loss to climb.")
    q, p = normalize(q.detach(), dim=1), normalize(p.detach(), dim=1)
    noise = torch.randn(n, q.shape[1], generator=generator, dtype=torch.float64).to(q.dtype) * std
    own = (q * p).sum(1) / temperature
    for _ in range(steps if n else 0):
        with torch.enable_grad():
            moving = noise.detach().requires_grad_()
            score = q @ normalize(moving, dim=1).T / temperature
            loss = sampled_softmax(own, score, torch.zeros_like(score))
            (gradient,) = torch.autograd.grad(loss, moving)
        noise = noise + step_size * normalize(gradient, dim=1, eps=torch.finfo(q.dtype).tiny)
    return noise.detach()


def suspects(similarity: Any, threshold: float) -> Tensor:
    """The in-batch pairs that a complementary model takes for one meaning: to be left out as negatives.

        a_ij = 0 (left out)    where similarity_ij >= threshold,     1 otherwise

    What it does to the softmax: the terms of suspected false negatives are missing from the sum, which makes
    the loss a lower bound of the one over the whole batch.

    Args:
        similarity: float, (B, B), of the complementary model; NaN is refused.
        threshold: at or above which a pair is a suspect; one above all similarities suspects none.

    Returns:
        bool, (B, B), True for a suspect. The diagonal is compared like the rest.

    Raises:
        TypeError: similarities that are not floating point.
        ValueError: NaN.

    Reference:
        Zhou, Zhang, Zhao & Wen (2022), DCLR, ACL, arXiv 2205.00656.
    """
    s = floating("similarity", similarity).detach()
    if bool(s.isnan().any()) or math.isnan(threshold):
        raise ValueError("similarity and threshold must not be NaN.")
    return s >= threshold


def dclr_loss(
    query: Any,
    positive: Any,
    suspect: Tensor | None = None,
    noise: Any = None,
    temperature: float = 0.05,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """In-batch contrast without the suspects and with noise vectors as further negatives.

        L_i  = -s_ii + log( e^{s_ii} + sum_{j != i} a_ij e^{s_ij} + sum_k e^{cos(q_i, h_k)/t} )
        s_ij = cos(q_i, p_j) / t

    Without suspects and noise it is the loss of SimCSE. What it does to the softmax: a partial sum over the
    batch with made-up terms added; neither bound nor estimate of the one over everything.

    Args:
        query: float, (B, D).
        positive: float, (B, D): row j is the positive of query j and a negative of the others.
        suspect: bool, (B, B), True where a_ij = 0 (`suspects`); the positives on the diagonal always stay.
        noise: float, (K, D), as `noise_negatives` gives it.
        temperature: positive.
        reduction: "mean" over the batch, "sum" or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        TypeError: tensors that are not floating point, suspects that are not bool.
        ValueError: shapes that do not fit, entries that are not finite, a temperature that is not positive.

    Reference:
        Zhou, Zhang, Zhao & Wen (2022), DCLR, ACL, arXiv 2205.00656; Gao, Yao & Chen (2021), SimCSE, EMNLP,
        arXiv 2104.08821.
    """
    q, p = _pairs(query, positive)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    q, p = normalize(q, dim=1), normalize(p, dim=1)
    score = q @ p.T / temperature
    mask = torch.eye(len(q), dtype=torch.bool)
    if suspect is not None:
        if suspect.dtype != torch.bool:
            raise TypeError(f"suspect must be bool, got {suspect.dtype}.")
        if suspect.shape != score.shape:
            raise ValueError(f"suspect must be {tuple(score.shape)}, got {tuple(suspect.shape)}.")
        mask = mask | suspect
    negative = score
    if noise is not None:
        h = all_finite("noise", noise)
        if h.ndim != 2 or h.shape[1] != q.shape[1]:
            raise ValueError(f"noise must be (K, {q.shape[1]}), got {tuple(h.shape)}.")
        left, right = alike(q, h)
        score, drawn = alike(score, left @ normalize(right, dim=1).T / temperature)
        negative = torch.cat([score, drawn], 1)
        mask = torch.cat([mask, mask.new_zeros(len(q), len(h))], 1)
    return sampled_softmax(score.diagonal(), negative, torch.zeros_like(negative), mask, reduction=reduction)


def _pairs(query: Any, positive: Any) -> tuple[Tensor, Tensor]:
    q, p = alike(all_finite("query", query), all_finite("positive", positive))
    if q.ndim != 2 or q.shape != p.shape:
        raise ValueError(f"query and positive must be (B, D), got {tuple(q.shape)} and {tuple(p.shape)}.")
    return q, p
