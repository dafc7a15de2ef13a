import math

import pytest
import torch

from steelyard.retrieval import bm25
from steelyard.retrieval.bm25 import bm25_available, bm25_ranking

needs_bm25 = pytest.mark.skipif(not bm25_available(), reason="the extra `demo` is not installed")
DOCUMENTS = [
    "compress a file quickly",
    "read_csv reads csv tables",
    "inverse matrices",
    "compressing, compressed: compress",
]


@needs_bm25
def test_the_order_is_that_of_the_formula():
    terms = [
        ["compress", "file", "quick"],
        ["read_csv", "read", "csv", "read", "csv", "tabl"],
        ["invers", "matric"],
    ]
    terms.append(["compress"] * 3)
    mean = sum(map(len, terms)) / len(terms)
    scores = []
    for document in terms:
        total = 0.0
        for term in ("compress", "file"):
            n = sum(term in other for other in terms)
            idf = math.log(1 + (len(terms) - n + 0.5) / (n + 0.5))
            tf = document.count(term)
            total += idf * tf / (tf + bm25.K1 * (1 - bm25.B + bm25.B * len(document) / mean))
        scores.append(total)
    order = sorted((r for r in range(len(terms)) if scores[r] > 0), key=lambda r: -scores[r])
    assert bm25_ranking(DOCUMENTS, ["compress file"], 4)[0].tolist() == order + [-1] * (4 - len(order))


@needs_bm25
def test_identifiers_match_their_parts_and_stems():
    found = bm25_ranking(DOCUMENTS, ["reading CSV", "readCsv", "matrix", "inverted matrices"], 1)
    assert found.flatten().tolist() == [1, 1, -1, 2]


@needs_bm25
def test_queries_that_share_no_term_find_nothing():
    found = bm25_ranking(DOCUMENTS, ["", "the", "zebra"], 6)
    assert found.dtype == torch.int64
    assert found.eq(-1).all()
    assert bm25_ranking(DOCUMENTS, [], 3).shape == (0, 3)


@needs_bm25
def test_a_catalogue_without_words_is_refused():
    with pytest.raises(ValueError, match="word"):
        bm25_ranking(["", "..."], ["file"], 1)
    with pytest.raises(ValueError, match="k must"):
        bm25_ranking(DOCUMENTS, ["file"], 0)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(bm25, "bm25_available", lambda: False)
    with pytest.raises(ImportError, match=r"steelyard\[demo\]"):
        bm25_ranking(DOCUMENTS, ["file"], 1)
