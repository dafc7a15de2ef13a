"""A step of row-sparse optimisers against torch's dense and sparse ones: a million rows, 4096 touched.

python benchmarks/row_optimisers.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from steelyard.optim import RowAdagrad, RowAdam

ROWS, TOUCHED, DIM = (100_000, 300_000, 1_000_000), 4096, 64


def seconds(make: Callable[[torch.nn.Parameter], torch.optim.Optimizer], rows: int, dense: bool) -> float:
    """Median seconds of a step; the gradient is made outside the clock."""
    g = torch.Generator().manual_seed(0)
    table = torch.nn.Parameter(torch.randn(rows, DIM, generator=g))
    optimizer = make(table)
    times = []
    for _ in range(12):
        ids = torch.randint(rows, (TOUCHED,), generator=g)
        grad = torch.sparse_coo_tensor(
            ids.unsqueeze(0), torch.randn(TOUCHED, DIM, generator=g), (rows, DIM), check_invariants=True
        )
        table.grad = grad.to_dense() if dense else grad
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def main() -> None:
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {TOUCHED} rows of {DIM} touched a step"
    )
    peers: dict[str, tuple[Callable[[torch.nn.Parameter], torch.optim.Optimizer], bool]] = {
        "torch Adam": (lambda p: torch.optim.Adam([p]), True),
        "torch Adam fused": (lambda p: torch.optim.Adam([p], fused=True), True),
        "torch SparseAdam": (lambda p: torch.optim.SparseAdam([p]), False),
        "torch Adagrad sparse": (lambda p: torch.optim.Adagrad([p]), False),
        "RowAdam": (lambda p: RowAdam([p]), False),
        "RowAdagrad": (lambda p: RowAdagrad([p]), False),
    }
    for rows in ROWS:
        found = {name: seconds(make, rows, dense) for name, (make, dense) in peers.items()}
        for name, value in found.items():
            against = "  ".join(
                f"{found[ours] and value / found[ours]:7.1f} x {ours}" for ours in ("RowAdam", "RowAdagrad")
            )
            print(f"{rows:>9,} rows  {name:<22} {value * 1e3:8.2f} ms   {against}")


if __name__ == "__main__":
    main()
