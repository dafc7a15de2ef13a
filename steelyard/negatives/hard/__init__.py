"""Hard negatives: which candidates to keep, to make up or to draw more often, and what that does to the loss.

What is selected here is selected after scoring, so the loss is then another one than the softmax over
everything; each docstring says which. `steelyard.negatives.TopK` keeps hard negatives without changing it.
"""

from steelyard.negatives.hard.bidirectional import bidirectional_loss
from steelyard.negatives.hard.boxes import atss
from steelyard.negatives.hard.clusters import same_cluster_corruption
from steelyard.negatives.hard.degraded import degrade_targets, restoration_contrast
from steelyard.negatives.hard.distance_policy import DistancePolicy
from steelyard.negatives.hard.distance_weighted import distance_weighted, distance_weighted_log_weights
from steelyard.negatives.hard.dns import dns, dns_log_probability
from steelyard.negatives.hard.fuzzy_rough import fuzzy_rough_negatives, fuzzy_similarity
from steelyard.negatives.hard.hardest import dual_view_loss, hardest
from steelyard.negatives.hard.mixgcf import mixgcf
from steelyard.negatives.hard.mochi import mochi
from steelyard.negatives.hard.noise import dclr_loss, noise_negatives, suspects
from steelyard.negatives.hard.numerals import numeric_aware_log_weights
from steelyard.negatives.hard.self_aware import self_aware
from steelyard.negatives.hard.triplets import Triplets, batch_hard, semi_hard, triplet_loss
from steelyard.negatives.hard.unpg import inside_whiskers, unpg_loss

__all__ = [
    "DistancePolicy",
    "Triplets",
    "atss",
    "batch_hard",
    "bidirectional_loss",
    "dclr_loss",
    "degrade_targets",
    "distance_weighted",
    "distance_weighted_log_weights",
    "dns",
    "dns_log_probability",
    "dual_view_loss",
    "fuzzy_rough_negatives",
    "fuzzy_similarity",
    "hardest",
    "inside_whiskers",
    "mixgcf",
    "mochi",
    "noise_negatives",
    "numeric_aware_log_weights",
    "restoration_contrast",
    "same_cluster_corruption",
    "self_aware",
    "semi_hard",
    "suspects",
    "triplet_loss",
    "unpg_loss",
]
