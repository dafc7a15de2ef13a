"""What each kind of negative does to validation NDCG at equal processor time, on Gowalla and NFCorpus.

Each contender trains the same model on the same pairs for as many epochs as fit the budget (two short epochs tell
how long one takes; the learning rate falls over exactly those epochs), and is measured on validation pairs, the
whole catalogue ranked; the test takes no part. Intervals: bootstrap over users (queries). Time is the process's own
(`time.process_time`, one thread), so that a busy machine does not change who wins.

    OMP_NUM_THREADS=1 python benchmarks/negatives_at_equal_time.py [gowalla|nfcorpus] [--seconds S] [--only SPEC ...]
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from pathlib import Path

import polars as pl
import torch

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.retrieval import Interactions, TrainConfig, read_interactions, read_test
from steelyard.retrieval.job import build
from steelyard.retrieval.loop import fit
from steelyard.retrieval.parts import Parts, partition

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SPECS = {
    "gowalla": [
        "uniform", "popularity:0.75", "popularity", "log-uniform", "in-batch", "in-batch+uniform", "top50+uniform",
        "simans:200+uniform", "best-of:4", "clusters", "midx:32",
    ],
    "nfcorpus": [
        "uniform", "popularity:0.5", "in-batch", "in-batch+uniform", "everything", "top20+uniform",
        "simans:50+uniform", "best-of:4", "clusters:58", "midx:16",
    ],
}  # fmt: skip
METRIC = {"gowalla": "ndcg@20", "nfcorpus": "ndcg@10"}


def gowalla() -> tuple[Interactions, Parts, dict[str, object]]:
    data = read_interactions(SHARED / "cf-gowalla" / "train.txt.gz", format="adjacency")
    test = read_test(SHARED / "cf-gowalla" / "test.txt.gz", data, format="adjacency")
    return data, partition(data, test, TrainConfig(), "random"), {"model": "mf", "patience": 0}


def nfcorpus() -> tuple[Interactions, Parts, dict[str, object]]:
    """The training judgments as (query, document) texts; a tenth of the queries is held out for validation."""
    folder = SHARED / "ir-nfcorpus"
    with gzip.open(folder / "queries.jsonl.gz") as file:
        queries = dict((row["_id"], row["text"]) for row in map(json.loads, file))
    with gzip.open(folder / "corpus.jsonl.gz") as file:
        corpus = dict((row["_id"], row["text"]) for row in map(json.loads, file))
    pairs = pl.read_csv(folder / "qrels" / "train.tsv.gz", separator="\t")
    rows = [
        {"query": queries[q], "document": corpus[d], "item": d}
        for q, d, score in pairs.iter_rows()
        if score > 0 and q in queries and d in corpus
    ]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "pairs.jsonl"
        pl.DataFrame(rows).write_ndjson(path)
        columns = {"query": "query", "document": "document", "item": "item"}
        data = read_interactions(path, kind="text", columns=columns)
    config = TrainConfig.of("text")
    settings = {"model": "text", "patience": 0, "batch": 128, "validation": 0.2, "validation_users": 4096}
    return data, partition(data, None, config, "random"), settings


def measure(
    parts: Parts, settings: dict[str, object], spec: str, metric: str, seconds: float
) -> dict[str, object]:
    pairs, known = parts.train, parts.train.known()

    def train(epochs: int, config: TrainConfig) -> tuple[object, float, int]:
        model = build(parts, config)
        started = time.process_time()
        counters = fit(model, pairs.users, pairs.items, known, pairs.item_counts(), config)
        assert counters.epoch == epochs
        return model, time.process_time() - started, counters.step

    def config(epochs: int) -> TrainConfig:
        return TrainConfig.of(settings["model"], negatives=spec, epochs=epochs, **{  # type: ignore[arg-type]
            name: value for name, value in settings.items() if name != "model"
        })  # fmt: skip

    _, _, _ = train(1, config(1))  # compiles
    _, taken, _ = train(2, config(2))
    epochs = max(1, round(seconds / (taken / 2)))
    model, spent, steps = train(epochs, config(epochs))
    encoder = model.model.encoder if hasattr(model, "model") else model.encoder  # type: ignore[attr-defined]
    targets = parts.validation.known()
    asked = (targets.counts > 0).nonzero().squeeze(1)
    with torch.no_grad():
        text = pairs.is_text
        vectors = encoder.items(torch.arange(pairs.n_items))
        ranks = count_ranks(
            encoder.queries(asked), vectors, targets.take(asked), None if text else known.take(asked)
        )
    found = ranking_metrics(ranks, targets.take(asked), k=(int(metric.partition("@")[2]),))
    low, high = found.interval(metric)
    return {
        "negatives": spec, metric: found.mean(metric), "low": low, "high": high, "epochs": epochs, "steps": steps,
        "cpu_seconds": round(spent, 1), "candidates": config(1).candidates, "queries": len(asked),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", choices=["gowalla", "nfcorpus"], nargs="?", default="gowalla")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    _, parts, settings = gowalla() if args.data == "gowalla" else nfcorpus()
    metric = METRIC[args.data]
    for spec in args.only or SPECS[args.data]:
        row = measure(parts, settings, spec, metric, args.seconds)
        print(
            f"{row['negatives']:22} {metric} {row[metric]:.4f} [{row['low']:.4f}, {row['high']:.4f}]  "
            f"{row['epochs']:4} epochs {row['steps']:6} steps {row['cpu_seconds']:6} s  K={row['candidates']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
