"""A retrieval collection: queries, documents, and which answers which."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.retrieval.interactions import Interactions, byte_blocks


@dataclass(frozen=True)
class Collection:
    """Queries, documents, and which answers which.

    Args:
        positives: rows of documents that answer each query, one row a query, none empty.
        query_ids: (Q,), distinct.
        document_ids: (I,), distinct.
        query_texts: (Q,), or None where there is no text.
        document_texts: (I,), or None.
    """

    positives: Ragged
    query_ids: pl.Series
    document_ids: pl.Series
    query_texts: pl.Series | None = None
    document_texts: pl.Series | None = None

    @classmethod
    def of(cls, data: Interactions) -> Collection:
        """The users (query texts) of the data with their items (documents).

        Args:
            data: pairs; those of weight 0, as in relevance judgments, are no positives.
        """
        if data.weights is not None:
            data = data.select(data.weights > 0)
        known = data.known()
        asked = (known.counts > 0).nonzero().squeeze(1)
        if len(asked) == 0:
            raise ValueError("No pair is a positive: all weights are 0.")
        queries = data.user_ids.gather(asked.numpy())
        return cls(
            known.take(asked), queries, data.item_ids, queries if data.is_text else None, data.item_texts
        )

    def with_texts(self, queries: pl.DataFrame, documents: pl.DataFrame) -> tuple[Collection, Tensor, int]:
        """The same queries with texts by id, among all documents of a corpus.

        Args:
            queries: columns id and text.
            documents: columns id and text; those that no query asks for are candidates too.

        Returns:
            The collection over all documents; the rows of `queries` that have a positive, int64, in its order; and
            how many pairs were left out because a file has no text of the query or of the document.

        Raises:
            ValueError: no pair is left.
        """
        asked, answer = (
            rows_of(ids, texts["id"])[rows]
            for ids, texts, rows in (
                (self.query_ids, queries, self.positives.row_index()),
                (self.document_ids, documents, self.positives.values),
            )
        )
        known = (asked >= 0) & (answer >= 0)
        if not bool(known.any()):
            raise ValueError(
                f"No pair of a query such as {self.query_ids[0]!r} with a document such as {self.document_ids[0]!r} "
                f"has its texts in the files, whose ids are such as {queries['id'][0]!r} and {documents['id'][0]!r}."
            )
        rows, place = torch.unique(asked[known], return_inverse=True)
        positives = Ragged.from_pairs(place, answer[known], len(rows))
        left = queries[rows.tolist()]
        collection = Collection(positives, left["id"], documents["id"], left["text"], documents["text"])
        return collection, rows, int((~known).sum())

    @cached_property
    def alike(self) -> Tensor | None:
        """The group of each document, those of equal text together; None where there is no text."""
        if self.document_texts is None:
            return None
        dense = self.document_texts.str.strip_chars().rank("dense") - 1
        return torch.from_numpy(dense.to_numpy().astype("int64"))

    def fingerprint(self) -> str:
        """A hash of ids, texts and positives."""
        digest = hashlib.blake2b(digest_size=16)
        for series in (self.query_ids, self.document_ids, self.query_texts, self.document_texts):
            digest.update(f"{None if series is None else (str(series.dtype), len(series))};".encode())
            for block in byte_blocks(series):
                digest.update(block)
        for tensor in (self.positives.offsets, self.positives.values):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def rows_of(ids: pl.Series, vocabulary: pl.Series) -> Tensor:
    """Where each id stands in a vocabulary, int64, -1 for one that does not."""
    known = pl.DataFrame({"id": vocabulary.cast(pl.String)}).with_row_index("row")
    found = ids.cast(pl.String).to_frame("id").join(known, on="id", how="left", maintain_order="left")
    return torch.from_numpy(found["row"].cast(pl.Int64).fill_null(-1).to_numpy().copy())


def vectors_fingerprint(vectors: Tensor) -> str:
    """A hash of vectors: what an index and its queries must share.

    Args:
        vectors: float, (n, d).
    """
    digest = hashlib.blake2b(f"{vectors.dtype}{tuple(vectors.shape)}".encode(), digest_size=16)
    for start in range(0, len(vectors), 1 << 16):
        digest.update(vectors[start : start + (1 << 16)].contiguous().numpy().data)
    return digest.hexdigest()
