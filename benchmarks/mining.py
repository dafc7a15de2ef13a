"""Hard negatives by exact search: `steelyard mine` (the job: blocks, files and all) against sentence-transformers' `mine_hard_negatives`.

N queries, one positive document each, among N documents, both with vectors of a sentence encoder that are made
beforehand, so that mining alone is timed: the 3 best of the 100 closest, those within 5 % of the positive's score
left out. Each contender runs in a process of its own; peak memory is its whole resident size.

Where N exceeds the vectors given, the rest are points between a vector and another one, with a little noise.
Without a file of vectors, the model of a sentence-transformers folder or name encodes a file of texts, one a line.

pip install sentence-transformers datasets
python benchmarks/mining.py --vectors vectors.npy [--size 20000] [--rounds 1]
python benchmarks/mining.py --texts texts.txt --model sentence-transformers/all-MiniLM-L6-v2
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.nn import functional

from steelyard.ragged import Ragged
from steelyard.retrieval.bounded_search import code_items
from steelyard.retrieval.collection import Collection
from steelyard.retrieval.index import top_k
from steelyard.retrieval.mining import MiningRules
from steelyard.retrieval.mining_job import mine

NEGATIVES, RANKS, MARGIN = 3, 100, 0.05
Mined = tuple[tuple[float, float], np.ndarray, np.ndarray]


def prepared(vectors: np.ndarray, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Documents, and for each a query that lies between it and another one (cosine to its own about 0.84)."""
    g = torch.Generator().manual_seed(0)
    real = functional.normalize(torch.from_numpy(vectors).float(), dim=1)
    real = real[torch.randperm(len(real), generator=g)][:size]

    def between(count: int, part: torch.Tensor | float, own: torch.Tensor) -> torch.Tensor:
        other = real[torch.randint(0, len(real), (count,), generator=g)]
        noise = 0.1 * real.shape[1] ** -0.5 * torch.randn(count, real.shape[1], generator=g)
        return functional.normalize(part * own + (1 - part) * other + noise, dim=1)

    more = size - len(real)
    ends = real[torch.randint(0, len(real), (more,), generator=g)]
    documents = torch.cat([real, between(more, torch.rand(more, 1, generator=g), ends)])
    return documents, between(size, 0.6, documents)


class Encoded:
    """What the peer wants of a model, with vectors instead of an encoder; a text is its row's number."""

    device = torch.device("cpu")

    def __init__(self, documents: torch.Tensor, queries: torch.Tensor) -> None:
        self.documents, self.queries = documents.numpy(), queries.numpy()

    def encode_document(self, texts: list[str], **_: Any) -> np.ndarray:
        return self.documents[[int(t[1:]) for t in texts]]

    def encode_query(self, texts: list[str], **_: Any) -> np.ndarray:
        return self.queries[[int(t[1:]) for t in texts]]

    @staticmethod
    def similarity(a: Any, b: Any) -> torch.Tensor:
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    @staticmethod
    def similarity_pairwise(a: Any, b: Any) -> torch.Tensor:
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(1)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    now = clocks()
    return now[0] - start[0], now[1] - start[1]


def by_peer(documents: torch.Tensor, queries: torch.Tensor) -> Mined:
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    rows = range(len(queries))
    pairs = Dataset.from_dict({"query": [f"q{i}" for i in rows], "document": [f"d{i}" for i in rows]})
    model = Encoded(documents, queries)
    start = clocks()
    with contextlib.redirect_stderr(io.StringIO()):
        mined = mine_hard_negatives(
            pairs,
            model,
            range_max=RANKS,
            relative_margin=MARGIN,
            num_negatives=NEGATIVES,
            sampling_strategy="top",
            use_faiss=False,
            verbose=False,
        )
    spent = since(start)
    query, negative = (np.array([int(t[1:]) for t in mined[c]]) for c in ("query", "negative"))
    return spent, query, negative


def by_us(documents: torch.Tensor, queries: torch.Tensor) -> Mined:
    rows = torch.arange(len(queries))
    rules = MiningRules(negatives=NEGATIVES, range_max=RANKS, percentage=1 - MARGIN)
    few = documents[:5000]
    for coded in (None, code_items(few, queries[:999], RANKS)):  # compiles outside the clock
        top_k(queries[:8], few, RANKS, coded=coded)
    little = pl.int_range(8, eager=True)
    with tempfile.TemporaryDirectory() as folder:
        first = Collection(Ragged(torch.arange(9), rows[:8]), little, pl.int_range(len(few), eager=True))
        mine(first, queries[:8], few, rules, out=Path(folder) / "out")
    ids = pl.int_range(len(rows), eager=True)
    collection = Collection(Ragged(torch.arange(len(rows) + 1), rows), ids, ids)
    with tempfile.TemporaryDirectory() as folder:
        start = clocks()
        path = mine(collection, queries, documents, rules, out=Path(folder) / "out").path
        spent = since(start)
        table = pl.read_parquet(path)
    return spent, table["query"].to_numpy(), table["negative"].to_numpy()


def one(name: str, folder: Path) -> None:
    documents, queries = (
        torch.from_numpy(np.load(folder / f"{part}.npy")) for part in ("documents", "queries")
    )
    (seconds, cpu), query, negative = {"peer": by_peer, "steelyard": by_us}[name](documents, queries)
    np.savez(folder / f"{name}.npz", query=query, negative=negative)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak_mib()}))


def peak_mib() -> float:
    """Peak resident size of this process; rusage would count the parent's before exec."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def agreement(folder: Path, documents: torch.Tensor, queries: torch.Tensor) -> tuple[float, float]:
    """Share of queries with the same set, and the largest gap of scores between different sets."""
    sets: list[dict[int, list[int]]] = []
    for name in ("peer", "steelyard"):
        own: dict[int, list[int]] = {}
        with np.load(folder / f"{name}.npz") as found:
            for q, d in zip(found["query"].tolist(), found["negative"].tolist(), strict=True):
                own.setdefault(q, []).append(d)
        sets.append(own)
    unequal = [q for q in range(len(queries)) if set(sets[0].get(q, [])) != set(sets[1].get(q, []))]
    gap = 0.0
    for q in unequal:
        worth = [(documents[own.get(q, [])].double() @ queries[q].double()).sort().values for own in sets]
        gap = max(gap, float((worth[0] - worth[1]).abs().max()) if len(worth[0]) == len(worth[1]) else 1.0)
    return 1 - len(unequal) / len(queries), gap


def vectors_of(args: argparse.Namespace) -> np.ndarray:
    if args.vectors:
        return np.asarray(np.load(args.vectors))
    from sentence_transformers import SentenceTransformer

    texts = list(dict.fromkeys(line for line in Path(args.texts).read_text().splitlines() if line.strip()))
    return np.asarray(SentenceTransformer(args.model).encode(texts[: args.size]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", help="a .npy file of sentence vectors, (n, d)")
    parser.add_argument("--texts", help="a file of texts, one a line, to be encoded by --model")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--size", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one[0], Path(args.one[1]))
        return
    if not (args.vectors or args.texts):
        parser.error("give --vectors or --texts")
    import sentence_transformers

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents, queries = prepared(vectors_of(args), args.size)
        np.save(folder / "documents.npy", documents.numpy())
        np.save(folder / "queries.npy", queries.numpy())
        print(
            f"torch {torch.__version__}, sentence-transformers {sentence_transformers.__version__}, "
            f"{torch.get_num_threads()} threads; {args.size:,} queries x {args.size:,} documents x "
            f"{documents.shape[1]}, {RANKS} ranks, medians of {args.rounds}",
            flush=True,
        )
        found: dict[str, list[dict[str, float]]] = {"peer": [], "steelyard": []}
        for _ in range(args.rounds):
            for contender, runs in found.items():
                command = [sys.executable, __file__, "--one", contender, str(folder)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        middle = {
            name: {key: statistics.median(run[key] for run in runs) for key in ("seconds", "cpu", "peak")}
            for name, runs in found.items()
        }
        for contender, own in middle.items():
            print(
                f"{contender:<10} {own['seconds']:8.2f} s   CPU {own['cpu']:8.2f} s   peak {own['peak']:8.0f} MiB"
            )
        share, gap = agreement(folder, documents, queries)
        peer, ours = middle["peer"], middle["steelyard"]
        print(
            f"{peer['seconds'] / ours['seconds']:.1f} times as fast ({peer['cpu'] / ours['cpu']:.1f} by CPU seconds), "
            f"{peer['peak'] / ours['peak']:.1f} times less memory"
        )
        print(f"same negatives for {share:.4%} of the queries; elsewhere scores differ by at most {gap:.1e}")


if __name__ == "__main__":
    main()
