"""Text files of whole numbers between blanks: `user item item ...`, sessions, or plain pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from steelyard.retrieval.reading.sources import open_bytes

Ints = NDArray[np.int64]

_BLOCK = 8 << 20
_NEWLINE, _RETURN, _TAB, _SPACE, _MINUS, _ZERO, _NINE = 10, 13, 9, 32, 45, 48, 57
_MAX_BEFORE_DIGIT = (2**63 - 1) // 10 - 1


@dataclass(frozen=True)
class NumberLines:
    """The numbers of a text file and how many stand on each line.

    Args:
        numbers: int64, all numbers in the order of the file.
        lengths: int64, numbers on each line; blank lines are left out.
    """

    numbers: Ints
    lengths: Ints

    @property
    def width(self) -> int:
        """Numbers a line if all lines have the same, else 0."""
        if len(self.lengths) == 0 or int(self.lengths.min()) != int(self.lengths.max()):
            return 0
        return int(self.lengths[0])

    @property
    def firsts(self) -> Ints:
        """The first number of each line."""
        firsts: Ints = self.numbers[np.cumsum(self.lengths) - self.lengths]
        return firsts


class NotANumber(ValueError):
    """A line holds something else than whole numbers."""


def read_numbers(path: Path) -> NumberLines:
    """Read the whole numbers of a text file, gzip and zstd included.

    Memory is 8 bytes a number twice over, plus a few blocks of 8 MB. Lines may end in CR LF and in blanks.

    Args:
        path: the file.

    Raises:
        NotANumber: a token is not a whole number of 64 bits; the message names the line.
        OSError: the file cannot be read or its compression is damaged.
    """
    numbers, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    lines_before = 0
    with open_bytes(path) as stream:
        for block in _whole_lines(stream):
            data = np.frombuffer(block, np.uint8)
            found = np.empty(len(data) // 2 + 1, np.int64)
            per_line = np.empty(block.count(b"\n") + 1, np.int64)
            n_numbers, n_lines, bad = _parse(data, found, per_line)
            if bad >= 0:
                raise NotANumber(_complaint(path, block, bad, lines_before))
            per_line = per_line[:n_lines]
            numbers.append(found[:n_numbers].copy())
            lengths.append(per_line[per_line > 0])
            lines_before += block.count(b"\n")
    return NumberLines(np.concatenate(numbers), np.concatenate(lengths))


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_BLOCK):
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            rest += block
            continue
        yield rest + block[:cut]
        rest = block[cut:]
    if rest:
        yield rest


def _complaint(path: Path, block: bytes, position: int, lines_before: int) -> str:
    line = lines_before + block.count(b"\n", 0, position) + 1
    start = max(block.rfind(sep, 0, position) for sep in (b"\n", b" ", b"\t")) + 1
    words = block[start : start + 60].split()
    token = words[0].decode(errors="replace") if words else ""
    return (
        f"{path}, line {line}: {token!r} is not a whole number of 64 bits. Lines of `user item item ...` "
        "hold integers between blanks; give other ids as rows of a CSV, TSV, Parquet or JSONL file."
    )


@njit(cache=True)
def _parse(data: NDArray[np.uint8], numbers: Ints, lengths: Ints) -> tuple[int, int, int]:
    """Numbers found, lines seen, and the position of the first byte that does not belong, or -1."""
    n_numbers = n_lines = on_line = 0
    value = np.int64(0)
    sign = np.int64(1)
    digits = 0
    for position in range(len(data) + 1):
        byte = data[position] if position < len(data) else _NEWLINE
        if _ZERO <= byte <= _NINE:
            if value > _MAX_BEFORE_DIGIT:
                return n_numbers, n_lines, position
            value = value * 10 + (np.int64(byte) - _ZERO)
            digits += 1
        elif byte in (_SPACE, _NEWLINE, _TAB, _RETURN):
            if digits:
                numbers[n_numbers] = sign * value
                n_numbers += 1
                on_line += 1
            elif sign < 0:
                return n_numbers, n_lines, position - 1
            value = np.int64(0)
            sign = np.int64(1)
            digits = 0
            if byte == _NEWLINE and (position < len(data) or on_line):
                lengths[n_lines] = on_line
                n_lines += 1
                on_line = 0
        elif byte == _MINUS and digits == 0 and sign > 0:
            sign = np.int64(-1)
        else:
            return n_numbers, n_lines, position
    return n_numbers, n_lines, -1
