"""Say in a person's terms why a file could not be parsed: which byte, which line, and the mend."""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path

from steelyard.retrieval.reading.sources import DAMAGE, damaged, open_bytes

_BLOCK = 1 << 20


def explain(path: Path, format: str, separator: str, error: Exception) -> str:
    """Find what a parser stumbled over, by a slow and careful second look.

    Args:
        path: the file.
        format: "csv", "tsv", "jsonl" or "parquet".
        separator: of a CSV or TSV file.
        error: what the parser said.

    Returns:
        One message: the file, the place, the fault and the mend; the parser's own words if nothing is found.
    """
    parser_says = str(error).strip().split("\n", 1)[0]
    if format == "parquet":
        return f"{path} is not a readable Parquet file ({parser_says}). Write or copy it again."
    fault = bad_bytes(path)
    if fault is None:
        fault = _bad_json(path) if format == "jsonl" else _bad_row(path, separator)
    return fault or f"{path} cannot be read as {format}: {parser_says}."


def bad_bytes(path: Path) -> str | None:
    """Look for broken compression, and for the first byte that is not UTF-8.

    Args:
        path: a text file.

    Returns:
        The fault, its place and its mend, or None.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    position, line = 0, 1
    try:
        with open_bytes(path) as stream:
            while True:
                block = stream.read(_BLOCK)
                pending = len(decoder.getstate()[0])
                try:
                    decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    line += error.object.count(b"\n", 0, error.start)
                    marked = position == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                    return (
                        f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at position "
                        f"{position - pending + error.start}, line {line}. Convert it first, e.g. with "
                        f"`iconv -f {'utf-16' if marked else 'latin1'} -t utf-8`."
                    )
                if not block:
                    return None
                position += len(block)
                line += block.count(b"\n")
    except DAMAGE as error:
        return damaged(path, error)


def _bad_json(path: Path) -> str | None:
    with open_bytes(path) as stream:
        for number, line in enumerate(io.BufferedReader(stream), start=1):  # type: ignore[type-var]
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                return f"{path}, line {number}: not JSON ({error}). Each line must be one JSON object."
            if not isinstance(value, dict):
                return f"{path}, line {number}: a {type(value).__name__}. Each line must be one JSON object."
    return None


def _bad_row(path: Path, separator: str) -> str | None:
    """The first row with more cells than the first, or a quote that is never closed."""
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=separator or ",", strict=True)
        width, begins = None, 1
        try:
            for row in rows:
                width = len(row) if width is None else width
                if len(row) > width:
                    return (
                        f"{path}, line {begins}: {len(row)} cells where the first line has {width}. "
                        f"Put quotes around a cell that holds {separator!r}."
                    )
                begins = rows.line_num + 1
        except csv.Error as error:
            return (
                f"{path}, line {begins}: {error}. A quote opens a cell that is not closed as it should be; "
                'write a quote inside a cell as "" and put quotes around the cell.'
            )
    return None
