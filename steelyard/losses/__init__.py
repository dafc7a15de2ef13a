"""Losses on scores: plain functions, corrected by what each draw stands for."""

from __future__ import annotations

from steelyard.losses.adaptive_margin import adaptive_relevance_margin
from steelyard.losses.adversarial_contrast import (
    adversarial_contrast,
    adversarial_negative,
    adversarial_positive,
)
from steelyard.losses.alignment_uniformity import alignment, uniformity
from steelyard.losses.auc import mann_whitney
from steelyard.losses.auctions import welfare_rank
from steelyard.losses.bilateral import bilateral_softmax
from steelyard.losses.binary import ccl, gbce
from steelyard.losses.cascade import lcron, log_survival
from steelyard.losses.circle import circle, unified_similarity
from steelyard.losses.classification import asymmetric_bce, direct_coverage, label_encoding_risk, squentropy
from steelyard.losses.clusters import (
    bidirectional_margin,
    clusterns,
    nearest_centroids,
    pamc,
    pamc_log_negatives,
)
from steelyard.losses.contextual import contextual_loss, contextual_similarity
from steelyard.losses.contrastive import nt_xent, sigmoid_contrastive, supervised_contrastive
from steelyard.losses.debiased import debiased_contrastive, diht, hard_contrastive, hasa
from steelyard.losses.distillation import (
    kl_distillation,
    sample_teacher,
    sampled_distillation,
    sinkhorn_distillation,
    top_kd,
)
from steelyard.losses.factored_output import FactoredOutput
from steelyard.losses.fused import fused_sampled_softmax, fused_softmax
from steelyard.losses.individual_temperatures import (
    IndividualTemperatures,
    robust_contrastive,
    robust_temperature,
)
from steelyard.losses.judged import judge_alignment, judged_false_negatives
from steelyard.losses.kernel_conditional import conditional_contrastive, kernel_weights
from steelyard.losses.learned_link import LegendreLink, legendre_loss
from steelyard.losses.listwise import lambda_loss, listmle, listnet, ranknet
from steelyard.losses.margin_softmax import AdaFace, adaface_margins, margin_logits, margin_softmax
from steelyard.losses.margins import margin_mse, tas_balanced_loss
from steelyard.losses.metric_mixup import (
    Mixed,
    mix_pairs,
    mixed_contrastive,
    mixed_multi_similarity,
    utilization,
)
from steelyard.losses.multi_similarity import informative_pairs, multi_similarity
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
from steelyard.losses.nonnegative import nonnegative, nonnegative_contrastive, spectral_contrastive
from steelyard.losses.pairwise import bpr, bpr_max, top1, top1_max
from steelyard.losses.pooling_bias import cet, pooling_log_weight
from steelyard.losses.prototypes import class_prototypes, icnn_loss, icnn_score, proto_triplet
from steelyard.losses.proxies import Proxies, merge_penalty, proxy_anchor, proxy_nca, soft_triple
from steelyard.losses.quality_adaptation import (
    degradation_rank,
    group_contrast,
    normalization_parameters,
)
from steelyard.losses.quality_triplets import quality_triplets
from steelyard.losses.random_losses import ens_loss, random_slopes
from steelyard.losses.regression import easy_llp, number_token, soft_levels, thurstone_fidelity
from steelyard.losses.regression_compatible import regression_compatible
from steelyard.losses.self_consistent_robust import linf_perturbation, self_consistent_loss
from steelyard.losses.sentence_embedding import captioning_loss, sentence_cosine
from steelyard.losses.soft_sorting import log_soft_permutation
from steelyard.losses.softmax import sampled_softmax
from steelyard.losses.softmax_variants import psl, sl_at_k, top_k_threshold
from steelyard.losses.spanning_tree import spanning_tree, tree_spread
from steelyard.losses.spherical import (
    LogitMoments,
    log_taylor_softmax,
    logit_moments,
    moments_of_logits,
    spherical_squared_error,
    z_loss,
)
from steelyard.losses.structural_similarity import ms_ssim_loss
from steelyard.losses.submodular import set_value, submodular_loss
from steelyard.losses.tabular_transfer import (
    hard_label_table,
    sampled_label_table,
    soft_label_table,
    squared_logit,
)
from steelyard.losses.threshold_consistent import (
    OperatingPoints,
    false_accept_threshold,
    operating_points,
    threshold_consistent_margin,
)

__all__ = [
    "LOSSES",
    "AdaFace",
    "FactoredOutput",
    "FalseNegativeHead",
    "IndividualTemperatures",
    "LegendreLink",
    "LogitMoments",
    "Mixed",
    "OperatingPoints",
    "Proxies",
    "RetrievalLoss",
    "Scored",
    "adaface_margins",
    "adaptive_relevance_margin",
    "adversarial_contrast",
    "adversarial_negative",
    "adversarial_positive",
    "alignment",
    "asymmetric_bce",
    "bidirectional_margin",
    "bilateral_softmax",
    "bpr",
    "bpr_max",
    "captioning_loss",
    "ccl",
    "cet",
    "circle",
    "class_prototypes",
    "cluster_log_weight",
    "clusterns",
    "conditional_contrastive",
    "contextual_loss",
    "contextual_similarity",
    "debiased_contrastive",
    "degradation_rank",
    "diht",
    "direct_coverage",
    "easy_llp",
    "ens_loss",
    "false_accept_threshold",
    "false_negative_weighted",
    "fused_sampled_softmax",
    "fused_softmax",
    "gbce",
    "group_contrast",
    "hard_contrastive",
    "hard_label_table",
    "hasa",
    "icnn_loss",
    "icnn_score",
    "informative_pairs",
    "judge_alignment",
    "judged_false_negatives",
    "kernel_weights",
    "kl_distillation",
    "label_encoding_risk",
    "lambda_loss",
    "lcron",
    "legendre_loss",
    "linf_perturbation",
    "listmle",
    "listnet",
    "log_posterior",
    "log_soft_permutation",
    "log_survival",
    "log_taylor_softmax",
    "logit_moments",
    "mann_whitney",
    "margin_logits",
    "margin_mse",
    "margin_softmax",
    "merge_penalty",
    "mix_pairs",
    "mixed_contrastive",
    "mixed_multi_similarity",
    "moments_of_logits",
    "ms_ssim_loss",
    "multi_similarity",
    "nbpo",
    "nce",
    "nearest_centroids",
    "negative_sampling",
    "neural_ndcg",
    "nonnegative",
    "nonnegative_contrastive",
    "normalization_parameters",
    "nt_xent",
    "number_token",
    "operating_points",
    "pamc",
    "pamc_log_negatives",
    "phrase_score",
    "pooling_log_weight",
    "proto_triplet",
    "proxy_anchor",
    "proxy_nca",
    "psl",
    "quality_triplets",
    "random_slopes",
    "ranking_nce",
    "ranknet",
    "regression_compatible",
    "retrieval_loss",
    "robust_contrastive",
    "robust_temperature",
    "sample_teacher",
    "sampled_bce",
    "sampled_distillation",
    "sampled_label_table",
    "sampled_mse",
    "sampled_softmax",
    "self_consistent_loss",
    "sentence_cosine",
    "set_value",
    "sigmoid_contrastive",
    "sinkhorn_distillation",
    "sl_at_k",
    "soft_label_table",
    "soft_levels",
    "soft_triple",
    "spanning_tree",
    "spectral_contrastive",
    "spherical_squared_error",
    "squared_logit",
    "squentropy",
    "submodular_loss",
    "subsampling_keep_probability",
    "supervised_contrastive",
    "tas_balanced_loss",
    "threshold_consistent_margin",
    "thurstone_fidelity",
    "top1",
    "top1_max",
    "top_k_threshold",
    "top_kd",
    "tree_spread",
    "unified_similarity",
    "uniformity",
    "utilization",
    "weighted_info_nce",
    "welfare_rank",
    "z_loss",
]
