"""Proposals by name: what a command or a configuration writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.draws import Proposal
from steelyard.negatives.best_of import BestOf
from steelyard.negatives.context import Context
from steelyard.negatives.everything import Everything
from steelyard.negatives.in_batch import InBatch
from steelyard.negatives.kernel import QuadraticKernel, RandomFourier
from steelyard.negatives.log_uniform import LogUniform
from steelyard.negatives.mixture import Mixture
from steelyard.negatives.popularity import Popularity
from steelyard.negatives.top_k import SimANS, TopK
from steelyard.negatives.two_level import Clusters, InvertedMultiIndex
from steelyard.negatives.uniform import Uniform

Make = Callable[["Catalogue", "float | None", "torch.Generator | None"], Proposal]


@dataclass(frozen=True)
class Catalogue:
    """What proposals may be made from.

    Args:
        counts: (I,): interactions of each item in the training data.
        n_queries: how many queries batches are drawn from; default one for each interaction.
        items: float, (I, d): the items' vectors, for proposals that adapt to the query; stale ones cost variance
            only, since what is drawn is weighed by the law it was drawn by.
        scale: inverse temperature: the softmax is that of `scale * <query, item>`.
    """

    counts: Tensor
    n_queries: int | None = None
    items: Tensor | None = None
    scale: float = 1.0

    def score(self, context: Context) -> Tensor:
        """Scores of all items for the queries of a batch, (B, I)."""
        return self.scale * query_vectors(context) @ self.vectors.T

    @property
    def vectors(self) -> Tensor:
        """The items' vectors.

        Raises:
            ValueError: there are none.
        """
        if self.items is None:
            raise ValueError("These negatives adapt to the query, which needs a model's item vectors.")
        return self.items


def query_vectors(context: Context) -> Tensor:
    """The vectors of a batch's queries.

    Raises:
        ValueError: the batch brings none.
    """
    if context.vectors is None:
        raise ValueError(
            "These negatives adapt to the query: give the batch's vectors in Context(vectors=...)."
        )
    return context.vectors


def _whole(number: float | None, default: int, most: int) -> int:
    value = default if number is None else number
    if not (1 <= value < math.inf and value == int(value)):
        raise ValueError(f"wants a whole number from 1 on, got {value:g}.")
    return min(int(value), most)


def _codewords(number: float | None, c: Catalogue) -> int:
    """Codewords of each half: their square is the number of cells, and more cells than items tell nothing."""
    most = max(1, 4 * math.isqrt(len(c.counts)))
    k = _whole(number, min(32, most), 10**9)
    if k > most:
        raise ValueError(f"{k} x {k} cells are far more than the {len(c.counts)} items: take at most {most}.")
    return k


def _root(catalogue: Catalogue) -> int:
    return max(1, round(math.sqrt(len(catalogue.counts))))


PROPOSALS: dict[str, Make] = {
    "uniform": lambda c, _, __: Uniform(len(c.counts)),
    "popularity": lambda c, alpha, _: Popularity(c.counts, 1.0 if alpha is None else alpha),
    "log-uniform": lambda c, _, __: LogUniform(
        len(c.counts), torch.argsort(c.counts, descending=True, stable=True)
    ),
    "in-batch": lambda c, _, __: InBatch(c.counts, c.n_queries),
    "everything": lambda c, _, __: Everything(len(c.counts)),
    "top": lambda c, k, _: TopK(len(c.counts), _whole(k, 50, len(c.counts)), score=c.score),
    "simans": lambda c, k, _: SimANS(len(c.counts), _whole(k, 200, len(c.counts)), score=c.score),
    "best-of": lambda c, m, _: BestOf(len(c.counts), _whole(m, 4, 10**9), score=c.score),
    "clusters": lambda c, k, g: Clusters.fit(
        c.vectors, _whole(k, _root(c), len(c.counts)), query_vectors, temperature=1 / c.scale, generator=g
    ),
    "midx": lambda c, k, g: InvertedMultiIndex.fit(
        c.vectors, _codewords(k, c), query_vectors, temperature=1 / c.scale, generator=g
    ),
    "quadratic": lambda c, alpha, _: QuadraticKernel(
        c.vectors, query_vectors, alpha=100.0 if alpha is None else alpha
    ),
    "fourier": lambda c, features, g: RandomFourier(
        c.vectors,
        query_vectors,
        temperature=1 / c.scale,
        n_features=_whole(features, 256, 1 << 16),
        generator=g,
    ),
}
TAKES_A_NUMBER = {"popularity", "top", "simans", "best-of", "clusters", "midx", "quadratic", "fourier"}
ADAPTIVE = {"top", "simans", "best-of", "clusters", "midx", "quadratic", "fourier"}
"""Names of proposals that look at the query and at the items' vectors."""

_WORD = re.compile(r"([a-z][a-z-]*?)(?::([^:+]+)|(\d+))?")


def adapts(spec: str) -> bool:
    """Whether any part of a specification looks at the query."""
    return any(name in ADAPTIVE for name, _ in _words(spec))


def proposal(
    spec: str, catalogue: Catalogue | Tensor, *, generator: torch.Generator | None = None
) -> Proposal:
    """Make the proposal that a name stands for: `uniform`, `popularity:0.75`, `top50+in-batch`.

        uniform             each item alike
        popularity:0.75     by interactions to that power (1)
        log-uniform         by popularity rank, q(r) ~ log(1 + 1 / (r + 1))
        in-batch            the other queries' positives, weighed by counts
        everything          each item once: the full softmax
        top:50              the 50 best of each query with certainty, the rest of the draws from the others
        simans:200          of the 200 best those near the positive's score
        best-of:4           the best of 4 uniform draws (dynamic negative sampling)
        clusters:200        a cluster by its centroid's score, an item inside (about sqrt I clusters)
        midx:32             the same by an inverted multi-index of 32 x 32 cells
        quadratic:100       by a quadratic kernel of the score
        fourier:256         by random Fourier features of the softmax

    Args:
        spec: names joined by `+`, each with an optional number, after `:` or at once (`top50`); a sum splits
            the draws equally, but `top` takes no more than its k beside others.
        catalogue: counts alone, (I,), or with vectors for those from `top` on.
        generator: source of randomness of k-means and random features; torch's own where None.

    Returns:
        The proposal; a `Mixture` for a sum.

    Raises:
        ValueError: an unknown name, a number that the name does not take, or no vectors.
    """
    if isinstance(catalogue, Tensor):
        catalogue = Catalogue(catalogue)
    parts: list[Proposal] = []
    for name, number in _words(spec):
        try:
            parts.append(PROPOSALS[name](catalogue, number, generator))
        except ValueError as error:
            raise ValueError(f"Negatives {name!r}: {error}") from None
    return parts[0] if len(parts) == 1 else Mixture(parts)


def _words(spec: str) -> list[tuple[str, float | None]]:
    """The names of a specification with their numbers."""
    words = []
    for word in spec.split("+"):
        match = _WORD.fullmatch(word.strip())
        name = match[1] if match else word.strip()
        if name not in PROPOSALS:
            raise ValueError(
                f"Unknown negatives {name!r} in {spec!r}; there are {', '.join(PROPOSALS)}, joined by '+'."
            )
        assert match is not None
        written = match[2] or match[3]
        if written is not None and name not in TAKES_A_NUMBER:
            raise ValueError(f"{name!r} takes no number, got {word!r}.")
        try:
            words.append((name, None if written is None else float(written)))
        except ValueError:
            raise ValueError(f"Negatives {word.strip()!r}: {written!r} is no number.") from None
    return words
