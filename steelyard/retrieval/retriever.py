"""A trained model that answers: recommend to users, search by text, neighbours of items."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import RankingMetrics, Ranks, count_ranks, ranking_metrics
from steelyard.files import read_json, read_tensors, replacing, write_json, write_tensors
from steelyard.ragged import Ragged
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.factors import MatrixFactorization
from steelyard.retrieval.index import top_k
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.loop import Model
from steelyard.retrieval.text import TextEncoder
from steelyard.retrieval.towers import TextTowers

CONFIG, WEIGHTS, ITEMS, USERS, SEEN = (
    "config.json",
    "model.safetensors",
    "items.parquet",
    "users.parquet",
    "seen.safetensors",
)
FORMAT = "steelyard-retriever"
VERSION = 1
CLOSE_MATCHES = 20_000


@dataclass(frozen=True)
class Retriever:
    """A trained model with its vocabularies, and an exact index over its items.

    Args:
        config: the settings it was trained with.
        model: the weights.
        item_vectors: float, (I, d).
        item_ids: (I,), as the person wrote them.
        item_texts: (I,) for text models, else None.
        user_ids: (n_users,) for "mf", else None.
        seen: items that each user took in training, for "mf", else None.
    """

    config: TrainConfig
    model: Model
    item_vectors: Tensor
    item_ids: pl.Series
    item_texts: pl.Series | None
    user_ids: pl.Series | None
    seen: Ragged | None

    @torch.no_grad()
    def recommend(self, users: Sequence[Any], k: int = 10, *, exclude_seen: bool = True) -> pl.DataFrame:
        """The `k` items with the highest similarity (cosine or inner product) to each user.

        Args:
            users: ids as they stood in the training file.
            k: how many items.
            exclude_seen: leave out what the user took in training.

        Returns:
            Columns user, rank (from 1), item, score.

        Raises:
            ValueError: a text model (which knows no users), `k` below 1, or an unknown user, with close matches.
        """
        if self.user_ids is None or self.seen is None:
            raise ValueError("A text model knows no users; ask it with `search` and a text.")
        rows = _rows_of(users, self.user_ids, "user")
        queries = self._encoder.queries(rows)
        exclude = self.seen.take(rows) if exclude_seen else None
        scores, items = top_k(queries, self.item_vectors, k, exclude=exclude)
        return self._table("user", self.user_ids[rows.tolist()], scores, items)

    @torch.no_grad()
    def search(self, texts: Sequence[str], k: int = 10) -> pl.DataFrame:
        """The `k` documents with the highest similarity to each text.

        Args:
            texts: any text.
            k: how many documents.

        Returns:
            Columns query, rank (from 1), item, score, text.

        Raises:
            ValueError: a model without text, an empty text, or `k` below 1.
        """
        if self.item_texts is None:
            raise ValueError(
                "This model was trained on ids, not on text; ask it with `recommend` and a user."
            )
        blank = [text for text in texts if not text.strip()]
        if blank:
            raise ValueError("An empty text has nothing to search for.")
        queries = self._encoder.encode(pl.Series("query", list(texts), dtype=pl.String))
        known = queries.square().sum(1) > 0
        if not bool(known.all()):
            text = texts[int((~known).nonzero()[0])]
            raise ValueError(f"No word or part of a word of {text!r} is known to the model.")
        scores, items = top_k(queries, self.item_vectors, k)
        return self._table("query", pl.Series("query", list(texts)), scores, items)

    @torch.no_grad()
    def neighbours(self, items: Sequence[Any], k: int = 10) -> pl.DataFrame:
        """The `k` items closest to each item by the model's similarity, itself left out.

        Args:
            items: ids as they stood in the training file.
            k: how many items.

        Returns:
            Columns item, rank (from 1), neighbour, score (and text).

        Raises:
            ValueError: `k` below 1, or an unknown item, with close matches.
        """
        rows = _rows_of(items, self.item_ids, "item")
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

    def evaluate(self, test: Interactions, k: Sequence[int] = (5, 10, 20, 50)) -> RankingMetrics:
        """Full ranking of the whole catalogue for each user of `test`, seen items left out.

        Args:
            test: held-out pairs over the model's vocabularies.
            k: cut-offs.

        Returns:
            Metrics per user, with their means and intervals.

        Raises:
            ValueError: other vocabularies than the model's.
        """
        return ranking_metrics(self.ranks(test), test.known(), k=tuple(k))

    def ranks(self, test: Interactions) -> Ranks:
        """Where each held-out item stands among all items its user has not seen.

        Args:
            test: held-out pairs over the model's vocabularies.

        Returns:
            Ranks in the order of `test.known().values`.

        Raises:
            ValueError: other vocabularies than the model's.
        """
        if not test.item_ids.equals(self.item_ids):
            raise ValueError("The data has another item vocabulary than the model; read it with `read_test`.")
        return count_ranks(self.query_vectors(test), self.item_vectors, test.known(), self.seen)

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

    def save(self, folder: Path) -> None:
        """Write weights, vocabularies and config; each file atomically, the config last.

        Args:
            folder: made if it is not there.

        Raises:
            OSError: no room, or no right to write.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        write_tensors(folder / WEIGHTS, tensors | {"items": self.item_vectors})
        catalogue = {"item": self.item_ids} | ({} if self.item_texts is None else {"text": self.item_texts})
        names = [WEIGHTS, ITEMS]
        with replacing(folder / ITEMS) as temporary:
            pl.DataFrame(catalogue).write_parquet(temporary)
        if self.user_ids is not None and self.seen is not None:
            with replacing(folder / USERS) as temporary:
                pl.DataFrame({"user": self.user_ids}).write_parquet(temporary)
            write_tensors(
                folder / SEEN, {"offsets": self.seen.offsets, "values": self.seen.values.to(torch.int32)}
            )
            names += [USERS, SEEN]
        content = {
            "format": FORMAT,
            "version": VERSION,
            "training": self.config.to_dict(),
            "encoder": self._encoder.settings() if self.item_texts is not None else {},
            "files": {name: _sha256(folder / name) for name in names},
        }
        write_json(folder / CONFIG, content)

    @classmethod
    def load(cls, folder: str | Path) -> Retriever:
        """Read a model folder; every file is checked against its hash, and nothing in it is executed.

        Args:
            folder: what `steelyard train` or `save` left.

        Returns:
            The retriever, which gives the answers of the one that was saved.

        Raises:
            FileNotFoundError: not a folder that `steelyard train` finished.
            ValueError: a file is damaged, foreign, or of another version.
        """
        folder = Path(folder).expanduser()
        content = _checked_config(folder)
        try:
            config = TrainConfig(**content["training"])
            tensors, _ = read_tensors(folder / WEIGHTS)
            catalogue = pl.read_parquet(folder / ITEMS)
            item_vectors = tensors.pop("items")
            state = {name.removeprefix("model/"): t for name, t in tensors.items()}
            user_ids, seen, texts = None, None, None
            if config.model == "mf":
                user_ids = pl.read_parquet(folder / USERS)["user"]
                rows, _ = read_tensors(folder / SEEN)
                seen = Ragged(rows["offsets"], rows["values"].long())
                encoder: Any = MatrixFactorization(
                    len(user_ids), len(catalogue), config.dim, cosine=config.similarity == "cosine"
                )
            else:
                texts = catalogue["text"]
                encoder = TextTowers(TextEncoder.from_settings(content["encoder"]))
            model = Model(encoder, config)
            model.load_state_dict(state)
            if item_vectors.shape[0] != len(catalogue):
                raise ValueError(f"{len(item_vectors)} item vectors for {len(catalogue)} items")
        except FileNotFoundError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
            raise ValueError(
                f"{folder} is not a model of this version of steelyard, or damaged ({type(error).__name__}: {error})."
            ) from None
        return cls(config, model, item_vectors, catalogue["item"], texts, user_ids, seen)


def _checked_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder; give the --out folder of a finished `steelyard train`."
        )
    content = read_json(folder / CONFIG)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{folder / CONFIG} was not written by `steelyard train`.")
    if content.get("version") != VERSION:
        raise ValueError(
            f"{folder} has format version {content.get('version')}; this steelyard reads {VERSION}."
        )
    if "files" not in content:
        raise FileNotFoundError(
            f"The training in {folder} is not finished; go on with `steelyard train ... --resume`."
        )
    for name, digest in content["files"].items():
        if name not in (WEIGHTS, ITEMS, USERS, SEEN):
            raise ValueError(f"{folder / CONFIG} names a foreign file {name!r}.")
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing; train again or copy the whole folder.")
        if _sha256(folder / name) != digest:
            raise ValueError(f"{folder / name} is damaged or not the one that was trained: its hash differs.")
    return content


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows_of(ids: Sequence[Any], vocabulary: pl.Series, kind: str) -> Tensor:
    """Row numbers of ids, each cast to the vocabulary's type."""
    if len(ids) == 0:
        raise ValueError(f"No {kind} was given.")
    asked = pl.Series("id", [str(x) for x in ids])
    if vocabulary.dtype != pl.String:
        asked = asked.cast(vocabulary.dtype, strict=False)
    table = pl.DataFrame({"id": vocabulary}).with_row_index("row")
    rows = pl.DataFrame({"id": asked}).join(table, on="id", how="left", maintain_order="left")["row"]
    if rows.null_count():
        missing = ids[rows.is_null().arg_true()[0]]
        close = _close(str(missing), vocabulary)
        hint = f"; close to it: {', '.join(close)}" if close else ""
        raise ValueError(f"Unknown {kind} {missing!r} among {len(vocabulary):,}{hint}.")
    return torch.from_numpy(rows.cast(pl.Int64).to_numpy().copy())


def _close(wanted: str, vocabulary: pl.Series) -> list[str]:
    """Ids that look alike, from those that begin alike where the vocabulary is large."""
    words = vocabulary.cast(pl.String)
    for length in (0, 1, 2, 3, 4):
        if len(words) <= CLOSE_MATCHES:
            break
        words = words.filter(words.str.starts_with(wanted[:length]))
    return difflib.get_close_matches(wanted, words.head(CLOSE_MATCHES).to_list(), n=3)
