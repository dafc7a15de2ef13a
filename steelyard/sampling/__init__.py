"""Choosing k of n with known probabilities."""

from steelyard.sampling.alias import AliasTable
from steelyard.sampling.conditional_poisson import (
    conditional_poisson,
    conditional_poisson_inclusion,
    conditional_poisson_joint,
    conditional_poisson_weights,
)
from steelyard.sampling.pivotal import pivotal
from steelyard.sampling.poisson import poisson, proportional_inclusion
from steelyard.sampling.reservoir import Reservoir
from steelyard.sampling.successive import without_replacement
from steelyard.sampling.systematic import systematic
from steelyard.sampling.totals import hajek, horvitz_thompson

__all__ = [
    "AliasTable",
    "Reservoir",
    "conditional_poisson",
    "conditional_poisson_inclusion",
    "conditional_poisson_joint",
    "conditional_poisson_weights",
    "hajek",
    "horvitz_thompson",
    "pivotal",
    "poisson",
    "proportional_inclusion",
    "systematic",
    "without_replacement",
]
