"""When negatives are found anew and where from: schedules of mining over a training run.

Negatives mined once need no schedule: they are a table of ids. What changes while the model learns is here.
"""

from steelyard.negatives.schedules.ar2 import ar2_ranker_loss, ar2_retriever_loss
from steelyard.negatives.schedules.conan import Replacement, conan_replace
from steelyard.negatives.schedules.pools import pooled_negatives
from steelyard.negatives.schedules.refreshed import Refreshed, pool_overlap
from steelyard.negatives.schedules.star_adore import adore_candidates, adore_loss, star_loss
from steelyard.negatives.schedules.teleportation import TeleNegatives

__all__ = [
    "Refreshed",
    "Replacement",
    "TeleNegatives",
    "adore_candidates",
    "adore_loss",
    "ar2_ranker_loss",
    "ar2_retriever_loss",
    "conan_replace",
    "pool_overlap",
    "pooled_negatives",
    "star_loss",
]
