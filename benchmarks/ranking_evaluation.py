"""Full-ranking evaluation of every Gowalla user, side by side with implicit and RecBole.

Each evaluator runs in a process of its own on the same random factors, takes turns with the others for
`--rounds` rounds, and reports the time of the evaluation (after a warm-up on a few users, without loading)
and how far the evaluation raised the peak resident memory of its process.
implicit computes four measures at one depth, the others all measures at four depths.

    python benchmarks/ranking_evaluation.py [--rounds 3] [--users N]

Peers: pip install implicit; pip install --no-deps recbole and what its import then asks for.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.ragged import Ragged

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cf-gowalla"
DIM = 64
WARM_UP = 256
RECBOLE_BATCH = 256


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    users, items = [], []
    with gzip.open(DATA / name, "rt") as lines:
        for line in lines:
            user, *row = map(int, line.split())
            users += [user] * len(row)
            items += row
    return np.array(users), np.array(items)


def load(n_users: int | None) -> tuple[torch.Tensor, torch.Tensor, Ragged, Ragged]:
    """Queries, items, targets and seen items; factors are random, with items of unequal norm."""
    train, test = read("train.txt.gz"), read("test.txt.gz")
    users = int(train[0].max()) + 1
    items = int(max(train[1].max(), test[1].max())) + 1
    seen = Ragged.from_pairs(*map(torch.from_numpy, train), users)
    targets = Ragged.from_pairs(*map(torch.from_numpy, test), users)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(users, DIM, generator=generator)
    vectors = torch.randn(items, DIM, generator=generator) * (1 + torch.rand(items, 1, generator=generator))
    keep = torch.arange(n_users or users)
    return queries[keep], vectors, targets.take(keep), seen.take(keep)


def steelyard(queries: torch.Tensor, items: torch.Tensor, targets: Ragged, seen: Ragged) -> dict[str, float]:
    metrics = ranking_metrics(count_ranks(queries, items, targets, seen), targets)
    return {"ndcg@20": metrics.mean("ndcg@20"), "recall@20": metrics.mean("recall@20")}


def steelyard_intervals(
    queries: torch.Tensor, items: torch.Tensor, targets: Ragged, seen: Ragged
) -> dict[str, float]:
    metrics = ranking_metrics(count_ranks(queries, items, targets, seen), targets)
    metrics.to_dict()
    return {"ndcg@20": metrics.mean("ndcg@20"), "recall@20": metrics.mean("recall@20")}


def implicit(queries: torch.Tensor, items: torch.Tensor, targets: Ragged, seen: Ragged) -> dict[str, float]:
    from implicit.cpu.matrix_factorization_base import MatrixFactorizationBase
    from implicit.evaluation import ranking_metrics_at_k
    from scipy.sparse import csr_matrix

    class Factors(MatrixFactorizationBase):  # type: ignore[misc]
        def fit(self, *_: object, **__: object) -> None: ...

        def save(self, *_: object) -> None: ...

    def matrix(rows: Ragged) -> csr_matrix:
        ones = np.ones(len(rows.values), dtype=np.float32)
        return csr_matrix((ones, rows.values.numpy(), rows.offsets.numpy()), (len(rows), len(items)))

    model = Factors()
    model.user_factors, model.item_factors = queries.numpy(), items.numpy()
    result = ranking_metrics_at_k(
        model, matrix(seen), matrix(targets), K=20, show_progress=False, num_threads=0
    )
    return {"ndcg@20": float(result["ndcg"])}


def recbole(queries: torch.Tensor, items: torch.Tensor, targets: Ragged, seen: Ragged) -> dict[str, float]:
    """RecBole's collector and evaluator, fed as its trainer feeds them, with our measures and depths.

    Its default batch would hold one user; `RECBOLE_BATCH` users at once are faster.
    """
    from recbole.evaluator import Collector, Evaluator

    setattr(np, "float", float)  # noqa: B010  RecBole 1.2 names it; NumPy dropped it in 1.24
    config: dict[str, Any] = {
        "metrics": ["Recall", "Precision", "NDCG", "MAP", "Hit", "MRR"],
        "topk": [5, 10, 20, 50],
        "metric_decimal_place": 12,
        "device": "cpu",
        "eval_args": {"mode": "full"},
    }
    collector, evaluator = Collector(config), Evaluator(config)
    for first in range(0, len(queries), RECBOLE_BATCH):
        rows = torch.arange(first, min(first + RECBOLE_BATCH, len(queries)))
        rows = rows[targets.counts[rows] > 0]
        scores = queries[rows] @ items.T
        hidden, wanted = seen.take(rows), targets.take(rows)
        scores[hidden.row_index(), hidden.values] = -np.inf
        collector.eval_batch_collect(scores, None, wanted.row_index(), wanted.values)
    result = evaluator.evaluate(collector.get_data_struct())
    return {"ndcg@20": float(result["ndcg@20"]), "recall@20": float(result["recall@20"])}


EVALUATORS: dict[str, Callable[..., dict[str, float]]] = {
    "steelyard": steelyard,
    "steelyard + intervals": steelyard_intervals,
    "implicit": implicit,
    "recbole": recbole,
}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_alone(name: str, n_users: int | None) -> None:
    torch.set_grad_enabled(False)
    queries, items, targets, seen = load(n_users)
    few = torch.arange(min(WARM_UP, len(queries)))
    EVALUATORS[name](queries[few], items[:5000], *(trim(rows.take(few), 5000) for rows in (targets, seen)))
    before, wall, cpu = peak_mib(), time.perf_counter(), time.process_time()
    result = EVALUATORS[name](queries, items, targets, seen)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        json.dumps({"seconds": wall, "cpu": cpu, "extra": peak_mib() - before, "peak": peak_mib(), **result})
    )


def trim(rows: Ragged, n_items: int) -> Ragged:
    keep = rows.values < n_items
    return Ragged.from_pairs(rows.row_index()[keep], rows.values[keep], len(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Full-ranking evaluation against implicit and RecBole.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--users", type=int, help="the first users only")
    parser.add_argument("--only", choices=EVALUATORS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"The Gowalla split is missing: expected {DATA} with train.txt.gz and test.txt.gz.")
    if options.only:
        run_alone(options.only, options.users)
        return
    names = [name for name in EVALUATORS if name.startswith("steelyard") or importlib.util.find_spec(name)]
    for package in ("torch", "numba", "implicit", "recbole"):
        found = package in names or package in ("torch", "numba")
        print(f"{package} {importlib.metadata.version(package) if found else 'not installed: left out'}")
    command = [sys.executable, __file__, *(["--users", str(options.users)] if options.users else [])]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in list(runs):
            done = subprocess.run([*command, "--only", name], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name} failed and is left out: {done.stderr.strip().splitlines()[-1]}")
                del runs[name]
                continue
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    report(runs)


def report(runs: dict[str, list[dict[str, float]]]) -> None:
    print(f"{'':24}{'seconds':>9}{'ratio':>8}{'cpu s':>8}{'extra MiB':>11}{'peak MiB':>10}{'ndcg@20':>14}")
    ours = float(np.median([run["seconds"] for run in runs["steelyard"]]))
    for name, rows in runs.items():
        middle = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
        print(
            f"{name:24}{middle['seconds']:9.2f}{middle['seconds'] / ours:8.2f}{middle['cpu']:8.1f}"
            f"{middle['extra']:11.0f}{middle['peak']:10.0f}{middle['ndcg@20']:14.10f}"
        )


if __name__ == "__main__":
    main()
