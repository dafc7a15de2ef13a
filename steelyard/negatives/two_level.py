"""Candidates that adapt to the query through few centroids: clusters, and the inverted multi-index."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives.asked import check_number, inside
from steelyard.negatives.context import Context
from steelyard.negatives.lloyd import finite_matrix, lloyd

Queries = Callable[[Context], Tensor]

CHUNK = 2**22  # weights held at once
SMALL = 1e-290  # below this a float64 sum is about to lose its digits


class Clusters:
    """Draw a cluster by its size and its centroid's score, then an item uniformly inside, for each query.

        P_b(c) = |c| exp(q_b . m_c / T) / sum_k |k| exp(q_b . m_k / T)        q_b(j) = P_b(c_j) / |c_j|

    So an item is drawn in proportion to exp(q_b . m / T), with the centroid m of its cluster in place of its
    own vector: one cluster is uniform sampling, one item a cluster the full softmax. Drawn with replacement,
    in O(C d + n log C) time a query, which does not know the size of the catalogue; a cluster of probability
    below about 1e-16 may never be drawn. Items that a query is known to want are drawn too; mask them with
    `Context.hits`. Stale centroids cost variance only.

    Args:
        assignment: int64, (I,): the cluster of each item, in [0, C).
        centroids: float, (C, d), finite.
        queries: from the batch to float query vectors, (B, d).
        temperature: T, positive; that of the softmax.

    Raises:
        TypeError: `assignment` is not int64, complex centroids.
        ValueError: no items, clusters outside [0, C), centroids of another shape or not finite, a `temperature`
            that is not positive and finite.

    Reference:
        Bengio & Senecal (2008), Adaptive importance sampling to accelerate training of a neural
        probabilistic language model, IEEE TNN 19(4), for proposals that follow the model. This form is ours,
        the inverted multi-index (`InvertedMultiIndex`) with one codebook.
    """

    def __init__(
        self,
        assignment: ArrayLike | Tensor,
        centroids: ArrayLike | Tensor,
        queries: Queries,
        *,
        temperature: float = 1.0,
    ) -> None:
        self.temperature = _positive(temperature)
        self.centroids, self.queries = finite_matrix(centroids, "centroids"), queries
        self.assignment = _assigned(assignment, len(self.centroids), "assignment")
        self._sizes, self._start, self._items = _grouped(self.assignment, len(self.centroids))

    @classmethod
    def fit(
        cls,
        vectors: ArrayLike | Tensor,
        n_clusters: int,
        queries: Queries,
        *,
        temperature: float = 1.0,
        iterations: int = 10,
        generator: torch.Generator | None = None,
    ) -> Clusters:
        """Cluster item vectors by `lloyd`.

        Args:
            vectors: float, (I, d), finite.
            n_clusters: C, 1 to I.
            queries: from the batch to float query vectors, (B, d).
            temperature: T, positive.
            iterations: of Lloyd's algorithm, at most.
            generator: source of randomness of the seeding; torch's own where None.

        Raises:
            ValueError: what `lloyd` and `Clusters` raise.
        """
        centroids, assignment = lloyd(vectors, n_clusters, iterations=iterations, generator=generator)
        return cls(assignment, centroids, queries, temperature=temperature)

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates for each query.

        Args:
            context: the batch.
            n: how many candidates of a query.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n).

        Raises:
            TypeError: `n` is not an integer, or query vectors that are not floating point.
            ValueError: a negative `n`, query vectors of another shape or not finite.
        """
        check_number(n)
        query = query_vectors(self.queries, context, self.centroids.shape[1])
        log_size = self._sizes.double().log()
        log_p = torch.log_softmax(products(query, self.centroids) / self.temperature + log_size, 1)
        log_q = log_p - log_size.clamp(min=0)  # of one item; an empty cluster keeps its -inf
        chosen = _categorical(log_p, _uniform(len(query), n, generator))
        ids = self._items[self._start[chosen] + _below(self._sizes[chosen], generator)]
        log_n = math.log(n) if n else -math.inf

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(len(query), asked.shape[-1])
            cluster = self.assignment[asked.clamp(0, len(self.assignment) - 1)]
            answer = (log_q.gather(1, cluster) + log_n).float()
            return answer.masked_fill_(~inside(asked, len(self.assignment)), -math.inf)

        return Draws(ids, (log_q.gather(1, chosen) + log_n).float(), design)


class InvertedMultiIndex:
    """Draw from the softmax of product-quantised item vectors, for each query (MIDX).

        q_b(j) = exp((q1_b . u_k + q2_b . w_l) / T) / Z_b        (k, l) = codes_j
        P_b(k) proportional to exp(q1_b . u_k / T) sum_l |cell_kl| exp(q2_b . w_l / T)
        P_b(l | k) proportional to |cell_kl| exp(q2_b . w_l / T), then an item uniformly in the cell

    The first half of a vector is coded by a codeword u_k, the second by w_l; K codewords each make K^2 cells, so
    that items are told apart far better than by K clusters. Drawn with replacement, in O(K^2 + n K) time a
    query (one product of matrices a batch), which does not know the size of the catalogue; what has
    probability below about 1e-16 may never be drawn. Items that a query is known to want are drawn too; mask
    them with `Context.hits`. Stale codes cost variance only.

    Args:
        codes: int64, (I, 2): the codeword of each item in both halves.
        first: float, (K1, d1): codewords of the first d1 coordinates.
        second: float, (K2, d2): codewords of the other d2.
        queries: from the batch to float query vectors, (B, d1 + d2).
        temperature: T, positive; that of the softmax.

    Raises:
        TypeError: `codes` is not int64, complex codewords.
        ValueError: no items, codes outside the codebooks, codewords that are no matrix or not finite, a
            `temperature` that is not positive and finite.

    Reference:
        Lian, Liu & Chen (2020), Personalized ranking with importance sampling, WWW; Chen et al. (2022), Fast
        variational autoencoder with inverted multi-index for collaborative filtering, WWW; the uniform last
        step and product quantisation as in Chen et al. (2025), Adaptive sampled softmax with inverted
        multi-index, arXiv 2501.08563.
    """

    def __init__(
        self,
        codes: ArrayLike | Tensor,
        first: ArrayLike | Tensor,
        second: ArrayLike | Tensor,
        queries: Queries,
        *,
        temperature: float = 1.0,
    ) -> None:
        self.temperature, self.queries = _positive(temperature), queries
        self.first, self.second = finite_matrix(first, "first"), finite_matrix(second, "second")
        codes = torch.as_tensor(codes)
        if codes.ndim != 2 or codes.shape[1] != 2:
            raise ValueError(f"codes must be (I, 2), got {tuple(codes.shape)}.")
        self.codes = torch.stack(
            [
                _assigned(codes[:, 0], len(self.first), "codes of the first half"),
                _assigned(codes[:, 1], len(self.second), "codes of the second half"),
            ],
            1,
        )
        cell = self.codes[:, 0] * len(self.second) + self.codes[:, 1]
        self._sizes, self._start, self._items = _grouped(cell, len(self.first) * len(self.second))
        self._table = self._sizes.double().view(len(self.first), len(self.second))

    @classmethod
    def fit(
        cls,
        vectors: ArrayLike | Tensor,
        n_codewords: int,
        queries: Queries,
        *,
        temperature: float = 1.0,
        iterations: int = 10,
        generator: torch.Generator | None = None,
    ) -> InvertedMultiIndex:
        """Code both halves of item vectors by `lloyd`.

        Args:
            vectors: float, (I, d), finite; the first half are the first floor(d / 2) coordinates.
            n_codewords: K of each half, 1 to I.
            queries: from the batch to float query vectors, (B, d).
            temperature: T, positive.
            iterations: of Lloyd's algorithm, at most.
            generator: source of randomness of the seeding; torch's own where None.

        Raises:
            ValueError: vectors of fewer than two coordinates; what `lloyd` and the class raise.
        """
        x = finite_matrix(vectors, "vectors")
        if x.shape[1] < 2:
            raise ValueError(f"Vectors of {x.shape[1]} coordinate have no two halves; use Clusters.")
        half = x.shape[1] // 2
        (first, a), (second, b) = (
            lloyd(part, n_codewords, iterations=iterations, generator=generator)
            for part in (x[:, :half], x[:, half:])
        )
        return cls(torch.stack([a, b], 1), first, second, queries, temperature=temperature)

    def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
        """Draw `n` candidates for each query.

        Args:
            context: the batch.
            n: how many candidates of a query.
            generator: source of randomness; torch's own where None.

        Returns:
            Draws per query, ids (B, n).

        Raises:
            TypeError: `n` is not an integer, or query vectors that are not floating point.
            ValueError: a negative `n`, query vectors of another shape or not finite.
        """
        check_number(n)
        half = self.first.shape[1]
        query = query_vectors(self.queries, context, half + self.second.shape[1])
        one = products(query[:, :half], self.first) / self.temperature
        two = products(query[:, half:], self.second) / self.temperature
        log_row = one + self._log_rows(two)
        log_z = torch.logsumexp(log_row, 1, keepdim=True)
        k = _categorical(log_row, _uniform(len(query), n, generator))
        u, log_table = _uniform(len(query), n, generator), self._table.log()
        step = max(1, CHUNK // max(1, n * len(self.second)))
        parts = [
            _categorical(
                two[low : low + step, None] + log_table[k[low : low + step]], u[low : low + step, :, None]
            )
            for low in range(0, len(query), step)
        ]
        second = torch.cat(parts).squeeze(-1) if parts else k
        cell = k * len(self.second) + second
        ids = self._items[self._start[cell] + _below(self._sizes[cell], generator)]
        log_n = math.log(n) if n else -math.inf

        def law(k: Tensor, second: Tensor) -> Tensor:
            return (one.gather(1, k) + two.gather(1, second) - log_z + log_n).float()

        def design(asked: Tensor) -> Tensor:
            asked = asked.expand(len(query), asked.shape[-1])
            codes = self.codes[asked.clamp(0, len(self.codes) - 1)]
            answer = law(codes[..., 0], codes[..., 1])
            return answer.masked_fill_(~inside(asked, len(self.codes)), -math.inf)

        return Draws(ids, law(k, second), design)

    def _log_rows(self, two: Tensor) -> Tensor:
        """log sum_l |cell_kl| exp(two_l) of each query and first codeword, (B, K1)."""
        top = two.amax(1, keepdim=True)
        total = (two - top).exp() @ self._table.T
        rows = total.log() + top
        # A row all of whose cells lie far below the best codeword vanished: sum it by itself.
        b, k = ((total < SMALL) & self._table.any(1)).nonzero(as_tuple=True)
        step = max(1, CHUNK // len(self.second))
        for low in range(0, len(b), step):
            at = b[low : low + step], k[low : low + step]
            rows[at] = torch.logsumexp(two[at[0]] + self._table[at[1]].log(), 1)
        return rows


def query_vectors(queries: Queries, context: Context, d: int) -> Tensor:
    """The query vectors of a batch, checked.

    Args:
        queries: from the batch to float query vectors, (B, d).
        context: the batch.
        d: their size.

    Returns:
        float64, (B, d), detached, on the CPU.

    Raises:
        TypeError: vectors that are not floating point.
        ValueError: vectors of another shape, or not finite.
    """
    vectors = torch.as_tensor(queries(context)).detach()
    if not vectors.is_floating_point():
        raise TypeError(f"queries must give floating point, got {vectors.dtype}.")
    if vectors.shape != (len(context), d):
        raise ValueError(f"queries must give ({len(context)}, {d}), got {tuple(vectors.shape)}.")
    bad = ~vectors.isfinite().all(1)
    if bool(bad.any()):
        raise ValueError(f"Query vectors must be finite; that of query {int(bad.nonzero()[0])} is not.")
    return vectors.cpu().double()


def products(query: Tensor, vectors: Tensor) -> Tensor:
    """Inner products of all pairs.

    Args:
        query: float64, (B, d).
        vectors: float, (C, d).

    Returns:
        float64, (B, C).

    Raises:
        ValueError: one exceeds the range of float64.
    """
    result = query @ vectors.double().T
    if not bool(result.isfinite().all()):
        raise ValueError("Inner products exceed float64; scale the query vectors down.")
    return result


def _positive(temperature: float) -> float:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    return float(temperature)


def _assigned(groups: ArrayLike | Tensor, n_groups: int, name: str) -> Tensor:
    """The group of each item, checked, as a copy."""
    groups = torch.as_tensor(groups)
    if groups.dtype != torch.int64:
        raise TypeError(f"{name} must be int64, got {groups.dtype}.")
    if groups.ndim != 1 or len(groups) == 0:
        raise ValueError(f"{name} must be a vector with a number for each item, got {tuple(groups.shape)}.")
    if not bool(inside(groups, n_groups).all()):
        raise ValueError(
            f"{name} must lie in [0, {n_groups}), got {int(groups.min())} to {int(groups.max())}."
        )
    return groups.clone()


def _grouped(groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes of the groups, where each starts, and the items ordered by group."""
    sizes = torch.bincount(groups, minlength=n_groups)
    return sizes, sizes.cumsum(0) - sizes, groups.argsort(stable=True)


def _uniform(rows: int, n: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(rows, n, generator=generator, dtype=torch.float64)


def _categorical(log_w: Tensor, u: Tensor) -> Tensor:
    """Invert the distribution function of weights (..., C) at u (..., n); never one of weight zero."""
    total = (log_w - log_w.amax(-1, keepdim=True)).exp_().cumsum_(-1)
    whole = total[..., -1:]
    # u < 1, but its product may round up to the whole, past the last weight.
    point = torch.minimum(u * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(total, point, right=True)


def _below(sizes: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform integers in [0, size)."""
    u = torch.rand(sizes.shape, generator=generator, dtype=torch.float64)
    return torch.minimum((u * sizes).long(), sizes - 1)
