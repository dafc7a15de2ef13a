"""Which of several systems is better: paired over the same queries, corrected for many comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from steelyard.evaluation.bootstrap import expanded_interval, resampled_means

_SIGNS_AT_ONCE = 2**21


@dataclass(frozen=True)
class PairedDifference:
    """One system against another on the same queries.

    Args:
        first: name of the first.
        second: name of the second.
        difference: mean of first less second.
        low: lower end of its 95 % interval.
        high: upper end.
        p: two-sided p-value of no difference, by sign flips.
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


def paired_comparison(
    scores: dict[str, Tensor], *, resamples: int = 10_000, seed: int = 0
) -> list[PairedDifference]:
    """Compare every two of several systems, query by query.

        d_q = a_q - b_q;   interval: bootstrap of mean(d) over resamples of the queries (`expanded_interval`)
        p = P( |mean(s d)| >= |mean(d)| ),   s_q = +1 or -1 at random: which system is which does not matter
        Holm: p sorted rising, p_(i) <- max over j <= i of (m - j + 1) p_(j)

    Queries, not systems, are resampled: the same query is hard for all, and that cancels. Where 2^n is at most
    `resamples` all signs are counted and p is exact; so n queries never prove more than 2^(1 - n), where a bootstrap
    p-value of a handful of queries would call half of all equal systems different.

    Args:
        scores: float, (n,) for each system: a metric of each query, in the same order.
        resamples: how many.
        seed: seed of the resamples.

    Returns:
        All pairs, in the order of the names.

    Raises:
        ValueError: fewer than two systems or queries, other lengths, or values that are not finite.

    Reference:
        Smucker, Allan & Carterette (2007), A comparison of statistical significance tests for information
        retrieval evaluation, CIKM, and (2009), Agreement among statistical significance tests at varying sample
        sizes, SIGIR, who find the bootstrap too small in p where topics are few and recommend the randomisation
        test; Holm (1979), A simple sequentially rejective multiple test procedure, Scandinavian Journal of
        Statistics 6(2).
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
    pairs = list(combinations(range(len(names)), 2))
    differences = torch.stack([table[i] - table[j] for i, j in pairs])
    means = resampled_means(torch.stack(table), resamples, seed)
    chances = _sign_flips(differences, resamples, seed)
    return [
        PairedDifference(
            names[i],
            names[j],
            float(row.mean()),
            *expanded_interval(means[:, i] - means[:, j], n),
            p,
            corrected,
        )
        for (i, j), row, p, corrected in zip(pairs, differences, chances, holm(chances), strict=True)
    ]


def _sign_flips(differences: Tensor, resamples: int, seed: int) -> list[float]:
    """Two-sided p-value of each row, (pairs, n), from all sign flips if they are few, else from random ones."""
    n, all_signs = differences.shape[1], differences.shape[1] < 60 and 2 ** differences.shape[1] <= resamples
    total = 2**n if all_signs else resamples
    generator = torch.Generator().manual_seed(seed)
    rounding = 1e-12 * differences.abs().sum(1)  # by which what is equal may fall short
    observed = differences.sum(1).abs() - rounding
    reached = torch.zeros(len(differences), dtype=torch.int64)
    at_once = max(1, _SIGNS_AT_ONCE // n)
    for start in range(0, total, at_once):
        size = min(at_once, total - start)
        if all_signs:
            bits = (torch.arange(start, start + size).unsqueeze(1) >> torch.arange(n)) & 1
        else:
            bits = torch.randint(2, (size, n), generator=generator)
        signs = (2 * bits - 1).to(torch.float64)
        reached += ((signs @ differences.T).abs() >= observed).sum(0)
    extra = 0 if all_signs else 1  # the signs observed are one of the random ones
    return [(int(count) + extra) / (total + extra) for count in reached]


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
