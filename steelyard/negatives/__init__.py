"""Where candidates come from: proposals that know the expected count of everything they draw."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from steelyard.draws import Proposal
from steelyard.negatives.context import Context
from steelyard.negatives.everything import Everything
from steelyard.negatives.filters import (
    AbsoluteMargin,
    Duplicates,
    Filter,
    GuideModel,
    KnownPositives,
    Mined,
    PercentageOfPositive,
    RankWindow,
    ScoreRange,
    apply_filters,
    first_refusal,
)
from steelyard.negatives.in_batch import InBatch
from steelyard.negatives.log_uniform import LogUniform
from steelyard.negatives.mixture import Mixture
from steelyard.negatives.popularity import Popularity
from steelyard.negatives.queue import Queue
from steelyard.negatives.streaming import StreamingFrequency
from steelyard.negatives.top_k import SimANS, TopK, simans_weights
from steelyard.negatives.uniform import Uniform

__all__ = [
    "PROPOSALS",
    "AbsoluteMargin",
    "Context",
    "Duplicates",
    "Everything",
    "Filter",
    "GuideModel",
    "InBatch",
    "KnownPositives",
    "LogUniform",
    "Mined",
    "Mixture",
    "PercentageOfPositive",
    "Popularity",
    "Queue",
    "RankWindow",
    "ScoreRange",
    "SimANS",
    "StreamingFrequency",
    "TopK",
    "Uniform",
    "apply_filters",
    "first_refusal",
    "proposal",
    "simans_weights",
]

PROPOSALS: dict[str, Callable[[Tensor, float | None, int | None], Proposal]] = {
    "uniform": lambda counts, _, __: Uniform(len(counts)),
    "popularity": lambda counts, alpha, _: Popularity(counts, 1.0 if alpha is None else alpha),
    "in-batch": lambda counts, _, n_queries: InBatch(counts, n_queries),
    "everything": lambda counts, _, __: Everything(len(counts)),
}


def proposal(spec: str, counts: Tensor, n_queries: int | None = None) -> Proposal:
    """Make the proposal that a name stands for: `uniform`, `popularity:0.75`, `in-batch+uniform`.

    Args:
        spec: names joined by `+`, each with an optional `:number` (the exponent of popularity); a sum
            splits the draws equally.
        counts: (I,): interactions of each item in the training data.
        n_queries: how many queries batches are drawn from; default one for each interaction.

    Returns:
        The proposal; a `Mixture` for a sum.

    Raises:
        ValueError: an unknown name, or a number that the name does not take.
    """
    parts = []
    for word in spec.split("+"):
        name, _, number = word.strip().partition(":")
        if name not in PROPOSALS:
            raise ValueError(
                f"Unknown negatives {name!r} in {spec!r}; there are {', '.join(PROPOSALS)}, joined by '+'."
            )
        if number and name != "popularity":
            raise ValueError(f"{name!r} takes no number, got {word!r}.")
        try:
            parts.append(PROPOSALS[name](counts, float(number) if number else None, n_queries))
        except ValueError as error:
            raise ValueError(f"Negatives {word!r}: {error}") from None
    return parts[0] if len(parts) == 1 else Mixture(parts)
