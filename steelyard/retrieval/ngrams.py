"""Text to hashed features: words, parts of identifiers, word pairs and character n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import polars as pl
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_BOUNDARY = np.uint64(0x1F)

SHORTEST_NGRAM, LONGEST_NGRAM = 3, 5


@dataclass(frozen=True)
class TextFeatures:
    """The hashed features of some texts, each once a text with the number of times it occurs.

    Text `r` has features `ids[offsets[r] : offsets[r + 1]]`, rising; an empty text has none.

    Args:
        ids: int32, (n,), in `[0, buckets)`: words first, then word pairs, then character n-grams.
        offsets: int64, (texts + 1,).
        counts: float32, (n,), at least 1.
    """

    ids: Tensor
    offsets: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Tensor) -> TextFeatures:
        """The named texts, in that order, repeats allowed.

        Args:
            rows: int64, (m,).
        """
        lengths = self.offsets.diff()[rows]
        offsets = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        starts = self.offsets[rows] - offsets[:-1]
        index = torch.arange(int(offsets[-1])) + torch.repeat_interleave(starts, lengths)
        return TextFeatures(self.ids[index], offsets, self.counts[index])


@dataclass(frozen=True)
class Vocabulary:
    """How many buckets each kind of feature hashes into; the kinds do not share buckets.

    Args:
        words: buckets of words and parts of identifiers.
        pairs: buckets of two words in a row; 0 leaves them out.
        ngrams: buckets of character n-grams of length 3 to 5 inside a word; 0 leaves them out.

    Raises:
        ValueError: no buckets for words, or a negative number.
    """

    words: int = 1 << 16
    pairs: int = 1 << 16
    ngrams: int = 1 << 16

    def __post_init__(self) -> None:
        if self.words < 1 or self.pairs < 0 or self.ngrams < 0 or self.buckets > 2**31 - 1:
            raise ValueError(
                "A vocabulary needs at least one bucket of words, no negative number and below 2^31 in all, "
                f"got words={self.words}, pairs={self.pairs}, ngrams={self.ngrams}."
            )

    @property
    def buckets(self) -> int:
        """Number of buckets of all kinds together."""
        return self.words + self.pairs + self.ngrams


def hash_texts(texts: pl.Series | Sequence[str], vocabulary: Vocabulary) -> TextFeatures:
    """Count the hashed features of each text.

    A word is a run of letters, digits, underscores and non-ASCII bytes. It is split into parts at
    underscores, where lower case turns to upper (`camelCase`), before the last capital of a run
    (`HTTPServer`), and between letters and digits. Features, with ASCII in lower case: each part; the
    whole word when it has several parts; each two parts in a row; the character n-grams (3 to 5 bytes,
    with boundary marks) of each part. Hashes are 64-bit FNV-1a with a final mix, the same on every
    machine.

    Args:
        texts: strings; null counts as empty.
        vocabulary: number of buckets of each kind.

    Returns:
        Features of all texts, in order.
    """
    column = pl.Series(texts, dtype=pl.String) if not isinstance(texts, pl.Series) else texts.cast(pl.String)
    array = column.fill_null("").to_arrow().cast(pa.large_string())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    _, ends, data = array.buffers()
    bounds = np.zeros(1, np.int64) if ends is None else np.frombuffer(ends, np.int64)
    bounds = bounds[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    ids, offsets, counts = _hash_rows(content, bounds, vocabulary.words, vocabulary.pairs, vocabulary.ngrams)
    return TextFeatures(torch.from_numpy(ids), torch.from_numpy(offsets), torch.from_numpy(counts))


@numba.njit(cache=True, inline="always")
def _mixed(value: np.uint64) -> np.uint64:
    value ^= value >> np.uint64(33)
    value *= _MIX_1
    value ^= value >> np.uint64(33)
    value *= _MIX_2
    return value ^ (value >> np.uint64(33))


@numba.njit(cache=True, inline="always")
def _fnv(state: np.uint64, byte: np.uint64) -> np.uint64:
    return (state ^ byte) * _FNV_PRIME


@numba.njit(cache=True, inline="always")
def _lower(byte: np.uint8) -> np.uint64:
    return np.uint64(byte + 32) if 65 <= byte <= 90 else np.uint64(byte)


@numba.njit(cache=True, inline="always")
def _kind(byte: np.uint8) -> int:
    """0 outside a word, 1 lower case or non-ASCII, 2 upper case, 3 digit, 4 underscore."""
    if 97 <= byte <= 122 or byte >= 128:
        return 1
    if 65 <= byte <= 90:
        return 2
    if 48 <= byte <= 57:
        return 3
    return 4 if byte == 95 else 0


@numba.njit(cache=True)
def _part_end(content: NDArray[np.uint8], start: int, end: int) -> int:
    """Where the part that starts at `start` ends, inside a word that ends at `end`."""
    first = _kind(content[start])
    i = start + 1
    if first == 2 and i < end and _kind(content[i]) == 2:
        while i < end and _kind(content[i]) == 2:
            i += 1
        # The last capital before a lower-case letter opens the next part, as S does in HTTPServer.
        return i - 1 if i < end and _kind(content[i]) == 1 else i
    kept = 3 if first == 3 else 1
    while i < end and _kind(content[i]) == kept:
        i += 1
    return i


@numba.njit(cache=True)
def _add_ngrams(
    content: NDArray[np.uint8], start: int, end: int, first: int, buckets: int, out: NDArray[np.int32], n: int
) -> int:
    for begin in range(start - 1, end - 1):
        state = _FNV_OFFSET
        for length in range(1, LONGEST_NGRAM + 1):
            at = begin + length - 1
            if at > end:
                break
            state = _fnv(state, _BOUNDARY if at < start or at == end else _lower(content[at]))
            whole = begin < start and at == end
            if length >= SHORTEST_NGRAM and not whole:
                out[n] = first + np.int64(_mixed(state) % np.uint64(buckets))
                n += 1
    return n


@numba.njit(cache=True)
def _hash_row(
    content: NDArray[np.uint8],
    start: int,
    end: int,
    words: int,
    pairs: int,
    ngrams: int,
    out: NDArray[np.int32],
) -> int:
    """Write the features of one text to `out`, repeats included; returns how many."""
    n = 0
    previous = np.uint64(0)
    has_previous = False
    i = start
    while i < end:
        if _kind(content[i]) == 0:
            i += 1
            continue
        word_end = i
        while word_end < end and _kind(content[word_end]) != 0:
            word_end += 1
        whole = _FNV_OFFSET
        parts = 0
        while i < word_end:
            if _kind(content[i]) == 4:
                whole = _fnv(whole, _lower(content[i]))
                i += 1
                continue
            part_end = _part_end(content, i, word_end)
            part = _FNV_OFFSET
            for at in range(i, part_end):
                part = _fnv(part, _lower(content[at]))
                whole = _fnv(whole, _lower(content[at]))
            part = _mixed(part)
            out[n] = np.int64(part % np.uint64(words))
            n += 1
            if pairs and has_previous:
                out[n] = words + np.int64(_mixed(previous * _PAIR + part) % np.uint64(pairs))
                n += 1
            if ngrams:
                n = _add_ngrams(content, i, part_end, words + pairs, ngrams, out, n)
            previous = part
            has_previous = True
            parts += 1
            i = part_end
        if parts > 1:
            out[n] = np.int64(_mixed(whole) % np.uint64(words))
            n += 1
    return n


@numba.njit(cache=True)
def _hash_rows(
    content: NDArray[np.uint8], bounds: NDArray[np.int64], words: int, pairs: int, ngrams: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    rows = len(bounds) - 1
    longest = 0
    for r in range(rows):
        longest = max(longest, bounds[r + 1] - bounds[r])
    # A byte opens at most three n-grams and one word, pair and whole word; a boundary mark opens three more.
    scratch = np.empty(9 * longest + 16, np.int32)
    offsets = np.zeros(rows + 1, np.int64)
    ids = np.empty(max(16, 2 * (bounds[rows] - bounds[0])), np.int32)
    counts = np.empty(len(ids), np.float32)
    total = 0
    for r in range(rows):
        n = _hash_row(content, bounds[r], bounds[r + 1], words, pairs, ngrams, scratch)
        row = np.sort(scratch[:n])
        if total + n > len(ids):
            ids = np.concatenate((ids[:total], np.empty(len(ids) + n, np.int32)))
            counts = np.concatenate((counts[:total], np.empty(len(ids) - total, np.float32)))
        for j in range(n):
            if j and row[j] == row[j - 1]:
                counts[total - 1] += 1
            else:
                ids[total] = row[j]
                counts[total] = 1
                total += 1
        offsets[r + 1] = total
    return ids[:total].copy(), offsets, counts[:total].copy()
