"""Drawn rows copied out as they stand in the corpus, and their weights beside them."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from steelyard.files import replacing
from steelyard.selection.corpus import Block
from steelyard.selection.reading import fetch, fetch_rows

WEIGHTS = "weights.parquet"
SHARD = 2**28
"""Bytes of a shard of text, before compression, about."""
ENDINGS = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", None: ""}


def write_selected(
    folder: Path, blocks: Sequence[Block], rows: NDArray[Any], *, shard: int = SHARD
) -> tuple[list[str], NDArray[np.int32], NDArray[np.int64]]:
    """Copy rows into shards of the formats they came in, in the order of the corpus.

    Args:
        folder: where the shards go; made anew.
        blocks: of the corpus.
        rows: of type `ROW`, ordered by block and line.
        shard: bytes of a shard, about.

    Returns:
        Names of the shards, and of each row its shard and its place in it.

    Raises:
        ValueError: a file was changed meanwhile.
        OSError: no room to write.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    shards = _Shards(part, shard)
    which, place = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    at = 0
    try:
        for block, content in contents(blocks, rows):
            if isinstance(content, list):
                for line in content:
                    which[at], place[at] = shards.add_line(line, block.kind, block.compression)
                    at += 1
            else:
                end = at + len(content)
                which[at:end], first = shards.add_table(content)
                place[at:end] = np.arange(first, first + len(content))
                at = end
        shards.close()
    except OSError as error:
        shards.abandon()
        shutil.rmtree(part, ignore_errors=True)
        raise OSError(
            error.errno,
            f"the rows drawn could not be copied to {folder} ({error.strerror or error}); free some "
            "space and --resume",
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
    return shards.names, which, place


class _Shards:
    """Open shards, one of each format, and the names of all."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.names: list[str] = []
        self._lines: dict[tuple[str, str | None], tuple[Any, int, list[int]]] = {}
        self._table: tuple[Any, int, list[int]] | None = None

    def add_line(self, content: bytes, kind: str, compression: str | None) -> tuple[int, int]:
        key = kind, compression
        if key in self._lines and self._lines[key][2][1] >= self.size:
            self._lines.pop(key)[0].close()
        if key not in self._lines:
            name = f"part-{len(self.names):05d}.{'jsonl' if kind == 'jsonl' else 'txt'}{ENDINGS[compression]}"
            self.names.append(name)
            stream = pa.output_stream(str(self.folder / name), compression=compression, buffer_size=2**20)
            self._lines[key] = stream, len(self.names) - 1, [0, 0]
        stream, number, state = self._lines[key]
        stream.write(content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r") + b"\n")
        state[0] += 1
        state[1] += len(content)
        return number, state[0] - 1

    def add_table(self, table: pa.Table) -> tuple[int, int]:
        if self._table is not None and (
            self._table[2][1] >= self.size or self._table[0].schema != table.schema
        ):
            self._table[0].close()
            self._table = None
        if self._table is None:
            name = f"part-{len(self.names):05d}.parquet"
            self.names.append(name)
            writer = pq.ParquetWriter(self.folder / name, table.schema)
            self._table = writer, len(self.names) - 1, [0, 0]
        writer, number, state = self._table
        writer.write_table(table)
        first = state[0]
        state[0] += len(table)
        state[1] += table.nbytes
        return number, first

    def close(self) -> None:
        for stream, _, _ in self._lines.values():
            stream.close()
        if self._table is not None:
            self._table[0].close()

    def abandon(self) -> None:
        for each in [*self._lines.values(), *([self._table] if self._table else [])]:
            try:
                each[0].close()
            except OSError:
                continue


def write_weights(
    path: Path,
    blocks: Sequence[Block],
    rows: NDArray[Any],
    first_lines: NDArray[np.int64],
    log_probability: NDArray[np.float64],
    shards: tuple[list[str], NDArray[np.int32], NDArray[np.int64]],
) -> None:
    """Write where each drawn row stands, its score, its probability and its weight.

        log_weight = log w - log probability, less a constant: the mean weight is 1

    Args:
        path: of the Parquet file.
        blocks: of the corpus.
        rows: of type `ROW`.
        first_lines: line of its file with which each block begins, (blocks,).
        log_probability: log inclusion probability of each row.
        shards: as `write_selected` gave them.

    Raises:
        OSError: no room to write.
    """
    names, which, place = shards
    files = np.array([b.path for b in blocks])
    log_weight = rows["log_w"] - log_probability
    log_weight -= np.logaddexp.reduce(log_weight) - np.log(max(len(rows), 1)) if len(rows) else 0.0
    frame = pl.DataFrame(
        {
            "file": pl.Series(files[rows["block"]].tolist(), dtype=pl.Categorical),
            "line": first_lines[rows["block"]] + rows["line"],
            "score": rows["score"],
            "log_inclusion": log_probability,
            "log_weight": log_weight,
            "tokens": rows["tokens"],
            "copies": rows["copies"],
            "shard": pl.Series([names[s] for s in which], dtype=pl.Categorical),
            "row": place,
        }
    )
    with replacing(path) as temporary:
        frame.write_parquet(temporary)


def lines_of(blocks: Sequence[Block], lines: Sequence[int]) -> NDArray[np.int64]:
    """The line of its file with which each block begins, from the number of lines of each block."""
    first, counted = np.zeros(len(blocks), np.int64), dict[int, int]()
    for k, (block, count) in enumerate(zip(blocks, lines, strict=True)):
        first[k] = counted.get(block.file, 0)
        counted[block.file] = int(first[k]) + count
    return first


def contents(blocks: Sequence[Block], rows: NDArray[Any]) -> Iterator[tuple[Block, list[bytes] | pa.Table]]:
    """What stands in the corpus at some rows, a block at a time.

    Args:
        blocks: of the corpus.
        rows: of type `ROW`, ordered by block and line.
    """
    bounds = np.flatnonzero(np.diff(rows["block"], prepend=-1, append=len(blocks)))
    for begin, end in itertools.pairwise(bounds):
        block, lines = blocks[rows["block"][begin]], rows["line"][begin:end]
        if block.kind == "parquet":
            yield block, fetch_rows(block, lines)
        else:
            yield block, [content for _, content in fetch(block, lines)]
