"""Adaptive positives match a layout worked by hand and do not depend on place or scale."""

import math

import pytest
import torch

from steelyard.negatives.hard.boxes import atss, iou


def around(centres: list[tuple[float, float]], side: float) -> torch.Tensor:
    c = torch.tensor(centres, dtype=torch.float64)
    return torch.cat([c - side / 2, c + side / 2], 1)


def grid(step: float, side: float, size: float = 16.0) -> torch.Tensor:
    places = torch.arange(step / 2, size, step).tolist()
    return around([(x, y) for x in places for y in places], side)


FINE, COARSE = grid(2.0, 4.0), grid(4.0, 8.0)
ANCHORS, LEVELS = torch.cat([FINE, COARSE]), [len(FINE), len(COARSE)]
BOXES = torch.tensor(
    [[2.2, 2.9, 6.1, 7.3], [8.5, 7.5, 15.5, 15.0], [3.0, 4.0, 8.0, 8.5]], dtype=torch.float64
)


def plain(
    anchors: torch.Tensor, levels: list[int], boxes: torch.Tensor, k: int
) -> tuple[list[int], list[float]]:
    best: dict[int, tuple[float, int]] = {}
    thresholds = []
    for g, box in enumerate(boxes.tolist()):
        candidates, first = [], 0
        mid = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        centres = [((x1 + x2) / 2, (y1 + y2) / 2) for x1, y1, x2, y2 in anchors.tolist()]
        for size in levels:
            candidates += sorted(range(first, first + size), key=lambda i: math.dist(mid, centres[i]))[:k]
            first += size
        overlaps = []
        for i in candidates:
            x1, y1, x2, y2 = anchors[i].tolist()
            w, h = min(x2, box[2]) - max(x1, box[0]), min(y2, box[3]) - max(y1, box[1])
            shared = max(w, 0) * max(h, 0)
            either = (x2 - x1) * (y2 - y1) + (box[2] - box[0]) * (box[3] - box[1]) - shared
            overlaps.append(shared / either)
        mean = sum(overlaps) / len(overlaps)
        deviation = math.sqrt(sum((o - mean) ** 2 for o in overlaps) / (len(overlaps) - 1))
        thresholds.append(mean + deviation)
        for i, o in zip(candidates, overlaps, strict=True):
            (cx, cy) = centres[i]
            within = box[0] < cx < box[2] and box[1] < cy < box[3]
            if within and o >= mean + deviation and o > best.get(i, (-1.0, -1))[0]:
                best[i] = (o, g)
    return [best.get(i, (0.0, -1))[1] for i in range(len(anchors))], thresholds


@pytest.mark.parametrize("k", [3, 9])
def test_assignments_and_thresholds_equal_the_plain_loop(k: int) -> None:
    assigned, threshold = atss(ANCHORS, LEVELS, BOXES, k)
    want, thresholds = plain(ANCHORS, LEVELS, BOXES, k)
    assert assigned.tolist() == want
    assert threshold.tolist() == pytest.approx(thresholds)
    assert bool((torch.bincount(assigned + 1, minlength=4)[1:] > 0).all())


def test_a_layout_worked_by_hand() -> None:
    """One level, a box of side 2 upon the second anchor: overlaps 1/3, 1, 1/3 and 0, their mean 5/12."""
    anchors = around([(0, 0), (1, 0), (2, 0), (3, 0)], 2.0)
    assigned, threshold = atss(anchors, [4], around([(1, 0)], 2.0))
    assert assigned.tolist() == [-1, 0, -1, -1]
    overlaps = [1 / 3, 1, 1 / 3, 0]
    deviation = math.sqrt(sum((o - 5 / 12) ** 2 for o in overlaps) / 3)
    assert float(threshold) == pytest.approx(5 / 12 + deviation)


def test_moving_and_scaling_everything_changes_nothing() -> None:
    # Powers of two, so that ties of distance stay ties.
    assigned, threshold = atss(ANCHORS, LEVELS, BOXES)
    moved = atss(ANCHORS * 4 + 16, LEVELS, BOXES * 4 + 16)
    assert torch.equal(assigned, moved[0])
    torch.testing.assert_close(threshold, moved[1])


def test_an_anchor_of_two_objects_goes_to_the_one_it_overlaps_most() -> None:
    twins = torch.tensor([[2.0, 2.0, 6.0, 6.0], [2.2, 2.0, 6.6, 6.0]], dtype=torch.float64)
    alone = [atss(ANCHORS, LEVELS, twins[i : i + 1])[0] >= 0 for i in range(2)]
    both = (alone[0] & alone[1]).nonzero().flatten().tolist()
    assert both
    assigned, _ = atss(ANCHORS, LEVELS, twins)
    for i in both:
        assert int(assigned[i]) == int(iou(ANCHORS[i], twins).argmax())
    assert torch.equal(assigned >= 0, alone[0] | alone[1])


def test_under_normal_overlaps_about_a_fifth_of_the_candidates_is_above_the_threshold() -> None:
    """Large objects on a fine grid, so that no centre is outside: a tenth to a third of k a level."""
    corner = torch.rand(200, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 8 + 2
    boxes = torch.cat([corner, corner + 6], 1)
    parts = [atss(ANCHORS, LEVELS, boxes[i : i + 1])[0] >= 0 for i in range(200)]
    share = float(torch.stack(parts).sum()) / 200 / 18
    assert 0.1 < share < 0.33


def test_an_anchor_whose_centre_is_outside_is_no_positive_however_large_its_overlap() -> None:
    """Overlaps x, 0, 0 and 0 have the threshold (1/4 + 1/2) x, which the first passes."""
    anchors = around([(1.5, 0), (20, 0), (0, 20), (20, 20)], 4.0)
    box = around([(0, 0)], 2.0)
    assigned, threshold = atss(anchors, [4], box)
    assert assigned.tolist() == [-1] * 4
    assert float(threshold) < float(iou(anchors[0], box[0]))
    assert atss(anchors, [4], box + torch.tensor([0.6, 0, 0.6, 0]))[0].tolist() == [0, -1, -1, -1]


def test_edges_of_the_input() -> None:
    none, threshold = atss(ANCHORS, LEVELS, BOXES[:0])
    assert none.tolist() == [-1] * len(ANCHORS)
    assert threshold.shape == (0,)
    assert atss(ANCHORS[:0], [], BOXES)[0].shape == (0,)
    one, limit = atss(around([(1, 1)], 2.0).float(), [1], around([(1, 1)], 2.0).float())
    assert one.tolist() == [0]
    assert limit.tolist() == [1.0]
    assert atss(ANCHORS, [*LEVELS, 0], BOXES)[0].shape == (len(ANCHORS),)
    with pytest.raises(ValueError, match="sum to"):
        atss(ANCHORS, [3], BOXES)
    with pytest.raises(ValueError, match="x1 < x2"):
        atss(ANCHORS, LEVELS, BOXES[:, [2, 1, 0, 3]])
    with pytest.raises(ValueError, match=r"\(n, 4\)"):
        atss(ANCHORS, LEVELS, BOXES[:, :3])
    with pytest.raises(ValueError, match="finite"):
        atss(ANCHORS * math.nan, LEVELS, BOXES)
    with pytest.raises(ValueError, match="k must"):
        atss(ANCHORS, LEVELS, BOXES, 0)


def test_boxes_of_two_precisions_are_compared_in_the_wider_one() -> None:
    anchors = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [4.0, 4.0, 6.0, 6.0]])
    boxes = torch.tensor([[0.0, 0.0, 2.0, 3.0]])
    expected, threshold = atss(anchors, [3], boxes, 2)
    for kind in (torch.float64, torch.bfloat16):
        assigned, found = atss(anchors, [3], boxes.to(kind), 2)
        assert assigned.tolist() == expected.tolist()
        assert float(found) == pytest.approx(float(threshold))
        assert atss(anchors.to(kind), [3], boxes.to(kind), 2)[0].tolist() == expected.tolist()
