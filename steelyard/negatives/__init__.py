"""Where candidates come from: proposals that know the expected count of everything they draw."""

from __future__ import annotations

from steelyard.negatives.best_of import BestOf, best_of_log_probability
from steelyard.negatives.context import Context
from steelyard.negatives.everything import Everything
from steelyard.negatives.filters import (
    AbsoluteMargin,
    Duplicates,
    Filter,
    GuideModel,
    KnownPositives,
    Mined,
    PercentageOfPositive,
    RankWindow,
    ScoreRange,
    apply_filters,
    first_refusal,
)
from steelyard.negatives.in_batch import InBatch
from steelyard.negatives.kernel import QuadraticKernel, RandomFourier
from steelyard.negatives.log_uniform import LogUniform
from steelyard.negatives.mixture import Mixture
from steelyard.negatives.named import PROPOSALS, Catalogue, adapts, proposal
from steelyard.negatives.popularity import Popularity
from steelyard.negatives.queue import Queue
from steelyard.negatives.streaming import StreamingFrequency
from steelyard.negatives.top_k import SimANS, TopK, simans_weights
from steelyard.negatives.two_level import Clusters, InvertedMultiIndex
from steelyard.negatives.uniform import Uniform

__all__ = [
    "PROPOSALS",
    "AbsoluteMargin",
    "BestOf",
    "Catalogue",
    "Clusters",
    "Context",
    "Duplicates",
    "Everything",
    "Filter",
    "GuideModel",
    "InBatch",
    "InvertedMultiIndex",
    "KnownPositives",
    "LogUniform",
    "Mined",
    "Mixture",
    "PercentageOfPositive",
    "Popularity",
    "QuadraticKernel",
    "Queue",
    "RandomFourier",
    "RankWindow",
    "ScoreRange",
    "SimANS",
    "StreamingFrequency",
    "TopK",
    "Uniform",
    "adapts",
    "apply_filters",
    "best_of_log_probability",
    "first_refusal",
    "proposal",
    "simans_weights",
]
