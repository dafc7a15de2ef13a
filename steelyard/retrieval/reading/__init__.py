"""Files to interactions: CSV, TSV, Parquet, JSONL, adjacency lists and sessions."""

from steelyard.retrieval.reading.files import read_interactions, read_test

__all__ = ["read_interactions", "read_test"]
