"""Losses on scores: plain functions, corrected by what each draw stands for."""

from __future__ import annotations

from steelyard.losses.bilateral import bilateral_softmax
from steelyard.losses.clusters import (
    bidirectional_margin,
    clusterns,
    nearest_centroids,
    pamc,
    pamc_log_negatives,
)
from steelyard.losses.debiased import debiased_contrastive, diht, hard_contrastive, hasa
from steelyard.losses.fused import fused_sampled_softmax, fused_softmax
from steelyard.losses.judged import judge_alignment, judged_false_negatives
from steelyard.losses.margins import margin_mse, tas_balanced_loss
from steelyard.losses.noise_contrastive import (
    log_posterior,
    nce,
    negative_sampling,
    phrase_score,
    ranking_nce,
    sampled_bce,
    sampled_mse,
    subsampling_keep_probability,
)
from steelyard.losses.noisy_negatives import (
    FalseNegativeHead,
    cluster_log_weight,
    false_negative_weighted,
    nbpo,
    weighted_info_nce,
)
from steelyard.losses.pooling_bias import cet, pooling_log_weight
from steelyard.losses.softmax import sampled_softmax

__all__ = [
    "FalseNegativeHead",
    "bidirectional_margin",
    "bilateral_softmax",
    "cet",
    "cluster_log_weight",
    "clusterns",
    "debiased_contrastive",
    "diht",
    "false_negative_weighted",
    "fused_sampled_softmax",
    "fused_softmax",
    "hard_contrastive",
    "hasa",
    "judge_alignment",
    "judged_false_negatives",
    "log_posterior",
    "margin_mse",
    "nbpo",
    "nce",
    "nearest_centroids",
    "negative_sampling",
    "pamc",
    "pamc_log_negatives",
    "phrase_score",
    "pooling_log_weight",
    "ranking_nce",
    "sampled_bce",
    "sampled_mse",
    "sampled_softmax",
    "subsampling_keep_probability",
    "tas_balanced_loss",
    "weighted_info_nce",
]
