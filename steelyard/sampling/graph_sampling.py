"""Subgraphs to train a graph network on, and the weights that undo the bias of sampling them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.sampling.alias import AliasTable


@dataclass(frozen=True)
class Subgraph:
    """Some nodes of a graph and every edge between them.

    Args:
        nodes: their numbers in the graph, int64, (s,), ascending.
        graph: neighbours of each, by place in `nodes`.
        edges: place of each of its edges in the `values` of the whole graph, int64.
    """

    nodes: Tensor
    graph: Ragged
    edges: Tensor


@dataclass(frozen=True)
class Inclusion:
    """How often a sampler's subgraphs hold each node and each edge, and the corrections that follow.

        alpha_uv = P(u and v in the subgraph) / P(v in it),    lambda_v = P(v in the subgraph)

    Given that v is in, `sum_u a_vu x_u / alpha_uv` over its neighbours in the subgraph has as mean the sum of
    `a_vu x_u` over all; `sum_v loss_v / lambda_v` over the subgraph has as mean the sum over all nodes.

    Args:
        node: probability or share of subgraphs, (nodes,).
        edge: the same of each entry of the graph's `values`, (edges,): row v, value u.

    Reference:
        Zeng, Zhou, Srivastava, Kannan & Prasanna (2020), GraphSAINT: graph sampling based inductive learning
        method, ICLR, arXiv 1907.04931.
    """

    node: Tensor
    edge: Tensor

    def aggregation_weight(self, subgraph: Subgraph) -> Tensor:
        """1 / alpha of each edge of a subgraph, (its edges,): multiply the adjacency with it.

        Raises:
            ValueError: an edge of it was in no subgraph that was counted.
        """
        return self.node[subgraph.nodes[subgraph.graph.row_index()]] * _inverse(self.edge[subgraph.edges])

    def loss_weight(self, subgraph: Subgraph) -> Tensor:
        """1 / lambda of each node of a subgraph, (its nodes,): multiply the losses with it and sum.

        Raises:
            ValueError: a node of it was in no subgraph that was counted.
        """
        return _inverse(self.node[subgraph.nodes])


def count_inclusion(graph: Ragged, subgraphs: Iterable[Subgraph]) -> Inclusion:
    """Estimate how often nodes and edges are sampled from subgraphs drawn beforehand.

        node_v = C_v / N,  edge_uv = C_uv / N,   so that alpha = C_uv / C_v and lambda = C_v / N

    Averaged over the same subgraphs the corrections are exact; train on these, or count enough of them.

    Args:
        graph: the whole graph.
        subgraphs: at least one, from one sampler.

    Raises:
        ValueError: no subgraph.

    Reference:
        Zeng et al. (2020), GraphSAINT, ICLR, arXiv 1907.04931.
    """
    node, edge = (
        torch.zeros(len(graph), dtype=torch.float64),
        torch.zeros(len(graph.values), dtype=torch.float64),
    )
    count = 0
    for subgraph in subgraphs:
        node[subgraph.nodes] += 1
        edge[subgraph.edges] += 1
        count += 1
    if count == 0:
        raise ValueError("Count at least one subgraph.")
    return Inclusion(node / count, edge / count)


class NodeSampler:
    """Subgraphs on nodes drawn independently, those that pass on much more often.

        P(u) ~ sum_{v with neighbour u} 1 / deg(v)^2,    n draws with replacement, repeats counting once

    Args:
        graph: neighbours of each node; row v holds those that v aggregates.
        n: number of draws, at least 1.
        weights: of the nodes in place of the above, (nodes,), not negative. A node of weight 0 is never drawn: a
            node that is nobody's neighbour is one, and a loss over subgraphs leaves it out.

    Raises:
        ValueError: n below 1, a neighbour outside the graph, weights that do not fit, or none above 0.

    Reference:
        Zeng et al. (2020), GraphSAINT, ICLR, arXiv 1907.04931, algorithm 2.
    """

    def __init__(self, graph: Ragged, n: int, *, weights: Tensor | None = None) -> None:
        self.graph, self.n = _checked(graph, n), n
        if weights is None:
            back = graph.counts.double().square().reciprocal()[graph.row_index()]
            weights = torch.zeros(len(graph), dtype=torch.float64).index_add_(0, graph.values, back)
        if weights.shape != (len(graph),):
            raise ValueError(f"Give {len(graph)} weights, one a node, got shape {tuple(weights.shape)}.")
        self._table = AliasTable(weights)

    def sample(self, *, generator: torch.Generator | None = None) -> Subgraph:
        """One subgraph; torch's own source of randomness where `generator` is None."""
        return induced_subgraph(self.graph, self._table.sample(self.n, generator=generator))

    def inclusion(self) -> Inclusion:
        """Exact probabilities: 1 - (1 - q_u)^n for a node, by inclusion and exclusion for a pair."""
        u, v = self.graph.values, self.graph.row_index()
        q = self._table.log_probability.exp()
        node = _hit(q, self.n)
        both = node[u] + node[v] - _hit(q[u] + q[v], self.n)
        return Inclusion(node, both.where(u != v, node[v]))


class EdgeSampler:
    """Subgraphs on the ends of edges drawn independently, edges of nodes with few neighbours more often.

        P(u, v) ~ 1 / deg(u) + 1 / deg(v),    m draws with replacement, then every edge between their ends

    These make the variance of the aggregation, summed over nodes, least where features are alike and the
    subgraph is made of the drawn edges alone; with every edge between their ends it is lower than by uniform
    draws all the same.

    Args:
        graph: undirected: v is among the neighbours of u where u is among those of v. A loop, from a node to
            itself, is never drawn, but is part of a subgraph that holds its node.
        m: number of draws, at least 1.
        weights: of the edges in place of the above, one for each entry of `graph.values`, not negative; that of
            the entry with row < value counts.

    Raises:
        ValueError: m below 1, no edges, a graph that is not undirected, or weights that do not fit.

    Reference:
        Zeng et al. (2020), GraphSAINT, ICLR, arXiv 1907.04931, section 3.3 and algorithm 2.
    """

    def __init__(self, graph: Ragged, m: int, *, weights: Tensor | None = None) -> None:
        self.graph, self.m = _checked(graph, m), m
        u, v = graph.row_index(), graph.values
        pair, order = (torch.minimum(u, v) * len(graph) + torch.maximum(u, v)).sort()
        there = u[order] < v[order]
        self._upper, self._lower = order[there], order[u[order] > v[order]]
        pair = pair[there]
        twins = torch.equal(u[self._upper], v[self._lower]) and torch.equal(v[self._upper], u[self._lower])
        if not twins or bool((pair.diff() == 0).any()):
            raise ValueError("EdgeSampler wants an undirected graph: each edge once in either direction.")
        if len(pair) == 0:
            raise ValueError("The graph has no edge between two nodes to draw.")
        self._ends = torch.stack([u[self._upper], v[self._upper]])
        if weights is None:
            inverse = graph.counts.double().reciprocal()
            weights = inverse[u] + inverse[v]
        if weights.shape != (len(v),):
            raise ValueError(f"Give {len(v)} weights, one an entry, got shape {tuple(weights.shape)}.")
        self._table = AliasTable(weights[self._upper])

    def sample(self, *, generator: torch.Generator | None = None) -> Subgraph:
        """One subgraph; torch's own source of randomness where `generator` is None."""
        drawn = self._table.sample(self.m, generator=generator)
        return induced_subgraph(self.graph, self._ends[:, drawn].flatten())

    def inclusion(self) -> Inclusion:
        """Exact probabilities, by inclusion and exclusion: a pair also comes by two edges that touch its ends."""
        u, v = self.graph.values, self.graph.row_index()
        drawn = self._table.log_probability.exp()
        q = torch.zeros(len(self.graph), dtype=torch.float64)
        for end in self._ends:
            q.index_add_(0, end, drawn)
        joint = torch.zeros(len(u), dtype=torch.float64)
        joint[self._upper] = joint[self._lower] = drawn
        node = _hit(q, self.m)
        both = node[u] + node[v] - _hit(q[u] + q[v] - joint, self.m)
        return Inclusion(node, both.where(u != v, node[v]))


class WalkSampler:
    """Subgraphs on all nodes that random walks visit.

        roots uniform with replacement; each step to a uniform neighbour, staying where there is none

    Its inclusion probabilities have no short form: take `count_inclusion`.

    Args:
        graph: neighbours of each node.
        roots: number of walks, at least 1.
        length: steps of each, at least 0.

    Raises:
        ValueError: no root, a negative length, or a neighbour outside the graph.

    Reference:
        Zeng et al. (2020), GraphSAINT, ICLR, arXiv 1907.04931, algorithm 2.
    """

    def __init__(self, graph: Ragged, roots: int, length: int) -> None:
        if length < 0:
            raise ValueError(f"A walk has at least 0 steps, got {length}.")
        self.graph, self.roots, self.length = _checked(graph, roots), roots, length

    def sample(self, *, generator: torch.Generator | None = None) -> Subgraph:
        """One subgraph; torch's own source of randomness where `generator` is None."""
        at = torch.randint(len(self.graph), (self.roots,), generator=generator)
        visited, offsets = [at], self.graph.offsets
        for _ in range(self.length):
            u = torch.rand(self.roots, dtype=torch.float64, generator=generator)
            degree = offsets[at + 1] - offsets[at]
            turn = torch.minimum((u * degree).long(), degree - 1)
            # A node without neighbours is left with turn -1 and stays where it is.
            step = (offsets[at] + turn).clamp(min=0)
            at = self.graph.values[step].where(turn >= 0, at) if len(self.graph.values) else at
            visited.append(at)
        return induced_subgraph(self.graph, torch.cat(visited))


def induced_subgraph(graph: Ragged, nodes: Tensor) -> Subgraph:
    """Some nodes and every edge between them.

    Takes time in proportion to the neighbours of these nodes, whatever the size of the graph.

    Args:
        graph: neighbours of each node.
        nodes: int64, (s,), repeats counting once.

    Raises:
        ValueError: a node outside the graph.
    """
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(graph):
        raise ValueError(
            f"nodes must lie in [0, {len(graph)}), got {int(nodes.min())} to {int(nodes.max())}."
        )
    nodes = nodes.unique()  # type: ignore[no-untyped-call]
    counts = graph.offsets[nodes + 1] - graph.offsets[nodes]
    row = torch.repeat_interleave(torch.arange(len(nodes)), counts)
    place = torch.arange(len(row)) + (graph.offsets[nodes] - counts.cumsum(0) + counts)[row]
    neighbour = graph.values[place]
    local = torch.searchsorted(nodes, neighbour)
    inside = nodes[local.clamp(max=max(0, len(nodes) - 1))] == neighbour
    kept = torch.bincount(row[inside], minlength=len(nodes))
    offsets = torch.cat([kept.new_zeros(1), kept.cumsum(0)])
    return Subgraph(nodes, Ragged(offsets, local[inside]), place[inside])


def aggregate(subgraph: Subgraph, x: Tensor, weight: Tensor) -> Tensor:
    """Weighted sum over the neighbours of each node of a subgraph.

        out_v = sum_{u neighbour of v} weight_vu x_u

    Args:
        subgraph: where.
        x: features of its nodes, (s, d).
        weight: one an edge of the subgraph: for the mean over all neighbours in the whole graph,
            `inclusion.aggregation_weight(subgraph)` over the degree of v there.

    Returns:
        (s, d), with gradients to `x` and `weight`.
    """
    message = weight.to(x.dtype).unsqueeze(-1) * x[subgraph.graph.values]
    return torch.zeros_like(x).index_add(0, subgraph.graph.row_index(), message)


def _hit(q: Tensor, n: int) -> Tensor:
    """1 - (1 - q)^n, with the digits of a small q."""
    return -torch.expm1(n * torch.log1p(-q.clamp(max=1.0)))


def _inverse(share: Tensor) -> Tensor:
    unseen = int((share <= 0).sum())
    if unseen:
        raise ValueError(
            f"{unseen} nodes or edges of the subgraph were in none that was counted: count more subgraphs, or "
            "train on those counted."
        )
    return 1 / share


def _checked(graph: Ragged, draws: int) -> Ragged:
    if draws < 1:
        raise ValueError(f"Draw at least once for a subgraph, got {draws}.")
    v = graph.values
    if len(graph) == 0 or (len(v) and not 0 <= int(v.min()) <= int(v.max()) < len(graph)):
        raise ValueError(f"Neighbours must be numbers of the graph's {len(graph)} nodes, at least one.")
    return graph
