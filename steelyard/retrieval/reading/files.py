"""Read interactions and (query, document) pairs from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.reading.adjacency import Ints, NotANumber, NumberLines, read_numbers
from steelyard.retrieval.reading.assembling import Rows, all_new, from_ids, from_texts
from steelyard.retrieval.reading.columns import check_roles, roles_by_place
from steelyard.retrieval.reading.fields import check_numbers
from steelyard.retrieval.reading.sources import DAMAGE, PathLike, damaged, find_files, format_of, read_head
from steelyard.retrieval.reading.tables import LEAST_TIME, Table, Wanted, note_of_places, read_table

FORMATS = ("auto", "csv", "tsv", "parquet", "jsonl", "adjacency", "sessions")
_SIDES = {"ids": ("user", "item"), "text": ("query", "document")}


def read_interactions(
    paths: PathLike | Sequence[PathLike],
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    kind: str = "ids",
    repeats: bool = False,
) -> Interactions:
    """Read who took what, or which document answers which query.

    A repeated (user, item) pair is kept once unless `repeats` keeps all: the earliest if there are times, else
    the first in the files; weights are not added up. Rows without a user or an item are dropped. `reading` counts both.
    Ids stay as they are written: integers become Int64, all others String, zero-padded numbers included.
    Memory grows with the rows and the vocabularies alone: the files are streamed.

    Args:
        paths: files, or folders whose readable files are all read in the order of their names. gzip and zstd
            are unpacked.
        format: "auto" looks at the first bytes. "adjacency" is `user item item ...` a line; "sessions" is one
            session a line, whose number from 1 on is its user.
        columns: role -> column, for the roles user, item, weight, time (kind "ids") or query, document, item
            (kind "text"); the others are found by their usual names. "" leaves a role out. Without `item`
            the text of a document is its id.
        kind: "ids" or "text".
        repeats: of ids: keep each time that a user took an item.

    Returns:
        The interactions, with ids in rising order in the vocabularies.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: nothing to read, a column that is not there, an illegal id, weight or time, or a damaged
            file; the message says where, and what mends it.
    """
    rows = _read_rows(paths, format, Wanted(kind, dict(columns or {}), {}), train_format="")
    rows = rows.without_empty(*_SIDES[kind])
    if len(rows.frame) == 0:
        raise ValueError(f"{', '.join(rows.files)}: no row names both {' and '.join(_SIDES[kind])}.")
    return from_texts(rows, None) if kind == "text" else from_ids(rows, None, repeats=repeats)


def read_test(
    paths: PathLike | Sequence[PathLike],
    train: Interactions,
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    new_users: bool = False,
    repeats: bool = False,
) -> Interactions:
    """Read held-out pairs in the vocabularies of the training data.

    Rows with a user or an item that the training data does not know are dropped and counted. A query may be
    new: text data keeps a user vocabulary of its own, and only its documents must be known. So do, with
    `new_users`, test histories none of whose users training knows, and numbered sessions.

    Args:
        paths: as in `read_interactions`.
        train: the training data; it tells the kind, the columns to look for first, and the layout of lines
            of numbers.
        format: as in `read_interactions`.
        columns: as in `read_interactions`.
        new_users: for a model of sequences, which can be asked about histories that training never saw.
        repeats: as in `read_interactions`.

    Returns:
        The test pairs; `item_ids`, and for ids `user_ids`, are those of `train`.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: as in `read_interactions`, or no row is known to the training data, or its users are
            sessions, which never come back.
    """
    if train.reading.format == "sessions" and not new_users:
        raise ValueError(
            "The users of the training data are numbered sessions, and no test session is one of them. The model "
            "sequence can be asked about new sessions; for others split the training sessions (leave-last-out), or "
            "write rows with a user column."
        )
    kind = "text" if train.is_text else "ids"
    trained = train.reading.columns
    preferred = {role: trained[role] for role in ("item", *_SIDES[kind]) if role in trained}
    rows = _read_rows(paths, format, Wanted(kind, dict(columns or {}), preferred), train.reading.format)
    if train.is_text and ("item" in trained) != ("item" in rows.frame.columns):
        raise ValueError(
            "The documents of the training data and of the test must both have ids, or both none. "
            "Name the column in both with item=NAME, or in neither."
        )
    rows = rows.without_empty(*_SIDES[kind])
    if len(rows.frame) == 0:
        raise ValueError(f"{', '.join(rows.files)}: no row names both {' and '.join(_SIDES[kind])}.")
    if train.is_text:
        return from_texts(rows, train)
    own_users = new_users and (train.reading.format == "sessions" or all_new(rows, train.user_ids))
    return from_ids(rows, train, own_users=own_users, repeats=repeats)


def _read_rows(paths: PathLike | Sequence[PathLike], format: str, wanted: Wanted, train_format: str) -> Rows:
    """All rows of all files; ids are integers only if they are in every file."""
    if format not in FORMATS:
        raise ValueError(f"Unknown format {format!r}; there are {', '.join(FORMATS)}.")
    check_roles(wanted.columns, wanted.kind)
    files, notes = find_files(paths)
    tables: list[Table] = []
    sessions = 0
    for path in files:
        table = _read_file(path, format, wanted, train_format, sessions)
        if tables and (table.format, list(table.columns)) != (tables[0].format, list(tables[0].columns)):
            raise ValueError(
                f"{files[0]} is {_layout_of(tables[0])}, {path} is {_layout_of(table)}. "
                "Read files of one layout together, or name the format and the columns."
            )
        if table.format == "sessions":
            sessions = int(table.frame["user"].max() or 0)  # type: ignore[arg-type]
        tables.append(table)
    frame = tables[0].frame if len(tables) == 1 else pl.concat(_alike([table.frame for table in tables]))
    notes += [note for table in tables for note in table.notes]
    names = [str(path) for path in files]
    return Rows(frame, names, tables[0].format, tables[0].columns, len(frame), {}, notes)


def _layout_of(table: Table) -> str:
    return f"{table.format} with {', '.join(table.columns)}" if table.columns else table.format


def _alike(frames: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Frames with equal types: text where one file has text, floats where one has floats."""
    rising: list[pl.DataType] = [pl.Int64(), pl.Float64(), pl.String()]
    widest = {
        name: rising[max(rising.index(frame.schema[name]) for frame in frames)] for name in frames[0].columns
    }
    return [frame.cast(widest) for frame in frames]  # type: ignore[arg-type]


def _read_file(path: Path, format: str, wanted: Wanted, train_format: str, sessions: int) -> Table:
    head = read_head(path)
    found = format_of(path, head) if format == "auto" else format
    if found not in ("numbers", "adjacency", "sessions"):
        return read_table(path, head, found, wanted)
    if wanted.kind == "text":
        raise ValueError(f"{path} holds numbers only; give queries and documents as CSV, Parquet or JSONL.")
    if wanted.columns and format == "auto":
        return read_table(path, head, "csv", wanted)
    try:
        lines = read_numbers(path)
    except NotANumber:
        widths = {len(line.split()) for line in head.splitlines()[:-1]}
        if format == "auto" and len(widths) == 1:
            return read_table(path, head, "csv", wanted)
        raise
    except DAMAGE as error:
        raise ValueError(damaged(path, error)) from error
    layout = format
    if format == "auto":
        layout = train_format if train_format in ("adjacency", "sessions") else _layout(path, lines)
    return _from_lines(path, lines, layout, format == "auto", sessions)


def _layout(path: Path, lines: NumberLines) -> str:
    """Lines of equal width are a table; else first numbers that rise are users, and others begin sessions."""
    if 2 <= lines.width <= 4:
        return "csv"
    if lines.width == 1:
        raise ValueError(f"{path} has one number on each line. Rows need a user and an item.")
    return "adjacency" if bool((np.diff(lines.firsts) > 0).all()) else "sessions"


def _from_lines(path: Path, lines: NumberLines, layout: str, guessed: bool, sessions: int) -> Table:
    numbers, lengths = lines.numbers, lines.lengths
    if layout == "csv":
        return _from_grid(path, numbers.reshape(-1, lines.width))
    notes = []
    if layout == "sessions":
        users = np.repeat(np.arange(sessions + 1, sessions + len(lengths) + 1), lengths)
        items = numbers
        if guessed:
            notes.append(
                f"{path.name}: each line is taken as a session, its number as the user, since first numbers "
                "do not rise from line to line; if lines begin with a user, say format adjacency."
            )
    else:
        is_item = np.ones(len(numbers), bool)
        is_item[np.cumsum(lengths) - lengths] = False
        users = np.repeat(lines.firsts, lengths - 1)
        items = numbers[is_item]
        if guessed:
            notes.append(
                f"{path.name}: the first number of each line is taken as its user, since they rise from line "
                "to line; if lines are sessions without a user, say format sessions."
            )
        if lonely := int((lengths == 1).sum()):
            notes.append(f"{path.name}: {lonely:,} lines name a user without items; they give no pair.")
    frame = pl.DataFrame({"user": users, "item": items})
    return Table(frame, {}, notes, layout)


def _from_grid(path: Path, grid: Ints) -> Table:
    """Rows of two to four numbers: user, item, then weight or time, then time."""
    width = grid.shape[1]
    roles = roles_by_place(width, times=width == 3 and int(grid[0, 2]) >= LEAST_TIME)
    frame = pl.DataFrame({role: np.ascontiguousarray(grid[:, place]) for place, role in enumerate(roles)})
    check_numbers(frame, path)
    return Table(frame, roles, [note_of_places(path, roles)], "csv")
