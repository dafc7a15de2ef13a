"""Contrast within a batch: two views, classes, or pairs judged one by one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from steelyard.losses.pairs import check_number, label_pairs, log_sum_exp, widened
from steelyard.losses.softmax import Reduction, reduce


def nt_xent(
    first: Tensor,
    second: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE between two views of each example, against every other view in the batch (SimCLR).

        L_i = -log( exp(s_ij / t) / sum_{k != i} exp(s_ik / t) ),   j the other view of i,   s cosines

    Args:
        first: float, (B, d), of any length.
        second: float, (B, d): the other views, in the same order.
        mask: bool, broadcastable to (B, B): True leaves the views of two examples out as each other's
            negatives, such as likely false ones; an example's two views stay positive.
        temperature: t, above 0.
        reduction: "mean" over the 2B views, "sum", or "none".

    Returns:
        The loss, a scalar or (2B,), first views first, for "none"; in float32 at least. An example alone has
        loss 0.

    Raises:
        TypeError: embeddings that are not floating point, or a mask that is not bool.
        ValueError: shapes do not fit, a temperature out of range, an unknown reduction, or the mean over no
            views.

    Reference:
        Chen, Kornblith, Norouzi and Hinton (2020), A simple framework for contrastive learning of visual
        representations, ICML, arXiv 2002.05709; InfoNCE after van den Oord, Li and Vinyals (2018), arXiv
        1807.03748.
    """
    check_views(first, second)
    check_number("temperature", temperature, above=0)
    unit = normalize(widened(torch.cat([first, second])), dim=1)
    size = len(first)
    score = unit @ unit.T / temperature
    out = torch.eye(2 * size, dtype=torch.bool, device=score.device)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool, True to leave a pair out, got {mask.dtype}.")
        try:
            pairs = mask.expand(size, size)
        except RuntimeError:
            raise ValueError(
                f"mask of shape {tuple(mask.shape)} does not broadcast to ({size}, {size})."
            ) from None
        apart = pairs & ~torch.eye(size, dtype=torch.bool, device=mask.device)
        out = out | apart.repeat(2, 2)
    positive = (unit * unit.roll(size, 0)).sum(1) / temperature
    return reduce(log_sum_exp(score, ~out) - positive, reduction)


def supervised_contrastive(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float = 0.1,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE with every member of an anchor's class as a positive, the mean outside of the log.

        L_i = -1 / |P(i)| sum_{p in P(i)} log( exp(s_ip / t) / sum_{k != i} exp(s_ik / t) )

    Classes of two views each give `nt_xent`.

    Args:
        similarity: float, (B, N): cosines of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references; default the batch.
        mask: bool, broadcastable to `similarity`: True leaves a pair out, of numerator and denominator.
        temperature: t, above 0.
        reduction: "mean" over anchors, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least. An anchor without positives has loss 0.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, a temperature out of range, an unknown reduction, or the mean over no
            anchors.

    Reference:
        Khosla et al. (2020), Supervised contrastive learning, NeurIPS, arXiv 2004.11362, equation 2.
    """
    check_number("temperature", temperature, above=0)
    positive, negative = label_pairs(similarity, labels, reference_labels, mask)
    score = widened(similarity) / temperature
    count = positive.sum(1)
    whole = log_sum_exp(score, positive | negative).masked_fill(count == 0, 0.0)
    pulled = score.masked_fill(~positive, 0.0).sum(1) / count.clamp(min=1)
    return reduce(torch.where(count > 0, whole - pulled, 0.0), reduction)


def sigmoid_contrastive(
    similarity: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | Tensor = 10.0,
    bias: float | Tensor = -10.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Each pair of two modalities judged for itself, a match or none (SigLIP).

        L_i = -sum_j log sigmoid( z_ij (g s_ij + b) ),   z_ij = 1 on the diagonal, -1 elsewhere

    There is no sum over the batch within a log, so a pair's gradient does not depend on the others, and parts
    of a batch add up. The bias starts at the odds of a match, or all the negatives pull at once.

    Args:
        similarity: float, (B, B): cosines of the i-th item of one modality and the j-th of the other.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        scale: g, one number; a tensor receives its gradient.
        bias: b, one number; a tensor receives its gradient.
        reduction: "mean" over rows, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none", in float32 at least.

    Raises:
        TypeError: similarities that are not floating point, or a mask that is not bool.
        ValueError: a similarity that is not square, a scale or bias that is not one finite number, an unknown
            reduction, or the mean over no rows.

    Reference:
        Zhai, Mustafa, Kolesnikov and Beyer (2023), Sigmoid loss for language image pre-training, ICCV, arXiv
        2303.15343.
    """
    for name, value in (("scale", scale), ("bias", bias)):
        if torch.as_tensor(value).numel() != 1:
            raise ValueError(f"{name} must be one number, got shape {tuple(torch.as_tensor(value).shape)}.")
        check_number(name, float(torch.as_tensor(value).detach()))
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1]:
        raise ValueError(
            f"Wanted (B, B) similarities with the pairs on the diagonal, got {tuple(similarity.shape)}."
        )
    row = torch.arange(len(similarity), device=similarity.device)
    positive, negative = label_pairs(similarity, row, row, mask)
    logit = scale * widened(similarity) + bias
    terms = logsigmoid(torch.where(positive, logit, -logit))
    return reduce(-terms.masked_fill(~(positive | negative), 0.0).sum(1), reduction)


def check_views(first: Tensor, second: Tensor) -> None:
    """Refuse two views that are not (B, d) each, of floating point.

    Raises:
        TypeError: they are not floating point.
        ValueError: they are not of one shape (B, d).
    """
    if not (first.is_floating_point() and second.is_floating_point()):
        raise TypeError(f"Embeddings must be floating point, got {first.dtype} and {second.dtype}.")
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(
            f"Wanted two views (B, d) of the same examples, got {tuple(first.shape)} and {tuple(second.shape)}."
        )
