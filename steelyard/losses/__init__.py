"""Losses on scores: plain functions, corrected by what each draw stands for."""

from __future__ import annotations

from steelyard.losses.adaptive_margin import adaptive_relevance_margin
from steelyard.losses.auc import mann_whitney
from steelyard.losses.auctions import welfare_rank
from steelyard.losses.bilateral import bilateral_softmax
from steelyard.losses.binary import ccl, gbce
from steelyard.losses.cascade import lcron, log_survival
from steelyard.losses.clusters import (
    bidirectional_margin,
    clusterns,
    nearest_centroids,
    pamc,
    pamc_log_negatives,
)
from steelyard.losses.debiased import debiased_contrastive, diht, hard_contrastive, hasa
from steelyard.losses.distillation import (
    kl_distillation,
    sample_teacher,
    sampled_distillation,
    sinkhorn_distillation,
    top_kd,
)
from steelyard.losses.fused import fused_sampled_softmax, fused_softmax
from steelyard.losses.judged import judge_alignment, judged_false_negatives
from steelyard.losses.listwise import lambda_loss, listmle, listnet, ranknet
from steelyard.losses.margins import margin_mse, tas_balanced_loss
from steelyard.losses.named import LOSSES, RetrievalLoss, Scored, retrieval_loss
from steelyard.losses.neural_ndcg import neural_ndcg
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
from steelyard.losses.pairwise import bpr, bpr_max, top1, top1_max
from steelyard.losses.pooling_bias import cet, pooling_log_weight
from steelyard.losses.regression_compatible import regression_compatible
from steelyard.losses.soft_sorting import log_soft_permutation
from steelyard.losses.softmax import sampled_softmax
from steelyard.losses.softmax_variants import psl, sl_at_k, top_k_threshold

__all__ = [
    "LOSSES",
    "FalseNegativeHead",
    "RetrievalLoss",
    "Scored",
    "adaptive_relevance_margin",
    "bidirectional_margin",
    "bilateral_softmax",
    "bpr",
    "bpr_max",
    "ccl",
    "cet",
    "cluster_log_weight",
    "clusterns",
    "debiased_contrastive",
    "diht",
    "false_negative_weighted",
    "fused_sampled_softmax",
    "fused_softmax",
    "gbce",
    "hard_contrastive",
    "hasa",
    "judge_alignment",
    "judged_false_negatives",
    "kl_distillation",
    "lambda_loss",
    "lcron",
    "listmle",
    "listnet",
    "log_posterior",
    "log_soft_permutation",
    "log_survival",
    "mann_whitney",
    "margin_mse",
    "nbpo",
    "nce",
    "nearest_centroids",
    "negative_sampling",
    "neural_ndcg",
    "pamc",
    "pamc_log_negatives",
    "phrase_score",
    "pooling_log_weight",
    "psl",
    "ranking_nce",
    "ranknet",
    "regression_compatible",
    "retrieval_loss",
    "sample_teacher",
    "sampled_bce",
    "sampled_distillation",
    "sampled_mse",
    "sampled_softmax",
    "sinkhorn_distillation",
    "sl_at_k",
    "subsampling_keep_probability",
    "tas_balanced_loss",
    "top1",
    "top1_max",
    "top_k_threshold",
    "top_kd",
    "weighted_info_nce",
    "welfare_rank",
]
