"""Adapting a quality model to an unlabelled batch: its own extremes apart, and degraded copies below."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from steelyard.losses.pairs import check_number, widened
from steelyard.losses.softmax import Reduction, reduce


def group_contrast(
    embeddings: Tensor, score: Tensor, *, fraction: float = 0.25, temperature: float = 0.1
) -> Tensor:
    """Contrast between those of a batch that a model scores highest and those that it scores lowest.

        H, L = the m highest and the m lowest by score,   m = max(2, floor(fraction B)),
        c = cosines / temperature
        a_i = mean of c_ij over the others of i's group
        loss = -log mean over i in H and L of  exp(a_i) / ( exp(a_i) + sum of exp(c_ij) over the other group )

    Members of a group, alike in quality, are drawn together and away from the other group. The middle, of
    which the model is less sure, is left out. The loss confirms the order that the model has: under a shift
    that leaves little of it, it does harm, and `degradation_rank` should weigh more.

    Args:
        embeddings: float, (B, D): features of the images by the model that adapts. One of length 0 has cosine
            0 with all and no gradient.
        score: float, (B,): predicted qualities, by the model before adaptation; taken as constants. Of equal
            ones some are taken.
        fraction: of the batch in each group, above 0 and at most 0.5.
        temperature: above 0.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: embeddings or scores that are not floating point.
        ValueError: shapes do not fit, fewer than 4 images, a score that is NaN, or parameters out of range.

    Reference:
        Roy, Mitra, Biswas and Soundararajan (2023), Test time adaptation for blind image quality assessment,
        ICCV, arXiv 2307.14735, in the form of the authors' code, which has the mean within the log.
        Reconstructed: the default fraction.
    """
    for name, given in (("embeddings", embeddings), ("score", score)):
        if not given.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {given.dtype}.")
    if embeddings.ndim != 2 or score.shape != embeddings.shape[:1]:
        raise ValueError(
            f"Wanted (B, D) embeddings and (B,) scores, got {tuple(embeddings.shape)} and {tuple(score.shape)}."
        )
    check_number("fraction", fraction, above=0)
    check_number("temperature", temperature, above=0)
    if fraction > 0.5:
        raise ValueError(f"fraction must be at most 0.5, for two groups that share no image, got {fraction}.")
    if len(score) < 4:
        raise ValueError(f"Two groups of two want a batch of at least 4 images, got {len(score)}.")
    predicted = score.detach()
    if bool(predicted.isnan().any()):
        raise ValueError("A score is NaN.")
    size = max(2, int(fraction * len(score)))
    high = predicted.topk(size).indices
    others = torch.ones_like(predicted, dtype=torch.bool).index_fill(0, high, False).nonzero()[:, 0]
    low = others[predicted[others].topk(size, largest=False).indices]
    features = widened(embeddings[torch.cat([high, low])])
    empty = (features == 0).all(1, keepdim=True)
    unit = normalize(features.masked_fill(empty, 1.0), dim=1).masked_fill(empty, 0.0)
    cosine = (unit @ unit.T / temperature).view(2, size, 2, size)
    within = torch.stack([cosine[0, :, 0], cosine[1, :, 1]])  # (2, m, m), as are the cosines across
    across = torch.stack([cosine[0, :, 1], cosine[1, :, 0]]).logsumexp(2)
    itself = torch.eye(size, dtype=torch.bool, device=within.device)
    near = within.masked_fill(itself, 0.0).sum(2) / (size - 1)
    log_ratio = -softplus(across - near)
    return math.log(2 * size) - log_ratio.flatten().logsumexp(0)


def degradation_rank(
    less_degraded: Tensor, more_degraded: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Copies of an image that were degraded more should score below those that were degraded less.

        L_i = softplus( q(more degraded) - q(less degraded) )

    It goes to 0 as the gap in the right order grows, log 2 for equal scores. The paper's scores are minus
    distances of a copy's features from those of the image itself, so that the copy degraded more is to be
    farther; of several kinds of degradation it takes for each image the one whose two copies the model scores
    most apart.

    Args:
        less_degraded: float, (...): score of the copy that was degraded less, or of the image itself.
        more_degraded: float, (...): score of the copy of the same image that was degraded more.
        reduction: "mean" over pairs, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none".

    Raises:
        TypeError: scores that are not floating point.
        ValueError: shapes differ, an unknown reduction, or the mean over no pairs.

    Reference:
        Roy et al. (2023), ICCV, arXiv 2307.14735, in the form of the authors' code; of predicted scores, in
        place of distances, it is the loss of RankNet (Burges et al. 2005).
    """
    for name, given in (("less_degraded", less_degraded), ("more_degraded", more_degraded)):
        if not given.is_floating_point():
            raise TypeError(f"{name} must hold floating-point scores, got {given.dtype}.")
    if less_degraded.shape != more_degraded.shape:
        raise ValueError(
            f"Wanted a score of either copy, got {tuple(less_degraded.shape)} and {tuple(more_degraded.shape)}."
        )
    return reduce(softplus(widened(more_degraded) - widened(less_degraded)), reduction)


def normalization_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Scales and shifts of a model's normalisation layers, all that test-time adaptation updates.

    Give them to the optimiser, and it leaves the rest as it is: `Adam(normalization_parameters(model))`. They
    are few, so that one batch cannot undo what training has learned. Batch norm in training mode takes its
    statistics from the batch, too, which is part of the adaptation.

    Args:
        module: with batch, instance, group, layer or RMS normalisation of torch, at any depth.

    Returns:
        An iterator over the parameters, each once; none of layers without (`affine=False`).

    Reference:
        Wang, Shelhamer, Liu, Olshausen and Darrell (2021), Tent: fully test-time adaptation by entropy
        minimization, ICLR, arXiv 2006.10726; Roy et al. (2023), ICCV, arXiv 2307.14735.
    """
    seen: set[int] = set()
    for layer in module.modules():
        if isinstance(layer, _NORMALIZATIONS):
            for parameter in layer.parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


_NORMALIZATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
