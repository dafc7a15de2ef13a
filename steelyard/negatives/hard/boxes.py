"""Which anchors of a detector are positives: a threshold for each object, from the overlaps at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steelyard.losses.pairs import widened_alike
from steelyard.negatives.hard.asked import all_finite, check_count


def atss(anchors: Any, level_sizes: Sequence[int], boxes: Any, k: int = 9) -> tuple[Tensor, Tensor]:
    """Adaptive training sample selection: positives by mean plus deviation of the overlaps of near anchors.

        candidates(g) = of each level the k anchors whose centre is nearest to that of g
        t_g           = mean(IoU of the candidates) + standard deviation(the same)
        positive      = a candidate with IoU >= t_g whose centre lies strictly inside g

    An anchor that is positive for several objects goes to the one it overlaps most; all others are negatives.
    What it does to the softmax: nothing by itself; it decides which terms of a detection loss are positives.
    Memory is one matrix of anchors of a level by objects.

    Args:
        anchors: float, (A, 4), corners x1, y1, x2, y2, level after level.
        level_sizes: how many anchors each level has; they sum to A.
        boxes: float, (G, 4), the objects, corners; of positive width and height.
        k: candidates of each level; all where a level has fewer.

    Returns:
        The object of each anchor, int64, (A,), -1 for a negative; and the thresholds, (G,). An object may end
        without a positive: count with `bincount`.

    Raises:
        TypeError: corners that are not floating point, counts that are no integers.
        ValueError: shapes that do not fit, sizes that do not sum to A, corners that are not finite or out of
            order, a `k` below 1.

    Reference:
        Zhang, Chi, Yao, Lei & Li (2020), Bridging the gap between anchor-based and anchor-free detection via
        adaptive training sample selection, CVPR, arXiv 1912.02424; the deviation divides by n - 1 as in its
        code, and is 0 for one candidate.
    """
    check_count("k", k)
    # half precision has no distances, and float32 at least for their comparison
    a, g = widened_alike(all_finite("anchors", anchors).detach(), all_finite("boxes", boxes).detach())
    for name, corners in (("anchors", a), ("boxes", g)):
        if corners.ndim != 2 or corners.shape[1] != 4:
            raise ValueError(f"{name} must be (n, 4), got {tuple(corners.shape)}.")
        if not bool((corners[:, 2:] > corners[:, :2]).all()):
            raise ValueError(f"{name} must have corners x1 < x2 and y1 < y2.")
    if sum(level_sizes) != len(a) or any(size < 0 for size in level_sizes):
        raise ValueError(f"level_sizes must sum to the {len(a)} anchors, got {list(level_sizes)}.")
    if len(g) == 0 or len(a) == 0:
        return torch.full((len(a),), -1), g.new_zeros(len(g))
    centre, middle = (a[:, :2] + a[:, 2:]) / 2, (g[:, :2] + g[:, 2:]) / 2
    parts, first = [], 0
    for size in level_sizes:
        distance = torch.cdist(
            middle, centre[first : first + size], compute_mode="donot_use_mm_for_euclid_dist"
        )
        parts.append(distance.topk(min(k, size), 1, largest=False).indices + first)
        first += size
    candidates = torch.cat(parts, 1)
    overlap = iou(a[candidates], g.unsqueeze(1))
    spread = overlap.std(1) if overlap.shape[1] > 1 else torch.zeros_like(overlap[:, 0])
    threshold = overlap.mean(1) + spread
    at = centre[candidates]
    inside = ((at > g[:, None, :2]) & (at < g[:, None, 2:])).all(2)
    overlap = overlap.masked_fill(~inside | (overlap < threshold.unsqueeze(1)), -1.0)
    # The best object of each anchor, one object after another: of equal overlaps the first stays.
    best, assigned = a.new_full((len(a),), -1.0), torch.full((len(a),), -1)
    for index in range(len(g)):
        mine = candidates[index]
        wins = overlap[index] > best[mine]
        best[mine[wins]] = overlap[index][wins]
        assigned[mine[wins]] = index
    return assigned, threshold


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of boxes given by their corners.

        |A and B| / |A or B|

    Args:
        first: float, (..., 4), x1, y1, x2, y2, of positive size.
        second: float, (..., 4), broadcastable to `first`.

    Returns:
        float, (...), in [0, 1].
    """
    side = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    shared = side.clamp(min=0).prod(-1)
    either = (
        (first[..., 2:] - first[..., :2]).prod(-1) + (second[..., 2:] - second[..., :2]).prod(-1) - shared
    )
    return shared / either
