"""Which tokens of a text to learn from: those a model is still learning, and those that the prompt looks for."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def select_tokens(
    loss_before: Tensor,
    loss_now: Tensor,
    attention: Tensor | None = None,
    *,
    keep: float = 0.6,
    balance: float = 0.5,
    mask: Tensor | None = None,
) -> Tensor:
    """Keep the share of each sequence's tokens with the best mix of retrospective excess loss and attention.

        REL_i = loss_before_i - loss_now_i       how much an earlier checkpoint's loss has fallen
        score_i = g norm(REL_i) + (1 - g) norm(attention_i),   norm(x) = (x - min) / (max - min) within a sequence
        keep the floor(keep * tokens) of highest score in each sequence; at least 1

    Tokens whose loss has fallen are learnable; tokens that attend to the prompt carry its meaning though their loss
    may be small. Mask the others out of the loss.

    Args:
        loss_before: of each token under an earlier model (before fine-tuning, or a moving average), (..., T).
        loss_now: of each token under the current model, of the same shape.
        attention: attention of each response token to the prompt's tokens, summed over them, of the same shape;
            None looks at losses alone.
        keep: share of the tokens to keep, in (0, 1].
        balance: g in [0, 1]; without attention it has no effect.
        mask: tokens that may be kept (the response), bool; all where None.

    Returns:
        bool, of the shape of the losses: exactly floor(keep * tokens) True in each sequence, at least 1 where it
        has a token. Ties go to the earlier token.

    Raises:
        ValueError: shapes that differ, numbers that are not finite where tokens may be kept, or settings outside
            their range.

    Reference:
        Qin, Wang, Liao, Zhang, Zhang, Feng, Wang and Yan (2025), ssToken: Self-modulated and semantic-aware token
        selection for LLM fine-tuning, arXiv 2510.18250. Reconstructed: the normalisation.
    """
    given = [x.detach() for x in (loss_before, loss_now, attention) if x is not None]
    if any(x.shape != given[0].shape for x in given) or given[0].ndim == 0:
        raise ValueError(f"Losses and attention must have one shape, got {[tuple(x.shape) for x in given]}.")
    if not 0 < keep <= 1 or not 0 <= balance <= 1:
        raise ValueError(f"keep must lie in (0, 1] and balance in [0, 1], got {keep} and {balance}.")
    allowed = torch.ones_like(given[0], dtype=torch.bool) if mask is None else mask
    if allowed.dtype != torch.bool or allowed.shape != given[0].shape:
        raise ValueError(
            f"mask must be bool of shape {tuple(given[0].shape)}, got {allowed.dtype}, {tuple(allowed.shape)}."
        )
    if not all(bool(torch.isfinite(x[allowed]).all()) for x in given):
        raise ValueError("Losses and attention must be finite where tokens may be kept.")
    score = _normalised(given[0].double() - given[1].double(), allowed)
    if attention is not None:
        score = balance * score + (1 - balance) * _normalised(given[2].double(), allowed)
    tokens = allowed.sum(-1, keepdim=True)
    wanted = torch.minimum((keep * tokens.double() + 1e-9).floor().clamp(min=1), tokens)
    order = torch.argsort(score.masked_fill(~allowed, -math.inf), dim=-1, descending=True, stable=True)
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(score.shape[-1]).expand_as(order))
    return place < wanted


def _normalised(x: Tensor, allowed: Tensor) -> Tensor:
    """To [0, 1] along the last dimension; a half where nothing varies."""
    low = x.masked_fill(~allowed, math.inf).amin(-1, keepdim=True)
    high = x.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True)
    spread = high - low
    scaled = (x - low) / spread.where(spread > 0, 1.0)
    return torch.where(allowed & (spread > 0), scaled, 0.5)
