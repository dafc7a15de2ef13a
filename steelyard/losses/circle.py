"""Circle loss: each similarity is pulled at its own pace, by its distance from where it should be."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from steelyard.losses.pairs import check_number, label_pairs, log_sum_exp, widened
from steelyard.losses.softmax import Reduction, reduce


def circle(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    margin: float = 0.4,
    scale: float = 80.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """All positives against all negatives of an anchor, each weighed by how far it is from its optimum.

        L_i = log( 1 + sum_n exp(g a_n (s_n - m)) sum_p exp(-g a_p (s_p - 1 + m)) )
        a_p = [1 + m - s_p]_+,   a_n = [s_n + m]_+,   without gradient

    The exponents are 0 on the circle s_n^2 + (1 - s_p)^2 = 2 m^2, which bounds the region of equal pairs; a
    positive that is good already is left in peace while a bad negative moves, where the plain margin of
    `unified_similarity` pulls both alike. References may be classes: `reference_labels=torch.arange(C)` with
    the similarities to C proxies is its form for class labels.

    Args:
        similarity: float, (B, N): cosines of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references; default the batch.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        margin: m, radius of the circle and slack of the optima 1 + m and -m. The paper has 0.25 with a scale
            of 256 for faces, 0.4 with 80 for fine-grained retrieval.
        scale: g, above 0.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor without a positive, or without a
        negative, has loss 0.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, parameters out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Sun et al. (2020), Circle loss: a unified perspective of pair similarity optimization, CVPR, arXiv
        2002.10857.
    """
    check_number("margin", margin)
    check_number("scale", scale, above=0)
    positive, negative = label_pairs(similarity, labels, reference_labels, mask)
    s = widened(similarity)
    pace_p = (1 + margin - s.detach()).relu()
    pace_n = (s.detach() + margin).relu()
    pull = log_sum_exp(-scale * pace_p * (s - 1 + margin), positive)
    push = log_sum_exp(scale * pace_n * (s - margin), negative)
    return reduce(softplus(pull + push), reduction)


def unified_similarity(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    margin: float = 0.25,
    scale: float = 64.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """All positives against all negatives of an anchor, with one margin for every pair.

        L_i = log( 1 + sum_n sum_p exp(g (s_n - s_p + m)) )

    With one positive, a class's proxy, it is the softmax with an additive margin (CosFace, AM-softmax); as
    the scale grows, L / g becomes the hinge of the hardest positive and the hardest negative. `circle` with
    its paces set to 1 is this loss, at margin 1 - 2 m.

    Args:
        similarity: float, (B, N): cosines of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references; default the batch.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        margin: m, finite.
        scale: g, above 0.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor without a positive, or without a
        negative, has loss 0.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, parameters out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Sun et al. (2020), Circle loss, CVPR, arXiv 2002.10857, equation 1.
    """
    check_number("margin", margin)
    check_number("scale", scale, above=0)
    positive, negative = label_pairs(similarity, labels, reference_labels, mask)
    s = widened(similarity)
    pull, push = log_sum_exp(-scale * s, positive), log_sum_exp(scale * s, negative)
    return reduce(softplus(pull + push + scale * margin), reduction)
