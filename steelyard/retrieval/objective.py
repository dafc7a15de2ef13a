"""What a training step minimises, how its noise is measured, and the optimisers that take it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from steelyard.draws import Draws
from steelyard.losses import RetrievalLoss, Scored, fused_sampled_softmax, top_k_threshold
from steelyard.optim import RowAdagrad, RowAdam
from steelyard.retrieval.config import TrainConfig
from steelyard.weights import effective_sample_size

ESS_QUERIES = 64
THRESHOLD_ROWS = 256


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
    threshold = weight = None
    if loss.k:
        own = (positive / scale).detach()
        threshold = thresholds(own, queries, candidates, draws.log_expected, owner, hits, loss.k)[owner]
        weight = loss.weight(positive / scale, threshold)
        if not bool((weight > 0).any()):  # all lie so far below their lists that none counts
            return (positive * 0).sum()
    if draws.ids.ndim == 1 and loss.fused is not None:
        mean = fused_sampled_softmax(
            positive,
            queries,
            candidates,
            draws.log_expected,
            scale=scale,
            owner=owner,
            hits=hits,
            weight=weight,
            **loss.fused,  # type: ignore[arg-type]
        )
        return mean if weight is None else mean * weight.mean()
    negative = scores(scale, queries, candidates)
    mask = torch.zeros(negative.shape, dtype=torch.bool)
    mask[hits] = True
    log_expected = draws.log_expected.to(negative.dtype).expand_as(negative)
    number = float(scale.detach())
    own = functional.embedding(owner, negative)  # its gradient is added up in one order, whatever the threads
    return loss(Scored(positive, own, log_expected[owner], mask[owner], number, n_items, threshold))


@torch.no_grad()
def thresholds(
    positive: Tensor,
    queries: Tensor,
    candidates: Tensor,
    log_expected: Tensor,
    owner: Tensor,
    hits: tuple[Tensor, Tensor],
    k: int,
) -> Tensor:
    """The similarity of each query's K-th best item of all, estimated from its positives and the weighed draws.

    Args:
        positive: float, (P,): similarities.
        queries: float, (B, d).
        candidates: float, (K, d) shared, or (B, K, d).
        log_expected: float, of the draws.
        owner: int64, (P,), never falling: the query of each positive.
        hits: (rows, columns) of the draws to leave out, rows never falling.
        k: length of the list.

    Returns:
        float, (B,); -inf where positives and draws stand for fewer than k items.
    """
    shared, n = candidates.ndim == 2, len(queries)
    counts = torch.bincount(owner, minlength=n)
    column = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    own = positive.new_full((n, int(counts.max())), -math.inf)
    own[owner, column] = positive
    # Where each draw stands for m items at least, the first k / m of them tell.
    most = float(log_expected.max()) if log_expected.numel() else 0.0
    few = max(1, math.ceil(k * math.exp(min(most, 700.0)) * (1 - 1e-6)))
    out = []
    for start in range(0, n, THRESHOLD_ROWS):
        rows = slice(start, start + THRESHOLD_ROWS)
        score = scores(queries.new_ones(()), queries[rows], candidates if shared else candidates[rows])
        inside = (hits[0] >= start) & (hits[0] < start + THRESHOLD_ROWS)
        score[hits[0][inside] - start, hits[1][inside]] = -math.inf
        weighed = log_expected.expand(n, -1)[rows]
        if few < score.shape[1]:
            score, column = score.topk(few, -1)
            weighed = weighed.gather(1, column)
        out.append(top_k_threshold(score, weighed.to(score.dtype), k=k, own=own[rows]))
    return torch.cat(out)


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
