"""Choosing training data: score rows, draw some with known probabilities, and say what the draw stands for."""

from __future__ import annotations

from steelyard.selection.betr import benchmark_ranking
from steelyard.selection.config import SelectConfig
from steelyard.selection.dsir import dsir, kl_reduction, log_ratio
from steelyard.selection.duplicates import near_duplicates
from steelyard.selection.hashed_ngrams import HashedNgrams
from steelyard.selection.job import Selected, select
from steelyard.selection.linear import fit_linear

__all__ = [
    "HashedNgrams",
    "SelectConfig",
    "Selected",
    "benchmark_ranking",
    "dsir",
    "fit_linear",
    "kl_reduction",
    "log_ratio",
    "near_duplicates",
    "select",
]
