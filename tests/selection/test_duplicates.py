"""Near-duplicates against Jaccard similarities by plain sets."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("rensa", reason="rensa is not installed: pip install 'steelyard[dedup]'")

from steelyard.selection import near_duplicates


def spoilt(text: str, words: int, rng: random.Random) -> str:
    parts = text.split()
    for place in rng.sample(range(len(parts)), words):
        parts[place] = f"new{rng.random()}"
    return " ".join(parts)


def test_texts_that_share_most_shingles_are_found_and_others_are_not() -> None:
    rng = random.Random(0)
    texts = [" ".join(str(rng.randrange(5000)) for _ in range(300)) for _ in range(100)]
    close = [spoilt(texts[k], 2, rng) for k in range(20)]  # Jaccard about .94
    far = [spoilt(texts[20 + k], 60, rng) for k in range(20)]  # about .2
    found = near_duplicates(texts + close + far)
    assert (found[:100] == -1).all()
    assert found[100:120].tolist() == list(range(20))
    assert (found[120:] == -1).all()


def test_copies_name_the_first_and_empty_texts_name_nobody() -> None:
    assert near_duplicates(["a b", "", "a b", "...", "", "a b"]).tolist() == [-1, -1, 0, -1, -1, 0]
    assert near_duplicates([]).tolist() == []


def test_settings_outside_their_range_are_refused() -> None:
    for settings in ({"threshold": 0.0}, {"threshold": 1.5}, {"shingle": 0}, {"permutations": 0}):
        with pytest.raises(ValueError, match=r"threshold|n-grams|permutations"):
            near_duplicates(["a"], **settings)  # type: ignore[arg-type]
