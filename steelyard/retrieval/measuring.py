"""What a trained model is worth: test metrics beside baselines, by popularity, and in examples."""

from __future__ import annotations

from dataclasses import asdict
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

CUTOFFS = (5, 10, 20, 50)
BM25_DEPTH = 100
EXAMPLES, WORST, SHOWN = 6, 3, 20
PER_USER = 5000


def measure(retriever: Retriever, parts: Parts, counters: Counters) -> dict[str, Any]:
    """Test metrics with intervals, beside baselines; slices by popularity; examples."""
    test, config = parts.test, retriever.config
    targets = test.known()
    text, left_out = retriever.item_texts is not None, parts.left_out(config.repeats)
    asked = None if parts.asked is None else parts.asked.known(length=config.length)
    vectors = retriever.query_vectors(test) if asked is None else retriever.vectors_after(asked)
    ranks = count_ranks(vectors, retriever.item_vectors, targets, left_out)
    cuts = tuple(sorted({*CUTOFFS, int(config.metric.partition("@")[2])}))
    result = ranking_metrics(ranks, targets, k=cuts, groups=parts.groups)
    counts = parts.train.item_counts()
    rankings = {"chance": _constant(torch.zeros_like(counts), targets, left_out)}
    if not text:
        rankings["popularity"] = _constant(counts, targets, left_out)
    elif bm25_available():
        depth = max(BM25_DEPTH, cuts[-1])
        lists = bm25_ranking(retriever.item_texts, test.user_ids.cast(pl.String), depth)  # type: ignore[arg-type]
        rankings["bm25"] = ranks_from_lists(lists, targets)
    if isinstance(retriever.model.encoder, VectorTowers):
        rankings["frozen"] = count_ranks(*retriever.model.encoder.before(test), targets, left_out)
    baselines = {
        name: ranking_metrics(others, targets, k=cuts, groups=parts.groups).to_dict()
        for name, others in rankings.items()
    }
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
        "per_user": None if text else per_user(result, parts, config.metric),
        "examples": examples(retriever, parts, ranks, result, vectors, left_out),
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


def _constant(score: Tensor, targets: Ragged, seen: Ragged) -> Ranks:
    """Ranks under one ranking for all: the same score of each item for every user, ties averaged."""
    return count_ranks(torch.ones(len(targets), 1), score.float().unsqueeze(1), targets, seen)


def per_user(result: RankingMetrics, parts: Parts, metric: str) -> dict[str, list[Any]]:
    """How much each test user took and how well it is served; at most 5,000 users, evenly taken.

    Of histories that training never saw: their length, and the mean over their positions.
    """
    values, took = result.per_query(metric), parts.seen.counts
    users = result.queries
    if parts.asked is not None:
        users, place = torch.unique(parts.asked.history[users], return_inverse=True)
        sums = values.new_zeros(len(users)).index_add_(0, place, values)
        values, took = sums / torch.bincount(place), parts.asked.histories.counts
    step = -(-len(users) // PER_USER)
    return {"history": took[users[::step]].tolist(), "values": values[::step].tolist()}


def examples(
    retriever: Retriever,
    parts: Parts,
    ranks: Ranks,
    result: RankingMetrics,
    vectors: Tensor,
    left_out: Ragged,
) -> list[dict[str, Any]]:
    """A few test users, from well served to badly served, the worst three among them: what they took, what they would be given."""
    targets, users = parts.test.known(), result.queries
    best = torch.full((len(targets),), 2**62).scatter_reduce(0, targets.row_index(), ranks.above, "amin")
    order = best[users].argsort(stable=True)
    places = torch.linspace(0, len(users) - 1, min(EXAMPLES, len(users))).long()
    worst = torch.arange(max(0, len(users) - WORST), len(users))
    places = torch.unique(torch.cat([places, worst]))
    chosen, values = users[order][places], result.per_query(retriever.config.metric)[order][places]
    history = parts.history.take(chosen) if parts.asked is None and parts.history is not None else None
    if parts.asked is not None:
        history = parts.asked.known(chosen)
    _, answers = top_k(vectors[chosen], retriever.item_vectors, 10, exclude=left_out.take(chosen))
    return [
        {
            "user": parts.test.user_ids[row],
            "took": None if history is None else len(history.row(at)),
            "history": [] if history is None else _items(retriever, history.row(at)[-SHOWN:].flip(0)),
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
        for at, (row, value, given) in enumerate(zip(chosen.tolist(), values.tolist(), answers, strict=True))
    ]


def _items(retriever: Retriever, rows: Tensor) -> list[Any]:
    return retriever.item_ids.gather(rows.numpy()).to_list()
