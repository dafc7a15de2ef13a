"""A corpus as blocks: files found and cut, whatever their format and size."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

Kind = Literal["jsonl", "text", "parquet"]
KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
BLOCK = 2**24
"""Bytes of a block; a compressed file is one block, read in pieces of so many."""


@dataclass(frozen=True)
class Block:
    """A part of a file that is read at once: lines that start in a range of bytes, or row groups.

    Args:
        file: number of the file in its corpus.
        path: of the file.
        kind: "jsonl", "text" (a row a line) or "parquet".
        compression: "gzip", "zstd", "bz2", or None.
        start: first byte, or row group; a compressed file is one block.
        stop: where the next block begins.
        size: of the file in bytes, as it was found.
        changed: when the file was last changed, in nanoseconds, as it was found.
    """

    file: int
    path: str
    kind: Kind
    compression: str | None
    start: int
    stop: int
    size: int
    changed: int


def find_files(paths: Sequence[str | Path], *, besides: Path | None = None) -> list[Path]:
    """The files that paths, folders and patterns name, each once, sorted within each.

    Args:
        paths: files, folders (searched through and through, but for names that begin with a dot) or patterns
            such as "data/*.jsonl.gz".
        besides: a folder in which nothing is looked for: that of the output.

    Returns:
        Absolute paths of files of a known kind, by the names under which they were found.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: a file of an unknown kind that was named, a folder without any of a known kind, or a path
            within `besides`.
    """
    found: dict[Path, Path] = {}
    out = besides.resolve() if besides else None
    for given in paths:
        path = Path(given).expanduser()
        if out and path.resolve().is_relative_to(out):
            raise ValueError(
                f"{path} lies in the output folder {besides}, where it would be replaced; give --out another place."
            )
        if path.is_dir():
            inside = [
                p
                for p in sorted(path.rglob("*"))
                if kind_of(p)
                and not any(part[0] == "." for part in p.relative_to(path).parts)
                and p.is_file()
            ]
            if not inside:
                raise ValueError(f"{path} has no file that ends in {', '.join(KINDS)}, plain or compressed.")
        elif path.is_file():
            inside = [path]
        else:
            inside = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
            if not inside:
                raise FileNotFoundError(f"There is no file {path}.")
        for file in inside:
            if kind_of(file) is None:
                raise ValueError(
                    f"{file} is of no known kind: names end in {', '.join(KINDS)}, and then in "
                    f"{', '.join(COMPRESSIONS)} where they are compressed."
                )
            real = file.resolve()
            if not (out and real.is_relative_to(out)):
                found.setdefault(real, file.absolute())
    return list(found.values())


def kind_of(path: Path) -> tuple[Kind, str | None] | None:
    """Format and compression of a file by its name; None for others."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    kind = KINDS.get(Path(path.stem).suffix.lower() if compression else path.suffix.lower())
    if kind is None or (kind == "parquet" and compression):
        return None
    return kind, compression


def cut(files: Sequence[Path], *, block: int = BLOCK) -> list[Block]:
    """Cut files into blocks; the rows of a file do not depend on how it is cut.

    Args:
        files: of known kinds.
        block: bytes of a block, about.

    Returns:
        Blocks in the order of the files and within them.

    Raises:
        ValueError: a Parquet file is damaged.
        OSError: a file cannot be read.
    """
    blocks: list[Block] = []
    for number, path in enumerate(files):
        known = kind_of(path)
        assert known is not None
        kind, compression = known
        state = path.stat()
        if kind == "parquet":
            bounds = _row_groups(path, block)
        elif compression:
            bounds = [0, state.st_size]
        else:
            bounds = [*range(0, state.st_size, block), state.st_size]
        blocks += [
            Block(number, str(path), kind, compression, a, b, state.st_size, state.st_mtime_ns)
            for a, b in itertools.pairwise(bounds)
            if a < b
        ]
    return blocks


def _row_groups(path: Path, block: int) -> list[int]:
    """Bounds of runs of row groups of about a block's size each."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(k).total_byte_size for k in range(file.metadata.num_row_groups)]
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file, or is damaged: {error}.") from None
    bounds, held = [0], 0
    for k, size in enumerate(sizes):
        held += size
        if held >= block or k == len(sizes) - 1:
            bounds.append(k + 1)
            held = 0
    return bounds


def check_unchanged(block: Block) -> None:
    """Refuse a file that is no longer what it was when the corpus was cut.

    Raises:
        ValueError: it was changed or removed.
    """
    try:
        state = Path(block.path).stat()
    except FileNotFoundError:
        raise ValueError(f"{block.path} was removed while it was being read; start again.") from None
    if (state.st_size, state.st_mtime_ns) != (block.size, block.changed):
        raise ValueError(
            f"{block.path} was changed since the job began; what was read of it no longer holds. Start again with "
            "--overwrite."
        )


def fingerprint(blocks: Sequence[Block]) -> str:
    """Tells a corpus as it was cut from another one, or from the same after a change."""
    told = [[b.path, b.start, b.stop, b.size, b.changed] for b in blocks]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
