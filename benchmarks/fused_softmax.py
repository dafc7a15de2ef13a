"""Sampled softmax over shared candidates, forward and backward: the fused step against plain autograd.

Each contender runs in a process of its own, so that peak memory is its own; the contenders alternate, and the
ratio is that of the medians. B = 2048 queries, d = 64.

    python benchmarks/fused_softmax.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional

from steelyard.losses import fused_sampled_softmax, sampled_softmax

B, D, SCALE = 2048, 64, 10.0
SIZES = (2048, 16384, 40981)


def plain(u: torch.Tensor, p: torch.Tensor, v: torch.Tensor, le: torch.Tensor) -> torch.Tensor:
    return sampled_softmax((u * p).sum(1) * SCALE, u @ v.T * SCALE, le)


def fused(u: torch.Tensor, p: torch.Tensor, v: torch.Tensor, le: torch.Tensor) -> torch.Tensor:
    return fused_sampled_softmax((u * p).sum(1) * SCALE, u, v, le, scale=SCALE)


def one(name: str, k: int, repeats: int) -> None:
    """Time one contender and print seconds a step and how far memory rose above the inputs and a small step."""
    g = torch.Generator().manual_seed(0)
    u, p, v = (
        functional.normalize(torch.randn(n, D, generator=g), dim=1).requires_grad_() for n in (B, B, k)
    )
    le = torch.full((k,), math.log(k / 100_000))
    small = [torch.zeros(256, D, requires_grad=True) for _ in range(3)]
    step = {"plain": plain, "fused": fused}[name]
    step(*small, torch.zeros(256)).backward()  # code and the threads' own buffers are there before we count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(repeats + 1):
        u.grad = p.grad = v.grad = None
        start = time.perf_counter()
        step(u, p, v, le).backward()
        times.append(time.perf_counter() - start)
    rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"seconds": statistics.median(times[1:]), "rise": rise}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "K", "REPEATS"))
    args = parser.parse_args()
    if args.one:
        one(args.one[0], int(args.one[1]), int(args.one[2]))
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}"
    )
    print(
        f"{'K':>6} {'plain ms':>9} {'fused ms':>9} {'times faster':>13} {'plain MiB':>10} {'fused MiB':>10} {'times less':>11}"
    )
    for k in SIZES:
        found: dict[str, list[dict[str, float]]] = {"plain": [], "fused": []}
        for _ in range(args.rounds):
            for name, runs in found.items():
                command = [sys.executable, __file__, "--one", name, str(k), str(20 if k < 5000 else 4)]
                runs.append(
                    json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                )
        ms = {name: 1e3 * statistics.median(r["seconds"] for r in runs) for name, runs in found.items()}
        mib = {name: statistics.median(r["rise"] for r in runs) for name, runs in found.items()}
        print(
            f"{k:>6} {ms['plain']:>9.1f} {ms['fused']:>9.1f} {ms['plain'] / ms['fused']:>13.2f} "
            f"{mib['plain']:>10.0f} {mib['fused']:>10.0f} {mib['plain'] / mib['fused']:>11.1f}"
        )


if __name__ == "__main__":
    main()
