"""A labelled batch whose losses pytorch-metric-learning was asked for."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

Y = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4])


def batch() -> tuple[Tensor, Tensor]:
    """Embeddings (12, 5), and the weights or proxies (6, 5) of six classes; of the last there is no example."""
    g = torch.Generator().manual_seed(0)
    torch.randn(12, 5, generator=g, dtype=torch.float64)
    w = torch.randn(5, 6, generator=g, dtype=torch.float64)
    return torch.randn(12, 5, generator=g, dtype=torch.float64) * 3, w.T


def cosines() -> Tensor:
    x, w = batch()
    return normalize(x, dim=1) @ normalize(w, dim=1).T
