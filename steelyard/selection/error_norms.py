"""How wrong a model is on each row early in training: the norm of its error, and of its gradient."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.losses.pairs import check_classes, widened


def el2n(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> Tensor:
    """Norm of the error in probability, averaged over models: which rows a model finds hard.

        EL2N_i = mean_s | softmax(z_si) - onehot(y_i) |_2

    Large for rows that are hard or mislabelled. Images are scored a few epochs after the start, over several
    seeds. A fine-tuned text model says nothing before its first epoch is over: leave the warm-up out
    (`logits[1:]`), then drop the few hardest rows by `drop_hardest`.

    Args:
        logits: float, (n, C), or (S, n, C) of S seeds or epochs; -inf for a class that is ruled out.
        labels: integers, (n,).

    Returns:
        The scores, (n,), in float32 at least, from 0 to sqrt(2).

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, no model, NaN or +inf among the logits, or a row
            without any class.

    Reference:
        Paul, Ganguli and Dziugaite (2021), Deep learning on a data diet: finding important examples early in
        training, NeurIPS, arXiv 2107.07075. For text: Fayyaz et al. (2022), BERT on a data diet: finding
        important examples by gradient-based pruning, arXiv 2211.05610.
    """
    z, y = checked_logits(logits, labels)
    total = torch.stack([error_norm(model, y) for model in z])
    return total.mean(0)


def grand(
    logits: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    features: ArrayLike | Tensor,
    *,
    bias: bool = True,
) -> Tensor:
    """Norm of the gradient of the cross-entropy in the last layer, averaged over models, in closed form.

        GraNd_i = mean_s | softmax(z_si) - onehot(y_i) |_2 sqrt(1 + |h_si|^2)        with a bias
        GraNd_i = mean_s | softmax(z_si) - onehot(y_i) |_2 |h_si|                    without

    The gradient of a linear layer is the outer product of the error and the features, so no gradient of a
    row is ever formed. The paper's norm is that of all weights; the last layer alone is the usual stand-in.

    Args:
        logits: float, (n, C), or (S, n, C) of S seeds or epochs; -inf for a class that is ruled out.
        labels: integers, (n,).
        features: float, (n, d) or (S, n, d): what the last layer reads.
        bias: the last layer has a bias.

    Returns:
        The scores, (n,), in float32 at least.

    Raises:
        TypeError: logits or features that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, no model, NaN or +inf among the logits, a row
            without any class, or features that are not finite.

    Reference:
        Paul, Ganguli and Dziugaite (2021), Deep learning on a data diet, NeurIPS, arXiv 2107.07075. For text:
        Fayyaz et al. (2022), BERT on a data diet, arXiv 2211.05610.
    """
    z, y = checked_logits(logits, labels)
    h = checked_features(features, z)
    total = torch.stack(
        [error_norm(model, y) * feature_norm(read, bias) for model, read in zip(z, h, strict=True)]
    )
    return total.mean(0)


def error_norm(logits: Tensor, labels: Tensor) -> Tensor:
    """Length of the difference of probabilities and label, (n,), of checked logits (n, C).

    The part of the label's own class is the sum of the others: one minus its probability would have no digits
    left where a row is nearly certain.
    """
    wrong = logits.softmax(1).scatter(1, labels.unsqueeze(1), 0.0)
    length: Tensor = torch.linalg.vector_norm(torch.cat([wrong, wrong.sum(1, keepdim=True)], 1), dim=1)
    return length


def feature_norm(features: Tensor, bias: bool) -> Tensor:
    """Length of the features, (n,), with a constant one beside them where there is a bias."""
    length: Tensor = torch.linalg.vector_norm(features, dim=1)
    return torch.hypot(length, torch.ones_like(length)) if bias else length


def checked_logits(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """Logits as (S, n, C) in float32 at least and labels as int64 (n,), detached.

    Raises:
        TypeError: logits that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, no model, NaN or +inf among the logits, or a row
            without any class.
    """
    z, y = torch.as_tensor(logits).detach(), torch.as_tensor(labels).detach()
    if not z.is_floating_point():
        raise TypeError(f"Logits must be floating point, got {z.dtype}.")
    if z.ndim not in (2, 3) or z.shape[-1] == 0:
        raise ValueError(f"Logits must be (n, C), or (S, n, C) of several models, got {tuple(z.shape)}.")
    z = z.unsqueeze(0) if z.ndim == 2 else z
    if len(z) == 0:
        raise ValueError("Logits of no model: the mean over seeds or epochs needs at least one.")
    check_classes(y, *z.shape[1:])
    if z.numel() and not bool((z < torch.inf).all()):
        raise ValueError("Logits have NaN or +inf; mark a class that is ruled out with -inf.")
    if z.numel() and not bool((z.amax(-1) > -torch.inf).all()):
        raise ValueError("Some row has -inf for every class; leave it out.")
    return widened(z), y.long()


def checked_features(features: ArrayLike | Tensor, logits: Tensor) -> Tensor:
    """Features as (S, n, d) beside logits (S, n, C), in float32 at least, detached.

    Raises:
        TypeError: not floating point.
        ValueError: shapes do not fit, or features that are not finite.
    """
    h = torch.as_tensor(features).detach()
    if not h.is_floating_point():
        raise TypeError(f"Features must be floating point, got {h.dtype}.")
    h = h.unsqueeze(0) if h.ndim == 2 else h
    if h.ndim != 3 or h.shape[:2] != logits.shape[:2]:
        raise ValueError(
            f"Features must be (n, d) or (S, n, d) beside logits of {tuple(logits.shape)}, got "
            f"{tuple(torch.as_tensor(features).shape)}."
        )
    if not bool(h.isfinite().all()):
        raise ValueError("Features must be finite.")
    return widened(h)
