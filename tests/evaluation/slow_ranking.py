"""The slowest, plainest form of each ranking metric: one ranked list, one query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence


def metrics_of_list(ranked: Sequence[int], gains: dict[int, float], k: int) -> dict[str, float]:
    """Metrics at k of a list, best first, where `gains` holds every relevant item."""
    hits = [item in gains for item in ranked[:k]]
    best = sorted(gains.values(), reverse=True)[:k]
    found = sum(hits)
    dcg = sum(gains[item] / math.log2(j + 2) for j, item in enumerate(ranked[:k]) if item in gains)
    first = next((j + 1 for j, item in enumerate(ranked) if item in gains), None)
    return {
        "recall": found / len(gains),
        "precision": found / k,
        "ndcg": dcg / sum(gain / math.log2(j + 2) for j, gain in enumerate(best)),
        "map": sum(sum(hits[: j + 1]) / (j + 1) for j in range(len(hits)) if hits[j]) / len(gains),
        "hit_rate": float(found > 0),
        "mrr@k": 1 / first if first is not None and first <= k else 0.0,
        "mrr": 1 / first if first is not None else 0.0,
    }


def expected_metrics(
    scores: Sequence[float], seen: Iterable[int], gains: dict[int, float], k: int
) -> dict[str, float]:
    """The same, averaged over every order of the candidates that the scores allow."""
    hidden = set(seen)
    levels: dict[float, list[int]] = {}
    for item, score in enumerate(scores):
        if item not in hidden:
            levels.setdefault(score, []).append(item)
    groups = [list(itertools.permutations(levels[score])) for score in sorted(levels, reverse=True)]
    total: dict[str, float] = {}
    orders = 0
    for order in itertools.product(*groups):
        ranked = [item for group in order for item in group]
        orders += 1
        for name, value in metrics_of_list(ranked, gains, k).items():
            total[name] = total.get(name, 0.0) + value
    return {name: value / orders for name, value in total.items()}
