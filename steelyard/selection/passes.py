"""What is done to one block of a corpus: its n-grams counted, its rows scored; the same on one machine or many."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.files import read_json, replacing, write_json
from steelyard.ray_engine import on_ray
from steelyard.selection.corpus import Block, check_unchanged
from steelyard.selection.hashed_ngrams import HashedNgrams, content_hashes
from steelyard.selection.reading import Piece, read

SCORED = np.dtype([("line", "i8"), ("score", "f8"), ("content", "u8"), ("tokens", "i4")])
"""A scored row, as it lies on disk."""
CHUNK = 2**20


@dataclass(frozen=True)
class Reading:
    """What every pass needs to know.

    Args:
        text_field: where the text is.
        ngrams: what is counted.
        strict: stop at the first line that cannot be used.
    """

    text_field: str
    ngrams: HashedNgrams
    strict: bool = False


@dataclass
class Tally:
    """What a block held.

    Args:
        lines: lines, whatever they hold.
        rows: rows with a text.
        digest: of all that was read.
        faults: how many lines of each fault.
        examples: line, fault and content of the first three.
    """

    lines: int = 0
    rows: int = 0
    digest: str = ""
    faults: dict[str, int] = field(default_factory=dict)
    examples: list[tuple[int, str, str]] = field(default_factory=list)

    def take(self, piece: Piece) -> None:
        """Add a piece."""
        self.lines = piece.n_lines
        self.rows += len(piece.texts)
        for kind, count in piece.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        self.examples = (self.examples + piece.examples)[:3]


def _pieces(reading: Reading, block: Block, tally: Tally) -> Iterator[Piece]:
    digest = hashlib.sha256()
    for piece in read(block, reading.text_field, digest):
        if reading.strict and piece.faults:
            line, kind, content = piece.examples[0]
            raise ValueError(f"{where(block, line)}: {kind}: {content!r}. Without --strict it is counted.")
        tally.take(piece)
        yield piece
    check_unchanged(block)
    tally.digest = digest.hexdigest()[:32]


def where(block: Block, line: int) -> str:
    """A line of a block as people find it in the file."""
    if block.kind == "parquet":
        return f"{block.path}, row {line} of the row groups from {block.start}"
    before = 0
    if block.start:
        with open(block.path, "rb") as file:
            left = block.start - 1
            while left > 0 and (data := file.read(min(left, 2**24))):
                before += data.count(b"\n")
                left -= len(data)
            before += bool(file.readline())
    return f"{block.path}, line {before + line + 1}"


def count_block(reading: Reading, block: Block, out: str) -> None:
    """Count the n-grams of a block, and write counts and tally.

    Args:
        reading: how.
        block: which.
        out: path without ending: `.npy` and `.json` are written.
    """
    tally, counts = Tally(), np.zeros(reading.ngrams.buckets, np.int64)
    for piece in _pieces(reading, block, tally):
        counts += reading.ngrams.counts(piece.texts)
    with replacing(Path(out + ".npy")) as temporary, open(temporary, "wb") as file:
        np.save(file, counts)
    write_json(Path(out + ".json"), vars(tally))


def score_block(reading: tuple[Reading, NDArray[np.float64]], block: Block, out: str, expected: str) -> None:
    """Score the rows of a block by a table over buckets, and write scores and tally.

    Args:
        reading: how, and the table.
        block: which.
        out: path without ending: `.scores` and `.json` are written.
        expected: digest of the block in an earlier pass; empty where there was none.

    Raises:
        ValueError: the block has changed since.
    """
    how, table = reading
    tally = Tally()
    with replacing(Path(out + ".scores")) as temporary, open(temporary, "wb") as file:
        for piece in _pieces(how, block, tally):
            rows = np.empty(len(piece.texts), SCORED)
            rows["line"] = piece.lines
            rows["score"], rows["tokens"] = how.ngrams.scores(piece.texts, table)
            rows["content"] = content_hashes(piece.texts)
            file.write(rows.tobytes())  # which names a full disk, where `tofile` does not
        if expected and tally.digest != expected:
            raise ValueError(
                f"{block.path} was changed between two passes over it; start again with --overwrite."
            )
    write_json(Path(out + ".json"), vars(tally))


def read_tally(path: Path) -> Tally:
    """What a pass wrote about a block."""
    return Tally(**read_json(path))


def scored(folder: Path, blocks: int, chunk: int = CHUNK) -> Iterator[tuple[int, NDArray[Any]]]:
    """The scored rows of all blocks in their order, a bounded number at a time.

    Args:
        folder: where `score_block` wrote.
        blocks: how many blocks there are.
        chunk: rows at most.

    Yields:
        The number of a block, and rows of type `SCORED`.
    """
    for number in range(blocks):
        path = folder / f"{number:06d}.scores"
        with open(path, "rb") as file:
            while len(rows := np.fromfile(file, SCORED, chunk)):
                yield number, rows


def sample_block(reading: Reading, block: Block, share: float) -> dict[int, str]:
    """An even share of the different texts of a block, by the hash of their content.

    Args:
        reading: how.
        block: which.
        share: of the texts, in [0, 1].

    Returns:
        Texts by the hash of their content.
    """
    found: dict[int, str] = {}
    for piece in read(block, reading.text_field):
        content = content_hashes(piece.texts, 1)
        for place in np.flatnonzero(content <= share * (2.0**64 - 2048)):
            found[int(content[place])] = bytes(piece.texts[int(place)].as_buffer()).decode("utf-8", "replace")
    return found


def run(
    task: Callable[..., Any], shared: Any, pieces: Sequence[tuple[Any, ...]], *, engine: tuple[str, int]
) -> Iterator[tuple[int, Any]]:
    """`task(shared, *piece)` for every piece, by threads of this process or by tasks of a Ray cluster.

    Args:
        task: a function of a module, which gives back the interpreter's lock while it works.
        shared: what all pieces need.
        pieces: the other arguments of each call.
        engine: "local" with a number of threads, or "ray".

    Yields:
        The place of a piece and its result, as they finish.
    """
    name, workers = engine
    return on_ray(task, shared, pieces) if name == "ray" else _on_threads(task, shared, pieces, workers)


def _on_threads(
    task: Callable[..., Any], shared: Any, pieces: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Any]]:
    left = list(reversed(range(len(pieces))))
    running: dict[Future[Any], int] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            while left or running:
                while left and len(running) < workers + 1:
                    place = left.pop()
                    running[pool.submit(task, shared, *pieces[place])] = place
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            for future in running:
                future.cancel()
