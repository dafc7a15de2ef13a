"""What a training step minimises, how its noise is measured, and the optimisers that take it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from steelyard.draws import Draws
from steelyard.losses import RetrievalLoss, Scored, fused_sampled_softmax
from steelyard.optim import RowAdagrad, RowAdam
from steelyard.retrieval.config import TrainConfig
from steelyard.weights import effective_sample_size

ESS_QUERIES = 64


class Model(nn.Module):
    """An encoder and the log of the inverse temperature, trained or fixed."""

    def __init__(self, encoder: nn.Module, config: TrainConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_scale = nn.Parameter(
            torch.tensor(-math.log(config.temperature)), requires_grad=config.learn_temperature
        )


def batch_loss(
    loss: RetrievalLoss,
    positive: Tensor,
    queries: Tensor,
    candidates: Tensor,
    draws: Draws,
    scale: Tensor,
    owner: Tensor,
    hits: tuple[Tensor, Tensor],
    n_items: int,
) -> Tensor:
    """The mean loss over a batch's positives; the softmax over shared draws is fused, others are gathered.

    Args:
        loss: by name.
        positive: float, (P,): scores.
        queries: float, (B, d).
        candidates: float, (K, d) shared, or (B, K, d).
        draws: what the candidates are.
        scale: inverse temperature.
        owner: int64, (P,): the query of each positive.
        hits: (rows, columns) of the draws to leave out.
        n_items: size of the catalogue.
    """
    if draws.ids.ndim == 1 and loss.fused is not None:
        return fused_sampled_softmax(
            positive,
            queries,
            candidates,
            draws.log_expected,
            scale=scale,
            owner=owner,
            hits=hits,
            **loss.fused,  # type: ignore[arg-type]
        )
    negative = scores(scale, queries, candidates)
    mask = torch.zeros(negative.shape, dtype=torch.bool)
    mask[hits] = True
    log_expected = draws.log_expected.to(negative.dtype).expand_as(negative)
    return loss(
        Scored(positive, negative[owner], log_expected[owner], mask[owner], float(scale.detach()), n_items)
    )


@torch.no_grad()
def effective_negatives(
    queries: Tensor, candidates: Tensor, draws: Draws, scale: Tensor, hits: tuple[Tensor, Tensor]
) -> float:
    """Mean effective number of the weighed draws, over a few of the batch's queries."""
    if draws.ids.shape[-1] == 0:
        return 0.0
    few = slice(0, ESS_QUERIES)
    own = draws.ids.ndim == 2
    log_weight = scores(scale, queries[few], candidates[few] if own else candidates)
    log_weight -= draws.log_expected[few] if own else draws.log_expected
    inside = hits[0] < len(log_weight)
    log_weight[hits[0][inside], hits[1][inside]] = -math.inf
    return float(effective_sample_size(log_weight).mean())


def drop_out(queries: Tensor, config: TrainConfig, generator: torch.Generator) -> Tensor:
    """Leave out entries of the query vectors, and give back their length (cosine) or their mean (dot)."""
    share = config.dropout
    if share == 0:
        return queries
    kept = torch.rand(queries.shape, generator=generator) >= share
    if config.similarity == "cosine":
        return functional.normalize(queries * kept, dim=-1)
    return queries * kept / (1 - share)


def scores(scale: Tensor, queries: Tensor, candidates: Tensor) -> Tensor:
    """Scores of shared candidates (K, d), or of each query's own (B, K, d), by queries (B, d): (B, K)."""
    if candidates.ndim == 2:
        return scale * queries @ candidates.T
    return scale * torch.bmm(candidates, queries.unsqueeze(2)).squeeze(2)


def optimizers_of(model: Model, config: TrainConfig) -> dict[str, Optimizer]:
    """A row-sparse optimiser for the tables whose gradients are sparse, Adam for layers and for the temperature."""
    tables = [
        module.weight for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse
    ]
    held = {id(p) for p in tables}
    layers = [p for p in model.encoder.parameters() if p.requires_grad and id(p) not in held]
    kind = RowAdagrad if config.optimizer == "adagrad" else RowAdam
    optimizers: dict[str, Optimizer] = {}
    if tables:
        optimizers["tables"] = kind(tables, lr=config.lr)
    if layers:
        optimizers["layers"] = torch.optim.Adam(layers, lr=config.lr)
    if model.log_scale.requires_grad:
        optimizers["dense"] = torch.optim.Adam([model.log_scale], lr=1e-3)
    return optimizers
