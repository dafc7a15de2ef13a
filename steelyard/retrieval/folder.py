"""Reading a model folder: every file checked against its hash, every size against the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import torch
from torch import Tensor

from steelyard.files import read_json, read_tensors
from steelyard.ragged import Ragged
from steelyard.retrieval.adapters import VectorTowers
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.factors import MatrixFactorization
from steelyard.retrieval.objective import Model
from steelyard.retrieval.sequences import SequenceModel
from steelyard.retrieval.text import TextEncoder
from steelyard.retrieval.towers import TextTowers

CONFIG, WEIGHTS, ITEMS, USERS, SEEN = (
    "config.json",
    "model.safetensors",
    "items.parquet",
    "users.parquet",
    "seen.safetensors",
)
FILES = {"ids": (WEIGHTS, ITEMS, USERS, SEEN), "texts": (WEIGHTS, ITEMS)}
FORMAT = "steelyard-retriever"
VERSION = 1

Parts: TypeAlias = tuple[
    TrainConfig, Model, Tensor, pl.Series, pl.Series | None, pl.Series | None, Ragged | None
]


def read_folder(folder: Path) -> Parts:
    """What a model folder holds. Nothing in it is executed, and no table is made before its size is known to fit.

    Args:
        folder: what a finished training left.

    Returns:
        The fields of a `Retriever` in their order.

    Raises:
        FileNotFoundError: no such folder, a file of it is missing, or the training is not finished.
        ValueError: a file is damaged, foreign, of another version, or does not fit the others.
    """
    content = _content(folder)
    with _faults_of(folder):
        config = TrainConfig(**{"loss": "softmax"} | content["training"])  # older models name no loss
        encoder = content.get("encoder", {})  # names what makes vectors of texts; ids have none
        texts = config.model == "text" or (config.model == "vectors" and bool(encoder))
    _check_files(folder, content["files"], FILES["texts" if texts else "ids"])
    with _faults_of(folder):
        catalogue = pl.read_parquet(folder / ITEMS)
        item_ids, item_texts, user_ids, seen = _ids(catalogue, "item"), None, None, None
        if not texts:
            user_ids = _ids(pl.read_parquet(folder / USERS), "user")
            seen = _seen(folder / SEEN, len(user_ids), len(item_ids))
        else:
            item_texts = catalogue["text"]
            if item_texts.dtype != pl.String:
                raise ValueError(f"the texts in {ITEMS} are {item_texts.dtype}, not text")
        n_users = 0 if user_ids is None else len(user_ids)
        model = _empty_model(config, encoder, n_users, len(item_ids))
        tensors, _ = read_tensors(folder / WEIGHTS)
        shapes = {f"model/{name}": t.shape for name, t in model.state_dict().items()}
        _check_tensors(tensors, shapes | {"items": torch.Size((len(item_ids), config.dim))})
        item_vectors = tensors.pop("items")
        model.load_state_dict({name.removeprefix("model/"): t for name, t in tensors.items()}, assign=True)
    return config, model, item_vectors, item_ids, item_texts, user_ids, seen


def sha256(path: Path) -> str:
    """Hash of a file's content, 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _faults_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, pl.exceptions.PolarsError) as e:
        raise ValueError(
            f"{folder} is not a model of this version of steelyard, or damaged ({type(e).__name__}: {e})."
        ) from None


def _content(folder: Path) -> dict[str, Any]:
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
    return content


def _check_files(folder: Path, hashes: object, names: tuple[str, ...]) -> None:
    if not isinstance(hashes, dict) or set(hashes) != set(names):
        raise ValueError(
            f"{folder / CONFIG} must give the hashes of exactly {', '.join(names)}, got {hashes!r:.200}; "
            "train again or copy the folder anew."
        )
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing; train again or copy the whole folder.")
        if sha256(folder / name) != hashes[name]:
            raise ValueError(f"{folder / name} is damaged or not the one that was trained: its hash differs.")


def _ids(table: pl.DataFrame, column: str) -> pl.Series:
    ids = table[column]
    if ids.null_count() or ids.n_unique() != len(ids):
        raise ValueError(f"the {column} ids are not distinct, or some are missing")
    return ids


def _seen(path: Path, n_users: int, n_items: int) -> Ragged:
    tensors, _ = read_tensors(path)
    if tensors["values"].dtype != torch.int32:
        raise ValueError(f"the values in {SEEN} are {tensors['values'].dtype}, not int32")
    seen = Ragged(tensors["offsets"], tensors["values"].long())
    if len(seen) != n_users:
        raise ValueError(f"{SEEN} has {len(seen)} rows for {n_users} users")
    if len(seen.values) and not (0 <= int(seen.values.min()) <= int(seen.values.max()) < n_items):
        raise ValueError(f"{SEEN} names items outside [0, {n_items})")
    same_user = seen.row_index().diff() == 0
    if bool((seen.values.diff()[same_user] <= 0).any()):
        raise ValueError(f"{SEEN} has rows that do not rise")
    return seen


def _empty_model(config: TrainConfig, encoder: dict[str, Any], n_users: int, n_items: int) -> Model:
    """A model of the config's shape that takes no memory."""
    with torch.device("meta"):
        if config.model == "mf":
            cosine = config.similarity == "cosine"
            return Model(MatrixFactorization(n_users, n_items, config.dim, cosine=cosine), config)
        if config.model == "sequence":
            return Model(SequenceModel.of(config, n_items, n_states=n_users), config)
        if config.model == "vectors":
            if encoder and (
                set(encoder) != {"name", "fingerprint"} or not all(map(_is_text, encoder.values()))
            ):
                raise ValueError(f"a sentence encoder has a name and a fingerprint, got {encoder!r:.200}")
            towers = VectorTowers(
                config.dim, config.adapter, config.adapt, made_by=encoder, n_queries=n_users
            )
            return Model(towers, config)
        text = TextEncoder.from_settings(encoder)
        if text.dim != config.dim:
            raise ValueError(f"the encoder has {text.dim} dimensions, the training {config.dim}")
        return Model(TextTowers(text), config)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    if set(tensors) != set(shapes):
        raise ValueError(f"{WEIGHTS} holds {', '.join(tensors)}; {', '.join(shapes)} were expected")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or tensor.shape != shapes[name]:
            raise ValueError(
                f"{name} in {WEIGHTS} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"float32 {tuple(shapes[name])} was expected"
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} in {WEIGHTS} holds NaN or infinite values")
