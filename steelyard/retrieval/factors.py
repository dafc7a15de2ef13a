"""Matrix factorisation: a vector for each user and each item."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class MatrixFactorization(nn.Module):
    """A vector for each user and each item; the score is their cosine or inner product.

        score(u, i) = <x_u, y_i> / temperature,    vectors normalised to length 1 for "cosine"

    Gradients of both tables are sparse: a step touches only the rows it used.

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length of the vectors.
        cosine: normalise the vectors.
        generator: source of the initial vectors, standard deviation 0.1.

    Reference:
        Koren, Bell & Volinsky (2009), Matrix factorization techniques for recommender systems, IEEE
        Computer 42(8); cosine in place of the inner product is common usage.
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        *,
        cosine: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.cosine = cosine
        self.user = nn.Embedding(n_users, dim, sparse=True)
        self.item = nn.Embedding(n_items, dim, sparse=True)
        for table in (self.user, self.item):
            with torch.no_grad():
                table.weight.normal_(0, 0.1, generator=generator)

    def queries(self, users: Tensor) -> Tensor:
        """Vectors of users, (..., dim)."""
        return self._finish(self.user(users))

    def items(self, items: Tensor) -> Tensor:
        """Vectors of items, (..., dim)."""
        return self._finish(self.item(items))

    def _finish(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=-1) if self.cosine else vectors
