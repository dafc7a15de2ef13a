"""Frozen vectors with a small trained correction on top: an adapter on the side of queries, documents, or both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from steelyard.ragged import Ragged
from steelyard.retrieval.collection import Collection, rows_of, vectors_fingerprint
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.encoding import SentenceEncoder, encode_collection
from steelyard.retrieval.interactions import Interactions

VECTORS, MADE_FROM = "vectors", "made_from.json"
BLOCK = 1 << 14
TINY = 1e-12  # what `normalize` takes for no length


class Adapter(nn.Module):
    """A residual correction of vectors, of length 1 again; it starts as no correction at all.

        linear:  v' = normalise(v + A v)
        mlp:     v' = normalise(v + A gelu(W v + b))

    A starts at zero, so that before training v' = normalise(v), bit for bit.

    Args:
        dim: length of the vectors.
        kind: "linear" or "mlp", whose hidden layer has `dim` units.
        generator: source of the initial W, standard deviation dim^(-1/2).

    Reference:
        Houlsby et al. (2019), Parameter-efficient transfer learning for NLP, arXiv 1902.00751 (residual adapters
        that start near the identity); here on the finished embedding and starting at it.
    """

    def __init__(self, dim: int, kind: str, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.correction = nn.Parameter(torch.zeros(dim, dim))
        self.hidden: nn.Parameter | None = None
        if kind == "mlp":
            self.hidden = nn.Parameter(torch.empty(dim, dim).normal_(0, dim**-0.5, generator=generator))
            self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, vectors: Tensor) -> Tensor:
        """Corrected vectors, (n, d) -> (n, d), each of length 1."""
        seen = vectors
        if self.hidden is not None:
            seen = functional.gelu(functional.linear(vectors, self.hidden, self.bias))
        return functional.normalize(vectors + functional.linear(seen, self.correction), dim=-1)


@dataclass(frozen=True)
class FrozenVectors:
    """Vectors that training does not change; `given` and `encoded` make and check them.

    Args:
        queries: float32, (Q, d), of length 1; row u is query u of the data.
        documents: float32, (I, d), of length 1.
        texts: (Q,), of the queries, for data of texts: those of the data and then those of the test alone.
        encoder: what made them out of texts.
    """

    queries: Tensor
    documents: Tensor
    texts: pl.Series | None = None
    encoder: SentenceEncoder | None = None

    @classmethod
    def given(cls, queries: Any, documents: Any, data: Interactions) -> FrozenVectors:
        """Vectors that the person has.

        Args:
            queries: float, (n_users, d); not changed.
            documents: float, (n_items, d); not changed.
            data: the pairs that they belong to.

        Returns:
            The same of length 1, float32.

        Raises:
            TypeError: something else than floats.
            ValueError: other shapes, another number than the data has, NaN, infinite values or zero vectors.
        """
        asked = _checked("query", queries, data.n_users)
        answers = _checked("document", documents, data.n_items)
        if asked.shape[1] != answers.shape[1]:
            raise ValueError(
                f"Query vectors have {asked.shape[1]} dimensions and document vectors {answers.shape[1]}: give "
                "both from one encoder."
            )
        return cls(asked, answers)

    @classmethod
    def encoded(
        cls,
        data: Interactions,
        test: Interactions,
        encoder: SentenceEncoder,
        folder: Path | None = None,
        *,
        overwrite: bool = False,
        watch: Callable[[str, int, int], None] = lambda *_: None,
    ) -> FrozenVectors:
        """Vectors of the texts of data and test.

        Args:
            data: pairs of texts.
            test: pairs of texts, whose queries may be new.
            encoder: makes the vectors.
            folder: where they are kept and, for the same encoder and texts, taken from; None keeps them in memory.
            overwrite: encode anew what was made of other texts or by another encoder.
            watch: called with what is encoded, how many are done, and of how many.

        Raises:
            ValueError: the folder's vectors are of something else, or a vector is zero or not finite.
            OSError: no room to write.
        """
        assert data.item_texts is not None
        asked = (data.user_ids.cast(pl.String), test.user_ids.cast(pl.String))
        texts = pl.concat([s.rename("query") for s in asked]).unique(maintain_order=True)
        if folder is None:
            vectors = encoder(texts), encoder(data.item_texts)
        else:
            nothing = Ragged(
                torch.zeros(len(texts) + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
            )
            collection = Collection(nothing, texts, data.item_ids, texts, data.item_texts)
            vectors = encode_collection(encoder, collection, folder, overwrite=overwrite, watch=watch)
        return cls(
            _checked("query", vectors[0], len(texts)),
            _checked("document", vectors[1], data.n_items),
            texts,
            encoder,
        )

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.documents.shape[1]

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The settings with the length that these vectors have.

        Raises:
            ValueError: they ask for another one.
        """
        if config.dim not in (0, self.dim):
            raise ValueError(f"dim is {config.dim}, and the vectors have {self.dim} dimensions: leave --dim.")
        return replace(config, dim=self.dim)

    def fingerprint(self) -> str:
        """A hash of all vectors."""
        sides = vectors_fingerprint(self.queries) + vectors_fingerprint(self.documents)
        return hashlib.blake2b(sides.encode(), digest_size=16).hexdigest()


class VectorTowers(nn.Module):
    """Frozen vectors of queries and documents, each side behind its adapter or as it is.

    Args:
        dim: length of the vectors.
        kind: of the adapters, "linear" or "mlp".
        adapt: "query", "document" or "both", each side with weights of its own.
        frozen: what is adapted; None once training is over.
        made_by: name and fingerprint of the sentence encoder, for texts; empty for ids.
        n_queries: how many adapted query vectors `finish` will have left, for a model to load weights into.
        generator: source of initial weights.
    """

    adapted: Tensor | None

    def __init__(
        self,
        dim: int,
        kind: str,
        adapt: str,
        *,
        frozen: FrozenVectors | None = None,
        made_by: Mapping[str, str] | None = None,
        n_queries: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.sides = nn.ModuleDict()
        for side in ("query", "document"):
            if adapt in (side, "both"):
                self.sides[side] = Adapter(dim, kind, generator=generator)
        self.frozen, self.embedder = frozen, None if frozen is None else frozen.encoder
        self.made_by = dict(made_by or {})
        if self.embedder is not None:
            self.made_by = {"name": self.embedder.name, "fingerprint": self.embedder.fingerprint()}
        self.register_buffer("adapted", torch.empty(n_queries, dim) if n_queries else None)

    def queries(self, users: Tensor) -> Tensor:
        """Vectors of queries by row, (n, d)."""
        if self.adapted is not None:
            return self.adapted[users]
        return self._adapt("query", self._needed().queries[users])

    def items(self, items: Tensor) -> Tensor:
        """Vectors of documents by row, (n, d)."""
        return self._adapt("document", self._needed().documents[items])

    @torch.no_grad()
    def encode(self, texts: pl.Series, side: str = "query") -> Tensor:
        """Vectors of any texts, (n, d), without gradients.

        Raises:
            ImportError: the extra `hf` is not installed.
            ValueError: the encoder that the model was trained on is not there, or not the same any more.
        """
        return self._adapt(side, self._embedded(texts, side))

    def use(self, encoder: SentenceEncoder) -> None:
        """Take an encoder for texts in place of the one that the saved name finds.

        Raises:
            ValueError: it has other weights than the one that the model was trained on.
        """
        if encoder.fingerprint() != self.made_by.get("fingerprint"):
            raise ValueError(
                f"The sentence encoder {encoder.name!r} has other weights than {self.made_by.get('name')!r}, which "
                "this model was trained on: give that one, since vectors of two encoders do not compare."
            )
        self.embedder = encoder

    def settings(self) -> dict[str, str]:
        """Name and fingerprint of the sentence encoder, for the model folder; empty for ids."""
        return dict(self.made_by)

    @torch.no_grad()
    def finish(self) -> None:
        """Adapt all queries of ids once, so that the saved model answers without the frozen vectors."""
        if not self.made_by:
            rows = self._needed().queries
            self.adapted = torch.cat([self._adapt("query", block) for block in torch.split(rows, BLOCK)])

    @torch.no_grad()
    def before(self, test: Interactions) -> tuple[Tensor, Tensor]:
        """The test's queries and all documents as they are without adapters: the baseline."""
        frozen = self._needed()
        texts = test.user_ids.cast(pl.String)
        queries = self._embedded(texts, "query") if self.made_by else frozen.queries
        return functional.normalize(queries, dim=-1), functional.normalize(frozen.documents, dim=-1)

    def let_go(self) -> None:
        """Forget the frozen vectors, once training and measuring are over."""
        self.frozen = None

    def _adapt(self, side: str, vectors: Tensor) -> Tensor:
        if side not in self.sides:
            return functional.normalize(vectors, dim=-1)
        adapted: Tensor = self.sides[side](vectors)
        return adapted

    def _embedded(self, texts: pl.Series, side: str) -> Tensor:
        """Frozen vectors of texts: those that training knew, and the others by the encoder."""
        known = None if self.frozen is None or side != "query" else self.frozen.texts
        rows = torch.full((len(texts),), -1) if known is None else rows_of(texts, known)
        new = (rows < 0).nonzero().squeeze(1)
        vectors = self._needed().queries[rows.clamp(min=0)] if known is not None else None
        if len(new) == 0 and vectors is not None:
            return vectors
        if self.embedder is None:
            self.use(SentenceEncoder(self.made_by["name"]))
        assert self.embedder is not None
        made = functional.normalize(self.embedder(texts.gather(new.numpy())), dim=-1)
        return made if vectors is None else vectors.index_copy(0, new, made)

    def _needed(self) -> FrozenVectors:
        if self.frozen is None:
            raise ValueError("This model was loaded without the vectors it was trained on; use `encode`.")
        return self.frozen


def holds_other(folder: Path) -> bool:
    """Whether a folder holds anything else than the vectors that `FrozenVectors.encoded` keeps."""
    if not folder.is_dir():
        return folder.exists()
    names = {path.name for path in folder.iterdir() if not path.name.endswith(".part")}
    ours = {name for name in names if name == MADE_FROM or name.endswith(".npy")}
    return names != ours or (bool(names) and MADE_FROM not in names)


def _checked(side: str, given: Any, count: int) -> Tensor:
    """Vectors of one side as float32 of length 1."""
    vectors = torch.as_tensor(given)
    if not vectors.is_floating_point():
        raise TypeError(f"{side} vectors must be floats, got {vectors.dtype}.")
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError(f"{side} vectors must be of shape (n, d), got {tuple(vectors.shape)}.")
    if len(vectors) != count:
        raise ValueError(
            f"There are {len(vectors):,} {side} vectors for {count:,} {'queries' if side == 'query' else 'documents'}: "
            "row r of the vectors must be that of id r of the data."
        )
    vectors = vectors.float()
    wrong = (~vectors.isfinite().all(1)).nonzero()
    if len(wrong):
        raise ValueError(
            f"The {side} vector in row {int(wrong[0]):,} holds NaN or infinite values, as {len(wrong):,} do."
        )
    length = torch.linalg.vector_norm(vectors, dim=1)
    if not bool(((length > TINY) & length.isfinite()).all()):  # squares of such entries leave float32
        largest = vectors.abs().amax(1, keepdim=True)
        fits = (length > TINY) & length.isfinite()
        vectors = torch.where(fits.unsqueeze(1) | (largest == 0), vectors, vectors / largest)
        length = torch.where(largest.squeeze(1) == 0, 0.0, 1.0)
    zero = (length == 0).nonzero()
    if len(zero):
        raise ValueError(
            f"The {side} vector in row {int(zero[0]):,} is zero, as {len(zero):,} are: it has no direction to "
            "compare by. Leave its pairs out, or encode it anew."
        )
    return functional.normalize(vectors, dim=1)
