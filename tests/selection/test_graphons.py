"""Graphons of graphs, their distance whatever the order of nodes, and the mixture that explains a graph."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from steelyard.selection.graphons import graphon, gromov_wasserstein, pretraining_feasibility

FIRST = torch.tensor([[0.9, 0.5, 0.3], [0.5, 0.4, 0.1], [0.3, 0.1, 0.05]], dtype=torch.float64)
SECOND = torch.tensor([[0.8, 0.1, 0.0], [0.1, 0.6, 0.1], [0.0, 0.1, 0.3]], dtype=torch.float64)


def drawn(steps: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    """A graph of n nodes from a step function, its nodes in random order."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(np.arange(n) * len(steps) // n)
    upper = np.triu(rng.random((n, n)) < steps.numpy()[place][:, place], 1)
    return torch.from_numpy((upper | upper.T).astype(float))


def test_the_graphon_of_a_large_graph_is_the_one_it_was_drawn_from() -> None:
    found = graphon(drawn(FIRST, 900, 0), 3)
    assert (found - FIRST).abs().max() < 0.03


def test_the_distance_of_small_step_functions_is_that_of_the_best_permutation() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        a, b = (x + x.T for x in rng.random((2, 4, 4)))
        best = min(((a - b[list(p)][:, list(p)]) ** 2).mean() for p in itertools.permutations(range(4)))
        distance, coupling = gromov_wasserstein(a, b)
        assert distance <= 1.1 * np.sqrt(best)
        torch.testing.assert_close(coupling.sum(0), torch.full((4,), 0.25, dtype=torch.float64))
        torch.testing.assert_close(coupling.sum(1), torch.full((4,), 0.25, dtype=torch.float64))


def test_the_order_of_steps_does_not_matter_and_sizes_may_differ() -> None:
    order = torch.tensor([2, 0, 1])
    distance, _ = gromov_wasserstein(FIRST, FIRST[order][:, order])
    assert distance < 1e-7
    assert gromov_wasserstein(FIRST, SECOND)[0] == pytest.approx(
        gromov_wasserstein(FIRST, SECOND[order][:, order])[0], abs=1e-6
    )
    double = FIRST.repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert gromov_wasserstein(FIRST, double)[0] < 0.2


def test_a_graph_of_one_source_gives_it_nearly_all_the_weight() -> None:
    sources = [graphon(drawn(s, 600, k), 3) for k, s in enumerate((FIRST, SECOND))]
    for k, steps in enumerate((FIRST, SECOND)):
        found = pretraining_feasibility(sources, graphon(drawn(steps, 600, 10 + k), 3))
        assert found.weights[k] > 0.9
        assert found.distance < 0.06
        assert float(found.weights.sum()) == pytest.approx(1)


def test_a_mixture_is_explained_better_than_by_any_source_and_more_sources_never_hurt() -> None:
    mixed = 0.4 * FIRST + 0.6 * SECOND
    found = pretraining_feasibility([FIRST, SECOND], mixed)
    alone = [pretraining_feasibility([s], mixed).distance for s in (FIRST, SECOND)]
    assert found.distance < 0.02 < min(alone)
    torch.testing.assert_close(
        found.weights, torch.tensor([0.4, 0.6], dtype=torch.float64), atol=0.05, rtol=0
    )
    third = torch.full((3, 3), 0.2, dtype=torch.float64)
    assert pretraining_feasibility([FIRST, SECOND, third], mixed).distance <= found.distance + 1e-6


def test_relabelled_nodes_leave_the_distance_unchanged() -> None:
    graph = drawn(SECOND, 300, 3)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    both = [pretraining_feasibility([FIRST], graphon(g, 3)).distance for g in (graph, graph[order][:, order])]
    assert both[0] == pytest.approx(both[1], abs=0.01)


def test_matrices_that_are_no_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="symmetric"):
        graphon(torch.triu(torch.ones(3, 3)), 2)
    with pytest.raises(ValueError, match="square"):
        graphon(torch.ones(2, 3), 2)
    with pytest.raises(ValueError, match="resolution"):
        graphon(torch.ones(2, 2), 3)
    with pytest.raises(ValueError, match="no source"):
        pretraining_feasibility([], FIRST)
    with pytest.raises(ValueError, match="one size"):
        pretraining_feasibility([FIRST, torch.ones(2, 2)], FIRST)
    with pytest.raises(ValueError, match="finite square"):
        gromov_wasserstein(FIRST * torch.nan, FIRST)
