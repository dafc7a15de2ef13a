"""The files behind a path: which there are, how they are compressed, what format they hold."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

PathLike = str | os.PathLike[str]

_GZIP, _ZSTD, _ZIP, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PAR1"
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".inter": "tsv",
    ".txt": "auto",
    ".dat": "auto",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_COMPRESSED = (".gz", ".zst", ".zstd")
DAMAGE = (EOFError, OSError, zlib.error, pa.ArrowInvalid)
_HEAD_BYTES = 1 << 16


def find_files(paths: PathLike | Sequence[PathLike]) -> tuple[list[Path], list[str]]:
    """The files to read: the paths themselves, and of a folder the readable files directly inside, sorted.

    Args:
        paths: one path or several; `~` is the home folder.

    Returns:
        The files, and a note for each folder some of whose files were left out.

    Raises:
        ValueError: no path, or a folder without readable files, or one that mixes training and test files.
        FileNotFoundError: a path that does not exist.
    """
    given: Iterable[PathLike] = [paths] if isinstance(paths, str | os.PathLike) else paths
    files: list[Path] = []
    notes: list[str] = []
    for entry in given:
        path = Path(entry).expanduser()
        if path.is_dir():
            inside, skipped = _files_of(path)
            files += inside
            if skipped:
                names = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
                notes.append(f"left out {len(skipped)} files of {path} that do not look like tables: {names}")
        elif path.exists():
            files.append(path)
        else:
            raise FileNotFoundError(f"There is no file or folder {path} (looked from {Path.cwd()}).")
    if not files:
        raise ValueError("No path was given; name at least one file or folder.")
    repeated = sorted({str(path) for path in files if files.count(path) > 1})
    if repeated:
        raise ValueError(f"Given more than once: {', '.join(repeated)}. Name each file once.")
    return files, notes


def _files_of(folder: Path) -> tuple[list[Path], list[str]]:
    present = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._")
    readable = [path for path in present if suffix_of(path) in _SUFFIXES]
    if not readable:
        listed = ", ".join(path.name for path in present[:5]) or "nothing"
        known = " ".join(_SUFFIXES)
        raise ValueError(
            f"{folder} has no file to read: it holds {listed}. Endings read: {known} (also .gz, .zst)."
        )
    training = [path.name for path in readable if re.match(r"train", path.name, re.IGNORECASE)]
    held_out = [path.name for path in readable if re.match(r"(test|val|dev)", path.name, re.IGNORECASE)]
    if training and held_out:
        raise ValueError(
            f"{folder} holds {training[0]} and {held_out[0]}; reading both would train on test data. "
            "Name the training file here and the test file as the test."
        )
    return readable, [path.name for path in present if path not in readable]


def suffix_of(path: Path) -> str:
    """The ending of a name without the ending of its compression, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, unpacking gzip and zstd, told by the first bytes and not by the name.

    Raises:
        ValueError: a zip archive.
        OSError: the file cannot be opened.
    """
    with path.open("rb") as stream:
        start = stream.read(4)
    if start.startswith(_GZIP):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if start == _ZSTD:
        return cast(BinaryIO, pa.input_stream(str(path), compression="zstd"))
    if start == _ZIP:
        raise ValueError(f"{path} is a zip archive. Unpack it and give the file inside.")
    return path.open("rb")


def read_head(path: Path) -> bytes:
    """The first 64 KB of a file, unpacked.

    Raises:
        ValueError: the file is empty, or a zip archive, or its compression is damaged.
    """
    try:
        with open_bytes(path) as stream:
            head = stream.read(_HEAD_BYTES)
    except DAMAGE as error:
        if isinstance(error, PermissionError):
            raise
        raise ValueError(damaged(path, error)) from error
    if not head.strip():
        raise ValueError(f"{path} is empty.")
    return head


def damaged(path: Path, error: Exception) -> str:
    """What to say of a compressed file that cannot be unpacked."""
    return f"{path} is damaged or cut short ({error}). Copy or download it again."


def format_of(path: Path, head: bytes) -> str:
    """The format that a file seems to have.

    Args:
        path: its name.
        head: its first bytes, unpacked.

    Returns:
        "parquet", "jsonl", "csv", "tsv" or "numbers" (whole numbers between blanks, of any layout).
    """
    if head.startswith(_PARQUET):
        return "parquet"
    if head.lstrip(b"\xef\xbb\xbf \r\n").startswith(b"{"):
        return "jsonl"
    if re.fullmatch(rb"[-0-9 \t\r\n]*", head) and re.search(rb"[0-9][ \t]+[0-9]", head):
        return "numbers"
    by_name = _SUFFIXES.get(suffix_of(path), "auto")
    if by_name == "auto":
        return "tsv" if b"\t" in head.split(b"\n", 1)[0] else "csv"
    return by_name
