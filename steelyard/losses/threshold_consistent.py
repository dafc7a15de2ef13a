"""One threshold for every class: a loss that evens them out, and a measure of how uneven they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.losses.pairs import check_number, label_pairs, widened


def threshold_consistent_margin(
    similarity: Tensor,
    labels: Tensor,
    reference_labels: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    positive_margin: float = 0.9,
    negative_margin: float = 0.5,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> Tensor:
    """Mean distance of hard pairs from two similarities that hold for all classes; added to another loss.

        L = w+ mean_{positives, s <= m+} (m+ - s)  +  w- mean_{negatives, s >= m-} (s - m-)

    The means are over hard pairs only, so that the few of a class that is nearly done weigh as much as many.
    Margins are of similarities, not of logits, so that they bind where a threshold is set.

    Args:
        similarity: float, (B, N): cosines of each anchor with each reference.
        labels: integers, (B,): of the anchors.
        reference_labels: integers, (N,): of the references; default the batch.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        positive_margin: m+, finite: positives beyond it are left alone.
        negative_margin: m-, finite: negatives below it are left alone.
        positive_weight: w+, at least 0.
        negative_weight: w-, at least 0.

    Returns:
        A scalar, in float32 at least; 0 where no pair is hard.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, or parameters out of range.

    Reference:
        Zhang et al. (2024), Threshold-consistent margin loss for open-world deep metric learning, ICLR, arXiv
        2307.04047.
    """
    for name, value in (("positive_margin", positive_margin), ("negative_margin", negative_margin)):
        check_number(name, value)
    for name, value in (("positive_weight", positive_weight), ("negative_weight", negative_weight)):
        check_number(name, value, least=0)
    positive, negative = label_pairs(similarity, labels, reference_labels, mask)
    s = widened(similarity)
    low, high = positive & ~(s > positive_margin), negative & ~(s < negative_margin)  # NaN stays NaN
    pull = torch.where(low, positive_margin - s, 0.0).sum() / low.sum().clamp(min=1)
    push = torch.where(high, s - negative_margin, 0.0).sum() / high.sum().clamp(min=1)
    return positive_weight * pull + negative_weight * push


@dataclass(frozen=True)
class OperatingPoints:
    """How well each class does at each threshold, and how much classes differ.

    Args:
        inconsistency: OPIS, the mean over thresholds of the variance of the utility among classes; 0 where one
            threshold serves all alike.
        utility: float64, (C, T): of each class at each threshold.
        thresholds: float64, (T,).
        classes: int64, (C,): labels of the rows.
        skipped: int64: labels of the batch that have no positive pair, or no negative, and so no operating
            point.
    """

    inconsistency: float
    utility: Tensor
    thresholds: Tensor
    classes: Tensor
    skipped: Tensor


def operating_points(
    similarity: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    low: float,
    high: float,
    n_thresholds: int = 100,
    balance: float = 1.0,
) -> OperatingPoints:
    """Operating-point-inconsistency score (OPIS): how unequal classes are at a common threshold.

        U_c(t) = (1 + b^2) spec_c(t) sens_c(t) / (b^2 spec_c(t) + sens_c(t))
        OPIS = 1 / (high - low) integral over t of  mean_c (U_c(t) - mean U(t))^2
        spec_c(t): share of negative pairs of class c below t;   sens_c(t): of positive pairs at least t

    The integral is a mean over the middles of equal steps. Time B^2 log T, memory that of the matrix.

    Args:
        similarity: float, (B, B): between held-out examples; a pair at the threshold or above is called a
            match.
        labels: integers, (B,).
        mask: bool, broadcastable to `similarity`: True leaves a pair out.
        low: least threshold anyone would set; `false_accept_threshold` gives those of wanted false-accept
            rates.
        high: largest threshold, above `low`.
        n_thresholds: steps of the integral.
        balance: b, weight of specificity against sensitivity, above 0.

    Returns:
        The score, with the utilities that it is the variance of.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, parameters out of range, or no class with both kinds of pairs.

    Reference:
        Zhang et al. (2024), Threshold-consistent margin loss, ICLR, arXiv 2307.04047. Reconstructed: the
        F-score of specificity and sensitivity as utility.
    """
    check_number("low", low)
    check_number("high", high, above=low)
    check_number("balance", balance, above=0)
    if n_thresholds < 1:
        raise ValueError(f"n_thresholds must be at least 1, got {n_thresholds}.")
    positive, negative = label_pairs(similarity, labels, None, mask)
    if bool(similarity.isnan().any()):
        raise ValueError("A similarity is NaN, which is neither a match nor none; mask its pairs.")
    step = (high - low) / n_thresholds
    thresholds = low + step * (torch.arange(n_thresholds, dtype=torch.float64) + 0.5)
    names, row = torch.unique(labels, return_inverse=True)
    reached = torch.bucketize(similarity.detach().double(), thresholds, right=True)  # thresholds at or below
    slots = row.unsqueeze(1) * (n_thresholds + 1) + reached

    def matched(pairs: Tensor) -> tuple[Tensor, Tensor]:
        counts = torch.bincount(slots[pairs], minlength=len(names) * (n_thresholds + 1))
        at_least = counts.view(len(names), -1).flip(1).cumsum(1).flip(1)  # reaching j thresholds or more
        return at_least[:, 1:].double(), at_least[:, 0].double()

    (accepted, n_positive), (wrong, n_negative) = matched(positive), matched(negative)
    both = (n_positive > 0) & (n_negative > 0)
    if not bool(both.any()):
        raise ValueError("No class has a positive and a negative pair, so there is no operating point.")
    sensitivity = accepted[both] / n_positive[both, None]
    specificity = 1 - wrong[both] / n_negative[both, None]
    total = balance**2 * specificity + sensitivity
    product = (1 + balance**2) * specificity * sensitivity
    utility = torch.where(total > 0, product / total.clamp(min=1e-300), 0.0)
    score = float(utility.var(0, correction=0).mean())
    return OperatingPoints(score, utility, thresholds, names[both], names[~both])


def false_accept_threshold(
    similarity: Tensor, labels: Tensor, rate: float, mask: Tensor | None = None
) -> float:
    """The least similarity of a batch that, as threshold, accepts at most a share of its negative pairs.

    Args:
        similarity: float, (B, B): between held-out examples.
        labels: integers, (B,).
        rate: false-accept rate over the pairs of all classes, in [0, 1); the paper integrates from the
            threshold of 0.1 to that of 0.01.
        mask: bool, broadcastable to `similarity`: True leaves a pair out.

    Returns:
        Just above the similarity of the first negative pair that must be refused, as a float of its dtype.

    Raises:
        TypeError: similarities that are not floating point, labels that are not integers, a mask that is not
            bool.
        ValueError: shapes do not fit, a rate out of range, or no negative pair.

    Reference:
        Zhang et al. (2024), Threshold-consistent margin loss, ICLR, arXiv 2307.04047.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must lie in [0, 1), got {rate}.")
    _, negative = label_pairs(similarity, labels, None, mask)
    others = similarity.detach()[negative]
    if len(others) == 0 or bool(others.isnan().any()):
        raise ValueError("A false-accept rate needs negative pairs, without NaN, and there are none.")
    refused = others.kthvalue(len(others) - int(rate * len(others))).values
    return float(torch.nextafter(refused, torch.full_like(refused, torch.inf)))
