"""Plain matrix factorisation of 64 dimensions on the splits of IR-Benchmark, by its protocol.

Of every user a tenth of the training pairs (one at least) is held out for validation; the model trains on the rest, and at
the test that rest alone is left out of the ranking. Temperatures and losses are tried on the validation pairs; the best
setting's best epoch is measured on the test, once (with --look).

python benchmarks/ir_benchmark.py amazon2014-health|amazon2014-electronic|gowalla|... [--data ../shared/data/cf-irbench]
    [--temperatures 0.1 0.15] [--losses bsl:1.2 sl@20:2] [--epochs 60] [--negatives uniform] [--look]
"""

from __future__ import annotations

import argparse
import itertools
import resource
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.retrieval import TrainConfig, read_interactions, read_test
from steelyard.retrieval.job import build, validator
from steelyard.retrieval.loop import fit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "cf-irbench"
    parser.add_argument("split")
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.1, 0.15, 0.2])
    parser.add_argument("--losses", nargs="+", default=["bsl:1.2", "sl@20:2"])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--negatives", default="uniform")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--candidates", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--look", action="store_true", help="measure the best setting on the test")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(chosen.data / f"{chosen.split}.zip") as packed:
            packed.extractall(folder)
        found = {p.name: p for p in Path(folder).rglob("*.tsv")}
        columns = {"user": "user_procid", "item": "item_procid"}
        data = read_interactions(found["train.tsv"], columns=columns)
        test = read_test(found["test.tsv"], data, columns=columns)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(data), generator=generator)
    order = order[torch.argsort(data.users[order], stable=True)]
    counts = torch.bincount(data.users, minlength=data.n_users)
    place = torch.arange(len(data)) - (counts.cumsum(0) - counts)[data.users[order]]
    held = place < (counts // 10).clamp(min=1)[data.users[order]]
    parts = [
        replace(data, users=data.users[order[m]], items=data.items[order[m]], weights=None, times=None)
        for m in (~held, held)
    ]
    train, validation = parts
    known, started, best = train.known(), time.process_time(), (0.0, None, {})
    for temperature, loss in itertools.product(chosen.temperatures, chosen.losses):
        settings = {
            "temperature": temperature,
            "loss": loss,
            "epochs": chosen.epochs,
            "lr": chosen.lr,
            "dropout": chosen.dropout,
            "candidates": chosen.candidates,
            "batch": chosen.batch,
        }
        config = TrainConfig.of("mf", negatives=chosen.negatives, **settings)
        stand_in: Any = SimpleNamespace(train=train, validation=validation, test=validation, histories=None)
        model = build(stand_in, config)
        check = validator(model, validation, known, "ndcg@20")
        done = fit(model, train.users, train.items, known, train.item_counts(), config, validate=check)
        score = float(done.best_score or 0)
        print(f"{settings}: validation NDCG@20 {score:.4f} at epoch {done.best_epoch + 1}", flush=True)
        if score > best[0]:
            best = score, model, settings
    if not chosen.look:
        return
    model, wanted = best[1], test.known()
    users = (wanted.counts > 0).nonzero().squeeze(1)
    with torch.no_grad():
        encoder = model.encoder
        ranks = count_ranks(
            encoder.queries(users),
            encoder.items(torch.arange(data.n_items)),
            wanted.take(users),
            known.take(users),
        )
    metrics = ranking_metrics(ranks, wanted.take(users), k=(20,))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name in ("recall@20", "ndcg@20"):
        low, high = metrics.interval(name)
        print(f"test {name} {metrics.mean(name):.4f} [{low:.4f}, {high:.4f}]")
    print(
        f"{best[2]}; {(time.process_time() - started) / 60:.1f} CPU minutes for all settings, {memory:.0f} MiB"
    )


if __name__ == "__main__":
    main()
