"""Candidates drawn by a kernel of query and item: quadratic, or random Fourier features of the softmax."""

from __future__ import annotations

import math
import operator

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.context import Context
from steelyard.negatives.feature_tree import FeatureTree
from steelyard.negatives.lloyd import finite_matrix
from steelyard.negatives.two_level import Queries, query_vectors


class QuadraticKernel:
    """Draw items in proportion to a quadratic kernel, for each query.

        q_b(j) = (alpha (h_b . v_j)^2 + 1) / sum_k (alpha (h_b . v_k)^2 + 1)

    The sum over any block of items is alpha h' M h + |block|, M the sum of v v' over it, so that a draw goes
    down a binary tree of such sums to a block of `leaf` items, and there item by item: O(d^2 log(I / leaf) +
    leaf d) time, and 8 d^2 I / leaf bytes of sums beside the vectors. It prefers large scores of either sign,
    as the paper's absolute softmax does. Drawn with replacement; the probability is that of the walk, exact
    whatever the rounding of the sums. Items that a query is known to want are drawn too; mask them with
    `Context.hits`.

    Args:
        vectors: float, (I, d), finite; copied. Stale ones cost variance only (`update`).
        queries: from the batch to float query vectors, (B, d).
        alpha: finite, 0 or more; 0 is uniform.
        leaf: items of a block; where None 4 d, and at least 16, where the sums are smaller than the vectors.

    Raises:
        TypeError: `leaf` is not an integer, complex vectors.
        ValueError: no items, vectors that are not finite or whose squares are not, `alpha` or `leaf` out of
            range.

    Reference:
        Blanc & Rendle (2018), Adaptive sampled softmax with kernel based sampling, ICML, arXiv 1712.00527,
        whose alpha is 100.
    """

    def __init__(
        self,
        vectors: ArrayLike | Tensor,
        queries: Queries,
        *,
        alpha: float = 100.0,
        leaf: int | None = None,
    ) -> None:
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be finite and not negative, got {alpha}.")
        x = finite_matrix(vectors, "vectors").clone()
        self.alpha, self.queries = float(alpha), queries
        upper = torch.triu_indices(x.shape[1], x.shape[1])
        self._upper = upper[0], upper[1]
        self._tree = FeatureTree(
            x, max(16, 4 * x.shape[1]) if leaf is None else leaf, self._sums, alpha, 0.0, 1.0, 0.0
        )

    def update(self, ids: Tensor, vectors: ArrayLike | Tensor) -> None:
        """Give a few items new vectors: their blocks are summed anew, and the O(log I) sums above each.

        Args:
            ids: int64, (m,), all different.
            vectors: float, (m, d), finite.

        Raises:
            TypeError: ids that are not int64, complex vectors.
            ValueError: ids outside the catalogue or twice, vectors of another shape or not finite.
        """
        self._tree.update(ids, vectors)

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates for each query.

        Args:
            context: the batch.
            n: how many candidates of a query.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n). The design answers until the next `update`, and refuses after it.

        Raises:
            TypeError: `n` is not an integer, or query vectors that are not floating point.
            ValueError: a negative `n`; query vectors of another shape, not finite, or whose kernel is not.
        """
        query = query_vectors(self.queries, context, self._tree.vectors.shape[1])
        row, column = self._upper
        return self._tree.sample(query, query[:, row] * query[:, column], n, generator)

    def _sums(self, x: Tensor, valid: Tensor) -> Tensor:
        x = x * valid.unsqueeze(-1)
        row, column = self._upper
        # h' M h from the upper half of M, whose products off the diagonal stand for two.
        return (x.transpose(1, 2) @ x)[:, row, column] * torch.where(row == column, 1.0, 2.0).double()


class RandomFourier:
    """Draw items by random Fourier features of the softmax of cosines, for each query.

        phi(x) = D^(-1/2) (cos(w_1 . x), ..., cos(w_D . x), sin(w_1 . x), ..., sin(w_D . x))
        w ~ Normal(0, I / F):    E[phi(x) . phi(y)] = exp(-|x - y|^2 / (2 F)) = exp(x . y / F - 1 / F)
        S_b(node) = max(phi(h_b) . sum_{j in node} phi(v_j), floor |node|)
        q_b(j) = prod over the path S_b(node) / (S_b(left) + S_b(right))
                 exp(h_b . v_j / T) / sum_{k in block} exp(h_b . v_k / T)

    with all vectors scaled to length 1. A draw goes down a binary tree of sums of features to a block of `leaf`
    items, and there by the softmax itself: O(D log(I / leaf) + leaf d) time, and 32 D I / leaf bytes of sums
    beside the vectors. Features of a far item may sum to less than nothing; a node counts for `floor` an item
    at least. Whatever the features say, the probability is that of the walk, exactly. Shuffle items whose
    ids are sorted by likeness: sums of mixed blocks carry less noise, and the softmax within them is exact.
    Drawn with replacement; items that a query is known to want are drawn too; mask them with `Context.hits`.

    Args:
        vectors: float, (I, d), finite and none of them zero; copied. Stale ones cost variance only (`update`).
        queries: from the batch to float query vectors, (B, d).
        temperature: T, positive; that of the softmax.
        feature_temperature: F, positive; 2 T where None. A high one has little noise in its features, a low
            one tells blocks apart better; the paper's nu = 1 / F may lie below its tau = 1 / T too.
        n_features: D, frequencies.
        floor: positive; where None (2 D)^(-1/2), the standard deviation of a far item's kernel.
        leaf: items of a block.
        generator: source of the frequencies; torch's own where None.

    Raises:
        TypeError: `leaf` or `n_features` is not an integer, complex vectors.
        ValueError: no items, vectors that are zero or not finite, a parameter out of range.

    Reference:
        Rawat et al. (2019), Sampled softmax with random Fourier features, NeurIPS, arXiv 1907.10747. The floor,
        the exact softmax within a block and the default of F are ours.
    """

    def __init__(
        self,
        vectors: ArrayLike | Tensor,
        queries: Queries,
        *,
        temperature: float = 1.0,
        feature_temperature: float | None = None,
        n_features: int = 256,
        floor: float | None = None,
        leaf: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        for name, value in (("temperature", temperature), ("feature_temperature", feature_temperature)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}.")
        if operator.index(n_features) < 1:
            raise ValueError(f"n_features must be at least 1, got {n_features}.")
        floor = (2 * n_features) ** -0.5 if floor is None else floor
        if not 0 < floor < math.inf:
            raise ValueError(f"floor must be positive and finite, got {floor}.")
        x = finite_matrix(vectors, "vectors")
        self.temperature, self.queries, self.floor = float(temperature), queries, float(floor)
        noise = torch.randn(n_features, x.shape[1], generator=generator, dtype=torch.float64)
        self.frequencies = noise / math.sqrt(feature_temperature or 2 * temperature)
        self._tree = FeatureTree(
            _unit(x, "vectors"), leaf, self._sums, 1.0, self.floor, 0.0, 1 / self.temperature
        )

    def update(self, ids: Tensor, vectors: ArrayLike | Tensor) -> None:
        """Give a few items new vectors: their blocks are summed anew, and the O(log I) sums above each.

        Args:
            ids: int64, (m,), all different.
            vectors: float, (m, d), finite and none of them zero.

        Raises:
            TypeError: ids that are not int64, complex vectors.
            ValueError: ids outside the catalogue or twice, vectors of another shape, zero or not finite.
        """
        self._tree.update(ids, vectors, lambda x: _unit(x, "vectors"))

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates for each query.

        Args:
            context: the batch.
            n: how many candidates of a query.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n). The design answers until the next `update`, and refuses after it.

        Raises:
            TypeError: `n` is not an integer, or query vectors that are not floating point.
            ValueError: a negative `n`; query vectors of another shape, zero, or not finite.
        """
        query = _unit(query_vectors(self.queries, context, self._tree.vectors.shape[1]), "query vectors")
        return self._tree.sample(query, self.features(query), n, generator)

    def features(self, x: Tensor) -> Tensor:
        """phi of vectors of length 1.

        Args:
            x: float, (..., d).

        Returns:
            float64, (..., 2 D).
        """
        angle = x.double() @ self.frequencies.T
        phi: Tensor = torch.cat([angle.cos(), angle.sin()], -1) / math.sqrt(len(self.frequencies))
        return phi

    def _sums(self, x: Tensor, valid: Tensor) -> Tensor:
        return (self.features(x) * valid.unsqueeze(-1)).sum(1)


def _unit(x: Tensor, name: str) -> Tensor:
    """Each row scaled to length 1, by its largest number first, whose square may not be one of float32."""
    largest = x.abs().amax(1, keepdim=True)
    if bool((largest == 0).any()):
        raise ValueError(
            f"{name} of length 0 have no direction; row {int((largest == 0).nonzero()[0, 0])} is zero."
        )
    x = x / largest
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return unit
