"""Who meets whom: batches in which the others' positives are hard negatives, or none that is a false one."""

from steelyard.negatives.batches.clusters import balanced_bisection, cluster_batches
from steelyard.negatives.batches.margin_balanced import margin_balanced
from steelyard.negatives.batches.neighbours import (
    great_circle_neighbours,
    neighbour_batches,
    similar_neighbours,
)
from steelyard.negatives.batches.no_duplicates import no_duplicate_batches
from steelyard.negatives.batches.strata import source_clusters, stratified_batches, topic_batches

__all__ = [
    "balanced_bisection",
    "cluster_batches",
    "great_circle_neighbours",
    "margin_balanced",
    "neighbour_batches",
    "no_duplicate_batches",
    "similar_neighbours",
    "source_clusters",
    "stratified_batches",
    "topic_batches",
]
