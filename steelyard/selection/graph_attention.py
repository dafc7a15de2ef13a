"""Instances that a graph attention network is sure of, on graphs of near rows small enough to hold."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn


def stratified_batches(
    labels: ArrayLike | Tensor, size: int, *, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Every row once, in batches that hold each class in its share of the whole.

        within each class rows are shuffled and dealt to the batches like cards, on from where the last class ended

    Args:
        labels: class of each row, int64 (n,).
        size: rows of a batch, about: all batches differ by one at most.
        generator: source of randomness.

    Yields:
        Ids, ascending.

    Raises:
        ValueError: a size below 1, or no rows.

    Reference:
        Rustamov, Zaitouny and Zaki (2025), Scalable graph attention-based instance selection via mini-batch
        sampling and hierarchical hashing, AI Open 6, arXiv 2502.20293, seen in its abstract.
    """
    y = torch.as_tensor(labels)
    if operator.index(size) < 1 or y.ndim != 1 or len(y) == 0:
        raise ValueError(
            f"labels must be a vector with a row, and size at least 1, got {tuple(y.shape)}, {size}."
        )
    order = torch.randperm(len(y), generator=generator)
    order = order[torch.argsort(y[order], stable=True)]
    batches = max(1, math.ceil(len(y) / size))
    for k in range(batches):
        yield order[k::batches].sort().values


def hashed_neighbours(
    vectors: ArrayLike | Tensor, *, bits: int = 8, views: int = 4, generator: torch.Generator | None = None
) -> Tensor:
    """Pairs of rows that fall into one bucket of random hyperplanes in at least one view.

        h(x) = signs of x - mean on `bits` random directions;  an edge where all bits agree in some view

    Two rows at angle a meet with chance `1 - (1 - (1 - a / pi)^bits)^views`.

    Args:
        vectors: (n, d), finite.
        bits: directions of a view, 1 to 62.
        views: independent hashes, at least 1.
        generator: source of randomness.

    Returns:
        int64, (2, m): both directions of every pair once, without loops, sorted.

    Raises:
        ValueError: not a finite matrix, or settings outside their range.

    Reference:
        Charikar (2002), Similarity estimation techniques from rounding algorithms, STOC; several views as in
        arXiv 2502.20293.
    """
    x = torch.as_tensor(vectors)
    x = x if x.is_floating_point() else x.float()
    if x.ndim != 2 or not bool(torch.isfinite(x).all()):
        raise ValueError(f"vectors must be a finite matrix, got shape {tuple(x.shape)}.")
    if not 1 <= bits <= 62 or views < 1:
        raise ValueError(f"bits must lie between 1 and 62 and views be at least 1, got {bits} and {views}.")
    centred, n = x - x.mean(0), len(x)
    pairs = []
    for _ in range(views):
        planes = torch.randn(x.shape[1], bits, generator=generator).to(x)
        code = ((centred @ planes > 0).long() << torch.arange(bits)).sum(1)
        order = torch.argsort(code, stable=True)
        _, sizes = torch.unique_consecutive(code[order], return_counts=True)
        buckets = torch.split(order, sizes.tolist())
        pairs += [(bucket.unsqueeze(1) * n + bucket).flatten() for bucket in buckets]
    edges = torch.unique(torch.cat(pairs)) if pairs else torch.empty(0, dtype=torch.int64)
    both = torch.stack([edges // n, edges % n])
    return both[:, both[0] != both[1]]


class GraphAttention(nn.Module):
    """Two layers of attention over neighbours, several heads in the first.

        e_ij = leaky_relu(a_l . W x_i + a_r . W x_j);   alpha_i. = softmax over neighbours j and i itself
        h_i = sum_j alpha_ij W x_j

    Args:
        features: entries of a row.
        classes: outputs.
        hidden: entries of a head of the first layer.
        heads: of the first layer.
        generator: source of the initial weights.

    Reference:
        Veličković, Cucurull, Casanova, Romero, Liò and Bengio (2018), Graph attention networks, ICLR,
        arXiv 1710.10903.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        hidden: int = 16,
        heads: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = [(features, heads, hidden), (heads * hidden, 1, classes)]
        self.weights = nn.ParameterList(
            torch.randn(h, a, b, generator=generator) * (2 / (a + b)) ** 0.5 for a, h, b in sizes
        )
        self.attention = nn.ParameterList(
            torch.randn(2, h, b, generator=generator) * b**-0.5 for _, h, b in sizes
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Class scores of the nodes.

        Args:
            x: (n, features).
            edges: int64, (2, m), from row 1 to row 0, without loops.

        Returns:
            (n, classes).
        """
        loops = torch.arange(len(x)).expand(2, -1)
        to, of = torch.cat([edges, loops], 1)
        first = self._layer(0, x, to, of)
        return self._layer(1, nn.functional.elu(first.flatten(1)), to, of).squeeze(1)

    def _layer(self, k: int, x: Tensor, to: Tensor, of: Tensor) -> Tensor:
        h = torch.einsum("nf,hfo->nho", x, self.weights[k])
        left, right = (torch.einsum("nho,ho->nh", h, side) for side in self.attention[k])
        score = nn.functional.leaky_relu(left[to] + right[of], 0.2)
        index = to.unsqueeze(1).expand_as(score)
        top = score.new_full(left.shape, -torch.inf).scatter_reduce(0, index, score, "amax")
        weight = (score - top[to].detach()).exp()
        total = torch.zeros_like(left).index_add(0, to, weight)
        return torch.zeros_like(h).index_add(0, to, (weight / total[to]).unsqueeze(2) * h[of])


def attention_confidence(
    vectors: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    batch: int = 512,
    bits: int = 8,
    views: int = 4,
    steps: int = 200,
    lr: float = 0.01,
    generator: torch.Generator | None = None,
) -> Tensor:
    """How sure a graph attention network, trained on graphs of near rows, is of each row's own class.

        score_i = p(y_i | row i and its neighbours)

    Every step takes one stratified batch, whose edges are hashed neighbours; the scores come from the same batches.
    Keep rows above a threshold: rows that their neighbours contradict fall out.

    Args:
        vectors: (n, d), finite; features are standardised.
        labels: int64, (n,), from 0.
        batch: rows of a graph, about.
        bits: of `hashed_neighbours`.
        views: of `hashed_neighbours`.
        steps: batches trained on.
        lr: learning rate of Adam.
        generator: source of randomness.

    Returns:
        float32, (n,), in [0, 1].

    Raises:
        ValueError: shapes that do not fit, negative labels, one class only, or vectors that are not finite.

    Reference:
        Rustamov et al. (2025), arXiv 2502.20293. Reconstructed from its abstract: stratified chunks, hashing of
        several views, and confidence scores of a graph attention network.
    """
    x, y = torch.as_tensor(vectors).float(), torch.as_tensor(labels).long()
    if x.ndim != 2 or y.shape != (len(x),) or len(y) == 0 or int(y.min()) < 0:
        raise ValueError(
            f"vectors {tuple(x.shape)} and labels {tuple(y.shape)} must fit, labels counted from 0."
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError("vectors must be finite.")
    classes = int(y.max()) + 1
    if classes < 2:
        raise ValueError("Instances are selected for telling classes apart, and there is one class only.")
    x = (x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-6)
    graphs = [
        (rows, hashed_neighbours(x[rows], bits=bits, views=views, generator=generator))
        for rows in stratified_batches(y, batch, generator=generator)
    ]
    model = GraphAttention(x.shape[1], classes, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=5e-4)
    with torch.enable_grad():
        for step in range(steps):
            rows, edges = graphs[step % len(graphs)]
            loss = nn.functional.cross_entropy(model(x[rows], edges), y[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    score = torch.empty(len(y))
    with torch.no_grad():
        for rows, edges in graphs:
            score[rows] = model(x[rows], edges).softmax(1)[torch.arange(len(rows)), y[rows]]
    return score
