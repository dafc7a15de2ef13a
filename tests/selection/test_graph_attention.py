"""Graphs of near rows and the attention on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steelyard.selection.graph_attention import (
    GraphAttention,
    attention_confidence,
    hashed_neighbours,
    stratified_batches,
)


def test_batches_hold_every_row_once_and_classes_in_their_shares() -> None:
    labels = torch.tensor([0] * 70 + [1] * 25 + [2] * 9)
    batches = list(stratified_batches(labels, 26, generator=torch.Generator().manual_seed(0)))
    assert sorted(torch.cat(batches).tolist()) == list(range(104))
    for rows in batches:
        assert len(rows) == 26
        for label, whole in enumerate((70, 25, 9)):
            assert abs(int((labels[rows] == label).sum()) - whole / 4) < 1


def test_rows_meet_as_often_as_their_angle_says_and_more_views_find_more() -> None:
    angle = 0.3
    rows = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)], [-1.0, -0.15], [-1.0, 0.12]])
    generator, met = torch.Generator().manual_seed(1), 0
    centred = rows - rows.mean(0)
    real = math.acos(float(torch.cosine_similarity(centred[0], centred[1], dim=0)))
    for _ in range(3000):
        edges = hashed_neighbours(rows, bits=5, views=2, generator=generator)
        met += bool(((edges[0] == 0) & (edges[1] == 1)).any())
    expected = 1 - (1 - (1 - real / math.pi) ** 5) ** 2
    assert abs(met / 3000 - expected) < 4 * math.sqrt(expected * (1 - expected) / 3000)
    points = torch.randn(300, 8, generator=generator)
    near = torch.cdist(points, points).fill_diagonal_(9).argmin(1)
    recalls = []
    for views in (1, 4, 16):
        edges = hashed_neighbours(points, bits=6, views=views, generator=generator)
        pairs = set(map(tuple, edges.T.tolist()))
        assert all((b, a) in pairs and a != b for a, b in pairs)
        recalls.append(np.mean([(i, int(j)) in pairs for i, j in enumerate(near)]))
    assert recalls[0] < recalls[1] < recalls[2]


def test_attention_is_its_formula_by_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    model = GraphAttention(3, 2, hidden=2, heads=2, generator=generator)
    x = torch.randn(4, 3, generator=generator)
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    around = {0: [1, 0], 1: [0, 2, 1], 2: [1, 2], 3: [3]}

    def layer(k: int, rows: torch.Tensor) -> torch.Tensor:
        out = []
        for i in range(4):
            heads = []
            for h in range(model.weights[k].shape[0]):
                w, (left, right) = model.weights[k][h], model.attention[k][:, h]
                scores = [
                    torch.nn.functional.leaky_relu(rows[i] @ w @ left + rows[j] @ w @ right, 0.2)
                    for j in around[i]
                ]
                alpha = torch.stack(scores).softmax(0)
                heads.append(sum(a * (rows[j] @ w) for a, j in zip(alpha, around[i], strict=True)))
            out.append(torch.cat(heads))
        return torch.stack(out)

    torch.testing.assert_close(model(x, edges), layer(1, torch.nn.functional.elu(layer(0, x))))


@pytest.mark.slow
def test_mislabelled_rows_are_distrusted_and_a_small_part_of_blobs_is_enough() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 900)
    points = rng.normal(0, 1, (900, 6)) + 4 * np.eye(6)[truth]
    labels = truth.copy()
    flipped = rng.permutation(900)[:90]
    labels[flipped] = (labels[flipped] + 1) % 3
    score = attention_confidence(
        points, labels, batch=300, bits=7, views=3, steps=120, generator=torch.Generator().manual_seed(0)
    ).numpy()
    assert np.isin(np.argsort(score)[:90], flipped).mean() > 0.8
    kept = np.concatenate(
        [np.flatnonzero(labels == c)[np.argsort(-score[labels == c])[:20]] for c in range(3)]
    )
    test = rng.integers(0, 3, 600)
    unseen = rng.normal(0, 1, (600, 6)) + 4 * np.eye(6)[test]

    def nearest(rows: np.ndarray) -> float:
        distance = ((unseen[:, None] - points[rows][None]) ** 2).sum(2)
        return float((labels[rows][distance.argmin(1)] == test).mean())

    assert nearest(kept) > nearest(np.arange(900)) - 0.01


def test_one_class_or_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one class only"):
        attention_confidence(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="must fit"):
        attention_confidence(torch.randn(4, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="finite"):
        attention_confidence(torch.full((2, 2), torch.nan), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="bits"):
        hashed_neighbours(torch.randn(4, 2), bits=63)
    with pytest.raises(ValueError, match="at least 1"):
        next(stratified_batches([0, 1], 0))
