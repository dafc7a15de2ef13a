"""Train a recommender on a small generated data set, measure it, save it and ask it."""

import tempfile
from pathlib import Path

import polars as pl
import torch

from steelyard.retrieval import Retriever, TrainConfig, read_interactions, split, train

# 200 users of five tastes; nine of ten items that a user takes are of its taste.
generator = torch.Generator().manual_seed(0)
users = torch.arange(200).repeat_interleave(20)
items = (40 * torch.rand(4000, generator=generator) ** 2).long()
other = torch.rand(4000, generator=generator) < 0.1
taste = torch.where(other, torch.randint(5, (4000,), generator=generator), users % 5)
rows = pl.DataFrame(
    {"user": [f"u{u}" for u in users], "item": [f"t{t}-{i}" for t, i in zip(taste, items, strict=True)]}
)

with tempfile.TemporaryDirectory() as folder:
    rows.write_csv(Path(folder) / "clicks.csv")
    data = read_interactions(Path(folder) / "clicks.csv")
    print(data.reading)
    rest, test = split(data, "random", fraction=0.2, seed=1)
    config = TrainConfig.of("mf", dim=16, epochs=20, batch=16, lr=0.05, candidates=64)
    trained = train(rest, test, config, out=Path(folder) / "run")
    for name in ("recall@10", "ndcg@10"):
        for row in ("chance", "popularity"):
            print(f"{name:<10} {row:<11} {trained.metrics['baselines'][row][name]['mean']:.3f}")
        found = trained.metrics["test"][name]
        print(f"{name:<10} {'model':<11} {found['mean']:.3f} (95% {found['low']:.3f} to {found['high']:.3f})")
    retriever = Retriever.load(Path(folder) / "run")
    print(retriever.recommend(["u0", "u1"], k=3))
