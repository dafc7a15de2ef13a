"""CSV, TSV, JSONL and Parquet files as frames with one column a role."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from steelyard.retrieval.reading.columns import assign_roles, has_header, roles_by_place
from steelyard.retrieval.reading.faults import bad_bytes, explain
from steelyard.retrieval.reading.fields import collect_fields

LEAST_TIME = 1e8
_INFER_ROWS = 1000


@dataclass(frozen=True)
class Table:
    """The columns of one file that play a role.

    Args:
        frame: one column a role, named by it: ids Int64 or String, null or "" where empty; `weight`
            Float64; `time` Int64 or Float64.
        columns: role -> name in the file.
        notes: what was guessed.
        format: as in `Reading`.
    """

    frame: pl.DataFrame
    columns: dict[str, str]
    notes: list[str]
    format: str


@dataclass(frozen=True)
class Wanted:
    """What a person said of the columns.

    Args:
        kind: "ids" or "text".
        columns: role -> column, as far as it was named.
        preferred: role -> column to take before the usual names, if it is there.
    """

    kind: str
    columns: Mapping[str, str]
    preferred: Mapping[str, str]

    def roles(self, names: list[str], path: Path) -> dict[str, str]:
        """Role -> column, out of the columns that a file has."""
        return assign_roles(names, self.kind, self.columns, str(path), self.preferred)


def read_table(path: Path, head: bytes, format: str, wanted: Wanted) -> Table:
    """Read the columns of one file that play a role; the others are not kept in memory.

    Args:
        path: the file.
        head: its first bytes, unpacked.
        format: "csv", "tsv", "jsonl" or "parquet".
        wanted: the kind of data and what was said of its columns.

    Returns:
        The table, rows in the order of the file, none dropped.

    Raises:
        ValueError: a column is missing or of the wrong type, a value is not legal, or the file is damaged;
            the message says where, and what mends it.
    """
    separator = ""
    try:
        if format == "parquet":
            lazy, roles, notes = _scan_parquet(path, wanted)
        elif format == "jsonl":
            lazy, roles, notes = _scan_jsonl(path, wanted)
        else:
            separator, cells = _first_row(path, head, format)
            lazy, roles, notes = _scan_csv(path, separator, cells, wanted)
        lazy = lazy.select(pl.col(name).alias(role) for role, name in roles.items())
        frame, found = collect_fields(lazy, format == "parquet", path)
    except PermissionError:
        raise
    except (PolarsError, OSError) as error:
        raise ValueError(explain(path, format, separator, error)) from error
    return Table(frame, roles, notes + found, format)


def _scan_parquet(path: Path, wanted: Wanted) -> tuple[pl.LazyFrame, dict[str, str], list[str]]:
    lazy = pl.scan_parquet(path, glob=False)
    return lazy, wanted.roles(lazy.collect_schema().names(), path), []


def _scan_jsonl(path: Path, wanted: Wanted) -> tuple[pl.LazyFrame, dict[str, str], list[str]]:
    schema = pl.scan_ndjson(path, infer_schema_length=_INFER_ROWS).collect_schema()
    nested = [name for name, dtype in schema.items() if dtype.is_nested()]
    flat = [name for name in schema.names() if name not in nested]
    try:
        roles = wanted.roles(flat, path)
    except ValueError as error:
        if not nested:
            raise
        raise ValueError(
            f"{error} {path.name} also has {', '.join(nested[:5])}, which hold lists or objects; "
            "write one flat line for each pair first."
        ) from error
    return pl.scan_ndjson(path, schema=dict.fromkeys(roles.values(), pl.String)), roles, []


def _scan_csv(
    path: Path, separator: str, cells: list[str], wanted: Wanted
) -> tuple[pl.LazyFrame, dict[str, str], list[str]]:
    header = has_header(cells, wanted.kind, wanted.columns)
    names = cells if header else [f"column_{place}" for place in range(1, len(cells) + 1)]
    notes = []
    if header or wanted.columns:
        roles = wanted.roles(names, path)
    else:
        roles = roles_by_place(len(cells), times=len(cells) == 3 and float(cells[2]) >= LEAST_TIME)
        notes.append(note_of_places(path, roles))
    lazy = pl.scan_csv(
        path,
        separator=separator,
        has_header=header,
        new_columns=None if header else names,
        infer_schema=False,
        glob=False,
    )
    return lazy, roles, notes


def note_of_places(path: Path, roles: Mapping[str, str]) -> str:
    """What to say of a file whose columns were told by their places."""
    layout = ", ".join(f"{role} = {name}" for role, name in roles.items())
    return f"{path.name} has no header; its columns were taken as {layout}; name them if that is wrong."


def _first_row(path: Path, head: bytes, format: str) -> tuple[str, list[str]]:
    """The separator and the cells of the first line."""
    line = head.decode("utf-8-sig", errors="replace").split("\n", 1)[0].rstrip("\r")
    if "\ufffd" in line or "\0" in line:
        raise ValueError(bad_bytes(path) or f"{path} holds zero bytes; it is no text in UTF-8.")
    if not line.strip():
        raise ValueError(f"{path}: the first line is blank. Remove it; a header or a row must come first.")
    if "::" in line:
        raise ValueError(f"{path} separates by '::', two characters. Make it a tab: sed 's/::/\\t/g'.")
    marks = "\t,;| " if format == "tsv" else ",\t;| "
    separator = next((mark for mark in marks if mark in line), None)
    if separator is None:
        raise ValueError(
            f"{path} has one column only; its first line is {line[:60]!r}. At least two are needed, "
            "separated by comma, tab, semicolon, bar or blank."
        )
    return separator, next(csv.reader([line], delimiter=separator))
