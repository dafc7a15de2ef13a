"""Examples for a prompt, by how much they raise a model's likelihood of the right answer."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.losses.softmax import sampled_softmax


def example_labels(
    log_likelihood: ArrayLike | Tensor, positives: int, negatives: int
) -> tuple[Tensor, Tensor]:
    """The best and the worst examples of each query, by the model's own likelihood.

        score(e) = 1/T sum_t log p(y_t | e, x, y_<t);   positives: the highest;  negatives: the lowest

    Args:
        log_likelihood: mean log-likelihood of each query's answer under each candidate example, (Q, E).
        positives: how many of the highest, at least 1.
        negatives: how many of the lowest, at least 1; both together at most E.

    Returns:
        Ids of the positives, (Q, positives), from the highest, and of the negatives, (Q, negatives), from the lowest.

    Raises:
        ValueError: NaN, or numbers outside their range.

    Reference:
        Li, Li, Tao, Li, Zhang, Liu and Jin (2023), Large language model-aware in-context learning for code generation,
        arXiv 2310.09748.
    """
    score = torch.as_tensor(log_likelihood)
    if score.ndim != 2 or bool(torch.isnan(score).any()):
        raise ValueError(f"log_likelihood must be (queries, examples) without NaN, got {tuple(score.shape)}.")
    p, n = operator.index(positives), operator.index(negatives)
    if p < 1 or n < 1 or p + n > score.shape[1]:
        raise ValueError(
            f"positives and negatives must be at least 1 and together at most {score.shape[1]}, got {p}, {n}."
        )
    order = torch.argsort(score, dim=1, descending=True, stable=True)
    return order[:, :p], order[:, -n:].flip(1)


def retriever_loss(
    queries: Tensor, examples: Tensor, positives: Tensor, negatives: Tensor, *, temperature: float = 0.05
) -> Tensor:
    """InfoNCE of a retriever of examples: each positive of a query against the query's own negatives.

        -log exp(q.e+ / tau) / (exp(q.e+ / tau) + sum over e- of exp(q.e- / tau)),  cosines, averaged

    Args:
        queries: vectors, (Q, d).
        examples: vectors, (E, d).
        positives: ids, (Q, P), as `example_labels` gives them.
        negatives: ids, (Q, N).
        temperature: tau above 0.

    Returns:
        Scalar.

    Raises:
        ValueError: a temperature that is not positive.

    Reference:
        Li et al. (2023), arXiv 2310.09748.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    q, e = (torch.nn.functional.normalize(x, dim=-1) for x in (queries, examples))
    positive = torch.einsum("qd,qpd->qp", q, e[positives]) / temperature
    negative = torch.einsum("qd,qnd->qn", q, e[negatives]) / temperature
    spread = negative.unsqueeze(1).expand(-1, positive.shape[1], -1).flatten(0, 1)
    return sampled_softmax(positive.flatten(), spread, torch.zeros_like(spread))


def best_examples(
    query: int, examples: int, likelihood: Callable[[int, int], float], *, k: int = 1
) -> list[int]:
    """The k examples under which a query's answer is likeliest, by asking the model of every one of them.

    Args:
        query: its number.
        examples: how many there are.
        likelihood: called with a query and an example, gives the mean log-likelihood of the answer.
        k: how many, 1 to `examples`.

    Returns:
        Ids from the best; ties go to the smaller.

    Raises:
        ValueError: k outside its range.

    Reference:
        Li et al. (2023), arXiv 2310.09748 (how training examples are labelled).
    """
    if not 1 <= k <= examples:
        raise ValueError(f"k must lie between 1 and the {examples} examples, got {k}.")
    scores = torch.tensor([likelihood(query, e) for e in range(examples)])
    return torch.argsort(scores, descending=True, stable=True)[:k].tolist()
