"""Choosing k of n with known probabilities."""

from steelyard.sampling.alias import AliasTable

__all__ = ["AliasTable"]
