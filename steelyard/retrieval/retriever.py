"""A trained model that answers: recommend to users, search by text, neighbours of items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import RankingMetrics, Ranks, count_ranks, ranking_metrics
from steelyard.files import replacing, write_json, write_tensors
from steelyard.ragged import Ragged
from steelyard.retrieval.asking import checked_texts, listed, rows_of, whole_number
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.folder import (
    CONFIG,
    FILES,
    FORMAT,
    ITEMS,
    SEEN,
    USERS,
    VERSION,
    WEIGHTS,
    read_folder,
    sha256,
)
from steelyard.retrieval.index import top_k
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.objective import Model
from steelyard.retrieval.sequences import positions


@dataclass(frozen=True)
class Retriever:
    """A trained model with its vocabularies, and an exact index over its items.

    Args:
        config: the settings it was trained with.
        model: the weights.
        item_vectors: float, (I, d).
        item_ids: (I,), as the person wrote them.
        item_texts: (I,) for models of texts, else None.
        user_ids: (n_users,) for models of ids, else None.
        seen: items that each user took in training, for models of ids, else None.
    """

    config: TrainConfig
    model: Model
    item_vectors: Tensor
    item_ids: pl.Series
    item_texts: pl.Series | None
    user_ids: pl.Series | None
    seen: Ragged | None

    @torch.no_grad()
    def recommend(
        self, users: Iterable[Any], k: int = 10, *, exclude_seen: bool | None = None
    ) -> pl.DataFrame:
        """The `k` items with the highest similarity (cosine or inner product) to each user.

        Args:
            users: list, tensor, array or series of ids as they stood in the training file.
            k: how many items.
            exclude_seen: leave out what the user took in training; default yes, but for a model that was trained on
                items that come again.

        Returns:
            Columns user, rank (from 1), item, score.

        Raises:
            TypeError: one id alone in place of a list, or `k` not a whole number.
            ValueError: a text model (which knows no users), `k` below 1, or an unknown user, with close matches.
        """
        if self.user_ids is None or self.seen is None:
            raise ValueError("A text model knows no users; ask it with `search` and a text.")
        k, rows = whole_number(k), rows_of(listed(users, "user"), self.user_ids, "user")
        queries = self._encoder.queries(rows)
        exclude = self.seen.take(rows) if self._hides_seen(exclude_seen) else None
        scores, items = top_k(queries, self.item_vectors, k, exclude=exclude)
        return self._table("user", self.user_ids[rows.tolist()], scores, items)

    @torch.no_grad()
    def recommend_after(
        self, histories: Iterable[Iterable[Any]], k: int = 10, *, exclude_seen: bool | None = None
    ) -> pl.DataFrame:
        """The `k` items that a model of sequences finds likeliest to follow each history.

        Args:
            histories: lists of item ids, the oldest first; their users may be new.
            k: how many items.
            exclude_seen: leave out the items of the history; default as in `recommend`.

        Returns:
            Columns history (its number from 0), rank (from 1), item, score.

        Raises:
            TypeError: one id alone in place of a list, or `k` not a whole number.
            ValueError: another model than "sequence", `k` below 1, no history or an empty one, or an unknown item, with
                close matches.
        """
        self._check_order()
        k, rows = whole_number(k), [rows_of(listed(h, "item"), self.item_ids, "item") for h in histories]
        if not rows:
            raise ValueError("No history was given.")
        counts = torch.tensor([0, *map(len, rows)])
        given = Ragged(counts.cumsum(0), torch.cat(rows))
        exclude = None
        if self._hides_seen(exclude_seen):
            exclude = Ragged.from_pairs(given.row_index(), given.values, len(rows))
        scores, items = top_k(self.vectors_after(given), self.item_vectors, k, exclude=exclude)
        return self._table("history", pl.Series(range(len(rows))), scores, items)

    @torch.no_grad()
    def vectors_after(self, histories: Ragged) -> Tensor:
        """Vectors of histories by the rows of their items in `item_ids`, the oldest first.

        Args:
            histories: one row a history.

        Returns:
            float, (n, d).

        Raises:
            ValueError: another model than "sequence".
        """
        self._check_order()
        vectors: Tensor = self._encoder.after(histories)
        return vectors

    def _check_order(self) -> None:
        if self.config.model != "sequence":
            raise ValueError(
                f"The model {self.config.model} knows no order of items; the model sequence does."
            )

    def _hides_seen(self, asked: bool | None) -> bool:
        return not self.config.repeats if asked is None else asked

    @torch.no_grad()
    def search(self, texts: Iterable[str], k: int = 10) -> pl.DataFrame:
        """The `k` documents with the highest similarity to each text.

        Args:
            texts: list or series of texts.
            k: how many documents.

        Returns:
            Columns query, rank (from 1), item, score, text.

        Raises:
            TypeError: one text alone in place of a list, something else than text, or `k` not a whole number.
            ValueError: a model without text, no text or an empty one, or `k` below 1.
        """
        if self.item_texts is None:
            raise ValueError(
                "This model was trained on ids, not on text; ask it with `recommend` and a user."
            )
        k, asked = whole_number(k), checked_texts(listed(texts, "text"))
        queries = self._encoder.encode(asked)
        known = queries.square().sum(1) > 0
        if not bool(known.all()):
            text = asked[int((~known).nonzero()[0])]
            raise ValueError(f"No word or part of a word of {text!r} is known to the model.")
        scores, items = top_k(queries, self.item_vectors, k)
        return self._table("query", asked, scores, items)

    @torch.no_grad()
    def neighbours(self, items: Iterable[Any], k: int = 10) -> pl.DataFrame:
        """The `k` items closest to each item by the model's similarity, itself left out.

        Args:
            items: list, tensor, array or series of ids as they stood in the training file.
            k: how many items.

        Returns:
            Columns item, rank (from 1), neighbour, score (and text).

        Raises:
            TypeError: one id alone in place of a list, or `k` not a whole number.
            ValueError: `k` below 1, or an unknown item, with close matches.
        """
        k, rows = whole_number(k), rows_of(listed(items, "item"), self.item_ids, "item")
        itself = Ragged(torch.arange(len(rows) + 1), rows)
        scores, found = top_k(self.item_vectors[rows], self.item_vectors, k, exclude=itself)
        return self._table("item", self.item_ids[rows.tolist()], scores, found, answer="neighbour")

    @torch.no_grad()
    def query_vectors(self, data: Interactions) -> Tensor:
        """Vectors of the data's users: rows of the table, or their texts encoded.

        Args:
            data: pairs over the model's vocabularies.

        Returns:
            float, (n_users, d).

        Raises:
            ValueError: another user vocabulary than the model's.
        """
        if self.item_texts is not None:
            encoded: Tensor = self._encoder.encode(data.user_ids.cast(pl.String))
            return encoded
        if self.user_ids is None or not data.user_ids.equals(self.user_ids):
            raise ValueError("The data has another user vocabulary than the model; read it with `read_test`.")
        vectors: Tensor = self._encoder.queries(torch.arange(data.n_users))
        return vectors

    @torch.no_grad()
    def encode(self, texts: pl.Series, side: Literal["query", "document"] | None = None) -> Tensor:
        """Vectors of any texts.

        Args:
            texts: (n,).
            side: what the texts are, since each side has weights of its own; None is "query", but for the model
                "vectors", whose sides differ too much for that.

        Returns:
            float, (n, d); zero for a text of which the model knows no part.

        Raises:
            ValueError: a model without text, or no side for the model "vectors".
        """
        if self.item_texts is None:
            raise ValueError("This model was trained on ids, not on text.")
        if side is None and self.config.model == "vectors":
            raise ValueError(
                "Queries and documents of the model 'vectors' have adapters of their own: say which the texts are, "
                "side='query' or side='document'."
            )
        encoded: Tensor = self._encoder.encode(texts.cast(pl.String), side or "query")
        return encoded

    @torch.no_grad()
    def user_vectors(self, rows: Tensor) -> Tensor:
        """Vectors of users by their rows in `user_ids`, (n,) -> (n, d).

        Raises:
            ValueError: a text model, which knows no users.
        """
        if self.user_ids is None:
            raise ValueError("A text model knows no users.")
        vectors: Tensor = self._encoder.queries(rows)
        return vectors

    def evaluate(self, test: Interactions, k: Sequence[int] = (5, 10, 20, 50)) -> RankingMetrics:
        """Full ranking of the whole catalogue for each user of `test`, seen items left out unless items come again.

        Args:
            test: held-out pairs over the model's vocabularies; for a model of sequences also histories of new users,
                each position of which but the first is a query.
            k: cut-offs.

        Returns:
            Metrics per user, with their means and intervals.

        Raises:
            TypeError: one cut-off alone in place of a list.
            ValueError: other vocabularies than the model's.
        """
        cuts = tuple(listed(k, "cut-off"))
        if self.config.model != "sequence" or self.user_ids is None or test.user_ids.equals(self.user_ids):
            return ranking_metrics(self.ranks(test), test.known(), k=cuts)
        self._check_items(test)
        wanted, asked = positions(test)
        vectors = self.vectors_after(asked.known(length=self.config.length))
        left_out = asked.left_out() if self._hides_seen(None) else None
        ranks = count_ranks(vectors, self.item_vectors, wanted.known(), left_out)
        return ranking_metrics(ranks, wanted.known(), k=cuts, groups=asked.history)

    def ranks(self, test: Interactions) -> Ranks:
        """Where each held-out item stands among all items its user has not seen (among all, where items come again).

        Args:
            test: held-out pairs over the model's vocabularies.

        Returns:
            Ranks in the order of `test.known().values`.

        Raises:
            ValueError: other vocabularies than the model's.
        """
        self._check_items(test)
        seen = self.seen if self._hides_seen(None) else None
        return count_ranks(self.query_vectors(test), self.item_vectors, test.known(), seen)

    def _check_items(self, test: Interactions) -> None:
        if not test.item_ids.equals(self.item_ids):
            raise ValueError("The data has another item vocabulary than the model; read it with `read_test`.")

    @property
    def _encoder(self) -> Any:
        return self.model.encoder

    def _table(
        self, name: str, asked: pl.Series, scores: Tensor, items: Tensor, *, answer: str = "item"
    ) -> pl.DataFrame:
        """One row an answer; places that no item filled are left out."""
        width = items.shape[1]
        flat = items.flatten()
        kept = flat >= 0
        rank = torch.arange(1, width + 1).repeat(len(items))
        query = torch.repeat_interleave(torch.arange(len(items)), width)
        found = flat[kept].numpy()
        columns = {
            name: asked.gather(query[kept].numpy()),
            "rank": pl.Series(rank[kept].numpy()),
            answer: self.item_ids.gather(found),
            "score": pl.Series(scores.flatten()[kept].numpy()),
        }
        if self.item_texts is not None:
            columns["text"] = self.item_texts.gather(found)
        return pl.DataFrame(columns)

    def save(self, folder: str | Path) -> None:
        """Write weights, vocabularies and config; each file atomically, the config last.

        Args:
            folder: made if it is not there.

        Raises:
            OSError: no room, or no right to write.
        """
        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        write_tensors(folder / WEIGHTS, tensors | {"items": self.item_vectors})
        catalogue = {"item": self.item_ids} | ({} if self.item_texts is None else {"text": self.item_texts})
        with replacing(folder / ITEMS) as temporary:
            pl.DataFrame(catalogue).write_parquet(temporary)
        if self.user_ids is not None and self.seen is not None:
            with replacing(folder / USERS) as temporary:
                pl.DataFrame({"user": self.user_ids}).write_parquet(temporary)
            write_tensors(
                folder / SEEN, {"offsets": self.seen.offsets, "values": self.seen.values.to(torch.int32)}
            )
        content = {
            "format": FORMAT,
            "version": VERSION,
            "training": self.config.to_dict(),
            "encoder": self._encoder.settings() if self.item_texts is not None else {},
            "files": {
                name: sha256(folder / name) for name in FILES["ids" if self.item_texts is None else "texts"]
            },
        }
        write_json(folder / CONFIG, content)

    @classmethod
    def load(cls, folder: str | Path) -> Retriever:
        """Read a model folder; its files are checked against hashes and each other, and nothing is executed.

        Args:
            folder: what `steelyard train` or `save` left.

        Returns:
            The retriever, which gives the answers of the one that was saved.

        Raises:
            FileNotFoundError: not a folder that `steelyard train` finished.
            ValueError: a file is damaged, foreign, or of another version.
        """
        return cls(*read_folder(Path(folder).expanduser()))
