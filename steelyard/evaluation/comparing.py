"""Which of several systems is better: paired bootstrap over the same queries, corrected for many comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from steelyard.evaluation.bootstrap import resampled_means


@dataclass(frozen=True)
class PairedDifference:
    """One system against another on the same queries.

    Args:
        first: name of the first.
        second: name of the second.
        difference: mean of first less second.
        low: lower end of its 95 % interval.
        high: upper end.
        p: two-sided bootstrap p-value of no difference.
        p_holm: the same, corrected by Holm for all comparisons made together.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float

    def __str__(self) -> str:
        verdict = "differs" if self.p_holm < 0.05 else "no difference shown"
        return (
            f"{self.first} - {self.second}: {self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}], "
            f"Holm p {self.p_holm:.3g}: {verdict}"
        )


def paired_bootstrap(
    scores: dict[str, Tensor], *, resamples: int = 10_000, seed: int = 0
) -> list[PairedDifference]:
    """Compare every two of several systems, query by query.

        d_q = a_q - b_q;   interval: 2.5 % and 97.5 % quantiles of mean(d*) over resamples of the queries
        p = 2 min( P(mean(d*) <= 0), P(mean(d*) >= 0) ),   both counted with one added
        Holm: p sorted rising, p_(i) <- max over j <= i of (m - j + 1) p_(j)

    Queries, not systems, are resampled: the same query is hard for all, and that cancels.

    Args:
        scores: float, (n,) for each system: a metric of each query, in the same order.
        resamples: how many.
        seed: seed of the resamples.

    Returns:
        All pairs, in the order of the names.

    Raises:
        ValueError: fewer than two systems or queries, other lengths, or values that are not finite.

    Reference:
        Efron & Tibshirani (1993), An introduction to the bootstrap, chapter 16; Holm (1979), A simple
        sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6(2). Queries as the
        unit: Sakai (2006), Evaluating evaluation metrics based on the bootstrap, SIGIR.
    """
    names = list(scores)
    if len(names) < 2:
        raise ValueError(f"A comparison needs two systems at least, got {len(names)}.")
    table = [torch.as_tensor(scores[name], dtype=torch.float64) for name in names]
    n = len(table[0])
    for name, row in zip(names, table, strict=True):
        if row.shape != (n,):
            raise ValueError(f"{name} has {tuple(row.shape)} scores where {names[0]} has ({n},).")
        if not bool(row.isfinite().all()):
            raise ValueError(f"{name} has a score that is not finite.")
    if n < 2:
        raise ValueError("A comparison needs two queries at least.")
    values = torch.stack(table)
    means = resampled_means(values, resamples, seed)
    found = []
    edges = torch.tensor([0.025, 0.975], dtype=torch.float64)
    for i, j in combinations(range(len(names)), 2):
        drawn = means[:, i] - means[:, j]
        low, high = torch.quantile(drawn, edges).tolist()
        tails = [(int(tail.sum()) + 1) / (resamples + 1) for tail in (drawn <= 0, drawn >= 0)]
        difference = float((values[i] - values[j]).mean())
        found.append((names[i], names[j], difference, low, high, min(1.0, 2 * min(tails))))
    corrected = holm([row[5] for row in found])
    return [PairedDifference(*row, p) for row, p in zip(found, corrected, strict=True)]


def holm(p: list[float]) -> list[float]:
    """Holm's correction: p-values that may each be compared with the level for all comparisons together.

    Args:
        p: p-values, in any order.

    Returns:
        Corrected ones in the same order, at most 1.

    Raises:
        ValueError: a value outside [0, 1].

    Reference:
        Holm (1979), A simple sequentially rejective multiple test procedure, Scandinavian Journal of
        Statistics 6(2).
    """
    if not all(0 <= value <= 1 for value in p):
        raise ValueError(f"p-values must lie in [0, 1], got {p}.")
    corrected, largest = [0.0] * len(p), 0.0
    for place, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - place) * p[index]))
        corrected[index] = largest
    return corrected
