"""Subgraph samplers and the corrections of aggregation and loss."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.sampling.graph_sampling import (
    EdgeSampler,
    Inclusion,
    NodeSampler,
    Subgraph,
    WalkSampler,
    aggregate,
    count_inclusion,
    induced_subgraph,
)
from tests.statistical import assert_unbiased

# A star with a tail, a triangle and a loop: degrees from 1 to 5.
EDGES = [(0, 1), (0, 2), (0, 3), (0, 4), (4, 5), (5, 6), (2, 3), (1, 1)]


def undirected(edges: list[tuple[int, int]], n: int) -> Ragged:
    both = torch.tensor([*edges, *((v, u) for u, v in edges)])
    return Ragged.from_pairs(both[:, 0], both[:, 1], n)


GRAPH = undirected(EDGES, 7)


def corrected(sub: Subgraph, inclusion: Inclusion, graph: Ragged, x: Tensor) -> tuple[Tensor, Tensor]:
    """Per node of the graph: the corrected mean aggregation over lambda, 0 where it is out, and the loss."""
    lam = inclusion.loss_weight(sub)
    weight = inclusion.aggregation_weight(sub) / graph.counts[sub.nodes][sub.graph.row_index()]
    out, loss = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.float64)
    out[sub.nodes] = aggregate(sub, x[sub.nodes], weight) * lam.unsqueeze(-1)
    loss[sub.nodes] = lam * x[sub.nodes, 0]
    return out, loss


def full(graph: Ragged, x: Tensor) -> Tensor:
    return torch.stack([x[graph.row(v)].mean(0) for v in range(len(graph))])


def features(n: int = 7) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64) + 0.5


def test_a_subgraph_holds_its_nodes_and_every_edge_between_them() -> None:
    sub = induced_subgraph(GRAPH, torch.tensor([4, 2, 0, 4, 3]))
    assert sub.nodes.tolist() == [0, 2, 3, 4]
    assert [sub.graph.row(i).tolist() for i in range(4)] == [[1, 2, 3], [0, 2], [0, 1], [0]]
    assert torch.equal(GRAPH.values[sub.edges], sub.nodes[sub.graph.values])
    assert torch.equal(GRAPH.row_index()[sub.edges], sub.nodes[sub.graph.row_index()])
    assert len(induced_subgraph(GRAPH, torch.zeros(0, dtype=torch.int64)).graph) == 0


def test_exact_inclusion_probabilities_equal_enumeration() -> None:
    degree = [GRAPH.counts[v].item() for v in range(7)]
    pairs = [(u, v) for u, v in EDGES if u != v]
    by_edge = [({u, v}, 1 / degree[u] + 1 / degree[v]) for u, v in pairs]
    by_node = [({u}, sum(1 / degree[v] ** 2 for v in GRAPH.row(u).tolist())) for u in range(7)]
    rows = GRAPH.row_index().tolist()
    for design, outcomes in ((EdgeSampler(GRAPH, 3), by_edge), (NodeSampler(GRAPH, 3), by_node)):
        total = sum(w for _, w in outcomes)
        node, edge = [0.0] * 7, [0.0] * len(rows)
        for draw in itertools.product(outcomes, repeat=3):
            chance = math.prod(w / total for _, w in draw)
            held = set().union(*(s for s, _ in draw))
            for v in held:
                node[v] += chance
            for e, (v, u) in enumerate(zip(rows, GRAPH.values.tolist(), strict=True)):
                edge[e] += chance * (u in held and v in held)
        exact = design.inclusion()
        assert exact.node.tolist() == pytest.approx(node)
        assert exact.edge.tolist() == pytest.approx(edge)


@pytest.mark.parametrize("kind", ["node", "edge"])
def test_corrected_aggregation_and_loss_have_the_mean_of_the_full_graph(kind: str) -> None:
    x, g = features(), torch.Generator().manual_seed(0)
    design = NodeSampler(GRAPH, 4) if kind == "node" else EdgeSampler(GRAPH, 3)
    inclusion = design.inclusion()
    replicates = [corrected(design.sample(generator=g), inclusion, GRAPH, x) for _ in range(2000)]
    assert_unbiased(torch.stack([out for out, _ in replicates]), full(GRAPH, x))
    assert_unbiased(torch.stack([loss for _, loss in replicates]), x[:, 0])
    assert_unbiased(torch.stack([loss.sum() for _, loss in replicates]), float(x[:, 0].sum()))


def test_counted_corrections_are_exact_on_average_over_the_counted_subgraphs() -> None:
    x, g = features(), torch.Generator().manual_seed(1)
    for design in (NodeSampler(GRAPH, 4), EdgeSampler(GRAPH, 3), WalkSampler(GRAPH, 2, 2)):
        subs = [design.sample(generator=g) for _ in range(200)]
        inclusion = count_inclusion(GRAPH, subs)
        assert bool((inclusion.edge > 0).all())
        outs, losses = zip(*(corrected(s, inclusion, GRAPH, x) for s in subs), strict=True)
        assert torch.allclose(torch.stack(outs).mean(0), full(GRAPH, x))
        assert torch.allclose(torch.stack(losses).mean(0), x[:, 0])


def test_walks_visit_nodes_with_their_probabilities() -> None:
    degree, roots, length = GRAPH.counts.tolist(), 2, 3

    def missed(at: int, target: int, left: int) -> float:
        if at == target:
            return 0.0
        return (
            1.0
            if left == 0
            else sum(missed(u, target, left - 1) for u in GRAPH.row(at).tolist()) / degree[at]
        )

    wanted = [1 - (sum(missed(r, v, length) for r in range(7)) / 7) ** roots for v in range(7)]
    design, g = WalkSampler(GRAPH, roots, length), torch.Generator().manual_seed(2)
    hit = torch.zeros(2500, 7)
    for row in hit:
        row[design.sample(generator=g).nodes] = 1
    assert_unbiased(hit, wanted)


def test_edges_drawn_by_degree_vary_less_than_uniform_ones() -> None:
    edges = [
        *itertools.combinations(range(15), 2),
        *((v, v + 1) for v in range(14, 60)),
    ]  # a clique with a tail
    graph = undirected(edges, 61)
    x, spread = features(61), []
    for weights in (None, torch.ones(len(graph.values))):
        design, g = EdgeSampler(graph, 12, weights=weights), torch.Generator().manual_seed(3)
        inclusion = design.inclusion()
        outs = torch.stack(
            [corrected(design.sample(generator=g), inclusion, graph, x)[0] for _ in range(300)]
        )
        spread.append((float(outs.sum(1).var(0).sum()), float(outs.var(0).sum())))
    assert spread[0][0] < 0.4 * spread[1][0]  # of the sum over nodes, as in the paper's theorem
    assert spread[0][1] < 0.7 * spread[1][1]  # node by node


def test_nodes_without_neighbours_stay_out_and_do_not_move() -> None:
    graph = undirected([(1, 2)], 4)  # 0 and 3 are alone
    assert EdgeSampler(graph, 2).inclusion().node.tolist() == pytest.approx([0, 1, 1, 0])
    assert NodeSampler(graph, 1).inclusion().node.tolist() == pytest.approx([0, 0.5, 0.5, 0])
    for seed in range(20):
        sub = WalkSampler(graph, 1, 3).sample(generator=torch.Generator().manual_seed(seed))
        assert sub.nodes.tolist() in ([0], [3], [1, 2])
    empty = Ragged(torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert len(WalkSampler(empty, 1, 2).sample().nodes) == 1


def test_the_same_seed_gives_the_same_subgraph_and_rare_pairs_keep_their_digits() -> None:
    for design in (NodeSampler(GRAPH, 3), EdgeSampler(GRAPH, 3), WalkSampler(GRAPH, 2, 2)):
        a, b = (design.sample(generator=torch.Generator().manual_seed(5)).nodes for _ in range(2))
        assert torch.equal(a, b)
    weights = torch.tensor([1.0, 1e-9, 1e-9, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    rare = NodeSampler(undirected([(1, 2), (0, 1)], 7), 2, weights=weights).inclusion()
    assert float(rare.edge[2]) == pytest.approx(2 * (1e-9 / 5) ** 2, rel=1e-5)


def test_bad_input_is_refused() -> None:
    one_way = Ragged.from_pairs(torch.tensor([0, 1]), torch.tensor([1, 2]), 3)
    with pytest.raises(ValueError, match="undirected"):
        EdgeSampler(one_way, 2)
    with pytest.raises(ValueError, match="no edge between two nodes"):
        EdgeSampler(undirected([(0, 0)], 2), 1)
    with pytest.raises(ValueError, match="at least once"):
        NodeSampler(GRAPH, 0)
    with pytest.raises(ValueError, match="7 weights"):
        NodeSampler(GRAPH, 1, weights=torch.ones(3))
    with pytest.raises(ValueError, match="one an entry"):
        EdgeSampler(GRAPH, 1, weights=torch.ones(3))
    with pytest.raises(ValueError, match="numbers of the graph"):
        WalkSampler(Ragged(torch.tensor([0, 1]), torch.tensor([1])), 1, 1)
    with pytest.raises(ValueError, match="at least 0 steps"):
        WalkSampler(GRAPH, 1, -1)
    with pytest.raises(ValueError, match="at least one subgraph"):
        count_inclusion(GRAPH, [])
    seen = count_inclusion(GRAPH, [induced_subgraph(GRAPH, torch.tensor([0, 1]))])
    with pytest.raises(ValueError, match="count more subgraphs"):
        seen.aggregation_weight(induced_subgraph(GRAPH, torch.tensor([0, 2])))
    with pytest.raises(ValueError, match="count more subgraphs"):
        seen.loss_weight(induced_subgraph(GRAPH, torch.tensor([6])))
