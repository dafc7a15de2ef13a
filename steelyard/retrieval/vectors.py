"""Vectors for mining: read from files, or made by a trained model, and put on one scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.retrieval.collection import Collection, rows_of
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.retriever import Retriever


def read_vectors(path: str | Path) -> Tensor:
    """Vectors of a `.npy` file, mapped and not read.

    Args:
        path: a NumPy file of float16, float32 or float64, (n, d).

    Returns:
        float32, (n, d).

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, shape or type.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} (looked from {Path.cwd()}).")
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is no NumPy array ({error}): write vectors with numpy.save.") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        shape = getattr(array, "shape", "several arrays")
        raise ValueError(
            f"{path} must hold floats (n, d), got {getattr(array, 'dtype', type(array).__name__)} {shape}."
        )
    return torch.from_numpy(np.asarray(array, dtype=np.float32))


def of_length_one(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Directions of vectors, and which have none.

        v <- v / |v|,   0 where |v| = 0

    Args:
        vectors: float, (n, d); not changed.

    Returns:
        Vectors of length 1 or 0, and a bool mask of the zero vectors, (n,).
    """
    largest = vectors.abs().amax(1, keepdim=True)
    far = (largest > 1e15) | ((largest < 1e-15) & (largest > 0))  # squares of such entries leave float32
    if bool(far.any()):
        vectors = torch.where(far, vectors / largest, vectors)
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / length.clamp(min=torch.finfo(vectors.dtype).tiny), length.squeeze(1) == 0


def without_zero_queries(collection: Collection, queries: Tensor, zero: Tensor) -> tuple[Collection, Tensor]:
    """The collection without the queries whose vector is zero: every document scores alike for them.

    Args:
        collection: queries and documents.
        queries: float, (Q, d).
        zero: bool, (Q,).

    Returns:
        The rest, and its vectors.

    Raises:
        ValueError: no query is left.
    """
    rows = (~zero).nonzero().squeeze(1)
    if len(rows) == 0:
        raise ValueError("All query vectors are zero: there is nothing to search by.")
    texts = collection.query_texts
    left = Collection(
        collection.positives.take(rows),
        collection.query_ids.gather(rows.numpy()),
        collection.document_ids,
        None if texts is None else texts.gather(rows.numpy()),
        collection.document_texts,
    )
    return left, queries[rows]


@torch.no_grad()
def by_model(
    model: Retriever, data: Interactions, say: Callable[[str], None] = lambda _: None
) -> tuple[Collection, Tensor, Tensor]:
    """The data's queries and the catalogue in the vectors of a trained model.

    The model knows its own catalogue and what its users took in training, which counts as positive too; pairs
    whose user or item it does not know are left out and counted.

    Args:
        model: what `steelyard train` left on ids.
        data: pairs.
        say: called with what was left out.

    Returns:
        Collection, query vectors and document vectors.

    Raises:
        ValueError: texts on either side, or the model knows none of the data.
    """
    if data.is_text or model.user_ids is None or model.seen is None:
        raise ValueError("A model of ids knows no texts: train one with --model text, or give --encoder.")
    users = rows_of(data.user_ids, model.user_ids)[data.users]
    items = rows_of(data.item_ids, model.item_ids)[data.items]
    known = (users >= 0) & (items >= 0)
    if data.weights is not None:
        known &= data.weights > 0
    if not bool(known.any()):
        raise ValueError("The model knows no pair of the data: was it trained on other ids?")
    if int((~known).sum()):
        say(f"{int((~known).sum()):,} pairs are unknown to the model or of weight 0; left out.")
    asked, place = torch.unique(users[known], return_inverse=True)
    seen = model.seen.take(asked)
    positives = Ragged.from_pairs(
        torch.cat([place, seen.row_index()]), torch.cat([items[known], seen.values]), len(asked)
    )
    collection = Collection(positives, model.user_ids.gather(asked.numpy()), model.item_ids)
    return collection, model.user_vectors(asked), model.item_vectors


def numbered(data: Interactions, queries: Tensor, documents: Tensor) -> tuple[Collection, Tensor]:
    """Pairs of row numbers into two files of vectors, as a collection over all documents.

    Args:
        data: pairs of integer ids.
        queries: float, (Q, d).
        documents: float, (I, d).

    Returns:
        The collection, and the vectors of the queries that have a positive.

    Raises:
        ValueError: ids that are no row numbers of the vectors.
    """
    given = Collection.of(data)
    for what, ids, vectors in (
        ("query", given.query_ids, queries),
        ("document", given.document_ids, documents),
    ):
        if ids.dtype != pl.Int64:
            raise ValueError(
                f"The {what} {ids[0]!r} is no row number: pairs that go with files of vectors name rows, or give "
                "--queries and --corpus, whose order is that of the vectors."
            )
        low, high = int(ids.to_numpy().min()), int(ids.to_numpy().max())
        if not 0 <= low <= high < len(vectors):
            raise ValueError(
                f"{what.capitalize()} numbers run from {low} to {high}, but there are {len(vectors):,} "
                f"{what} vectors: rows are counted from 0."
            )
    rows = torch.from_numpy(given.document_ids.to_numpy().copy())[given.positives.values]
    positives = Ragged.from_pairs(given.positives.row_index(), rows, len(given.positives))
    everything = pl.int_range(len(documents), eager=True).alias("document")
    return Collection(positives, given.query_ids, everything), queries[given.query_ids.to_list()]
