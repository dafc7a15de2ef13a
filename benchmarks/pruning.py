"""Data pruning on images: accuracy after training on a part of the rows, chosen in several ways, with intervals.

MNIST's 10,000 test images (8,000 to choose from, 2,000 to test on) or scikit-learn's digits, a network of one hidden
layer. Scores are EL2N after a few epochs, averaged over networks. Every way trains for the same number of steps; RS2 draws
its part anew every epoch. Intervals are 95 %, from a t distribution over seeds (split, network and draw).

python benchmarks/pruning.py [--data ../shared/data/image-mnist-t10k] [--seeds 5] [--digits] [--noise 0.0]
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from steelyard.selection import (
    balanced_draw,
    coverage_centric,
    el2n,
    hierarchical_kmeans,
    random_subsets,
    top_and_explore,
)

KEPT = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
STEPS, BATCH = 1500, 64


def images(folder: Path) -> tuple[Tensor, Tensor]:
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784).astype(np.float32) / 255
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(y)


def network(width: int, classes: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, classes))


def train(
    model: nn.Module, x: Tensor, y: Tensor, parts: list[Tensor], steps: int, weight: Tensor | None = None
) -> None:
    """Steps over parts, one part an epoch and again from the first, along a cosine schedule."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    done = 0
    while done < steps:
        for part in parts:
            for batch in part[torch.randperm(len(part))].split(BATCH):
                loss = nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="none")
                loss = loss.mean() if weight is None else (loss * weight[batch]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                done += 1
                if done == steps:
                    return


def scores(x: Tensor, y: Tensor, classes: int, seed: int) -> Tensor:
    """EL2N over five networks after three epochs."""
    logits = []
    for k in range(5):
        model = network(x.shape[1], classes, 100 * seed + k)
        train(model, x, y, [torch.arange(len(y))], 3 * -(-len(y) // BATCH))
        with torch.no_grad():
            logits.append(model(x))
    return el2n(torch.stack(logits), y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "image-mnist-t10k"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--digits", action="store_true", help="scikit-learn's digits, 1,797 images of 8 by 8")
    parser.add_argument("--noise", type=float, default=0.0, help="share of the labels to spoil")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.digits:
        from sklearn.datasets import load_digits

        found = load_digits()
        x, y = torch.from_numpy(found.data).float() / 16, torch.from_numpy(found.target).long()
    else:
        x, y = images(chosen.data)
    classes, rows = int(y.max()) + 1, len(y)
    results: dict[tuple[str, float], list[float]] = {}
    for seed in range(chosen.seeds):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(rows, generator=generator)
        held, pool = order[: rows // 5], order[rows // 5 :]
        x_pool, y_pool = x[pool], y[pool].clone()
        spoilt = torch.rand(len(pool), generator=generator) < chosen.noise
        y_pool[spoilt] = (y_pool[spoilt] + 1) % classes
        score = scores(x_pool, y_pool, classes, seed)
        level = hierarchical_kmeans(x_pool, [50], generator=generator)
        for share in KEPT:
            k = round(share * len(pool))
            explored = top_and_explore(score, k, explore=0.5, generator=generator)
            weight = torch.zeros(len(pool))
            weight[explored.ids] = (-explored.log_expected).exp().float()
            weight = weight * k / weight.sum()
            epochs = -(-STEPS * BATCH // k)
            ways = {
                "random, once": ([torch.randperm(len(pool), generator=generator)[:k]], None),
                "RS2": (list(random_subsets(len(pool), share, epochs, generator=generator)), None),
                "EL2N, hardest": ([score.topk(k).indices], None),
                "CCS": ([coverage_centric(score, k, beta=0.1, generator=generator).ids], None),
                "hardest half and explored half, weighed": ([explored.ids], weight),
                "even over 50 clusters": ([balanced_draw(level, k, generator=generator).ids], None),
            }
            for name, (parts, weights) in ways.items():
                model = network(x.shape[1], classes, seed)
                train(model, x_pool, y_pool, parts, STEPS, weights)
                with torch.no_grad():
                    right = (model(x[held]).argmax(1) == y[held]).float().mean()
                results.setdefault((name, share), []).append(float(right))
        print(f"seed {seed} done", flush=True)
    print("| kept | " + " | ".join(f"{share:.0%}" for share in KEPT) + " |")
    print("|---|" + "---|" * len(KEPT))
    for name in dict.fromkeys(name for name, _ in results):
        cells = []
        for share in KEPT:
            values = np.array(results[name, share])
            half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
            cells.append(f"{values.mean():.3f} ± {half:.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
