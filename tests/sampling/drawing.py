"""Seeded draws and who is in them, for the tests of designs."""

import math

import torch
from torch import Tensor

from steelyard.draws import Draws


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def included(draws: Draws, n: int) -> Tensor:
    """Who was drawn, (..., n); empty slots fall off the end."""
    where = draws.ids.masked_fill(draws.log_expected == math.inf, n)
    return torch.zeros(*where.shape[:-1], n + 1, dtype=torch.float64).scatter_(-1, where, 1.0)[..., :n]
