"""Hashed n-grams against the plainest loops over strings."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.selection.hashed_ngrams import HashedNgrams, content_hashes, shingles

MASK = 2**64 - 1
UNLIKE = "İΣς"  # letters whose lower case depends on their neighbours, or takes two characters


def plain_tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]+", text.lower())


def plain_hash(token: str) -> int:
    hashed = 0xCBF29CE484222325
    for character in token:
        hashed = ((hashed ^ ord(character)) * 0x100000001B3) & MASK
    return hashed


def plain_buckets(text: str, n: int, buckets: int) -> list[int]:
    """Every n-gram's bucket, by Python's whole numbers."""
    tokens = [plain_hash(t) for t in plain_tokens(text)]
    found = []
    for size in range(1, n + 1):
        for at in range(len(tokens) - size + 1):
            gram = tokens[at]
            for later in tokens[at + 1 : at + size]:
                gram = ((gram + later) * 0x9E3779B97F4A7C15) & MASK
            gram = ((gram ^ (gram >> 32)) * 0xFF51AFD7ED558CCD) & MASK
            found.append(((gram >> 32) * buckets) >> 32)
    return found


@given(
    st.lists(st.text(st.characters(exclude_characters=UNLIKE, exclude_categories=["Cs"]))), st.integers(1, 4)
)
def test_counts_are_those_of_plain_loops_over_any_text(texts: list[str], n: int) -> None:
    grams = HashedNgrams(n, 97)
    expected = np.bincount([b for t in texts for b in plain_buckets(t, n, 97)], minlength=97)
    assert (grams.counts(texts) == expected).all()
    assert [int(t) for t in grams.scores(texts, np.zeros(97))[1]] == [len(plain_tokens(t)) for t in texts]


def test_scores_are_sums_of_the_table_over_n_grams() -> None:
    texts = [
        "The cat, the CAT -- sat!",
        "",
        "été à l'école, naïve; 東京タワー 123_x",
        "\t \n",
        "a" * 5000 + " b " * 3000,
    ]
    grams, table = HashedNgrams(3, 1000), np.random.default_rng(1).normal(size=1000)
    found, tokens = grams.scores(texts, table)
    plain = [sum(table[b] for b in plain_buckets(t, 3, 1000)) for t in texts]
    np.testing.assert_allclose(found, plain, rtol=1e-10, atol=1e-10)
    assert (grams.grams_of(tokens) == [len(plain_buckets(t, 3, 1000)) for t in texts]).all()


def test_features_are_counts_row_by_row() -> None:
    texts = ["b a b a b", "", "x y"]
    matrix = HashedNgrams(2, 50).features(texts).toarray()
    expected = [np.bincount(plain_buckets(t, 2, 50), minlength=50) for t in texts]
    assert (matrix == expected).all()


def test_arrow_arrays_of_any_kind_and_offset_count_alike() -> None:
    texts = ["left out", "one two", None, "two three", "ünï"]
    expected = HashedNgrams(2, 100).counts([t for t in texts[1:] if t])
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        array = pa.array(texts, kind).slice(1)
        assert (HashedNgrams(2, 100).counts(array) == expected).all()
    chunked = pa.chunked_array([pa.array(texts[1:3]), pa.array(texts[3:])])
    assert (HashedNgrams(2, 100).counts(chunked) == expected).all()


def test_bytes_that_are_no_utf8_end_nothing_and_read_past_nothing() -> None:
    spoilt = [b"ab \xff\xfe cd", b"\xe6\x9d", b"\xc3", b"\xf0\x9f\x98", b"\xed\xa0\x80x", b"\x80abc"]
    tokens = HashedNgrams(1, 10).scores(pa.array(spoilt, pa.large_binary()), np.zeros(10))[1]
    plain = [len(plain_tokens(b.decode("utf-8", "replace"))) for b in spoilt]
    assert tokens.tolist() == plain


def test_buckets_fill_evenly() -> None:
    words = [f"{k:x}" for k in range(20_000)]
    counts = HashedNgrams(1, 100).counts(words)
    statistic = float(((counts - 200) ** 2 / 200).sum())
    assert (
        40 < statistic < 180
    )  # chi-square with 99 degrees: a hash this even or uneven comes once in a million


def test_content_hashes_tell_texts_apart_and_know_nothing_of_their_place() -> None:
    texts = ["", "a", "a\0", "ab", "ba", "x" * 8, "x" * 9, "x" * 16]
    hashes = content_hashes(texts)
    assert len(set(hashes.tolist())) == len(texts)
    assert (content_hashes(texts[::-1])[::-1] == hashes).all()
    assert (content_hashes(texts, 1) != hashes).all()


def test_shingles_are_runs_of_tokens_and_a_short_text_is_one() -> None:
    hashes, bounds = shingles(["a b c d", "", "a b", "b c d"], 3)
    assert bounds.tolist() == [0, 2, 2, 3, 4]
    assert hashes[1] == hashes[3] != hashes[0]


@pytest.mark.parametrize("settings", [{"n": 0}, {"n": 9}, {"buckets": 0}, {"buckets": 2**25}])
def test_sizes_outside_their_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"n-grams|buckets"):
        HashedNgrams(**settings)


def test_what_is_no_text_is_refused() -> None:
    for wrong in ("one string", [1, 2], pa.array([1, 2])):
        with pytest.raises(TypeError, match="texts must be"):
            HashedNgrams().counts(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one entry for each"):
        HashedNgrams(1, 10).scores(["a"], np.zeros(9))
