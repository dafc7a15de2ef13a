"""Benchmark-targeted ranking: documents by how near they come to the examples of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

CHUNK = 2**24


def benchmark_ranking(
    documents: ArrayLike | Tensor,
    benchmark: ArrayLike | Tensor,
    *,
    aggregate: Literal["max", "mean"] = "max",
) -> Tensor:
    """Score documents by their ranks among the neighbours of each benchmark example.

        r_eb = rank of document e among all by cosine to benchmark example b, from 1
        score_e = max over b of 1 / r_eb      (or the mean)

    Ranks put every example on one scale, however near its neighbours are. The maximum asks that a document is
    near to some example; the mean that it is near to all. Documents equally near share their mean rank.

    Args:
        documents: vectors of a sample of documents, (n, d).
        benchmark: vectors of benchmark examples, (m, d).
        aggregate: "max" or "mean" over examples.

    Returns:
        float64, (n,), in (0, 1].

    Raises:
        ValueError: no vectors, of different width, not finite, or of length zero; another aggregate.

    Reference:
        Mizrahi, Larsen, Allardice, Petryk, Gorokhov, Li, Fang, Gardner, Gunter and Dehghan (2025), Language
        models improve when pretraining data matches target tasks, arXiv 2507.12466. Reconstructed: the paper
        was seen in its abstract, the reciprocal rank in a summary.
    """
    if aggregate not in ("max", "mean"):
        raise ValueError(f"aggregate must be max or mean, got {aggregate!r}.")
    x, b = (_directions(v, name) for v, name in ((documents, "documents"), (benchmark, "benchmark")))
    if x.shape[1] != b.shape[1]:
        raise ValueError(f"documents have {x.shape[1]} dimensions and benchmark {b.shape[1]}.")
    return ranked((part @ x.T for part in torch.split(b, max(1, CHUNK // len(x)))), aggregate)


def ranked(similarity: Iterable[Tensor], aggregate: str = "max") -> Tensor:
    """Scores from similarities of some benchmark examples at a time to all documents, (m, n) each."""
    score, examples = torch.zeros(1, dtype=torch.float64), 0
    for part in similarity:
        value = 1 / _mean_ranks(part)
        score = torch.maximum(score, value.amax(0)) if aggregate == "max" else score + value.sum(0)
        examples += len(part)
    return score if aggregate == "max" else score / examples


def _directions(vectors: ArrayLike | Tensor, name: str) -> Tensor:
    v = torch.as_tensor(vectors)
    if v.ndim != 2 or len(v) == 0:
        raise ValueError(f"{name} must be a matrix with at least one row, got shape {tuple(v.shape)}.")
    v = v.double() if v.dtype == torch.float64 or not v.is_floating_point() else v.float()
    length = v.norm(dim=1, keepdim=True)
    if not bool(torch.isfinite(length).all()) or bool((length == 0).any()):
        raise ValueError(f"{name} has a vector that is zero or not finite: it has no direction.")
    directions: Tensor = v / length
    return directions


def _mean_ranks(similarity: Tensor) -> Tensor:
    """Descending ranks from 1 along the rows; equal values share their mean rank."""
    ordered, order = similarity.sort(dim=1, descending=True)
    n = similarity.shape[1]
    place = torch.arange(n).expand_as(ordered)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.where(begins, place, 0).cummax(1).values
    ends = torch.ones_like(begins)
    ends[:, :-1] = begins[:, 1:]
    last = torch.where(ends, place, n).flip(1).cummin(1).values.flip(1)
    return torch.empty(similarity.shape, dtype=torch.float64).scatter_(
        1, order, (first + last).double() / 2 + 1
    )
