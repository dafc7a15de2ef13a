"""What a weighted sample says: log-weights averaged, counted, tamed, judged and combined."""

from steelyard.weights.effective_size import effective_sample_size
from steelyard.weights.expectation import expectation, log_normalizer
from steelyard.weights.multiple import (
    balance_heuristic,
    cutoff_heuristic,
    maximum_heuristic,
    merge_weighted,
    multiple_importance,
    partial_mixture,
    power_heuristic,
)
from steelyard.weights.normalizing import log_mean_exp, normalize
from steelyard.weights.pareto import khat_threshold, pareto_khat, pareto_smooth
from steelyard.weights.taming import clip, temper, truncate

__all__ = [
    "balance_heuristic",
    "clip",
    "cutoff_heuristic",
    "effective_sample_size",
    "expectation",
    "khat_threshold",
    "log_mean_exp",
    "log_normalizer",
    "maximum_heuristic",
    "merge_weighted",
    "multiple_importance",
    "normalize",
    "pareto_khat",
    "pareto_smooth",
    "partial_mixture",
    "power_heuristic",
    "temper",
    "truncate",
]
