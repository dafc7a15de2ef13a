"""An encoder of text trained from scratch: weighted bags of hashed words and character n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numba
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from steelyard.retrieval.ngrams import TextFeatures, Vocabulary, hash_texts

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Side = Literal["query", "document"]

NGRAM_WEIGHT = 0.7
ENCODED_AT_ONCE = 4096


class TextEncoder(nn.Module):
    """Vectors of texts as weighted sums of the vectors of their features, normalised to length 1.

        v(text) = normalise(sum_t log(1 + n_t) w_t E_t),    w_t = idf_t at the start

    n_t is how often feature t occurs. Queries and documents share the vectors E and have weights w
    of their own. E begins as random Gaussian vectors of length about 1, so that before training the cosine of
    two texts is their tf-idf cosine up to noise of size 1 / sqrt(dim). Gradients of all tables are sparse.
    Text without any feature gets the zero vector.

    Args:
        vocabulary: numbers of buckets.
        dim: length of the vectors.
        generator: source of the initial vectors.

    Raises:
        ValueError: `dim` below 1.

    Reference:
        Johnson & Lindenstrauss (1984) for the start; Bojanowski et al. (2017), arXiv 1607.04606, for hashed
        character n-grams. The learnt weights are ours.
    """

    def __init__(self, vocabulary: Vocabulary, dim: int, *, generator: torch.Generator | None = None) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}.")
        super().__init__()
        self.vocabulary, self.dim = vocabulary, dim
        self.vectors = nn.Embedding(vocabulary.buckets, dim, sparse=True)
        self.query_weights = nn.Embedding(vocabulary.buckets, 1, sparse=True)
        self.document_weights = nn.Embedding(vocabulary.buckets, 1, sparse=True)
        with torch.no_grad():
            self.vectors.weight.normal_(0, dim**-0.5, generator=generator)
            self.query_weights.weight.fill_(1)
            self.document_weights.weight.fill_(1)

    @classmethod
    def over(
        cls,
        documents: TextFeatures,
        vocabulary: Vocabulary,
        dim: int,
        *,
        generator: torch.Generator | None = None,
    ) -> TextEncoder:
        """An untrained encoder whose weights are the inverse document frequencies of a catalogue.

        Args:
            documents: features of the catalogue, hashed into `vocabulary`.
            vocabulary: numbers of buckets.
            dim: length of the vectors.
            generator: source of the initial vectors.
        """
        encoder = cls(vocabulary, dim, generator=generator)
        weights = inverse_document_frequency(documents, vocabulary)
        with torch.no_grad():
            encoder.query_weights.weight.copy_(weights.unsqueeze(1))
            encoder.document_weights.weight.copy_(weights.unsqueeze(1))
        return encoder

    def settings(self) -> dict[str, int]:
        """What `from_settings` needs to make an encoder of this shape."""
        vocabulary = self.vocabulary
        return {
            "words": vocabulary.words,
            "pairs": vocabulary.pairs,
            "ngrams": vocabulary.ngrams,
            "dim": self.dim,
        }

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> TextEncoder:
        """An encoder of the given shape, to load weights into.

        Raises:
            ValueError: the settings are not those that `settings` writes.
        """
        names = {"words", "pairs", "ngrams", "dim"}
        if set(settings) != names or not all(type(value) is int for value in settings.values()):
            raise ValueError(
                f"A text encoder has the whole numbers {', '.join(sorted(names))}, got {settings!r}."
            )
        sizes = dict(settings)
        dim = sizes.pop("dim")
        return cls(Vocabulary(**sizes), dim)

    def forward(self, features: TextFeatures, side: Side) -> Tensor:
        """Vectors of texts.

        Args:
            features: hashed into this encoder's vocabulary.
            side: whose weights to use.

        Returns:
            float32, (texts, dim), each of length 1, or 0 for a text without features.
        """
        weights = self.query_weights if side == "query" else self.document_weights
        summed: Tensor = _WeightedBag.apply(self.vectors.weight, weights.weight, features)  # type: ignore[no-untyped-call]
        return functional.normalize(summed, dim=1)

    @torch.no_grad()
    def encode(self, texts: pl.Series | Sequence[str], side: Side) -> Tensor:
        """Vectors of strings, hashed and summed some thousands at a time.

        Args:
            texts: strings; null counts as empty.
            side: whose weights to use.

        Returns:
            float32, (texts, dim).
        """
        column = texts if isinstance(texts, pl.Series) else pl.Series(texts, dtype=pl.String)
        vectors = torch.empty(len(column), self.dim)
        for start in range(0, len(column), ENCODED_AT_ONCE):
            chunk = column[start : start + ENCODED_AT_ONCE]
            vectors[start : start + len(chunk)] = self(hash_texts(chunk, self.vocabulary), side)
        return vectors


def inverse_document_frequency(documents: TextFeatures, vocabulary: Vocabulary) -> Tensor:
    """Weights of features by how few documents have them.

        w_t = c log((N + 1) / (n_t + 1/2)),    c = 1 for words and pairs, 0.7 for character n-grams

    and never below 0.05 c, so that a feature of every document can still learn.

    Args:
        documents: features of N documents, each distinct feature once a document.
        vocabulary: numbers of buckets.

    Returns:
        float32, (buckets,).
    """
    frequency = torch.bincount(documents.ids, minlength=vocabulary.buckets)
    weights = torch.log((len(documents) + 1) / (frequency + 0.5)).clamp_(min=0.05)
    weights[vocabulary.words + vocabulary.pairs :] *= NGRAM_WEIGHT
    return weights


class _WeightedBag(torch.autograd.Function):
    """Row r: sum_j log(1 + n_j) w[id_j] E[id_j] over the features j of text r; gradients are sparse."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weights: Tensor, features: TextFeatures) -> Tensor:
        ctx.save_for_backward(vectors, weights)
        ctx.features = features
        ctx.terms = torch.log1p(features.counts)
        out = torch.zeros(len(features), vectors.shape[1])
        _sum_rows(
            vectors.detach().numpy(),
            weights.detach().numpy()[:, 0],
            features.ids.numpy(),
            features.offsets.numpy(),
            ctx.terms.numpy(),
            out.numpy(),
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        vectors, weights = ctx.saved_tensors
        features: TextFeatures = ctx.features
        rows, starts, position, text = _by_feature(
            features.ids.numpy(), features.offsets.numpy(), np.full(len(vectors), -1, np.int32)
        )
        vector_grad = torch.empty(len(rows), vectors.shape[1])
        weight_grad = torch.empty(len(rows), 1)
        _sum_features(
            vectors.detach().numpy(),
            weights.detach().numpy()[:, 0],
            ctx.terms.numpy(),
            grads[0].contiguous().numpy(),
            rows,
            starts,
            position,
            text,
            vector_grad.numpy(),
            weight_grad.numpy()[:, 0],
        )
        index = torch.from_numpy(rows).unsqueeze(0)
        return (
            torch.sparse_coo_tensor(
                index, vector_grad, vectors.shape, is_coalesced=True, check_invariants=False
            ),
            torch.sparse_coo_tensor(
                index, weight_grad, weights.shape, is_coalesced=True, check_invariants=False
            ),
            None,
        )


@numba.njit(parallel=True, fastmath=True, cache=True)
def _sum_rows(vectors: Floats, weights: Floats, ids: Ids, offsets: Ints, terms: Floats, out: Floats) -> None:
    dim = vectors.shape[1]
    for r in numba.prange(len(offsets) - 1):
        for j in range(offsets[r], offsets[r + 1]):
            scale = terms[j] * weights[ids[j]]
            for k in range(dim):
                out[r, k] += scale * vectors[ids[j], k]


@numba.njit(cache=True)
def _by_feature(ids: Ids, offsets: Ints, slot: Ids) -> tuple[Ints, Ints, Ints, Ids]:
    """Turn texts with features into features with texts.

    Returns:
        The distinct ids rising, where each one's entries start, and of each entry its position and its text.
    """
    for j in range(len(ids)):
        slot[ids[j]] = 0
    found = 0
    for t in range(len(slot)):
        if slot[t] == 0:
            slot[t] = found
            found += 1
    rows = np.empty(found, np.int64)
    starts = np.zeros(found + 1, np.int64)
    for j in range(len(ids)):
        starts[slot[ids[j]] + 1] += 1
    for i in range(found):
        starts[i + 1] += starts[i]
    filled = starts[:-1].copy()
    position = np.empty(len(ids), np.int64)
    text = np.empty(len(ids), np.int32)
    for r in range(len(offsets) - 1):
        for j in range(offsets[r], offsets[r + 1]):
            i = slot[ids[j]]
            rows[i] = ids[j]
            position[filled[i]] = j
            text[filled[i]] = r
            filled[i] += 1
    return rows, starts, position, text


@numba.njit(parallel=True, fastmath=True, cache=True)
def _sum_features(
    vectors: Floats,
    weights: Floats,
    terms: Floats,
    grad: Floats,
    rows: Ints,
    starts: Ints,
    position: Ints,
    text: Ids,
    vector_grad: Floats,
    weight_grad: Floats,
) -> None:
    dim = vectors.shape[1]
    for i in numba.prange(len(rows)):
        total = np.zeros(dim, np.float32)
        for j in range(starts[i], starts[i + 1]):
            term = terms[position[j]]
            for k in range(dim):
                total[k] += term * grad[text[j], k]
        dot = np.float32(0)
        for k in range(dim):
            dot += total[k] * vectors[rows[i], k]
            vector_grad[i, k] = weights[rows[i]] * total[k]
        weight_grad[i] = dot
