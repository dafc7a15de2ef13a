"""Losses on scores: plain functions, corrected by what each draw stands for."""

from steelyard.losses.fused import fused_sampled_softmax, fused_softmax
from steelyard.losses.softmax import sampled_softmax

__all__ = ["fused_sampled_softmax", "fused_softmax", "sampled_softmax"]
