"""Choosing k of n with known probabilities."""

from steelyard.sampling.alias import AliasTable
from steelyard.sampling.combinatorial import (
    derandomize,
    expected_cardinality_gap,
    expected_conflicts,
    expected_minimum,
    expected_uncovered,
    poisson_binomial,
)
from steelyard.sampling.compress import compress, compress_plus_plus
from steelyard.sampling.conditional_poisson import (
    conditional_poisson,
    conditional_poisson_inclusion,
    conditional_poisson_joint,
    conditional_poisson_weights,
)
from steelyard.sampling.coresets import clustered_sensitivity, sensitivity_coreset
from steelyard.sampling.farthest_point import farthest_point
from steelyard.sampling.frames import FrameSampler, frame_sampler_loss, frame_values, select_frames
from steelyard.sampling.graph_sampling import (
    EdgeSampler,
    Inclusion,
    NodeSampler,
    WalkSampler,
    aggregate,
    count_inclusion,
    induced_subgraph,
)
from steelyard.sampling.hilbert import hilbert_order
from steelyard.sampling.imputation import knn_sampler, pool_imputations
from steelyard.sampling.kernel_thinning import GaussianKernel, MaternKernel, kernel_thinning, mmd
from steelyard.sampling.kmeans_plus_plus import kmeans_plus_plus
from steelyard.sampling.leverage import (
    leverage_sampling,
    leverage_scores,
    lp_sensitivities,
    root_leverage_scores,
    tree_order,
    weighted_least_squares,
)
from steelyard.sampling.pivotal import pivotal
from steelyard.sampling.poisson import poisson, proportional_inclusion
from steelyard.sampling.resampling import resample
from steelyard.sampling.reservoir import Reservoir
from steelyard.sampling.soft_projection import (
    SoftProjection,
    match_points,
    nearest_neighbours,
    simplification_loss,
    soft_projection,
)
from steelyard.sampling.statistical_top_k import statistical_threshold, statistical_top_k
from steelyard.sampling.subspace import SubspaceAdam, draw_subspace, subspace_overlap
from steelyard.sampling.successive import without_replacement
from steelyard.sampling.systematic import systematic
from steelyard.sampling.totals import hajek, horvitz_thompson
from steelyard.sampling.volume import projection_dpp, volume_sampling

__all__ = [
    "AliasTable",
    "EdgeSampler",
    "FrameSampler",
    "GaussianKernel",
    "Inclusion",
    "MaternKernel",
    "NodeSampler",
    "Reservoir",
    "SoftProjection",
    "SubspaceAdam",
    "WalkSampler",
    "aggregate",
    "clustered_sensitivity",
    "compress",
    "compress_plus_plus",
    "conditional_poisson",
    "conditional_poisson_inclusion",
    "conditional_poisson_joint",
    "conditional_poisson_weights",
    "count_inclusion",
    "derandomize",
    "draw_subspace",
    "expected_cardinality_gap",
    "expected_conflicts",
    "expected_minimum",
    "expected_uncovered",
    "farthest_point",
    "frame_sampler_loss",
    "frame_values",
    "hajek",
    "hilbert_order",
    "horvitz_thompson",
    "induced_subgraph",
    "kernel_thinning",
    "kmeans_plus_plus",
    "knn_sampler",
    "leverage_sampling",
    "leverage_scores",
    "lp_sensitivities",
    "match_points",
    "mmd",
    "nearest_neighbours",
    "pivotal",
    "poisson",
    "poisson_binomial",
    "pool_imputations",
    "projection_dpp",
    "proportional_inclusion",
    "resample",
    "root_leverage_scores",
    "select_frames",
    "sensitivity_coreset",
    "simplification_loss",
    "soft_projection",
    "statistical_threshold",
    "statistical_top_k",
    "subspace_overlap",
    "systematic",
    "tree_order",
    "volume_sampling",
    "weighted_least_squares",
    "without_replacement",
]
