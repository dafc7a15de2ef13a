"""Proxies: learned points that stand for classes, so that a batch meets classes in place of each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from steelyard.losses.pairs import check_classes, check_number, log_sum_exp, widened
from steelyard.losses.softmax import Reduction, reduce


class Proxies(nn.Module):
    """Learned unit vectors, one or several a class, and cosines with them.

    Args:
        n_classes: C.
        dimension: d, of the embeddings.
        per_class: K, proxies of each class.
        generator: source of the first proxies, uniform on the sphere.

    Raises:
        ValueError: a count below 1.
    """

    def __init__(
        self, n_classes: int, dimension: int, per_class: int = 1, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if min(n_classes, dimension, per_class) < 1:
            raise ValueError(
                f"Classes, dimension and proxies a class must be at least 1, got {n_classes}, {dimension} and "
                f"{per_class}."
            )
        start = torch.randn(n_classes, per_class, dimension, generator=generator)
        self.weight = nn.Parameter(normalize(start, dim=2))

    def forward(self, embedding: Tensor) -> Tensor:
        """Cosines of embeddings with all proxies.

        Args:
            embedding: float, (B, d), of any length.

        Returns:
            float, (B, C, K), or (B, C) with one proxy a class; in float32 at least.

        Raises:
            ValueError: another shape.
        """
        n_classes, per_class, dimension = self.weight.shape
        if embedding.ndim != 2 or embedding.shape[1] != dimension:
            raise ValueError(f"Wanted (B, {dimension}) embeddings, got {tuple(embedding.shape)}.")
        unit = normalize(widened(embedding), dim=1)
        cosine = unit @ normalize(self.weight, dim=2).view(-1, dimension).T.to(unit.dtype)
        return cosine if per_class == 1 else cosine.view(len(embedding), n_classes, per_class)


def proxy_nca(
    cosine: Tensor,
    labels: Tensor,
    *,
    scale: float = 8.0,
    with_positive: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """Each example against the proxies of all classes, by their distance on the unit sphere.

        L_i = -log( exp(-g d_iy) / sum_{c != y} exp(-g d_ic) ),   d = |x - p|^2 = 2 - 2 cos

    Args:
        cosine: float, (B, C): of each example with each proxy.
        labels: integers, (B,).
        scale: g, above 0; 1 in the first paper, 8 or 9 in ProxyNCA++ (one over its temperature).
        with_positive: sum over all classes, the own among them (ProxyNCA++, a softmax), so that L_i is not
            negative and pulls no further once the own proxy is by far the nearest.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. With one class alone it is 2 g (1 - cos),
        the pull on its own, or 0 `with_positive`.

    Raises:
        TypeError: cosines that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or parameter out of range, an unknown reduction, or the mean
            over no examples.

    Reference:
        Movshovitz-Attias et al. (2017), No fuss distance metric learning using proxies, ICCV, arXiv
        1703.07464; Teh, DeVries and Taylor (2020), ProxyNCA++, ECCV, arXiv 2004.01113.
    """
    c = _checked(cosine, labels)
    check_number("scale", scale, above=0)
    if with_positive:
        return reduce(cross_entropy(2 * scale * c, labels.long(), reduction="none"), reduction)
    own = labels.long().unsqueeze(1)
    others = torch.ones_like(c, dtype=torch.bool).scatter(1, own, False)
    far = log_sum_exp(2 * scale * (c - 1), others)
    far = far.masked_fill(~others.any(1), 0.0)
    return reduce(far + 2 * scale * (1 - c.gather(1, own)[:, 0]), reduction)


def proxy_anchor(cosine: Tensor, labels: Tensor, *, margin: float = 0.1, scale: float = 32.0) -> Tensor:
    """Each proxy as an anchor against all examples of the batch.

        L = mean_{p with a positive} log(1 + sum_{x+} exp(-a (cos - m)))
            + mean_p log(1 + sum_{x-} exp(a (cos + m)))

    The gradient of an example grows with how hard it is beside the others of the batch, which a loss of
    examples against proxies does not see.

    Args:
        cosine: float, (B, C): of each example with each proxy.
        labels: integers, (B,).
        margin: m, finite.
        scale: a, above 0.

    Returns:
        A scalar, in float32 at least; 0 for an empty batch.

    Raises:
        TypeError: cosines that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, or a label or parameter out of range.

    Reference:
        Kim, Kim, Cho and Kwak (2020), Proxy anchor loss for deep metric learning, CVPR, arXiv 2003.13911.
    """
    c = _checked(cosine, labels)
    check_number("margin", margin)
    check_number("scale", scale, above=0)
    positive = torch.zeros_like(c, dtype=torch.bool).scatter(1, labels.long().unsqueeze(1), True)
    pull = log_sum_exp(-scale * (c - margin), positive, plus_one=True, dim=0)
    push = log_sum_exp(scale * (c + margin), ~positive, plus_one=True, dim=0)
    return pull.sum() / positive.any(0).sum().clamp(min=1) + push.mean()


def soft_triple(
    cosine: Tensor,
    labels: Tensor,
    *,
    scale: float = 20.0,
    temperature: float = 0.1,
    margin: float = 0.01,
    reduction: Reduction = "mean",
) -> Tensor:
    """Softmax over classes of several proxies each, to which an example is alike as to a soft nearest.

        S_ic = sum_k softmax_k( cos_ick / t ) cos_ick
        L_i = -log( exp(g (S_iy - m)) / ( exp(g (S_iy - m)) + sum_{c != y} exp(g S_ic) ) )

    With one proxy a class it is the softmax with an additive margin. `merge_penalty` draws together proxies
    that a class does not need.

    Args:
        cosine: float, (B, C, K): of each example with each proxy of each class.
        labels: integers, (B,).
        scale: g, above 0.
        temperature: t, above 0; as it falls, the nearest proxy alone counts.
        margin: m, finite.
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: cosines that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or parameter out of range, an unknown reduction, or the mean
            over no examples.

    Reference:
        Qian et al. (2019), SoftTriple loss: deep metric learning without triplet sampling, ICCV, arXiv
        1909.05235.
    """
    if cosine.ndim != 3 or cosine.shape[2] == 0:
        raise ValueError(f"Cosines must be (B, C, K), K > 0, got {tuple(cosine.shape)}.")
    for name, value in (("scale", scale), ("temperature", temperature)):
        check_number(name, value, above=0)
    check_number("margin", margin)
    c = widened(cosine)
    relaxed = _checked((torch.softmax(c / temperature, 2) * c).sum(2), labels)
    lowered = relaxed.scatter_add(1, labels.long().unsqueeze(1), torch.full_like(relaxed[:, :1], -margin))
    return reduce(cross_entropy(scale * lowered, labels.long(), reduction="none"), reduction)


def merge_penalty(proxies: Tensor) -> Tensor:
    """Mean distance between the proxies of a class, which becomes exactly 0 where two merge.

        R = 1 / (C K (K - 1)) sum_c sum_{s < t} sqrt( 2 - 2 cos(w_cs, w_ct) )

    A norm, not its square, so that it does not fade as two come near, and drops them onto one point.

    Args:
        proxies: float, (C, K, d), of any length.

    Returns:
        A scalar, in float32 at least; 0 with one proxy a class. The paper weighs it by 0.2.

    Raises:
        ValueError: another shape.

    Reference:
        Qian et al. (2019), SoftTriple loss, ICCV, arXiv 1909.05235.
    """
    if proxies.ndim != 3:
        raise ValueError(f"Proxies must be (C, K, d), got {tuple(proxies.shape)}.")
    unit = normalize(widened(proxies), dim=2)
    n_classes, per_class, _ = unit.shape
    first, second = torch.triu_indices(per_class, per_class, 1, device=unit.device)
    squared = (unit[:, first] - unit[:, second]).square().sum(2)
    apart = squared > 0  # the slope of a norm at 0 is taken as 0
    distance = torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)
    return distance.sum() / max(n_classes * per_class * (per_class - 1), 1)


def _checked(cosine: Tensor, labels: Tensor) -> Tensor:
    if not cosine.is_floating_point():
        raise TypeError(f"Cosines must be floating point, got {cosine.dtype}.")
    if cosine.ndim != 2:
        raise ValueError(
            f"Cosines must be (B, C), got {tuple(cosine.shape)}; of several proxies a class take the largest."
        )
    check_classes(labels, *cosine.shape)
    return widened(cosine)
