"""The layouts in which trainers read hard negatives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from steelyard.files import replacing

if TYPE_CHECKING:
    from steelyard.retrieval.collection import Collection

LAYOUTS = ("table", "triplet", "n-tuple", "labeled-pair", "labeled-list")


def arranged(parts: list[Path], collection: Collection, layout: str, n: int, path: Path) -> int:
    """Write the blocks of a mining job into one file, a block in memory at a time.

        table         query, negative (and their texts), rank, score, positive_score, log_expected
        triplet       anchor, positive, negative
        n-tuple       anchor, positive, negative_1, ..., negative_n; pairs whose query has fewer are left out
        labeled-pair  anchor, document, label
        labeled-list  anchor, documents, labels
        removed       query, document, rank, score, positive_score, reason

    Anchors, positives and negatives are texts where there are texts, else ids, as sentence-transformers'
    trainers read them. A query with several positives gives its negatives to each.

    Args:
        parts: the blocks, in their order.
        collection: ids and texts.
        layout: as above.
        n: negatives of a query at most.
        path: `.parquet` or `.jsonl`, replaced once it is whole.

    Returns:
        The number of rows written.

    Raises:
        OSError: no room to write.
    """
    rows = 0
    with replacing(path) as temporary:
        frames = _frames(parts, collection, layout, n)
        if path.suffix == ".jsonl":
            with open(temporary, "wb") as stream:
                for frame in frames:
                    frame.write_ndjson(stream)
                    rows += len(frame)
        else:
            writer = None
            try:
                for frame in frames:
                    table = frame.to_arrow()
                    writer = writer or pq.ParquetWriter(temporary, table.schema)
                    writer.write_table(table)
                    rows += len(frame)
            finally:
                if writer is not None:
                    writer.close()
    return rows


def _frames(parts: list[Path], collection: Collection, layout: str, n: int) -> Iterator[pl.DataFrame]:
    query_names = collection.query_texts if collection.query_texts is not None else collection.query_ids
    document_names = (
        collection.document_texts if collection.document_texts is not None else collection.document_ids
    )
    positives = pl.DataFrame(
        {
            "query": collection.positives.row_index().numpy(),
            "positive": collection.positives.values.numpy(),
        }
    )
    for part in parts:
        block = pl.read_parquet(part).with_columns(pl.col("reason").cast(pl.String))
        if layout == "removed":
            yield _named(block.filter(pl.col("reason") != "taken"), collection).drop("log_expected")
            continue
        block = block.filter(pl.col("reason") == "taken").drop("reason")
        if layout == "table":
            yield (
                _named(block, collection)
                .rename({"document": "negative"})
                .rename({"document_text": "negative_text"}, strict=False)
            )
            continue
        pairs = (
            block.select("query")
            .unique(maintain_order=True)
            .join(positives, on="query", maintain_order="left")
        )
        frame = _trained(block, pairs, layout, n)
        if layout == "labeled-list":
            yield _lists(frame, query_names, document_names)
            continue
        documents = [name for name in frame.columns if name not in ("anchor", "label")]
        yield frame.with_columns(
            query_names.gather(frame["anchor"]).alias("anchor"),
            *(document_names.gather(frame[name]).alias(name) for name in documents),
        )


def _trained(block: pl.DataFrame, pairs: pl.DataFrame, layout: str, n: int) -> pl.DataFrame:
    """One of the trainers' layouts in row numbers."""
    negatives = block.select("query", pl.col("document").alias("negative"))
    if layout == "triplet":
        return pairs.join(negatives, on="query", maintain_order="left_right").rename({"query": "anchor"})
    lists = negatives.group_by("query", maintain_order=True).agg("negative")
    joined = pairs.join(lists, on="query", maintain_order="left").rename({"query": "anchor"})
    if layout == "n-tuple":
        full = joined.filter(pl.col("negative").list.len() == n)
        return full.select(
            "anchor",
            "positive",
            *(pl.col("negative").list.get(i).alias(f"negative_{i + 1}") for i in range(n)),
        )
    documents = pl.concat_list(pl.col("positive").cast(pl.Int64), pl.col("negative")).alias("documents")
    length = pl.col("negative").list.len()
    labels = pl.concat_list(pl.lit(1, pl.Int64), pl.lit(0, pl.Int64).repeat_by(length)).alias("labels")
    listed = joined.select("anchor", documents, labels)
    if layout == "labeled-list":
        return listed
    return listed.explode("documents", "labels").rename({"documents": "document", "labels": "label"})


def _lists(frame: pl.DataFrame, query_names: pl.Series, document_names: pl.Series) -> pl.DataFrame:
    lengths = frame["documents"].list.len()
    flat = document_names.gather(frame["documents"].explode())
    row = np.repeat(np.arange(len(frame)), lengths.to_numpy().astype(np.int64))
    named = (
        pl.DataFrame({"row": row, "documents": flat}).group_by("row", maintain_order=True).agg("documents")
    )
    return pl.DataFrame(
        {
            "anchor": query_names.gather(frame["anchor"]),
            "documents": named["documents"],
            "labels": frame["labels"],
        }
    )


def _named(block: pl.DataFrame, collection: Collection) -> pl.DataFrame:
    """Row numbers replaced by ids, and texts beside them where a text is not the id."""
    query, document = block["query"], block["document"]
    columns = [
        pl.Series("query", collection.query_ids.gather(query)),
        pl.Series("document", collection.document_ids.gather(document)),
        *(block[name] for name in block.columns if name not in ("query", "document")),
    ]
    for name, rows, ids, texts in (
        ("query_text", query, collection.query_ids, collection.query_texts),
        ("document_text", document, collection.document_ids, collection.document_texts),
    ):
        if texts is not None and not texts.equals(ids):
            columns.append(pl.Series(name, texts.gather(rows)))
    return pl.DataFrame(columns)
