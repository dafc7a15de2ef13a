"""Pareto smoothing against ArviZ (`psislw` of arviz, and of arviz-stats), one thread, by size of sample.

python benchmarks/pareto_smoothing.py            wants arviz<1 and arviz-stats

Both return weights that are not normalised; a second line times both with the normalisation that ArviZ does
by default. Each figure is the median of several runs, taken in turn so that what else runs disturbs all alike.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import torch

from steelyard.weights import normalize, pareto_smooth

SHAPES = ((100_000,), (1_000_000,), (1000, 10_000))
RUNS = 7


def seconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each call, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(RUNS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the peers
    from arviz import psislw
    from arviz_stats.base import array_stats

    libraries = ("arviz", "arviz-stats", "numpy", "torch", "numba")
    print(", ".join(f"{name} {version(name)}" for name in libraries) + "; t(4) log-ratios, one thread")
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        log_w = rng.standard_t(4, size=shape)
        single = log_w.astype(np.float32)
        _, ours = pareto_smooth(log_w)
        _, theirs = psislw(log_w, normalize=False)
        gap = float(np.abs(ours.numpy() - theirs).max())
        found = seconds(
            {
                "pareto_smooth": lambda x=log_w: pareto_smooth(x),
                "pareto_smooth, float32": lambda x=single: pareto_smooth(x),
                "arviz": lambda x=log_w: psislw(x, normalize=False),
                "pareto_smooth, normalised": lambda x=log_w: normalize(pareto_smooth(x)[0]),
                "arviz, normalised": lambda x=log_w: psislw(x),
                "arviz-stats, normalised": lambda x=log_w: array_stats.psislw(-x, axis=-1),
            }
        )
        print(f"{' x '.join(f'{n:,}' for n in shape)}   k-hats differ by at most {gap:.1e}")
        for name, value in found.items():
            base = found["pareto_smooth, normalised" if "normalised" in name else "pareto_smooth"]
            print(f"  {name:<27} {value * 1e3:9.2f} ms {value / base:8.1f} x")


if __name__ == "__main__":
    main()
