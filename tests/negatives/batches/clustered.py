"""Vectors in planted clusters, and the share of each row's true nearest ones that its batch holds."""

import torch

from steelyard.negatives.batches.packing import of_sizes
from steelyard.ragged import Ragged


def planted(n: int, k: int, d: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors in k tight clusters of unequal size, shuffled, and the cluster of each."""
    generator = torch.Generator().manual_seed(seed)
    cluster = (k * torch.rand(n, generator=generator) ** 1.5).long()
    centre = torch.randn(k, d, generator=generator)
    x = centre[cluster] + 0.15 * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(x, dim=1), cluster


def random_batches(n: int, batch_size: int, seed: int = 9) -> Ragged:
    sizes = torch.full((-(-n // batch_size),), batch_size)
    sizes[-1] -= int(sizes.sum()) - n
    return of_sizes(torch.randperm(n, generator=torch.Generator().manual_seed(seed)), sizes)


def hard_share(batches: Ragged, x: torch.Tensor, m: int = 8) -> float:
    """Of the m rows most similar to a row, how many are in its batch, as a mean share."""
    score = x @ x.T
    score.fill_diagonal_(-2)
    top = score.topk(m, 1).indices
    batch = torch.full((len(x),), -1)
    batch[batches.values] = batches.row_index()
    return float((batch[top] == batch.unsqueeze(1)).double().mean())


def is_epoch(batches: Ragged, n: int) -> bool:
    """Each row once."""
    return bool(torch.equal(batches.values.sort().values, torch.arange(n)))
