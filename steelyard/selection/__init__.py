"""Choosing training data: score rows, draw some with known probabilities, and say what the draw stands for."""

from __future__ import annotations

from steelyard.selection.config import SelectConfig
from steelyard.selection.dsir import dsir, kl_reduction, log_ratio
from steelyard.selection.duplicates import near_duplicates
from steelyard.selection.hashed_ngrams import HashedNgrams
from steelyard.selection.job import Selected, select

__all__ = [
    "HashedNgrams",
    "SelectConfig",
    "Selected",
    "dsir",
    "kl_reduction",
    "log_ratio",
    "near_duplicates",
    "select",
]
