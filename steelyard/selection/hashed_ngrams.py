"""Hashed n-grams straight from the bytes of an Arrow array: counts by bucket, and linear scores of texts."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from steelyard.sampling.successive import njit

_U = np.uint64
SPACE, WORD, OTHER = 0, 1, 2
LONGEST = 8
BUFFER = 1024
_REPLACEMENT = 0xFFFD
_BASIS, _PRIME = _U(0xCBF29CE484222325), _U(0x100000001B3)


@dataclass(frozen=True)
class HashedNgrams:
    """Which n-grams of a text are counted, and into how many buckets they are hashed.

        tokens   runs of word characters, or of other characters that are no spaces, in lower case
        grams    every run of 1 to `n` tokens that follow each other; bucket = hash(gram) * buckets / 2^64

    Tokens are those of the regular expression `\\w+|[^\\w\\s]+` on the text in lower case, but for two letters
    whose lower case depends on what stands beside them or takes two characters: a sigma is never final, and
    the dotted capital I loses its dot. Bytes that are no UTF-8 count as other characters.

    Args:
        n: length of the longest n-gram, 1 to 8.
        buckets: number of buckets, 1 to 2^24.

    Raises:
        TypeError: not integers.
        ValueError: outside their range.

    Reference:
        Xie, Santurkar, Ma and Liang (2023), Data selection for language models via importance resampling,
        NeurIPS, arXiv 2302.03169. The hash is ours (FNV-1a over characters, mixed as in MurmurHash3), where
        the authors' code takes SHA-256.
    """

    n: int = 2
    buckets: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= operator.index(self.n) <= LONGEST:
            raise ValueError(f"n-grams may have 1 to {LONGEST} tokens, got n={self.n}.")
        if not 1 <= operator.index(self.buckets) <= 2**24:
            raise ValueError(f"buckets must lie between 1 and 2^24, got {self.buckets}.")

    def counts(self, texts: Sequence[str | None] | pa.Array) -> NDArray[np.int64]:
        """How many n-grams of all texts together fall into each bucket.

        Args:
            texts: strings, or an Arrow array of them; null counts nothing.

        Returns:
            int64, (buckets,).

        Raises:
            TypeError: not texts.
        """
        total = np.zeros(self.buckets, np.int64)
        data, starts, ends = _bytes(texts)
        _count(data, starts, ends, _characters(), self.n, total)
        return total

    def scores(
        self, texts: Sequence[str | None] | pa.Array, table: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """The sum of a table's entries over the n-grams of each text.

            s(x) = sum over grams g of x of table[bucket(g)]

        Args:
            texts: strings, or an Arrow array of them; a null text has no n-grams.
            table: float64, (buckets,).

        Returns:
            Sums, float64 (n,), and numbers of tokens, int32 (n,).

        Raises:
            TypeError: not texts.
            ValueError: a table of another size.
        """
        values = np.ascontiguousarray(table, np.float64)
        if values.shape != (self.buckets,):
            raise ValueError(
                f"The table must have one entry for each of the {self.buckets} buckets, got shape {values.shape}."
            )
        data, starts, ends = _bytes(texts)
        sums, tokens = np.empty(len(starts)), np.empty(len(starts), np.int32)
        _score(data, starts, ends, _characters(), self.n, values, sums, tokens)
        return sums, tokens

    def features(self, texts: Sequence[str | None] | pa.Array) -> Any:
        """Counts by text and bucket, as a sparse matrix.

        Args:
            texts: strings, or an Arrow array of them.

        Returns:
            `scipy.sparse.csr_array` of float32 (n, buckets); each bucket stands once in its row.

        Raises:
            TypeError: not texts.
        """
        from scipy.sparse import csr_array

        data, starts, ends = _bytes(texts)
        _, tokens = self.scores(texts, np.zeros(self.buckets))
        bounds = np.concatenate([[0], np.cumsum(self.grams_of(tokens))]).astype(np.int64)
        columns = np.empty(bounds[-1], np.int32)
        _list(data, starts, ends, _characters(), self.n, self.buckets, bounds, columns)
        ones = np.ones(len(columns), np.float32)
        matrix = csr_array((ones, columns, bounds), shape=(len(starts), self.buckets))
        matrix.sum_duplicates()
        return matrix

    def grams_of(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """How many n-grams a text of so many tokens has: the sum over k = 1..n of max(0, tokens - k + 1)."""
        wide = np.asarray(tokens, np.int64)
        total: NDArray[np.int64] = np.sum(
            [np.maximum(wide - k, 0) for k in range(self.n)], axis=0, dtype=np.int64
        )
        return total


def shingles(
    texts: Sequence[str | None] | pa.Array, size: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes of every run of `size` tokens of each text; a shorter text is one run.

    Args:
        texts: strings, or an Arrow array of them.
        size: tokens of a run, 1 to 8.

    Returns:
        Hashes of all texts in a row, uint64, and where each text's begin and end among them, int64 (n + 1,).

    Raises:
        TypeError: not texts.
        ValueError: another size.
    """
    grams = HashedNgrams(size)
    data, starts, ends = _bytes(texts)
    tokens = grams.scores(texts, np.zeros(grams.buckets))[1].astype(np.int64)
    runs = np.where(tokens > 0, np.maximum(tokens - size + 1, 1), 0)
    bounds = np.concatenate([[0], np.cumsum(runs)]).astype(np.int64)
    out = np.empty(bounds[-1], np.uint64)
    _runs(data, starts, ends, _characters(), size, bounds, out)
    return out, bounds


def content_hashes(texts: Sequence[str | None] | pa.Array, seed: int = 0) -> NDArray[np.uint64]:
    """A hash of 64 bits of the bytes of each text, which no order or file name changes.

    Args:
        texts: strings, or an Arrow array of them.
        seed: of the hash.

    Returns:
        uint64, (n,).

    Raises:
        TypeError: not texts.
    """
    data, starts, ends = _bytes(texts)
    out = np.empty(len(starts), np.uint64)
    _hash_rows(data, starts, ends, _U(seed % 2**64), out)
    return out


def _bytes(texts: Sequence[str | None] | pa.Array) -> tuple[Any, Any, Any]:
    """The bytes of all texts, and where each starts and ends; nothing is copied from an Arrow array."""
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of strings, got one string; put it into a list.")
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if not isinstance(texts, pa.Array):
        try:  # not by Arrow's own door, which imports pandas for a look at the list
            column = pl.Series(texts, dtype=pl.String, strict=True)
        except (TypeError, UnicodeEncodeError) as error:
            raise TypeError(f"texts must be strings or None: {error}.") from None
        texts = column.to_arrow(compat_level=pl.CompatLevel.oldest())
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    if not (wide or pa.types.is_string(texts.type) or pa.types.is_binary(texts.type)):
        if not (pa.types.is_string_view(texts.type) or pa.types.is_null(texts.type)):
            raise TypeError(f"texts must be an Arrow array of strings, got {texts.type}.")
        texts, wide = texts.cast(pa.large_string()), True
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    _, offsets, data = texts.buffers()
    kind = np.dtype(np.int64 if wide else np.int32)
    bounds = np.frombuffer(offsets, kind, len(texts) + 1, texts.offset * kind.itemsize)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    starts, ends = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
    if texts.null_count:
        missing = texts.is_null().to_numpy(zero_copy_only=False)
        ends[missing] = starts[missing]
    return content, starts, ends


@lru_cache(maxsize=1)
def _characters() -> NDArray[np.int32]:
    """Of every code point its lower case, and in the bits above 22 its class: space, word or other."""
    size = 0x110000
    table = np.arange(size, dtype=np.int32)
    kinds = np.full(size, OTHER, np.int32)
    for first, last in ((0, 0x130), (0x131, 0xD800), (0xE000, size)):  # but for surrogates and the dotted I
        characters = table[first:last].tobytes().decode("utf-32-le")
        for kind, pattern in ((WORD, r"\w+"), (SPACE, r"\s+")):
            for run in re.finditer(pattern, characters):
                kinds[first + run.start() : first + run.end()] = kind
        table[first:last] = np.frombuffer(characters.lower().encode("utf-32-le"), np.int32)
    table[0x130] = ord("i")
    return table | (kinds[table] << 22)  # a letter is of the class of its lower case


@njit
def _mix(x: Any) -> Any:
    x ^= x >> _U(33)
    x *= _U(0xFF51AFD7ED558CCD)
    x ^= x >> _U(33)
    x *= _U(0xC4CEB9FE1A85EC53)
    return x ^ (x >> _U(33))


@njit
def _bucket(gram: Any, buckets: Any) -> Any:
    gram = (gram ^ (gram >> _U(32))) * _U(0xFF51AFD7ED558CCD)
    return ((gram >> _U(32)) * buckets) >> _U(32)


@njit
def _decode(data: Any, at: Any, end: Any) -> Any:
    """The code point at a byte that is no ASCII, and its length; a byte that fits nothing is the replacement."""
    first = int(data[_U(at)])
    if 0xC2 <= first < 0xE0:
        length, point, least = 2, first & 0x1F, 0x80
    elif 0xE0 <= first < 0xF0:
        length, point, least = 3, first & 0x0F, 0x800
    elif 0xF0 <= first < 0xF5:
        length, point, least = 4, first & 0x07, 0x10000
    else:
        return _REPLACEMENT, 1
    if at + length > end:
        return _REPLACEMENT, 1
    for k in range(1, length):
        byte = int(data[_U(at + k)])
        if byte & 0xC0 != 0x80:
            return _REPLACEMENT, 1
        point = (point << 6) | (byte & 0x3F)
    if point < least or point >= 0x110000 or 0xD800 <= point < 0xE000:
        return _REPLACEMENT, 1
    return point, length


@njit
def _fill(data: Any, at: int, end: int, characters: Any, tokens: Any) -> Any:
    """Hashes of the tokens from a byte on, until the text ends or the buffer is full, and where that is."""
    count, last, hashed = 0, SPACE, _BASIS
    while at < end:
        byte = data[_U(at)]
        step = 1
        if byte < 0x80:
            entry = characters[byte]
        else:
            point, step = _decode(data, at, end)
            entry = characters[point]
        kind = entry >> 22
        if kind != last:
            if last != SPACE:
                tokens[count] = hashed
                count += 1
                if count == len(tokens):
                    return count, at
            hashed, last = _BASIS, kind
        hashed = (hashed ^ _U(entry & 0x3FFFFF)) * _PRIME
        at += step
    if last != SPACE:
        tokens[count] = hashed
        count += 1
    return count, at


@njit
def _extend(grams: Any, hashed: Any) -> None:
    """Hashes of the runs that end at a new token, from those that ended at the one before it."""
    for back in range(len(grams) - 1, 0, -1):
        grams[back] = (grams[back - 1] + hashed) * _U(0x9E3779B97F4A7C15)
    grams[0] = hashed


@njit
def _count(data: Any, starts: Any, ends: Any, characters: Any, n: int, total: Any) -> None:
    buckets, grams, tokens = _U(len(total)), np.zeros(n, np.uint64), np.empty(BUFFER, np.uint64)
    for row in range(len(starts)):
        at, seen = starts[row], 0
        while at < ends[row]:
            count, at = _fill(data, at, ends[row], characters, tokens)
            for j in range(count):
                _extend(grams, tokens[j])
                for back in range(min(n, seen + j + 1)):
                    total[_bucket(grams[back], buckets)] += 1
            seen += count


@njit
def _score(
    data: Any, starts: Any, ends: Any, characters: Any, n: int, table: Any, sums: Any, lengths: Any
) -> None:
    buckets, grams, tokens = _U(len(table)), np.zeros(n, np.uint64), np.empty(BUFFER, np.uint64)
    for row in range(len(starts)):
        at, seen, total = starts[row], 0, 0.0
        while at < ends[row]:
            count, at = _fill(data, at, ends[row], characters, tokens)
            for j in range(count):
                _extend(grams, tokens[j])
                for back in range(min(n, seen + j + 1)):
                    total += table[_bucket(grams[back], buckets)]
            seen += count
        sums[row], lengths[row] = total, seen


@njit
def _list(
    data: Any, starts: Any, ends: Any, characters: Any, n: int, buckets: int, bounds: Any, columns: Any
) -> None:
    size, grams, tokens = _U(buckets), np.zeros(n, np.uint64), np.empty(BUFFER, np.uint64)
    for row in range(len(starts)):
        at, seen, place = starts[row], 0, bounds[row]
        while at < ends[row]:
            count, at = _fill(data, at, ends[row], characters, tokens)
            for j in range(count):
                _extend(grams, tokens[j])
                for back in range(min(n, seen + j + 1)):
                    columns[place] = _bucket(grams[back], size)
                    place += 1
            seen += count


@njit
def _runs(data: Any, starts: Any, ends: Any, characters: Any, size: int, bounds: Any, out: Any) -> None:
    grams, tokens = np.zeros(size, np.uint64), np.empty(BUFFER, np.uint64)
    for row in range(len(starts)):
        at, seen, place = starts[row], 0, bounds[row]
        while at < ends[row]:
            count, at = _fill(data, at, ends[row], characters, tokens)
            for j in range(count):
                _extend(grams, tokens[j])
                seen += 1
                if seen >= size:
                    out[place] = _mix(grams[size - 1])
                    place += 1
        if 0 < seen < size:
            out[place] = _mix(grams[seen - 1])


@njit
def _hash_rows(data: Any, starts: Any, ends: Any, seed: Any, out: Any) -> None:
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        hashed = _mix(seed + _U(0x9E3779B97F4A7C15)) + _U(end - at)
        while at < end:
            word = _U(0)
            for k in range(min(8, end - at)):
                word |= _U(data[_U(at + k)]) << _U(8 * k)
            hashed = (hashed ^ word) * _U(0x9E3779B97F4A7C15)
            hashed ^= hashed >> _U(29)
            at += 8
        out[row] = _mix(hashed)
