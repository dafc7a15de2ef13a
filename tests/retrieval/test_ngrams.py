import re
from collections import Counter

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.retrieval.ngrams import Vocabulary, hash_texts

MASK = 2**64 - 1
SMALL = Vocabulary(words=97, pairs=53, ngrams=211)
PART = re.compile(rb"[A-Z]+(?![a-z\x80-\xff])|[A-Z][a-z\x80-\xff]*|[a-z\x80-\xff]+|[0-9]+")
TEXTS = st.text(st.sampled_from("abZYXcd019_ .-é日\n\0"), max_size=60) | st.text(max_size=40)


def mixed(value):
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def fnv(content):
    state = 0xCBF29CE484222325
    for byte in content:
        state = (state ^ byte) * 0x100000001B3 & MASK
    return mixed(state)


def parts_of(word):
    return [part.lower() for part in PART.findall(word)]


def plain_features(text, vocabulary):
    counts = Counter()
    previous = None
    for word in re.findall(rb"[A-Za-z0-9_\x80-\xff]+", text.encode()):
        parts = parts_of(word)
        for part in parts:
            counts[fnv(part) % vocabulary.words] += 1
            if previous is not None and vocabulary.pairs:
                pair = mixed((previous * 0x9E3779B97F4A7C15 + fnv(part)) & MASK)
                counts[vocabulary.words + pair % vocabulary.pairs] += 1
            previous = fnv(part)
            marked = b"\x1f" + part + b"\x1f"
            for n in (3, 4, 5) if vocabulary.ngrams else ():
                for start in range(len(marked) - n + 1):
                    if n < len(marked):
                        gram = fnv(marked[start : start + n]) % vocabulary.ngrams
                        counts[vocabulary.words + vocabulary.pairs + gram] += 1
        if len(parts) > 1:
            counts[fnv(word.lower()) % vocabulary.words] += 1
    return dict(counts)


def row(features, r):
    inside = slice(int(features.offsets[r]), int(features.offsets[r + 1]))
    return dict(zip(features.ids[inside].tolist(), features.counts[inside].tolist(), strict=True))


@settings(deadline=None, max_examples=300)
@given(st.lists(TEXTS, max_size=6), st.sampled_from([SMALL, Vocabulary(1000, 0, 0), Vocabulary(31, 0, 77)]))
def test_features_equal_a_plain_python_reading(texts, vocabulary):
    features = hash_texts(texts, vocabulary)
    assert len(features) == len(texts)
    for r, text in enumerate(texts):
        assert row(features, r) == plain_features(text, vocabulary)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("read_csv", ["read", "csv"]),
        ("readCsv", ["read", "csv"]),
        ("HTTPServer", ["http", "server"]),
        ("__init__", ["init"]),
        ("utf8", ["utf", "8"]),
        ("BZ2File", ["bz", "2", "file"]),
        ("Wörter", ["wörter"]),
    ],
)
def test_identifiers_share_features_with_their_parts(word, parts):
    wide = Vocabulary(1 << 20, 0, 0)
    split, joined = (
        hash_texts([" ".join(parts), word], wide).ids.tolist(),
        hash_texts([word], wide).ids.tolist(),
    )
    assert set(hash_texts([" ".join(parts)], wide).ids.tolist()) <= set(joined)
    assert len(set(joined)) == len(parts) + (len(parts) > 1)
    assert set(split) == set(joined)


def test_case_of_ascii_letters_does_not_matter_within_a_word():
    lower, capital = hash_texts(["compress a file"], SMALL), hash_texts(["Compress A FILE"], SMALL)
    assert torch.equal(lower.ids, capital.ids)


def test_hashes_are_the_same_on_every_machine():
    features = hash_texts(["zlib.compress"], Vocabulary(1 << 16, 1 << 16, 0))
    assert features.ids.tolist() == sorted(plain_features("zlib.compress", Vocabulary(1 << 16, 1 << 16, 0)))
    assert fnv(b"") == mixed(0xCBF29CE484222325)
    assert fnv(b"a") == mixed(0xAF63DC4C8601EC8C)  # the published FNV-1a value of "a", then the mix


def test_kinds_of_features_do_not_share_buckets():
    wide = Vocabulary(1 << 20, 1 << 19, 1 << 18)
    ids = hash_texts(["one two three four five six"], wide).ids
    words, pairs = ids < wide.words, (ids >= wide.words) & (ids < wide.words + wide.pairs)
    assert int(words.sum()) == 6
    assert int(pairs.sum()) == 5
    assert int(ids.max()) < wide.buckets
    assert (hash_texts(["one two"], SMALL).ids < SMALL.buckets).all()


def test_empty_and_null_texts_give_empty_rows():
    features = hash_texts(pl.Series(["", None, " .,\n", "word", ""]), SMALL)
    assert features.offsets.diff().gt(0).tolist() == [False, False, False, True, False]
    assert len(hash_texts([], SMALL)) == 0


def test_a_slice_of_a_column_hashes_like_its_own_texts():
    column = pl.Series(["alpha beta", "", "gamma_delta", "Epsilon", "zeta"])
    sliced = hash_texts(column[2:4], SMALL)
    assert [row(sliced, r) for r in range(2)] == [row(hash_texts(column, SMALL), r) for r in (2, 3)]
    chunked = pl.concat([column[:2], column[2:]], rechunk=False)
    assert torch.equal(hash_texts(chunked, SMALL).ids, hash_texts(column, SMALL).ids)


@settings(deadline=None, max_examples=50)
@given(st.lists(TEXTS, min_size=1, max_size=5), st.data())
def test_taking_rows_keeps_their_features(texts, data):
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8))
    features = hash_texts(texts, SMALL)
    taken = features.take(torch.tensor(rows, dtype=torch.int64))
    assert [row(taken, i) for i in range(len(rows))] == [row(features, r) for r in rows]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, -1, 0), (1, 0, -1), (2**31, 0, 0)])
def test_a_vocabulary_without_words_or_too_large_is_refused(sizes):
    with pytest.raises(ValueError, match="words"):
        Vocabulary(*sizes)


def test_long_words_do_not_overrun_the_buffers():
    text = "Ab1_" * 5000 + "x" * 20000
    assert row(hash_texts([text], SMALL), 0) == plain_features(text, SMALL)
