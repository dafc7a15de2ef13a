"""A link from scores to class probabilities that is learned with the model, and its proper loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softplus

from steelyard.losses.pairs import check_classes
from steelyard.losses.softmax import Reduction, reduce


class LegendreLink(nn.Module):
    """Log-probabilities of classes by gradients of learned convex potentials, then a softmax (LegendreTron).

        z = grad F_B( ... grad F_1(s) ),    F(s) = a_0 |s|^2 / 2 + sum_k a_k softplus(w_k . s + c_k),  all a > 0
        p = softmax+(z) = exp(z, 0) / (1 + sum exp z)

    Gradients of strongly convex functions are monotone and invertible, so that each p is reached by one vector
    of scores, and a model may learn how fast probabilities move with its scores. Composed they stay invertible,
    but need be no gradient themselves. Starts near a_0 = 1 and a_k = 0: multinomial logistic regression.

    Args:
        n_classes: C, at least 2; the last has score 0.
        n_blocks: potentials in a row, at least 1.
        n_units: ridge units of each, at least 1.
        generator: source of randomness for the initial ridges.

    Raises:
        ValueError: a parameter out of range.

    Reference:
        Lam, Walder, Penev and Nock (2023), LegendreTron: uprising proper multiclass loss learning, ICML, arXiv
        2301.11695. Reconstructed: potentials of one layer, whose gradient has a closed form, in place of deep
        input-convex networks.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        n_blocks: int = 1,
        n_units: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("n_classes", n_classes, 2),
            ("n_blocks", n_blocks, 1),
            ("n_units", n_units, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        d = n_classes - 1
        self.ridges = nn.Parameter(torch.randn(n_blocks, n_units, d, generator=generator) / math.sqrt(d))
        self.offsets = nn.Parameter(torch.zeros(n_blocks, n_units))
        # in front of a softplus: a_k of about 0.05 / n_units, and a_0 = 1
        self.raw_units = nn.Parameter(torch.full((n_blocks, n_units), math.log(math.expm1(0.05 / n_units))))
        self.raw_identity = nn.Parameter(torch.full((n_blocks,), math.log(math.expm1(1.0))))

    def forward(self, scores: Tensor) -> Tensor:
        """Log-probabilities of all classes.

        Args:
            scores: float, (..., C - 1).

        Returns:
            float, (..., C), in the wider of the scores' and the parameters' precision.

        Raises:
            TypeError: scores that are not floating point.
            ValueError: another last dimension.
        """
        z = self.potential_gradient(scores)
        return log_softmax(torch.cat([z, torch.zeros_like(z[..., :1])], -1), -1)

    def potential_gradient(self, scores: Tensor) -> Tensor:
        """The learned part of the link, z, (..., C - 1): the identity at first, nearly."""
        if not scores.is_floating_point():
            raise TypeError(f"Scores must be floating point, got {scores.dtype}.")
        d = self.ridges.shape[-1]
        if scores.ndim == 0 or scores.shape[-1] != d:
            raise ValueError(
                f"Wanted scores (..., {d}), one for each class but the last, got {tuple(scores.shape)}."
            )
        z = scores.to(torch.promote_types(scores.dtype, self.ridges.dtype))
        identities, units = softplus(self.raw_identity), softplus(self.raw_units)
        for a0, a, w, c in zip(identities, units, self.ridges, self.offsets, strict=True):
            w = w.to(z.dtype)
            z = a0 * z + (a * torch.sigmoid(z @ w.T + c)) @ w
        return z


def legendre_loss(
    link: LegendreLink, scores: Tensor, labels: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Log loss of the probabilities that a learned link makes of scores; trains link and model together.

        L_i = -log p_y,   p = link(s)

    Proper whatever the link has learned: over classes drawn from eta the expected loss is least at p = eta.

    Args:
        link: shared by all examples.
        scores: float, (B, C - 1).
        labels: integers, (B,).
        reduction: "mean" over examples, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        TypeError: scores that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label out of range, an unknown reduction, or the mean over no
            examples.

    Reference:
        Lam et al. (2023), ICML, arXiv 2301.11695; the loss as in the authors' code.
    """
    if scores.ndim != 2:
        raise ValueError(f"Wanted scores (B, C - 1), got {tuple(scores.shape)}.")
    log_p = link(scores)
    check_classes(labels, *log_p.shape)
    return reduce(-log_p.gather(1, labels.long().unsqueeze(1))[:, 0], reduction)
