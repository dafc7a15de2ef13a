"""A negative pieced together of the hardest candidate of each layer, some of the positive mixed in."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from steelyard.negatives.hard.asked import all_finite

Pool = Literal["mean", "sum", "last", "concat"]


def pool_layers(layers: Tensor, pool: Pool) -> Tensor:
    """One embedding from those of all layers.

    Args:
        layers: float, (..., L, D).
        pool: "mean", "sum", "last", or "concat" for (..., L D).

    Returns:
        float, (..., D) or (..., L D).

    Raises:
        ValueError: an unknown pool.
    """
    if pool == "mean":
        return layers.mean(-2)
    if pool == "sum":
        return layers.sum(-2)
    if pool == "last":
        return layers[..., -1, :]
    if pool == "concat":
        return layers.flatten(-2)
    raise ValueError(f'pool must be "mean", "sum", "last" or "concat", got {pool!r}.')


def mixgcf(
    user: Any,
    positive: Any,
    candidates: Any,
    pool: Pool = "mean",
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Positive mixing and hop mixing: one synthetic negative a user from the layers of a graph network.

        e'_m(l) = a(l) e+(l) + (1 - a(l)) e_m(l)                a(l) ~ U(0, 1), one a layer and user
        x(l)    = argmax_m  u . e'_m(l)
        e-      = pool over l of e'_{x(l)}(l)

    u is the user's pooled embedding, or with "concat" its own of layer l; then the negative scores at least
    as high as any one candidate mixed and pooled whole (with the sum or the mean, too). The candidates share
    a(l), so the hardest mixture is that of the hardest candidate, and only it is mixed. What it does to the
    softmax: a pairwise loss against a made-up item is no sum over items, and estimates none. Gradients flow
    through what was mixed, into the positive too; the choice has none.

    Args:
        user: float, (B, L, D), the users' embeddings of all layers, the initial one among them.
        positive: float, (B, L, D), those of their positives.
        candidates: float, (B, M, L, D), those of M candidates each.
        pool: how layers become one embedding: "mean", "sum", "last" or "concat".
        generator: source of randomness; torch's own where None.

    Returns:
        The negatives, (B, D) or, with "concat", (B, L D); and which candidate each layer was taken from,
        int64, (B, L).

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: shapes that do not fit, no candidates, embeddings that are not finite, an unknown pool.

    Reference:
        Huang, Dong, Ding, Yang, Feng, Wang & Tang (2021), MixGCF: an improved training method for graph
        neural network-based recommender systems, KDD; the mean over layers in place of their sum as in its
        code.
    """
    u, p, c = all_finite("user", user), all_finite("positive", positive), all_finite("candidates", candidates)
    if u.ndim != 3 or p.shape != u.shape or c.ndim != 4 or c[:, 0:0].shape != (len(u), 0, *u.shape[1:]):
        raise ValueError(
            f"user and positive must be (B, L, D) and candidates (B, M, L, D), got {tuple(u.shape)}, "
            f"{tuple(p.shape)} and {tuple(c.shape)}."
        )
    if c.shape[1] == 0:
        raise ValueError("There are no candidates to choose from; draw at least one a user.")
    pool_layers(u[:0], pool)  # an unknown pool is refused before any work
    share = torch.rand(len(u), u.shape[1], 1, generator=generator, dtype=torch.float64).to(c.dtype)
    asking = u if pool == "concat" else pool_layers(u, pool).unsqueeze(1)
    with torch.no_grad():
        choice = (asking.unsqueeze(1) * c).sum(3).argmax(1)
    taken = c.gather(1, choice[:, None, :, None].expand(-1, 1, -1, c.shape[3])).squeeze(1)
    return pool_layers(share * p + (1 - share) * taken, pool), choice
