"""Choosing training data: score rows, draw some with known probabilities, and say what the draw stands for."""

from __future__ import annotations

from steelyard.selection.betr import benchmark_ranking
from steelyard.selection.clusters import balanced_draw, hierarchical_kmeans, refined_clusters
from steelyard.selection.config import SelectConfig
from steelyard.selection.coverage import coverage_centric, drop_hardest
from steelyard.selection.dsir import dsir, kl_reduction, log_ratio
from steelyard.selection.duplicates import near_duplicates
from steelyard.selection.error_norms import el2n, grand
from steelyard.selection.exploration import top_and_explore
from steelyard.selection.forgetting import area_under_margin, forgetting_events
from steelyard.selection.graph_attention import (
    GraphAttention,
    attention_confidence,
    hashed_neighbours,
    stratified_batches,
)
from steelyard.selection.graphons import Feasibility, graphon, gromov_wasserstein, pretraining_feasibility
from steelyard.selection.greedy import (
    augmentation_similarity_subset,
    facility_location,
    greedy_by_judge,
    lazy_greedy,
)
from steelyard.selection.hashed_ngrams import HashedNgrams
from steelyard.selection.in_context import best_examples, example_labels, retriever_loss
from steelyard.selection.influence import (
    mimic_keep,
    mimic_score,
    mimic_weights,
    presence_weights,
    self_influence,
)
from steelyard.selection.information_gain import maximise_information, propagation
from steelyard.selection.job import Selected, select
from steelyard.selection.linear import fit_linear
from steelyard.selection.outliers import diverse_outliers
from steelyard.selection.random_subsets import random_subsets, total_steps
from steelyard.selection.score_transitions import (
    ScoreTransitions,
    best_and_rarest,
    correct_grades,
    fit_transitions,
    nearest_rows,
)
from steelyard.selection.self_training import (
    Attempts,
    answer_entropy_weights,
    balanced_attempts,
    drift,
    loss_ratio_weights,
    mean_matching_weights,
)
from steelyard.selection.tokens import select_tokens
from steelyard.selection.weak_supervision import unsure_rows

__all__ = [
    "Attempts",
    "Feasibility",
    "GraphAttention",
    "HashedNgrams",
    "ScoreTransitions",
    "SelectConfig",
    "Selected",
    "answer_entropy_weights",
    "area_under_margin",
    "attention_confidence",
    "augmentation_similarity_subset",
    "balanced_attempts",
    "balanced_draw",
    "benchmark_ranking",
    "best_and_rarest",
    "best_examples",
    "correct_grades",
    "coverage_centric",
    "diverse_outliers",
    "drift",
    "drop_hardest",
    "dsir",
    "el2n",
    "example_labels",
    "facility_location",
    "fit_linear",
    "fit_transitions",
    "forgetting_events",
    "grand",
    "graphon",
    "greedy_by_judge",
    "gromov_wasserstein",
    "hashed_neighbours",
    "hierarchical_kmeans",
    "kl_reduction",
    "lazy_greedy",
    "log_ratio",
    "loss_ratio_weights",
    "maximise_information",
    "mean_matching_weights",
    "mimic_keep",
    "mimic_score",
    "mimic_weights",
    "near_duplicates",
    "nearest_rows",
    "presence_weights",
    "pretraining_feasibility",
    "propagation",
    "random_subsets",
    "refined_clusters",
    "retriever_loss",
    "select",
    "select_tokens",
    "self_influence",
    "stratified_batches",
    "top_and_explore",
    "total_steps",
    "unsure_rows",
]
