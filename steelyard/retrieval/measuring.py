"""What a trained model is worth: test metrics beside baselines, by popularity, and in examples."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import (
    RankingMetrics,
    Ranks,
    count_ranks,
    ranking_metrics,
    ranks_from_lists,
    recall_by_popularity,
)
from steelyard.ragged import Ragged
from steelyard.retrieval.adapters import VectorTowers
from steelyard.retrieval.bm25 import bm25_available, bm25_ranking
from steelyard.retrieval.index import top_k
from steelyard.retrieval.loop import Counters
from steelyard.retrieval.parts import Parts
from steelyard.retrieval.retriever import Retriever
from steelyard.retrieval.sequences import histories

CUTOFFS = (5, 10, 20, 50)
BM25_DEPTH = 100
EXAMPLES, WORST, SHOWN = 6, 3, 20
PER_USER = 5000


def measure(retriever: Retriever, parts: Parts, counters: Counters) -> dict[str, Any]:
    """Test metrics with intervals, beside baselines; slices by popularity; examples."""
    test, config = parts.test, retriever.config
    targets = test.known()
    text, left_out = retriever.item_texts is not None, parts.left_out(config.repeats)
    vectors = retriever.query_vectors(test) if parts.asked is None else retriever.vectors_after(parts.asked)
    ranks = count_ranks(vectors, retriever.item_vectors, targets, left_out)
    cut = int(config.metric.partition("@")[2])
    result = ranking_metrics(ranks, targets, k=tuple(sorted({*CUTOFFS, cut})), groups=parts.groups)
    counts = parts.train.item_counts()
    baselines = {"chance": _constant(torch.zeros_like(counts), targets, left_out, parts.groups)}
    if retriever.item_texts is None:
        baselines["popularity"] = _constant(counts, targets, left_out, parts.groups)
    elif bm25_available():
        lists = bm25_ranking(retriever.item_texts, test.user_ids.cast(pl.String), BM25_DEPTH)
        baselines["bm25"] = ranking_metrics(ranks_from_lists(lists, targets), targets, k=CUTOFFS).to_dict()
    if isinstance(retriever.model.encoder, VectorTowers):
        before = count_ranks(*retriever.model.encoder.before(test), targets, retriever.seen)
        baselines["frozen"] = ranking_metrics(before, targets, k=CUTOFFS).to_dict()
    return {
        "test": result.to_dict(),
        "test_queries": result.n_queries,
        "test_histories": None if result.groups is None else len(torch.unique(result.groups)),
        "test_queries_without_targets": result.skipped,
        "unreachable_targets": result.unreachable,
        "seen_items": _said_of_seen(parts, text, config.repeats),
        "baselines": baselines,
        "popularity_slices": [asdict(part) for part in recall_by_popularity(ranks, targets, counts, k=20)],
        "epochs": counters.history,
        "best_epoch": counters.epoch - 1 if counters.best_score is None else counters.best_epoch,
        "best_validation": {config.metric: counters.best_score},
        "per_user": None
        if text
        else per_user(result, parts.seen if parts.asked is None else parts.asked, config.metric),
        "examples": examples(retriever, parts, ranks, result, vectors),
        "training": config.to_dict(),
        "temperature": float(torch.exp(-retriever.model.log_scale.detach())),
    }


def _said_of_seen(parts: Parts, text: bool, repeats: bool) -> str:
    if text:
        return "none, since the test queries are new"
    if repeats:
        return "left in the ranking, since items come again"
    return (
        "left out of the ranking"
        if parts.asked is None
        else "what came before a query is left out of its ranking"
    )


def _constant(
    score: Tensor, targets: Ragged, seen: Ragged, groups: Tensor | None
) -> dict[str, dict[str, float | None]]:
    """Metrics of one ranking for all: the same score of each item for every user, ties averaged."""
    ranks = count_ranks(torch.ones(len(targets), 1), score.float().unsqueeze(1), targets, seen)
    return ranking_metrics(ranks, targets, k=CUTOFFS, groups=groups).to_dict()


def per_user(result: RankingMetrics, seen: Ragged, metric: str) -> dict[str, list[Any]]:
    """What each test user took in training and how well it is served; at most 5,000 users, evenly taken."""
    step = -(-result.n_queries // PER_USER)
    values = result.per_query(metric)[::step]
    return {"history": seen.counts[result.queries[::step]].tolist(), "values": values.tolist()}


def examples(
    retriever: Retriever, parts: Parts, ranks: Ranks, result: RankingMetrics, vectors: Tensor
) -> list[dict[str, Any]]:
    """A few test users, from well served to badly served, the worst three among them: what they took, what they would be given."""
    targets, users = parts.test.known(), result.queries
    best = torch.full((len(targets),), 2**62).scatter_reduce(0, targets.row_index(), ranks.above, "amin")
    order = best[users].argsort(stable=True)
    places = torch.linspace(0, len(users) - 1, min(EXAMPLES, len(users))).long()
    worst = torch.arange(max(0, len(users) - WORST), len(users))
    places = torch.unique(torch.cat([places, worst]))
    chosen, values = users[order][places], result.per_query(retriever.config.metric)[order][places]
    history = None if retriever.item_texts is not None else parts.asked or _histories(parts)
    exclude = parts.left_out(retriever.config.repeats).take(chosen)
    _, answers = top_k(vectors[chosen], retriever.item_vectors, 10, exclude=exclude)
    return [
        {
            "user": parts.test.user_ids[row],
            "took": None if history is None else len(history.row(row)),
            "history": [] if history is None else _items(retriever, history.row(row)[-SHOWN:].flip(0)),
            "wants": len(targets.row(row)),
            "wanted": _items(retriever, targets.row(row)[:SHOWN]),
            "score": value,
            "first": int(best[row]) + 1,
            "given": [
                {"item": retriever.item_ids[item], "wanted": bool((targets.row(row) == item).any())}
                for item in given.tolist()
                if item >= 0
            ],
        }
        for row, value, given in zip(chosen.tolist(), values.tolist(), answers, strict=True)
    ]


def _histories(parts: Parts) -> Ragged:
    """What each user took outside the test, in the order of time."""
    kept, held = parts.train, parts.validation
    timed = kept.times is not None and held.times is not None
    both = replace(
        kept,
        users=torch.cat([kept.users, held.users]),
        items=torch.cat([kept.items, held.items]),
        weights=None,
        times=torch.cat([kept.times, held.times]) if timed else None,  # type: ignore[list-item]
    )
    return histories(both)


def _items(retriever: Retriever, rows: Tensor) -> list[Any]:
    return retriever.item_ids.gather(rows.numpy()).to_list()
