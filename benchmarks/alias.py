"""Independent draws from ten million categories: AliasTable against numpy, and against what memory allows.

python benchmarks/alias.py [--draws 1000000 10000000 100000000]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numba
import numpy as np
import torch

from steelyard.sampling.alias import AliasTable, cell_of
from steelyard.sampling.successive import GOLDEN, mix

CATEGORIES, ROUNDS, SECONDS = (10_000, 1_000_000, 10_000_000), 5, 60.0


def side_by_side(contenders: dict[str, Callable[[], object]]) -> dict[str, tuple[float, int]]:
    """Median seconds of each and how many rounds, in turns; who has had a minute does not run again."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            if sum(times[name]) < SECONDS:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: (statistics.median(t), len(t)) for name, t in times.items()}


@numba.njit(cache=True)
def only_cells(n: int, out: np.ndarray) -> None:
    """The random numbers of the draws and the cells on which they fall, but no look into the table."""
    for j in range(len(out)):
        out[j] = np.int64(cell_of(mix(np.uint64(j) * GOLDEN), np.uint64(n))[0])


@numba.njit(cache=True)
def only_touch(cells: np.ndarray, where: np.ndarray) -> int:
    """One read of the table for each draw, its place known beforehand."""
    total = 0
    for j in range(len(where)):
        total += cells[where[j]]["alias"]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    chosen = parser.parse_args()
    print(
        f"torch {torch.__version__}, numpy {np.__version__}, numba {numba.__version__}, "
        f"{torch.get_num_threads()} threads; weights uniform^3; median of up to {ROUNDS} rounds in turns"
    )
    g, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    only_cells(3, np.empty(1, np.int64))
    only_touch(AliasTable([1.0])._cells, np.zeros(1, np.int64))
    for n in CATEGORIES:
        w = torch.rand(n, generator=g, dtype=torch.float64) ** 3
        p = (w / w.sum()).numpy()
        AliasTable(w[:10])
        start = time.perf_counter()
        table = AliasTable(w)
        print(f"{n:>10,} categories: built in {(time.perf_counter() - start) * 1e3:.1f} ms, once")
        for k in chosen.draws if n == CATEGORIES[-1] else [min(chosen.draws)]:
            where = rng.integers(0, n, k)
            found = side_by_side(
                {
                    "AliasTable.sample": partial(table.sample, k, generator=g),
                    "numpy Generator.choice": partial(rng.choice, n, k, p=p),
                    "limit: random numbers and cells": partial(only_cells, n, np.empty(k, np.int64)),
                    "limit: one read of the table a draw": partial(only_touch, table._cells, where),
                }
            )
            ours = found["AliasTable.sample"][0]
            for name, (value, rounds) in found.items():
                print(
                    f"{n:>10,} categories  {k:>11,} draws  {name:<36} {value / k * 1e9:8.2f} ns a draw "
                    f"({rounds} rounds)  {value / ours:7.2f} x ours"
                )
    try:
        torch.multinomial(torch.ones(2**24 + 1), 1, replacement=True)
    except RuntimeError as error:
        print(f"torch.multinomial: {error}")


if __name__ == "__main__":
    main()
