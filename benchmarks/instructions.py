"""DS2 and MIG on real instructions: 9,229 random Alpaca rows, of which a Claude model graded some 4.5 or more (AlpaGasus).

The grade of a row is 1 where AlpaGasus kept it. DS2: a known share of the grades is turned; can near rows (TF-IDF of hashed
words) tell? MIG: labels are k-means clusters of the same vectors, grades the turned ones; what share of the selected rows is
really good, and how many clusters do they cover?

python benchmarks/instructions.py [--data ../shared/data/instruct-alpagasus]
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import torch

from steelyard.negatives.lloyd import lloyd
from steelyard.selection import (
    HashedNgrams,
    correct_grades,
    fit_transitions,
    maximise_information,
    nearest_rows,
)

TURNED, KEEP, CLUSTERS = (0.05, 0.2), 500, 300
"""Chances that a good and a bad row get the other grade."""


def rows(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [f"{r['instruction']}\n{r['input']}\n{r['output']}" for r in json.load(file)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "instruct-alpagasus"
    parser.add_argument("--data", type=Path, default=shared)
    folder = parser.parse_args().data
    texts, good = rows(folder / "alpaca_random_9k.json.gz"), set(rows(folder / "alpaca_claude_t45.json.gz"))
    truth = torch.tensor([int(t in good) for t in texts])
    counts = HashedNgrams(1, 4096).features(texts).toarray()
    vectors = (
        (1 + np.log(np.maximum(counts, 1)))
        * (counts > 0)
        * np.log(len(texts) / np.maximum((counts > 0).sum(0), 1))
    )
    x = torch.nn.functional.normalize(torch.from_numpy(vectors).float(), dim=1)
    _, near = nearest_rows(x, 10)
    agree = float((truth[near[:, :2]] == truth[:, None]).float().mean())
    share = float(truth.float().mean())
    print(
        f"{len(texts):,} rows, {int(truth.sum())} good; two nearest agree {agree:.3f}, by chance {share**2 + (1 - share) ** 2:.3f}"
    )
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(len(texts), generator=generator)
    turned = torch.where(truth == 1, u < TURNED[0], u < TURNED[1])
    grades = torch.where(turned, 1 - truth, truth)
    found = fit_transitions(grades, near, 2)
    repaired, confidence = correct_grades(grades, near, found)
    print(
        f"planted transitions {[[1 - TURNED[1], TURNED[1]], [TURNED[0], 1 - TURNED[0]]]}, found {found.transition.tolist()}"
    )
    print(
        f"wrong grades {float((grades != truth).float().mean()):.3f}, after DS2 {float((repaired != truth).float().mean()):.3f}"
    )
    clusters = lloyd(x, CLUSTERS, generator=generator)[1]
    labels = torch.nn.functional.one_hot(clusters, CLUSTERS).float()
    ways = {
        "random": torch.randperm(len(texts), generator=generator)[:KEEP],
        "highest grades": torch.argsort(
            grades.float() + 1e-3 * torch.rand(len(texts), generator=generator), descending=True
        )[:KEEP],
        "MIG, grades as given": maximise_information(labels, 0.1 + grades, KEEP)[0],
        "MIG, posterior of DS2": maximise_information(
            labels, torch.where(repaired == 1, confidence, 1 - confidence) + 0.01, KEEP
        )[0],
    }
    for name, ids in ways.items():
        print(f"| {name} | {float(truth[ids].float().mean()):.3f} | {len(clusters[ids].unique())} |")


if __name__ == "__main__":
    main()
