"""Ranking metrics with exact treatment of ties, and bootstrap intervals over queries."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from steelyard.evaluation import measures
from steelyard.evaluation.bootstrap import expanded_interval, resampled_means
from steelyard.evaluation.ranks import Ranks
from steelyard.ragged import Ragged

_MEASURES = ("recall", "precision", "ndcg", "map", "hit_rate", "mrr")
_QUERIES_AT_ONCE = 1024


@dataclass(frozen=True)
class RankingMetrics:
    """Ranking metrics of each query that has targets.

    Args:
        names: "recall@5", ..., "mrr@50", "mrr".
        values: float64, (names, n_queries).
        queries: int64, (n_queries,): the rows of the targets that the columns of `values` stand for.
        skipped: queries without targets, left out of all averages.
        unreachable: targets that count as relevant but can be retrieved at no depth (`Ranks.unreachable`).
        groups: int64, (n_queries,): queries of one number, as positions of one session, are no independent
            draws and are resampled together; None where each stands alone.
    """

    names: tuple[str, ...]
    values: Tensor
    queries: Tensor
    skipped: int
    unreachable: int
    groups: Tensor | None = None
    _resampled: dict[tuple[int, int], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def n_queries(self) -> int:
        """Number of queries that the averages run over."""
        return len(self.queries)

    def per_query(self, name: str) -> Tensor:
        """One metric of each query in `queries`, float64, (n_queries,).

        Args:
            name: one of `names`.

        Raises:
            ValueError: an unknown name.
        """
        return self.values[self._index(name)]

    def mean(self, name: str) -> float:
        """One metric averaged over the queries.

        Args:
            name: one of `names`.

        Raises:
            ValueError: an unknown name.
        """
        return float(self.per_query(name).mean())

    def interval(
        self, name: str, level: float = 0.95, resamples: int = 1000, seed: int = 0
    ) -> tuple[float, float]:
        """Bootstrap interval of the mean, resampling queries, or whole groups of them (`expanded_interval`).

        All metrics share the same resamples, which are drawn once for each `(resamples, seed)` and kept.

        Args:
            name: one of `names`.
            level: coverage aimed at, inside (0, 1).
            resamples: number of resampled means.
            seed: seed of the resamples.

        Returns:
            Lower and upper end.

        Raises:
            ValueError: an unknown name, a level outside (0, 1), no resamples, or fewer than two queries (groups).

        """
        row = self._index(name)
        if not 0 < level < 1 or resamples < 1:
            raise ValueError(
                f"Give a level in (0, 1) and at least one resample, got {level} and {resamples}."
            )
        if self._n_draws < 2:
            what = "queries with targets" if self.groups is None else "groups of queries"
            raise ValueError(f"An interval needs at least two {what}, got one.")
        means = self._resampled.get((resamples, seed))
        if means is None:
            means = self._resampled[resamples, seed] = resampled_means(
                self.values, resamples, seed, self.groups
            )
        return expanded_interval(means[:, row], self._n_draws, level)

    def to_dict(self, level: float = 0.95) -> dict[str, dict[str, float | None]]:
        """Every metric as `{name: {"mean", "low", "high"}}`; the ends are None for a single query.

        Args:
            level: coverage of the intervals, inside (0, 1).

        Raises:
            ValueError: a level outside (0, 1).
        """
        result: dict[str, dict[str, float | None]] = {}
        for name in self.names:
            low, high = self.interval(name, level) if self._n_draws > 1 else (None, None)
            result[name] = {"mean": self.mean(name), "low": low, "high": high}
        return result

    @property
    def _n_draws(self) -> int:
        return self.n_queries if self.groups is None else len(torch.unique(self.groups))

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"No metric {name!r}; there are {', '.join(self.names)}.")
        return self.names.index(name)


@dataclass(frozen=True)
class PopularitySlice:
    """Recall on the targets among items of like popularity.

    Args:
        items: number of items in the slice.
        targets: number of targets among them.
        recall: share of these targets within the first k; None without targets.
    """

    items: int
    targets: int
    recall: float | None


def ranking_metrics(
    ranks: Ranks,
    targets: Ragged,
    k: Sequence[int] = (5, 10, 20, 50),
    gains: Tensor | None = None,
    groups: Tensor | None = None,
) -> RankingMetrics:
    """Recall, precision, nDCG, MAP, hit rate and MRR at each k, and uncut MRR, of each query.

        recall@k    = hits in the first k / R              R: the number of targets of the query
        precision@k = hits in the first k / k
        ndcg@k      = sum_{hits at rank j <= k} gain / log2(j + 1)  /  the same of the best list,
                      which holds min(k, R) targets by falling gain
        map@k       = sum_{hits at rank j <= k} precision@j  /  R
        hit_rate@k  = 1 if a target is in the first k
        mrr@k       = 1 / rank of the first target, 0 beyond k; mrr has no such limit

    These are trec_eval's recall, P, ndcg_cut, map_cut, success and recip_rank: the gain is linear, not
    2^gain - 1, and map@k divides by all targets, not by min(k, R). Where candidates are tied, a metric
    is its exact expectation over all orders of each tied group, in closed form; so a scorer that ties
    everything gets the chance level. Targets beyond reach count in R and in the best list.

    Args:
        ranks: ranks of the values of `targets`.
        targets: row = query; values = relevant item ids.
        k: the depths.
        gains: floating, (targets,), positive; gain of each target, 1 if not given. Only nDCG uses it.
        groups: int64, (rows,): the group of each query, whose intervals resample groups; each alone if not given.

    Returns:
        Metrics of the queries that have targets.

    Raises:
        ValueError: no targets at all, ranks, gains or groups of another length, a depth that is not positive
            or is given twice, gains that are not positive.

    Reference:
        McSherry and Najork (2008), Computing information retrieval performance measures efficiently in
        the presence of tied scores, ECIR, doi:10.1007/978-3-540-78646-7_38.
    """
    if len(ranks.above) != len(targets.values) or len(ranks.candidates) != len(targets):
        raise ValueError(
            f"Ranks of {len(ranks.above)} targets in {len(ranks.candidates)} rows do not belong to "
            f"{len(targets.values)} targets in {len(targets)} rows."
        )
    if len(targets.values) == 0:
        raise ValueError("No query has a target, so there is nothing to measure.")
    if len(k) == 0 or min(k) < 1 or len(set(k)) < len(k):
        raise ValueError(f"Depths must be positive and differ, got {tuple(k)}.")
    if gains is None:
        gains = torch.ones(len(targets.values))
    if len(gains) != len(targets.values) or not bool(((gains > 0) & gains.isfinite()).all()):
        raise ValueError(
            "Give one positive, finite gain for each target; an item of no gain is not a target."
        )
    if groups is not None and (groups.shape != (len(targets),) or groups.dtype != torch.int64):
        raise ValueError(f"groups must be int64 ({len(targets)},), got {groups.dtype} {tuple(groups.shape)}.")
    cuts = np.array(sorted(k), dtype=np.int64)
    queries = torch.nonzero(targets.counts)[:, 0]
    out, mrr = _measure(ranks, targets, queries, cuts, gains.numpy().astype(np.float64))
    names = [f"{measure}@{cut}" for measure in _MEASURES for cut in cuts]
    return RankingMetrics(
        names=(*names, "mrr"),
        values=torch.from_numpy(np.concatenate([out.reshape(len(names), -1), mrr[None]])),
        queries=queries,
        skipped=len(targets) - len(queries),
        unreachable=ranks.unreachable,
        groups=None if groups is None else groups[queries],
    )


def recall_by_popularity(
    ranks: Ranks, targets: Ragged, counts: Tensor, k: int, bins: int = 3
) -> tuple[PopularitySlice, ...]:
    """Share of targets within the first k, by popularity of the target in training.

    Items are sorted by falling count and cut into bins that each hold about an equal share of all
    interactions: with three bins the head, middle and tail. An item belongs where its first
    interaction falls; ties of candidates are averaged.

    Args:
        ranks: ranks of the values of `targets`.
        targets: row = query; values = relevant item ids.
        counts: int64, (items,): training interactions of each item.
        k: the depth.
        bins: number of slices.

    Returns:
        The slices, most popular first.

    Raises:
        ValueError: counts that are negative, all zero or too few for the items of `targets`; `k` or
            `bins` below one.
    """
    if k < 1 or bins < 1:
        raise ValueError(f"Give a depth and a number of bins of at least one, got {k} and {bins}.")
    highest = int(targets.values.max()) if len(targets.values) else -1
    if len(counts) <= highest or int(counts.min()) < 0 or int(counts.sum()) == 0:
        raise ValueError(f"Counts must be non-negative, not all zero, and cover the items 0 to {highest}.")
    counts = counts.to(torch.int64)
    ordered, order = counts.sort(descending=True, stable=True)
    bin_of = torch.empty_like(order)
    bin_of[order] = ((ordered.cumsum(0) - ordered) * bins // ordered.sum()).clamp_(max=bins - 1)
    share = (k - ranks.above).clamp(min=0).minimum(ranks.tied).to(torch.float64) / ranks.tied.clamp(min=1)
    at = bin_of[targets.values]
    items = torch.bincount(bin_of, minlength=bins).tolist()
    sizes = torch.bincount(at, minlength=bins).tolist()
    hits = torch.bincount(at, weights=share, minlength=bins).tolist()
    rows = zip(items, sizes, hits, strict=True)
    return tuple(PopularitySlice(n, size, hit / size if size else None) for n, size, hit in rows)


def _measure(
    ranks: Ranks, targets: Ragged, queries: Tensor, cuts: np.ndarray, gains: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    row = targets.row_index().numpy()
    order = np.lexsort((ranks.above.numpy(), ranks.tied.numpy() == 0, row))
    ideal = np.lexsort((-gains, row))
    depth = np.arange(1, cuts[-1] + 1)
    out = np.zeros((len(_MEASURES), len(cuts), len(queries)))
    mrr = np.zeros(len(queries))
    arguments = (
        targets.offsets[queries].numpy(),
        targets.offsets[queries + 1].numpy(),
        ranks.above.numpy()[order],
        ranks.tied.numpy()[order],
        gains[order],
        gains[ideal],
        cuts,
        np.concatenate([[0.0], np.cumsum(1 / np.log2(depth + 1))]),
        np.concatenate([[0.0], np.cumsum(1 / depth)]),
        out,
        mrr,
    )

    def work(first: int) -> None:
        measures.fill_measures(first, min(first + _QUERIES_AT_ONCE, len(queries)), *arguments)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(work, range(0, len(queries), _QUERIES_AT_ONCE)):
            pass
    return out, mrr
