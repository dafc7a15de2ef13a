"""Softmax over classes with a margin for the own class: ArcFace, CosFace, and AdaFace's by quality."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from steelyard.losses.pairs import check_classes, check_number, widened
from steelyard.losses.softmax import Reduction, reduce


def margin_logits(
    cosine: Tensor,
    labels: Tensor,
    *,
    angle: float | Tensor = 0.0,
    additive: float | Tensor = 0.0,
    scale: float = 64.0,
    beyond: Literal["linear", "clip"] = "linear",
) -> Tensor:
    """Logits of a softmax over classes, the own class's made harder.

        z_c = g cos t_c,  c other than y;      z_y = g ( cos(t_y + a) - b )

    `angle` alone is ArcFace (a = 0.5 radians), `additive` alone CosFace (b = 0.35), neither the normalised
    softmax. Where t_y + a passes pi, "linear" goes on with cos t_y - a sin a, so that the logit keeps falling
    and its gradient never vanishes; "clip" stays at cos pi. Below an angle of 0, for a negative a, it is
    clipped.

    Args:
        cosine: float, (B, C): of each example with the weight of each class, or of some classes drawn.
        labels: integers, (B,): column of the own class.
        angle: a in radians, in [-pi, pi], one or (B,).
        additive: b, one or (B,).
        scale: g, above 0.
        beyond: what to do past pi.

    Returns:
        float, (B, C), in float32 at least: for `cross_entropy`, or for a softmax over weighed draws of
        classes.

    Raises:
        TypeError: cosines that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or parameter out of range.

    Reference:
        Deng, Guo, Xue and Zafeiriou (2019), ArcFace, CVPR, arXiv 1801.07698; Wang et al. (2018), CosFace,
        CVPR, arXiv 1801.09414. The linear way on is that of their code.
    """
    if not cosine.is_floating_point():
        raise TypeError(f"Cosines must be floating point, got {cosine.dtype}.")
    if cosine.ndim != 2:
        raise ValueError(f"Cosines must be (B, C), got {tuple(cosine.shape)}.")
    check_classes(labels, *cosine.shape)
    check_number("scale", scale, above=0)
    if beyond not in ("linear", "clip"):
        raise ValueError(f'beyond must be "linear" or "clip", got {beyond!r}.')
    c = widened(cosine)
    a, b = (_of_each(name, v, c) for name, v in (("angle", angle), ("additive", additive)))
    if not bool((a.abs() <= math.pi).all()):
        raise ValueError("angle is in radians and must lie in [-pi, pi].")
    index = labels.long().unsqueeze(1)
    own = c.gather(1, index)[:, 0]
    # cos(t + a) without the arc cosine, whose slope at 1 is infinite; rounding may put a cosine above 1
    sine = (1 - own.square()).clamp(min=1e-12).sqrt()
    turned = own * a.cos() - sine * a.sin()
    turned = torch.where(a == 0, own, turned)
    past = own - a * a.sin() if beyond == "linear" else torch.full_like(own, -1.0)
    turned = torch.where((a > 0) & (own < -a.cos()), past, turned)
    turned = torch.where((a < 0) & (own > a.cos()), torch.ones_like(own), turned)
    return scale * c.scatter(1, index, (turned - b).unsqueeze(1))


def margin_softmax(
    cosine: Tensor,
    labels: Tensor,
    *,
    angle: float | Tensor = 0.0,
    additive: float | Tensor = 0.0,
    scale: float = 64.0,
    beyond: Literal["linear", "clip"] = "linear",
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of `margin_logits`: ArcFace, CosFace or the normalised softmax.

        L = -log( exp(z_y) / sum_c exp(z_c) )

    For classes with several centres (sub-centre ArcFace) give the largest cosine of each class.

    Args:
        cosine: float, (B, C): of each example with the weight of each class.
        labels: integers, (B,): column of the own class.
        angle: margin in radians, in [-pi, pi], one or (B,).
        additive: margin of the cosine, one or (B,).
        scale: inverse temperature, above 0.
        beyond: what to do where the angle passes pi.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: cosines that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or parameter out of range, an unknown reduction, or the mean
            over no examples.

    Reference:
        Deng et al. (2019), ArcFace, CVPR, arXiv 1801.07698; Wang et al. (2018), CosFace, CVPR, arXiv
        1801.09414; Deng et al. (2020), Sub-center ArcFace, ECCV.
    """
    logits = margin_logits(cosine, labels, angle=angle, additive=additive, scale=scale, beyond=beyond)
    return reduce(cross_entropy(logits, labels.long(), reduction="none"), reduction)


def adaface_margins(
    norm: Tensor,
    mean: float | Tensor,
    std: float | Tensor,
    *,
    margin: float = 0.4,
    concentration: float = 0.333,
) -> tuple[Tensor, Tensor]:
    """Margins by the length of an embedding, which stands for the quality of its image.

        n = clip( (|z| - mean) / std h, -1, 1 ),   a = -m n,   b = m n + m

    A poor example (n = -1) gets ArcFace's margin, which asks less of the hardest, a middling one (0)
    CosFace's, and a good one (1) a margin that pulls most on the hardest.

    Args:
        norm: float, (B,): lengths of the embeddings; no gradient flows into them.
        mean: running mean of lengths.
        std: running standard deviation of lengths, above 0.
        margin: m, at least 0.
        concentration: h, above 0: lengths within 1/h standard deviations are not clipped.

    Returns:
        The angle a and the additive margin b, (B,) each, for `margin_logits(..., beyond="clip")`.

    Raises:
        ValueError: parameters out of range.

    Reference:
        Kim, Jain and Liu (2022), AdaFace: quality adaptive margin for face recognition, CVPR, arXiv
        2204.00964.
    """
    check_number("margin", margin, least=0)
    check_number("concentration", concentration, above=0)
    check_number("mean", float(mean))
    check_number("std", float(std), above=0)
    n = ((widened(norm.detach()) - mean) / std * concentration).clamp(-1, 1)
    return -margin * n, margin * n + margin


class AdaFace(nn.Module):
    """AdaFace head: class weights, and the running mean and deviation of the lengths of embeddings.

        mean <- (1 - t) mean + t mean of the batch,   and so the standard deviation

    The first batch sets both. A batch of one has no deviation and leaves it as it is; before any other there
    is none, which is refused. In evaluation nothing is updated.

    Args:
        n_classes: C.
        dimension: of the embeddings.
        margin: m, at least 0.
        concentration: h, above 0.
        scale: inverse temperature, above 0.
        momentum: t, weight of a new batch, in (0, 1].
        generator: source of the first weights.

    Reference:
        Kim, Jain and Liu (2022), AdaFace, CVPR, arXiv 2204.00964.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        n_classes: int,
        dimension: int,
        *,
        margin: float = 0.4,
        concentration: float = 0.333,
        scale: float = 64.0,
        momentum: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum must lie in (0, 1], got {momentum}.")
        self.weight = nn.Parameter(normalize(torch.randn(n_classes, dimension, generator=generator), dim=1))
        self.margin, self.concentration, self.scale, self.momentum = margin, concentration, scale, momentum
        self.register_buffer("mean", torch.tensor(math.nan))
        self.register_buffer("std", torch.tensor(math.nan))

    def forward(self, embedding: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
        """The loss of a batch.

        Args:
            embedding: float, (B, d), not normalised.
            labels: integers, (B,).
            reduction: "mean" over examples, "sum", or "none".

        Returns:
            The loss, a scalar or (B,) for "none".

        Raises:
            TypeError: embeddings that are not floating point, or labels that are not integers.
            ValueError: shapes do not fit, a length that is not finite, a label or parameter out of range, no
                deviation yet, an unknown reduction, or the mean over no examples.
        """
        if embedding.ndim != 2 or embedding.shape[1] != self.weight.shape[1]:
            raise ValueError(f"Wanted (B, {self.weight.shape[1]}) embeddings, got {tuple(embedding.shape)}.")
        if not embedding.is_floating_point():
            raise TypeError(f"Embeddings must be floating point, got {embedding.dtype}.")
        norm = widened(embedding.detach()).norm(dim=1)
        if not bool(norm.isfinite().all()):
            raise ValueError("The length of an embedding is not finite, and would stay in the running mean.")
        if self.training:
            self._follow(norm)
        if len(norm) and not math.isfinite(float(self.std)):
            raise ValueError("There is no deviation of lengths yet; train on a batch of two or more first.")
        cosine = normalize(widened(embedding), dim=1) @ normalize(self.weight, dim=1).T.to(norm.dtype)
        angle, additive = (
            (0.0, 0.0)
            if len(norm) == 0
            else adaface_margins(
                norm, self.mean, self.std + 1e-3, margin=self.margin, concentration=self.concentration
            )
        )
        return margin_softmax(
            cosine,
            labels,
            angle=angle,
            additive=additive,
            scale=self.scale,
            beyond="clip",
            reduction=reduction,
        )

    @torch.no_grad()
    def _follow(self, norm: Tensor) -> None:
        found = {"mean": norm.mean()} if len(norm) else {}
        if len(norm) > 1:
            found["std"] = norm.std()
        for name, value in found.items():
            old = getattr(self, name)
            old.copy_(value if bool(old.isnan()) else old + self.momentum * (value - old))


def _of_each(name: str, value: float | Tensor, cosine: Tensor) -> Tensor:
    given = torch.as_tensor(value, dtype=cosine.dtype, device=cosine.device)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != len(cosine)) or not bool(given.isfinite().all()):
        raise ValueError(f"{name} must be one finite number, or ({len(cosine)},), got {tuple(given.shape)}.")
    return given.expand(len(cosine))
