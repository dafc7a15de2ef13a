"""A binary tree of sums of features over blocks of items, down which a kernel draws."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.lloyd import finite_matrix
from steelyard.sampling.kmeans_plus_plus import fast, next_uniform
from steelyard.sampling.successive import draw_seeds, njit

CHUNK = 2**22  # numbers held at once


class FeatureTree:
    """Sums of features over blocks of items, and over pairs of these, up to the whole.

    Node 1 is the whole, the children of node i are 2 i and 2 i + 1, and the last `blocks` of the nodes are the
    blocks, whatever their number. A node weighs max(scale f . sum, low |node|) + add |node|; an item within
    its block scale z^2 + add, or exp(beta z) where `beta` is not 0, with z the inner product.

    Args:
        vectors: float, (I, d); kept, and changed by `update`.
        leaf: items of a block.
        sums: from vectors (m, leaf, d) and which of them are items (m, leaf) to sums of features (m, D).
        scale: of the features' products.
        low: least weight of an item where the features say less.
        add: weight of every item beside the features.
        beta: inverse temperature within a block; 0 where the weight is quadratic.

    Raises:
        TypeError: `leaf` is not an integer.
        ValueError: `leaf` below 1, or sums that are not finite.
    """

    def __init__(
        self,
        vectors: Tensor,
        leaf: int,
        sums: Callable[[Tensor, Tensor], Tensor],
        scale: float,
        low: float,
        add: float,
        beta: float,
    ) -> None:
        self.leaf = operator.index(leaf)
        if self.leaf < 1:
            raise ValueError(f"leaf must be at least 1, got {leaf}.")
        self.vectors, self._sums, self._version = vectors, sums, 0
        self._weights = float(scale), float(low), float(add), float(beta)
        self.blocks = -(-len(vectors) // self.leaf)
        self._width = vectors.shape[1]
        self._width = max(self._width, self._of_blocks(torch.arange(1)).shape[1])
        sums_of_blocks = self._of_blocks(torch.arange(self.blocks))
        self.nodes = torch.cat([torch.zeros_like(sums_of_blocks), sums_of_blocks])
        self.counts = torch.zeros(2 * self.blocks, dtype=torch.int64)
        start = torch.arange(self.blocks) * self.leaf
        self.counts[self.blocks :] = (len(vectors) - start).clamp(max=self.leaf)
        for node in range(self.blocks - 1, 0, -1):
            torch.add(self.nodes[2 * node], self.nodes[2 * node + 1], out=self.nodes[node])
            self.counts[node] = self.counts[2 * node] + self.counts[2 * node + 1]

    def _of_blocks(self, blocks: Tensor) -> Tensor:
        """Sums of the features of each of these blocks."""
        step, parts = max(1, CHUNK // (self.leaf * self._width)), []
        for low in range(0, len(blocks), step):
            rows = blocks[low : low + step].unsqueeze(1) * self.leaf + torch.arange(self.leaf)
            x = self.vectors[rows.clamp(max=len(self.vectors) - 1)].double()
            parts.append(self._sums(x, rows < len(self.vectors)))
        total: Tensor = torch.cat(parts)
        if not bool(total.isfinite().all()):
            raise ValueError("The squares of the vectors exceed float64; scale them down.")
        return total

    def update(
        self, ids: Tensor, vectors: ArrayLike | Tensor, prepare: Callable[[Tensor], Tensor] = lambda x: x
    ) -> None:
        """Sum the blocks of these items anew, and what lies above them.

        Args:
            ids: int64, (m,), all different.
            vectors: float, (m, d), finite.
            prepare: what is done to them before they are kept.

        Raises:
            TypeError: ids that are not int64.
            ValueError: ids outside the catalogue or twice, vectors of another shape or not finite.
        """
        ids = torch.as_tensor(ids)
        if ids.dtype != torch.int64:
            raise TypeError(f"ids must be int64, got {ids.dtype}.")
        if ids.ndim == 1 and len(ids) == 0:
            return
        x = prepare(finite_matrix(vectors, "vectors"))
        if ids.ndim != 1 or x.shape != (len(ids), self.vectors.shape[1]):
            raise ValueError(
                f"ids must be (m,) and vectors (m, {self.vectors.shape[1]}), got {tuple(ids.shape)} and "
                f"{tuple(x.shape)}."
            )
        if not bool(inside(ids, len(self.vectors)).all()):
            raise ValueError(
                f"ids must lie in [0, {len(self.vectors)}), got {int(ids.min())} to {int(ids.max())}."
            )
        if len(torch.unique(ids)) < len(ids):
            raise ValueError("ids must not hold an item twice: which of its vectors is meant?")
        before, blocks = self.vectors[ids], torch.unique(ids // self.leaf)
        self.vectors[ids] = x.to(self.vectors.dtype)
        try:
            total = self._of_blocks(blocks)
        except ValueError:
            self.vectors[ids] = before
            raise
        self._version += 1
        self.nodes[blocks + self.blocks] = total
        parents = torch.unique((blocks + self.blocks) // 2)
        while int(parents[-1]) > 0:  # summed anew, so that no rounding adds up over many updates
            parents = parents[parents > 0]
            self.nodes[parents] = self.nodes[2 * parents] + self.nodes[2 * parents + 1]
            parents = torch.unique(parents // 2)

    def sample(self, query: Tensor, features: Tensor, n: int, generator: torch.Generator | None) -> Draws:
        """Draw `n` items for each query.

        Args:
            query: float64, (B, d).
            features: float64, (B, D).
            n: how many.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n).

        Raises:
            TypeError: `n` is not an integer.
            ValueError: a negative `n`, or a query whose weights are not finite.
        """
        check_number(n)
        if not bool((features @ self.nodes[1] * self._weights[0]).isfinite().all()):
            raise ValueError("The kernel of a query exceeds float64; scale the query vectors down.")
        ids, log_q = np.empty((len(query), n), np.int64), np.empty((len(query), n))
        seeds = draw_seeds(generator, len(query))[:, 0].copy()
        tree = self.nodes.numpy(), self.counts.numpy(), self.vectors.numpy(), self.leaf, self._weights
        _walk(query.numpy(), features.numpy(), *tree, seeds, ids, log_q)
        log_n, version = math.log(n) if n else -math.inf, self._version

        def design(asked: Tensor) -> Tensor:
            if self._version != version:  # a copy of the tree for each batch would cost more than the draws
                raise RuntimeError(
                    "Some vectors were updated since these draws were made; ask their design before that."
                )
            asked = asked.expand(len(query), asked.shape[-1])
            answer = np.empty(asked.shape)
            within = asked.clamp(0, len(self.vectors) - 1).numpy()
            _answer(query.numpy(), features.numpy(), *tree, within, answer)
            result: Tensor = (torch.from_numpy(answer) + log_n).float()
            return result.masked_fill_(~inside(asked, len(self.vectors)), -math.inf)

        return Draws(torch.from_numpy(ids), (torch.from_numpy(log_q) + log_n).float(), design)


@fast
def _dot(a: Any, b: Any) -> Any:
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@njit
def _weight(node: int, row: int, f: Any, nodes: Any, counts: Any, weights: Any, stamp: Any, memo: Any) -> Any:
    """What a node weighs for a query; computed once a query."""
    if stamp[node] != row:
        scale, low, add, _ = weights
        stamp[node] = row
        memo[node] = max(scale * _dot(f, nodes[node]), low * counts[node]) + add * counts[node]
    return memo[node]


@njit
def _within(h: Any, vectors: Any, start: int, end: int, weights: Any, out: Any) -> Any:
    """Weights of the items of a block, relative to the largest exponential; their sum and that exponent."""
    scale, _, add, beta = weights
    top, total = -np.inf, 0.0
    for j in range(start, end):
        z = _dot(h, vectors[j])
        out[j - start] = beta * z if beta != 0 else scale * z * z + add
        top = max(top, out[j - start])
    if beta == 0:
        top = 0.0
    for j in range(end - start):
        if beta != 0:
            out[j] = math.exp(out[j] - top)
        total += out[j]
    return total, top


@njit
def _walk(
    query: Any,
    features: Any,
    nodes: Any,
    counts: Any,
    vectors: Any,
    leaf: int,
    weights: Any,
    seeds: Any,
    ids: Any,
    log_q: Any,
) -> None:
    """Draws, each down the tree to a block and along it, with the log-probability of the way."""
    blocks = len(nodes) // 2
    stamp, memo, inner = np.full(len(nodes), -1, np.int64), np.empty(len(nodes)), np.empty(leaf)
    state = np.empty(1, np.uint64)
    for b in range(len(ids)):
        state[0] = seeds[b]
        for i in range(ids.shape[1]):
            node, log_p = 1, 0.0
            while node < blocks:
                left = _weight(2 * node, b, features[b], nodes, counts, weights, stamp, memo)
                right = _weight(2 * node + 1, b, features[b], nodes, counts, weights, stamp, memo)
                turn = next_uniform(state) * (left + right) >= left
                log_p += math.log((right if turn else left) / (left + right))
                node = 2 * node + turn
            start = (node - blocks) * leaf
            end = min(start + leaf, len(vectors))
            total, _ = _within(query[b], vectors, start, end, weights, inner)
            rest, j = next_uniform(state) * total, 0
            while j < end - start - 1 and (rest >= inner[j] or inner[j] == 0):
                rest -= inner[j]
                j += 1
            while inner[j] == 0:  # what rounding left over falls to the last item that has a weight
                j -= 1
            ids[b, i], log_q[b, i] = start + j, log_p + math.log(inner[j] / total)


@njit
def _answer(
    query: Any,
    features: Any,
    nodes: Any,
    counts: Any,
    vectors: Any,
    leaf: int,
    weights: Any,
    asked: Any,
    out: Any,
) -> None:
    """Log-probability of each id asked for: the way to its block, once a block, and its share there."""
    blocks = len(nodes) // 2
    stamp, memo, inner = np.full(len(nodes), -1, np.int64), np.empty(len(nodes)), np.empty(leaf)
    seen, way = np.full(blocks, -1, np.int64), np.empty(blocks)
    scale, _, add, beta = weights
    for b in range(len(asked)):
        for i in range(asked.shape[1]):
            j = asked[b, i]
            block = j // leaf
            if seen[block] != b:
                seen[block], node, log_p = b, block + blocks, 0.0
                while node > 1:
                    own = _weight(node, b, features[b], nodes, counts, weights, stamp, memo)
                    other = _weight(node ^ 1, b, features[b], nodes, counts, weights, stamp, memo)
                    log_p += math.log(own / (own + other))
                    node //= 2
                start = block * leaf
                total, top = _within(
                    query[b], vectors, start, min(start + leaf, len(vectors)), weights, inner
                )
                way[block] = log_p - math.log(total) - top
            z = _dot(query[b], vectors[j])
            out[b, i] = way[block] + (beta * z if beta != 0 else math.log(scale * z * z + add))
