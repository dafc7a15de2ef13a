"""Triplets of a labelled batch: the hardest of each anchor, and those that are hard but not too hard."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, reduce
from steelyard.negatives.hard.asked import floating, labelled_distance


class Triplets(NamedTuple):
    """Anchors with a positive and a negative each, as indices into the batch.

    Attributes:
        anchor: int64, (T,).
        positive: int64, (T,), of the anchor's label.
        negative: int64, (T,), of another label.
        mask: bool, (T,), True where there is no such triplet; what is missing has index 0.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    mask: Tensor


def batch_hard(distance: Any, labels: Any) -> Triplets:
    """For each anchor the farthest of its own label and the nearest of another.

        p(a) = argmax_{p != a, y_p = y_a} d(a, p),      n(a) = argmin_{y_n != y_a} d(a, n)

    What it does to the softmax: the negative alone is the limit of a softmax over the batch as the
    temperature falls to 0; nothing else of the sum stays. Mining the hardest has a reading as a distance to a
    goal: for every map f* whose triplets all keep the margin m,

        max_a [ m + d(a, p(a)) - d(a, n(a)) ]_+  <=  2 max_{i,j} |d(i, j) - d*(i, j)|
                                                 <=  4 max_i |f(i) - f*(i)|

    so that the hardest triplets' loss is below a multiple of the Hausdorff-like distance from the embedding
    to the nearest ideal one, and is 0 just where the embedding is ideal. A collapsed embedding has loss m.

    Args:
        distance: float, (B, B), finite and not negative.
        labels: integers, (B,).

    Returns:
        One triplet an anchor, T = B, in the order of the batch; of equal distances any is taken. Empty where
        an anchor is alone with its label or has no negative.

    Raises:
        TypeError: distances that are not floating point, labels that are not integers.
        ValueError: other shapes, distances that are negative or not finite.

    Reference:
        Hermans, Beyer & Leibe (2017), In defense of the triplet loss for person re-identification, arXiv
        1703.07737; the bounds after Xu et al. (2022), Mathematical justification of hard negative mining via
        isometric approximation theorem, arXiv 2210.11173, their constants worked out here.
    """
    d, y = labelled_distance(distance, labels)
    same = y.unsqueeze(1) == y
    anchor = torch.arange(len(y))
    if len(y) == 0:
        return Triplets(anchor, anchor, anchor, torch.zeros(0, dtype=torch.bool))
    farthest, positive = d.masked_fill(~same, -1.0).fill_diagonal_(-1.0).max(1)
    nearest, negative = d.masked_fill(same, math.inf).min(1)
    mask = (farthest < 0) | (nearest == math.inf)
    return Triplets(anchor, positive.masked_fill(mask, 0), negative.masked_fill(mask, 0), mask)


def semi_hard(distance: Any, labels: Any, margin: float = math.inf, *, or_farthest: bool = False) -> Triplets:
    """For each pair of one label the nearest negative that is farther than the positive.

        n(a, p) = argmin_{y_n != y_a} { d(a, n) : d(a, p) < d(a, n) < d(a, p) + margin }

    Such negatives still violate the margin without being nearer than the positive, whose pull collapses an
    untrained embedding. What it does to the softmax: one term of the sum is kept for each pair, and neither
    the largest nor an unbiased one. Only an anchor's positives are sorted, and each negative looked up among
    them: time B^2 log P with P positives an anchor, memory that of the matrix.

    Args:
        distance: float, (B, B), finite and not negative (squared in the paper).
        labels: integers, (B,).
        margin: positive; infinite asks for the nearest negative beyond the positive, however far.
        or_farthest: where no negative is as wanted, take the farthest one in place of an empty slot.

    Returns:
        One triplet for each ordered pair of different members of one label, by anchor, then by positive.

    Raises:
        TypeError: distances that are not floating point, labels that are not integers.
        ValueError: other shapes, distances that are negative or not finite, a margin that is not positive.

    Reference:
        Schroff, Kalenichenko & Philbin (2015), FaceNet: a unified embedding for face recognition and
        clustering, CVPR, arXiv 1503.03832; it draws among such negatives, the nearest and the way out by the
        farthest are those of its best known implementation, in TensorFlow Addons.
    """
    d, y = labelled_distance(distance, labels)
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin}.")
    same = y.unsqueeze(1) == y
    anchor, positive = (same & ~torch.eye(len(y), dtype=torch.bool)).nonzero(as_tuple=True)
    readable = d if d.dtype in (torch.float32, torch.float64) else d.float()  # NumPy knows no bfloat16
    starts = torch.searchsorted(anchor, torch.arange(len(y) + 1))
    found = _nearest_beyond(
        readable.contiguous().numpy(), same.numpy(), positive.numpy(), starts.numpy(), margin
    )
    negative = torch.from_numpy(found)
    mask = negative < 0
    if or_farthest:
        away = d.masked_fill(same, -1.0)
        last = away.argmax(1) if len(y) else anchor
        negative = torch.where(mask, last[anchor], negative)
        mask = same.all(1)[anchor]
    return Triplets(anchor, positive, negative.masked_fill(mask, 0), mask)


def triplet_loss(
    distance: Any, triplets: Triplets, margin: float | None = None, *, reduction: Reduction = "mean"
) -> Tensor:
    """Hinge, or its smooth form, of how far the negative is beyond the positive.

        L = [ m + d(a, p) - d(a, n) ]_+       or, without a margin,       log(1 + exp( d(a, p) - d(a, n) ))

    Args:
        distance: float, (B, B); gradients flow into it.
        triplets: as the miners of this module give them; empty slots are left out of sum and mean.
        margin: not negative, or None for the smooth form ("soft margin").
        reduction: "mean" over the triplets that there are, "sum", or "none" for (T,) with 0 in empty slots.

    Returns:
        The loss.

    Raises:
        TypeError: distances that are not floating point.
        ValueError: a margin that is negative or not finite, or the mean over no triplets.

    Reference:
        Schroff et al. (2015), arXiv 1503.03832; the smooth form: Hermans et al. (2017), arXiv 1703.07737.
    """
    d = floating("distance", distance)
    if margin is not None and not 0 <= margin < math.inf:
        raise ValueError(f"margin must be finite and not negative, got {margin}.")
    violation = d[triplets.anchor, triplets.positive] - d[triplets.anchor, triplets.negative]
    loss = torch.nn.functional.softplus(violation) if margin is None else (violation + margin).relu()
    if reduction == "none":
        return loss.masked_fill(triplets.mask, 0.0)
    return reduce(loss[~triplets.mask], reduction)


@numba.njit(cache=True)
def _nearest_beyond(d: Any, same: Any, positive: Any, starts: Any, margin: float) -> Any:
    """The nearest negative beyond each positive and within its margin, -1 for none.

    A negative farther than just the first g of an anchor's positives, in order, is noted with the g-th; the
    nearest beyond the i-th is then the nearest noted with it or any after.
    """
    out = np.full(len(positive), -1, np.int64)
    for a in range(len(d)):
        first, end = starts[a], starts[a + 1]
        if first == end:
            continue
        to_positive = d[a][positive[first:end]]
        order = np.argsort(to_positive)
        ordered = to_positive[order]
        nearest = np.full(end - first, -1, np.int64)
        for n in range(len(d)):
            if same[a, n]:
                continue
            g = np.searchsorted(ordered, d[a, n]) - 1  # the last positive that is strictly nearer
            if g >= 0 and (nearest[g] < 0 or d[a, n] < d[a, nearest[g]]):
                nearest[g] = n
        best = -1
        for g in range(end - first - 1, -1, -1):
            if nearest[g] >= 0 and (best < 0 or d[a, nearest[g]] < d[a, best]):
                best = nearest[g]
            if best >= 0 and d[a, best] < ordered[g] + margin:
                out[first + order[g]] = best
    return out
