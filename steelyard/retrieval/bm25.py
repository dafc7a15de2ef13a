"""BM25, the ranking by matching words that a trained retriever has to beat."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable

import torch
from torch import Tensor

K1, B = 1.5, 0.75

_WORD = re.compile(r"\w+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+|[A-Z]")


def bm25_available() -> bool:
    """Whether the libraries of the extra `demo` are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("bm25s", "Stemmer"))


def bm25_ranking(documents: Iterable[str], queries: Iterable[str], k: int) -> Tensor:
    """The `k` best documents of each query by BM25 over English stems of words and identifier parts.

        score(q, d) = sum_t idf_t tf_td (k1 + 1) / (tf_td + k1 (1 - b + b |d| / mean |d|))

    with k1 = 1.5 and b = 0.75. Words are split as the text encoder splits them (`read_csv` and `readCsv` give
    the whole and both parts); stop words are left out.

    Args:
        documents: the catalogue.
        queries: texts to search for.
        k: how many documents a query.

    Returns:
        Document numbers, int64, (queries, k), best first; -1 where fewer documents share a term with
        the query.

    Raises:
        ImportError: bm25s or PyStemmer is missing.
        ValueError: `k` below 1, or no document has a term.

    Reference:
        Robertson & Zaragoza (2009), The probabilistic relevance framework: BM25 and beyond; computed by
        bm25s, Lu (2024), arXiv 2407.03618.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    if not bm25_available():
        raise ImportError("BM25 needs bm25s and PyStemmer: pip install 'steelyard[demo]'.")
    import bm25s
    from bm25s.stopwords import STOPWORDS_EN

    terms = _Terms(frozenset(STOPWORDS_EN))
    catalogue = [terms.of(text) for text in documents]
    if not any(catalogue):
        raise ValueError(f"None of the {len(catalogue)} documents has a word to index.")
    asked = [terms.of(text) for text in queries]
    width = min(k, len(catalogue))
    index = bm25s.BM25(k1=K1, b=B)
    index.index(catalogue, show_progress=False)
    ranking = torch.full((len(asked), k), -1, dtype=torch.int64)
    known = [row for row, query in enumerate(asked) if any(term in index.vocab_dict for term in query)]
    if known:
        found, scores = index.retrieve([asked[row] for row in known], k=width, show_progress=False)
        lists = torch.as_tensor(found, dtype=torch.int64)
        ranking[torch.tensor(known), :width] = lists.masked_fill(torch.as_tensor(scores) <= 0, -1)
    return ranking


class _Terms:
    """Stemmed terms of a text, each distinct word split and stemmed once."""

    def __init__(self, stopwords: frozenset[str]) -> None:
        import Stemmer

        self.stem = Stemmer.Stemmer("english").stemWord
        self.stopwords = stopwords
        self.known: dict[str, tuple[str, ...]] = {}

    def of(self, text: str) -> list[str]:
        terms: list[str] = []
        for word in _WORD.findall(text or ""):
            found = self.known.get(word)
            if found is None:
                found = self.known[word] = self.split(word)
            terms.extend(found)
        return terms

    def split(self, word: str) -> tuple[str, ...]:
        parts = [part.lower() for part in _PART.findall(word)]
        whole = [word.lower()] if len(parts) != 1 else []
        return tuple(self.stem(term) for term in [*whole, *parts] if term not in self.stopwords)
