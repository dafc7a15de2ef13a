"""Multi-similarity loss: pairs weighed by how similar they are, and how similar the others are."""

from __future__ import annotations

import math

from torch import Tensor

from steelyard.losses.pairs import check_number, label_pairs, log_sum_exp, widened
from steelyard.losses.softmax import Reduction, reduce


def multi_similarity(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Soft maxima of what each anchor's positives and negatives lack, on either side of a base similarity.

        L_i = 1/alpha log(1 + sum_p exp(-alpha (s_ip - base))) + 1/beta log(1 + sum_n exp(beta (s_in - base)))

    The gradient of a pair is its weight in the general pair weighting of pair losses: for a negative
    exp(beta (s - base)) / (1 + sum), so that it grows with the pair's own similarity and falls with that of
    the anchor's other negatives. As beta grows, the second term becomes the hinge of the hardest negative.
    The paper drops pairs that say little first: `mask=~informative_pairs(similarity, labels)`.

    Args:
        similarity: float, (B, N): cosines of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references, such as a memory of past batches; default the
            batch.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        alpha: sharpness over positives, above 0.
        beta: sharpness over negatives, above 0.
        base: the similarity that parts them.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor without pairs has loss 0.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, parameters out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Wang, Han, Huang, Dong and Scott (2019), Multi-similarity loss with general pair weighting for deep
        metric learning, CVPR, arXiv 1904.06627.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_number(name, value, above=0)
    check_number("base", base)
    positive, negative = label_pairs(similarity, labels, reference_labels, mask)
    over = widened(similarity) - base
    pull = log_sum_exp(-alpha * over, positive, plus_one=True) / alpha
    push = log_sum_exp(beta * over, negative, plus_one=True) / beta
    return reduce(pull + push, reduction)


def informative_pairs(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    epsilon: float = 0.1,
) -> Tensor:
    """Pairs that violate the order of an anchor's positives and negatives by more than -epsilon.

        a negative stays if  s_in > min_p s_ip - epsilon;    a positive stays if  s_ip < max_n s_in + epsilon

    Args:
        similarity: float, (B, N): cosines of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references; default the batch.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        epsilon: slack, at least 0.

    Returns:
        bool, (B, N): the pairs to train on. None for an anchor without positives, or without negatives.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, or `epsilon` out of range.

    Reference:
        Wang et al. (2019), Multi-similarity loss with general pair weighting, CVPR, arXiv 1904.06627.
    """
    check_number("epsilon", epsilon, least=0)
    positive, negative = label_pairs(similarity, labels, reference_labels, mask)
    if similarity.shape[1] == 0:
        return positive
    s = similarity.detach()
    least = s.masked_fill(~positive, math.inf).amin(1, keepdim=True)
    most = s.masked_fill(~negative, -math.inf).amax(1, keepdim=True)
    return (negative & (s > least - epsilon)) | (positive & (s < most + epsilon))
