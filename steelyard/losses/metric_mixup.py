"""Mixup for pair losses: an anchor meets examples that are partly of its class, and pays for each part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.losses.pairs import check_integers, check_number, log_sum_exp, widened, widened_alike
from steelyard.losses.softmax import Reduction, reduce


@dataclass(frozen=True)
class Mixed:
    """Mixed examples of each anchor.

    Args:
        embedding: float, (B, K, d): lam x_p + (1 - lam) x_n, not normalised.
        share: float, (B, K): lam, the part that is of the anchor's class.
        positive: int64, (B, K): p.
        negative: int64, (B, K): n.
        mask: bool, (B, K): True where the anchor has no positive or no negative; what is missing has index 0.
    """

    embedding: Tensor
    share: Tensor
    positive: Tensor
    negative: Tensor
    mask: Tensor


def mix_pairs(
    embedding: Tensor,
    labels: Tensor,
    n_mixed: int,
    *,
    alpha: float = 2.0,
    share: Tensor | None = None,
    with_anchor: bool = False,
    generator: torch.Generator | None = None,
) -> Mixed:
    """Draw for each anchor a few positives and negatives of the batch, and mix them pairwise.

        v = lam x_p + (1 - lam) x_n,   lam ~ Beta(alpha, alpha)
        p and n uniform over the anchor's positives and negatives

    The embeddings may be inputs or features of any layer, flattened; whoever mixes those encodes the result.
    The paper draws from either p-n or a-n pairs (`with_anchor`), each half of the time. Never all pairs of
    pairs: memory B K d.

    Args:
        embedding: float, (B, d).
        labels: integers, (B,).
        n_mixed: K, draws an anchor, with replacement.
        alpha: of the Beta distribution, above 0.
        share: float, broadcastable to (B, K), in [0, 1]: the lam, in place of draws.
        with_anchor: mix negatives with the anchor itself in place of its positives.
        generator: source of the draws.

    Returns:
        The mixed examples, with gradient to the embeddings.

    Raises:
        TypeError: embeddings that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, or parameters out of range.

    Reference:
        Venkataramanan et al. (2022), It takes two to tango: mixup for deep metric learning (Metrix), ICLR,
        arXiv 2106.04990.
    """
    check_integers("labels", labels)
    if not embedding.is_floating_point():
        raise TypeError(f"Embeddings must be floating point to be mixed, got {embedding.dtype}.")
    if embedding.ndim != 2 or labels.shape != embedding.shape[:1]:
        raise ValueError(
            f"Wanted (B, d) embeddings and (B,) labels, got {tuple(embedding.shape)} and {tuple(labels.shape)}."
        )
    if n_mixed < 1:
        raise ValueError(f"n_mixed must be at least 1, got {n_mixed}.")
    check_number("alpha", alpha, above=0)
    size = len(labels)
    same = labels.unsqueeze(1) == labels
    own = torch.eye(size, dtype=torch.bool, device=labels.device)
    positive, p_missing = _draw(own if with_anchor else same & ~own, n_mixed, generator)
    negative, n_missing = _draw(~same, n_mixed, generator)
    wide = widened(embedding)
    if share is None:
        gamma = torch._standard_gamma(torch.full((2, size, n_mixed), alpha, dtype=torch.float64), generator)
        share = gamma[0] / gamma.sum(0).clamp(min=1e-300)
    else:
        share = torch.as_tensor(share)
        if not bool(((share >= 0) & (share <= 1)).all()):
            raise ValueError("Each share must lie in [0, 1].")
    lam = share.to(wide.device, wide.dtype).expand(size, n_mixed)
    mixed = lam.unsqueeze(2) * wide[positive] + (1 - lam).unsqueeze(2) * wide[negative]
    mask = (p_missing | n_missing).unsqueeze(1).expand(size, n_mixed)
    return Mixed(mixed, lam, positive, negative, mask)


def mixed_multi_similarity(
    similarity: Tensor,
    share: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Multi-similarity loss of pairs that are positive by a share.

        L_i = 1/alpha log(1 + sum_v y_v exp(-alpha (s_iv - base)))
              + 1/beta log(1 + sum_v (1 - y_v) exp(beta (s_iv - base)))

    Shares of 0 and 1 alone give `multi_similarity`.

    Args:
        similarity: float, (B, K): cosines of each anchor with its mixed examples, or any others.
        share: float, broadcastable to `similarity`, in [0, 1]: the y.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        alpha: sharpness over positives, above 0.
        beta: sharpness over negatives, above 0.
        base: the similarity that parts them.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor without pairs has loss 0. The
        paper adds 0.4 of it to the clean loss.

    Raises:
        TypeError: similarities that are not floating point, or a mask that is not bool.
        ValueError: shapes do not fit, parameters out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Venkataramanan et al. (2022), Metrix, ICLR, arXiv 2106.04990. Reconstructed from its
        general form, a sum over mixed pairs within each of the two logs.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_number(name, value, above=0)
    check_number("base", base)
    s, y, kept = _checked(similarity, share, mask)
    over = s - base
    # a share of 0 must leave neither value nor NaN behind, so its log is never taken
    pull = log_sum_exp(_log(y) - alpha * over, kept & (y > 0), plus_one=True) / alpha
    push = log_sum_exp(_log(1 - y) + beta * over, kept & (y < 1), plus_one=True) / beta
    return reduce(pull + push, reduction)


def mixed_contrastive(
    similarity: Tensor,
    share: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Contrastive loss of pairs that are positive by a share.

        L_i = sum_v  -y_v s_iv + (1 - y_v) [s_iv - m]_+

    Args:
        similarity: float, (B, K): cosines of each anchor with its mixed examples, or any others.
        share: float, broadcastable to `similarity`, in [0, 1]: the y.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        margin: m, finite: similarity that a negative may have.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor without pairs has loss 0.

    Raises:
        TypeError: similarities that are not floating point, or a mask that is not bool.
        ValueError: shapes do not fit, parameters out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Venkataramanan et al. (2022), Metrix, ICLR, arXiv 2106.04990. Reconstructed from its
        general form, a sum over mixed pairs of either part's cost.
    """
    check_number("margin", margin)
    s, y, kept = _checked(similarity, share, mask)
    terms = (1 - y) * (s - margin).relu() - y * s
    return reduce(terms.masked_fill(~kept, 0.0).sum(1), reduction)


def utilization(query: Tensor, train: Tensor, *, chunk: int = 1024) -> Tensor:
    """Mean squared distance of held-out embeddings to the nearest training embedding.

        u = mean over q of  min over x of |q - x|^2

    Less where training has been to the places that queries fall on; mixing adds such places.

    Args:
        query: float, (Q, d).
        train: float, (N, d).
        chunk: queries at a time; memory chunk times N.

    Returns:
        A scalar, without gradient, in float32 at least.

    Raises:
        ValueError: shapes do not fit, no query, no training embedding, or a chunk below 1.

    Reference:
        Venkataramanan et al. (2022), Metrix, ICLR, arXiv 2106.04990.
    """
    if (
        query.ndim != 2
        or train.ndim != 2
        or query.shape[1] != train.shape[1]
        or not (len(query) and len(train))
    ):
        raise ValueError(
            f"Wanted (Q, d) queries and (N, d) training embeddings, some of each, got {tuple(query.shape)} and "
            f"{tuple(train.shape)}."
        )
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}.")
    asked, known = widened_alike(query.detach(), train.detach())
    parts = [torch.cdist(q, known).amin(1).square() for q in torch.split(asked, chunk)]
    return torch.cat(parts).mean()


def _draw(allowed: Tensor, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """n uniform members of each row, 0 where there are none, and the rows without."""
    missing = ~allowed.any(1) if allowed.shape[1] else torch.zeros(0, dtype=torch.bool)
    if len(allowed) == 0:
        return torch.zeros(0, n, dtype=torch.long), missing
    weight = (allowed | missing.unsqueeze(1)).to(torch.float32)
    drawn = torch.multinomial(weight, n, replacement=True, generator=generator)
    return drawn.masked_fill(missing.unsqueeze(1), 0), missing


def _log(share: Tensor) -> Tensor:
    return torch.where(share > 0, share, 1.0).log()


def _checked(similarity: Tensor, share: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if not similarity.is_floating_point():
        raise TypeError(f"Similarities must be floating point, got {similarity.dtype}.")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True to leave a pair out, got {mask.dtype}.")
    s = widened(similarity)
    try:
        y = share.to(s.dtype).expand(s.shape)
        kept = torch.ones_like(s, dtype=torch.bool) if mask is None else ~mask.expand(s.shape)
    except RuntimeError:
        raise ValueError(
            f"share and mask must broadcast to similarities of shape {tuple(s.shape)}."
        ) from None
    if s.ndim != 2:
        raise ValueError(f"Similarities must be (B, K), got {tuple(s.shape)}.")
    if not bool(((y >= 0) & (y <= 1)).all()):
        raise ValueError("Each share must lie in [0, 1].")
    return s, y, kept
