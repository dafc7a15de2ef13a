"""Files to interactions: CSV, TSV, Parquet, JSONL, adjacency lists and sessions."""

from steelyard.retrieval.reading.files import read_interactions, read_test
from steelyard.retrieval.reading.texts import read_texts

__all__ = ["read_interactions", "read_test", "read_texts"]
