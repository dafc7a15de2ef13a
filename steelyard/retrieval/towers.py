"""Two towers over text: one encoder for queries and documents, and the texts it was given."""

from __future__ import annotations

import polars as pl
import torch
from torch import Tensor, nn

from steelyard.retrieval.ngrams import TextFeatures, Vocabulary, hash_texts
from steelyard.retrieval.text import Side, TextEncoder


class TextTowers(nn.Module):
    """A text encoder that finds queries and documents by row number, as the training loop asks.

    Args:
        encoder: shared by both towers.
        queries: features of the training queries; None once training is over.
        documents: features of the catalogue; None once training is over.
    """

    def __init__(
        self, encoder: TextEncoder, queries: TextFeatures | None = None, documents: TextFeatures | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.texts = encoder, (queries, documents)

    @classmethod
    def over(
        cls, queries: pl.Series, documents: pl.Series, dim: int, *, generator: torch.Generator | None = None
    ) -> TextTowers:
        """Untrained towers over the texts of a data set."""
        vocabulary = Vocabulary()
        hashed = hash_texts(documents, vocabulary)
        encoder = TextEncoder.over(hashed, vocabulary, dim, generator=generator)
        return cls(encoder, hash_texts(queries, vocabulary), hashed)

    def queries(self, users: Tensor) -> Tensor:
        """Vectors of training queries, (n, dim)."""
        return self._encoded(0, users)

    def items(self, items: Tensor) -> Tensor:
        """Vectors of documents of the catalogue, (n, dim)."""
        return self._encoded(1, items)

    def encode(self, texts: pl.Series, side: Side = "query") -> Tensor:
        """Vectors of any texts, (n, dim), without gradients."""
        return self.encoder.encode(texts, side)

    def settings(self) -> dict[str, int]:
        """The encoder's shape, for the model folder."""
        return self.encoder.settings()

    def _encoded(self, side: int, rows: Tensor) -> Tensor:
        texts = self.texts[side]
        if texts is None:
            raise ValueError("These towers were loaded without their training texts; use `encode`.")
        vectors: Tensor = self.encoder(texts.take(rows), "query" if side == 0 else "document")
        return vectors
