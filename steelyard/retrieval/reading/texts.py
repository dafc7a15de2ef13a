"""Texts by id: the queries and the corpus of a retrieval collection."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from steelyard.retrieval.reading.sources import DAMAGE, PathLike, damaged, format_of, open_bytes, read_head

_IDS = (
    "_id",
    "id",
    "query_id",
    "query-id",
    "qid",
    "corpus_id",
    "corpus-id",
    "doc_id",
    "docid",
    "document_id",
    "pid",
)
_TEXTS = ("text", "query", "question", "document", "passage", "contents", "content", "body")


def read_texts(path: PathLike) -> pl.DataFrame:
    """Read ids with their texts, such as `queries.jsonl` and `corpus.jsonl` of BEIR.

    The id is the first of the columns _id, id, query-id, ...; the text is `text`, after `title` where there is
    one. gzip and zstd are unpacked.

    Args:
        path: JSONL, CSV, TSV or Parquet.

    Returns:
        Columns `id`, String, distinct, and `text`, String, in the order of the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no id or text column, an id that comes twice with different texts, an empty id, or a damaged
            file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} (looked from {Path.cwd()}).")
    frame = _read(path)
    identity, text = _first(frame, _IDS, path, "an id"), _first(frame, _TEXTS, path, "a text")
    body = pl.col(text).cast(pl.String).fill_null("")
    if "title" in frame.columns:
        title = pl.col("title").cast(pl.String).fill_null("")
        body = pl.concat_str([title, body], separator=" ")
    frame = frame.select(pl.col(identity).cast(pl.String).alias("id"), body.str.strip_chars().alias("text"))
    if frame["id"].null_count() or bool((frame["id"] == "").any()):
        row = int(frame.with_row_index().filter(pl.col("id").is_null() | (pl.col("id") == ""))["index"][0])
        raise ValueError(f"{path}: row {row + 1} has no {identity}.")
    frame = frame.unique(maintain_order=True)
    twice = frame.filter(pl.col("id").is_duplicated())
    if len(twice):
        raise ValueError(f"{path}: the id {twice['id'][0]!r} has two different texts.")
    return frame


def _read(path: Path) -> pl.DataFrame:
    format = format_of(path, read_head(path))
    try:
        if format == "parquet":
            return pl.read_parquet(path)
        with open_bytes(path) as stream:
            source = io.BytesIO(stream.read())
        if format == "jsonl":
            return pl.read_ndjson(source, infer_schema_length=10_000)
        separator = "\t" if format == "tsv" else ","
        return pl.read_csv(source, separator=separator, infer_schema=False)
    except (PolarsError, *DAMAGE) as error:
        if isinstance(error, PermissionError):
            raise
        raise ValueError(damaged(path, error)) from error


def _first(frame: pl.DataFrame, names: tuple[str, ...], path: Path, what: str) -> str:
    for name in names:
        if name in frame.columns:
            return name
    raise ValueError(
        f"{path}: no column looks like {what}; it has {', '.join(frame.columns[:20])}. Name it {names[0]}."
    )
