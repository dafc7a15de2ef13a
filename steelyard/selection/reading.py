"""The rows of a block: read as texts, and fetched again as they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from steelyard.selection.corpus import BLOCK, Block, Kind, check_unchanged

_MARK = b"\xef\xbb\xbf"


@dataclass
class Piece:
    """Rows of a block, as far as they can be read.

    Args:
        texts: Arrow strings, one a row that has a text.
        lines: int64, (rows,): the line of each in its block (of Parquet: the row), from 0.
        n_lines: lines so far, whatever they hold.
        faults: what was wrong with other lines: how many of each kind.
        examples: first three of them: line, kind and what stands there.
    """

    texts: pa.Array
    lines: NDArray[np.int64]
    n_lines: int
    faults: dict[str, int] = field(default_factory=dict)
    examples: list[tuple[int, str, str]] = field(default_factory=list)

    def fault(self, line: int, kind: str, content: bytes | str = b"") -> None:
        """Count a line that cannot be used as it is."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if len(self.examples) < 3:
            shown = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
            self.examples.append((line, kind, shown[:120]))


def read(block: Block, text_field: str, digest: Any = None) -> Iterator[Piece]:
    """The texts of a block, in pieces that fit in memory.

    Args:
        block: what to read.
        text_field: name of the field with the text; of no use for plain text.
        digest: a `hashlib` object that is told all that is read.

    Yields:
        Pieces in the order of the lines; every line of the block is in one.

    Raises:
        ValueError: the file was changed since it was cut, cannot be decompressed, or has no such column.
    """
    check_unchanged(block)
    if block.kind == "parquet":
        yield from _read_parquet(block, text_field, digest)
        return
    first = 0
    for data in _contents(block):
        if digest is not None:
            digest.update(data)
        starts, ends = line_bounds(data)
        reads = _parse_text if block.kind == "text" else _parse_json
        begin = len(_MARK) if block.start == 0 and first == 0 and data.startswith(_MARK) else 0
        if begin:
            starts[0] = begin
        piece = reads(data, starts, ends, first, text_field)
        yield piece
        first = piece.n_lines


def fetch(block: Block, lines: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """The bytes of some lines of a block, without the break at their end, as they stand in the file.

    Args:
        block: of text or JSONL.
        lines: int64, ascending: lines of the block, from 0.

    Yields:
        Line and content, in their order.

    Raises:
        ValueError: the file was changed since it was cut.
    """
    check_unchanged(block)
    first, at = 0, 0
    for data in _contents(block):
        if at == len(lines):
            return
        starts, ends = line_bounds(data)
        while at < len(lines) and lines[at] < first + len(starts):
            here = int(lines[at]) - first
            yield int(lines[at]), data[starts[here] : ends[here]]
            at += 1
        first += len(starts)


def fetch_rows(block: Block, rows: NDArray[np.int64]) -> pa.Table:
    """Some rows of a Parquet block, with all their columns.

    Args:
        block: of Parquet.
        rows: int64, ascending: rows of the block, from 0.

    Raises:
        ValueError: the file was changed since it was cut.
    """
    import pyarrow.parquet as pq

    check_unchanged(block)
    taken, first = [], 0
    with pq.ParquetFile(block.path) as file:
        for group in range(block.start, block.stop):
            size = file.metadata.row_group(group).num_rows
            inside = rows[(rows >= first) & (rows < first + size)] - first
            if len(inside):
                taken.append(_taken(file.read_row_group(group), inside))
            first += size
        return pa.concat_tables(taken) if taken else file.schema_arrow.empty_table()


def _taken(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    try:
        return table.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # columns of a type that Arrow cannot take from, such as string views
        return pa.concat_tables([table.slice(int(row), 1) for row in rows])


def texts_of(kind: Kind, lines: Sequence[bytes], text_field: str) -> list[str]:
    """The texts of lines that `fetch` gave: those with a text, in their order."""
    if not lines:
        return []
    data = b"\n".join(line.removeprefix(_MARK) for line in lines) + b"\n"
    starts, ends = line_bounds(data)
    piece = (_parse_text if kind == "text" else _parse_json)(data, starts, ends, 0, text_field)
    return [bytes(t.as_buffer()).decode("utf-8", "replace") for t in piece.texts]


def line_bounds(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each line starts and ends, its break left out."""
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    ends = breaks if data.endswith(b"\n") or not data else np.append(breaks, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64) if len(ends) else ends.astype(np.int64)
    return starts, ends.astype(np.int64)


def _contents(block: Block) -> Iterator[bytes]:
    """The bytes of a block in runs of whole lines."""
    if block.compression:
        try:
            with pa.input_stream(block.path, compression=block.compression) as stream:
                yield from _whole_lines(stream)
        except OSError as error:
            raise ValueError(
                f"{block.path} cannot be decompressed: {error}. Is it whole, and is it {block.compression}?"
            ) from None
        return
    with open(block.path, "rb") as file:
        if block.start:
            file.seek(block.start - 1)
            file.readline()  # the line that began before belongs to the block before
        begin = file.tell()
        if begin >= block.stop:
            return
        data = file.read(block.stop - begin)
        yield data if data.endswith(b"\n") else data + file.readline()


def _whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    while data := stream.read(BLOCK):
        end = data.rfind(b"\n") + 1
        if end == 0:
            rest.append(data)
            continue
        yield b"".join([*rest, data[:end]])
        rest = [data[end:]]
    if last := b"".join(rest):
        yield last


def _filled(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lines that hold more than white space."""
    content = np.frombuffer(data, np.uint8)
    lengths = ends - starts
    first = np.zeros(len(starts), np.uint8)
    first[lengths > 0] = content[starts[lengths > 0]]
    filled = first > 32
    for line in np.flatnonzero(~filled & (lengths > 0)):
        filled[line] = bool(data[starts[line] : ends[line]].strip())
    return np.flatnonzero(filled)


def _parse_text(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], first: int, _: str) -> Piece:
    """A row a line; a carriage return before the break is none of it."""
    rows = _filled(data, starts, ends)
    ends = ends.copy()
    ends[rows] -= np.frombuffer(data, np.uint8)[ends[rows] - 1] == 13
    keep = np.zeros(len(data) + 1, np.int8)
    np.add.at(keep, starts[rows], 1)
    np.add.at(keep, ends[rows], -1)
    content = np.frombuffer(data, np.uint8)[np.cumsum(keep[:-1], dtype=np.int8).astype(bool)]
    bounds = np.concatenate([[0], np.cumsum(ends[rows] - starts[rows])]).astype(np.int64)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)
    return Piece(texts, rows + first, first + len(starts))


def _parse_json(
    data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], first: int, text_field: str
) -> Piece:
    """An object a line, read all at once; where that fails, in halves, until the lines at fault stand alone."""
    rows = _filled(data, starts, ends)
    piece = Piece(None, rows, first + len(starts))
    schema = {text_field: pl.String}
    parts: list[pl.Series] = []
    lines: list[NDArray[np.int64]] = []
    waiting = [rows] if len(rows) else []
    while waiting:
        part = waiting.pop()
        here = data[starts[part[0]] : ends[part[-1]]]
        column = _column(here, schema)
        if column is not None and len(column) == len(part):
            parts.append(column)
            lines.append(part)
        elif len(part) > 1:
            waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
        else:
            line = first + int(part[0])
            mended = _column(here.decode("utf-8", "replace").encode(), schema)
            if mended is None or len(mended) != 1:
                piece.fault(line, "malformed JSON", here)
            else:
                piece.fault(line, "invalid UTF-8, read with replacements", here)
                parts.append(mended)
                lines.append(part)
    column = pl.concat(parts) if parts else pl.Series(text_field, [], pl.String)
    taken = np.concatenate(lines) if lines else rows[:0]
    missing = column.is_null().to_numpy()
    for line in taken[missing]:
        piece.fault(
            first + int(line), f"no {text_field}", data[starts[line] : min(ends[line], starts[line] + 200)]
        )
    piece.lines = first + taken[~missing]
    piece.texts = column.drop_nulls().to_arrow(compat_level=pl.CompatLevel.oldest())
    return piece


def _column(data: bytes, schema: dict[str, Any]) -> pl.Series | None:
    try:
        return pl.read_ndjson(data, schema=schema).to_series()
    except (pl.exceptions.PolarsError, OSError):
        return None


def _read_parquet(block: Block, text_field: str, digest: Any) -> Iterator[Piece]:
    import pyarrow.parquet as pq

    first = 0
    with pq.ParquetFile(block.path) as file:
        names = file.schema_arrow.names
        if text_field not in names:
            raise ValueError(
                f"{block.path} has no column {text_field!r}, only {', '.join(names)}; give --text-field."
            )
        if names.count(text_field) > 1:
            raise ValueError(
                f"{block.path} has {names.count(text_field)} columns {text_field!r}; rename all but one."
            )
        stored = file.schema_arrow.field(text_field).type
        kind = stored.value_type if pa.types.is_dictionary(stored) else stored
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise ValueError(
                f"The column {text_field!r} of {block.path} holds {stored}, not strings; give --text-field another "
                "column, or store it as strings."
            )
        groups = list(range(block.start, block.stop))
        for batch in file.iter_batches(4096, row_groups=groups, columns=[text_field]):
            column = batch.column(0)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            column = column.cast(pa.large_string())
            missing = column.is_null().to_numpy(zero_copy_only=False)
            piece = Piece(column.drop_null(), first + np.flatnonzero(~missing), first + len(column))
            for row in np.flatnonzero(missing):
                piece.fault(first + int(row), f"no {text_field}")
            if digest is not None:
                for buffer in piece.texts.buffers()[1:]:
                    digest.update(buffer or b"")
            yield piece
            first += len(column)
