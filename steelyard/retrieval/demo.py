"""The built-in real input: the documentation of the installed Python as (query, document) pairs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.pydoc import read_documentation
from steelyard.retrieval.reading import read_interactions


def documentation_pairs() -> Interactions:
    """First sentences of docstrings as queries, what they document as documents.

    Returns:
        Text interactions; item ids are qualified names such as `gzip.compress`.
    """
    documentation = read_documentation()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documentation.parquet"
        documentation.pairs.write_parquet(path)
        columns = {"query": "query", "document": "document", "item": "item"}
        pairs = read_interactions(path, columns=columns, kind="text")
    notes = [
        *str(documentation).splitlines(),
        "The first sentence is the query, what it documents the document.",
    ]
    return replace(
        pairs,
        reading=replace(pairs.reading, files=["the documentation of the installed Python"], notes=notes),
    )
