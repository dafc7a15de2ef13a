"""Exact ranking metrics over the whole catalogue, with intervals."""

from steelyard.evaluation.comparing import PairedDifference, holm, paired_comparison
from steelyard.evaluation.ranking import (
    PopularitySlice,
    RankingMetrics,
    ranking_metrics,
    recall_by_popularity,
)
from steelyard.evaluation.ranks import Ranks, count_ranks, ranks_from_lists, ranks_from_scores

__all__ = [
    "PairedDifference",
    "PopularitySlice",
    "RankingMetrics",
    "Ranks",
    "count_ranks",
    "holm",
    "paired_comparison",
    "ranking_metrics",
    "ranks_from_lists",
    "ranks_from_scores",
    "recall_by_popularity",
]
