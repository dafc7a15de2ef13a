"""Examples for prompts: labels by a model's likelihood, and a retriever that learns them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steelyard.selection.in_context import best_examples, example_labels, retriever_loss


def copy_model(query: int, example: int, topics: np.ndarray, usefulness: np.ndarray) -> float:
    """A toy language model: an example of the query's topic raises the likelihood of its answer, some more."""
    return math.log(0.1 + 0.8 * usefulness[example] * (topics[example] == query % 4))


def test_labels_equal_a_brute_force_ranking() -> None:
    rng = np.random.default_rng(0)
    topics, usefulness = rng.integers(0, 4, 40), rng.random(40)
    table = np.array([[copy_model(q, e, topics, usefulness) for e in range(40)] for q in range(12)])
    positives, negatives = example_labels(table, 3, 5)
    for q in range(12):
        order = sorted(range(40), key=lambda e: (-table[q, e], e))
        assert positives[q].tolist() == order[:3]
        assert negatives[q].tolist() == order[:-6:-1]
        assert best_examples(q, 40, lambda q, e: table[q, e], k=3) == order[:3]


def test_the_loss_is_its_formula_and_its_gradient_reaches_both_sides() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, generator=generator, requires_grad=True)
    e = torch.randn(6, 3, generator=generator, requires_grad=True)
    positives, negatives = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[4, 5], [0, 5]])
    total = 0.0
    for i in range(2):
        for p in positives[i]:
            cosine = [
                float(torch.cosine_similarity(q[i], e[j], dim=0).detach()) / 0.1 for j in (p, *negatives[i])
            ]
            total += -cosine[0] + math.log(sum(math.exp(c) for c in cosine))
    loss = retriever_loss(q, e, positives, negatives, temperature=0.1)
    assert float(loss.detach()) == pytest.approx(total / 4, rel=1e-5)
    loss.backward()
    assert (q.grad != 0).any()
    assert (e.grad != 0).all(1).all()


def test_a_trained_retriever_picks_more_likely_examples_than_chance_on_held_out_queries() -> None:
    rng = np.random.default_rng(1)
    topics, usefulness = rng.integers(0, 4, 60), rng.random(60)
    table = np.array([[copy_model(q, e, topics, usefulness) for e in range(60)] for q in range(200)])
    words = torch.from_numpy(np.eye(4)[np.arange(200) % 4] + rng.normal(0, 0.3, (200, 4))).float()
    about = torch.from_numpy(
        np.column_stack([np.eye(4)[topics], usefulness]) + rng.normal(0, 0.05, (60, 5))
    ).float()
    ask, show = torch.nn.Linear(4, 8), torch.nn.Linear(5, 8)
    with torch.no_grad():
        for layer in (ask, show):
            layer.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam([*ask.parameters(), *show.parameters()], lr=0.02)
    positives, negatives = example_labels(table[:150], 4, 30)
    for _ in range(150):
        optimizer.zero_grad()
        retriever_loss(ask(words[:150]), show(about), positives, negatives, temperature=0.2).backward()
        optimizer.step()
    with torch.no_grad():
        picked = (
            torch.nn.functional.normalize(ask(words[150:])) @ torch.nn.functional.normalize(show(about)).T
        ).argmax(1)
    chosen = table[np.arange(150, 200), picked.numpy()]
    similar = table[np.arange(150, 200), (words[150:] @ about[:, :4].T).argmax(1).numpy()]
    assert chosen.mean() > table[150:].mean() + 0.8
    assert chosen.mean() > similar.mean()


def test_numbers_outside_their_range_are_refused() -> None:
    for p, n in ((0, 1), (1, 0), (2, 2)):
        with pytest.raises(ValueError, match="together at most 3"):
            example_labels(torch.zeros(1, 3), p, n)
    with pytest.raises(ValueError, match="NaN"):
        example_labels(torch.full((1, 3), math.nan), 1, 1)
    with pytest.raises(ValueError, match="temperature"):
        retriever_loss(
            torch.ones(1, 2), torch.ones(2, 2), torch.tensor([[0]]), torch.tensor([[1]]), temperature=0
        )
    with pytest.raises(ValueError, match="k must lie"):
        best_examples(0, 3, lambda *_: 0.0, k=4)
