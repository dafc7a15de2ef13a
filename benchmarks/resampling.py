"""Resampling a million particles of a million, and sorting them along a Hilbert curve, against `particles`.

pip install --no-deps particles
python benchmarks/resampling.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import get_args

import numba
import numpy as np
import torch
from particles import resampling as peer
from particles.hilbert import hilbert_sort

from steelyard.sampling.hilbert import hilbert_order
from steelyard.sampling.resampling import Scheme, _ancestors, resample

N, ROUNDS = 1_000_000, 11


def side_by_side(contenders: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each, in turns, the first round thrown away."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t[1:]) for name, t in times.items()}


def from_logs(scheme: str, log_w: np.ndarray) -> np.ndarray:
    return peer.rs_funcs[scheme](peer.exp_and_normalise(log_w), N)


def move(source: np.ndarray, target: np.ndarray) -> None:
    """Two passes over memory: log-weights read, ids and their log expected counts written."""
    np.copyto(target, source)
    np.copyto(target, source)


def main() -> None:
    print(
        f"particles {version('particles')}, torch {torch.__version__}, numpy {np.__version__}, numba "
        f"{numba.__version__}, {torch.get_num_threads()} threads; log-weights N(0, 1), float64; median of "
        f"{ROUNDS} rounds in turns"
    )
    g = torch.Generator().manual_seed(0)
    log_w = torch.randn(N, generator=g, dtype=torch.float64)
    plain = log_w.numpy()
    w = peer.exp_and_normalise(plain)
    target = np.empty(N)
    scale = np.array([N / w.sum()])
    for scheme in get_args(Scheme):
        whole, alone = "log-weights to Draws", "weights to ids"
        found = side_by_side(
            {
                f"steelyard, {whole}": partial(resample, log_w, N, scheme=scheme, generator=g),
                "particles, log-weights to ids": partial(from_logs, scheme, plain),
                f"steelyard, {alone}, the scheme alone": partial(_ancestors, w[None], scale, N, scheme, g),
                f"particles, {alone}, the scheme alone": partial(peer.rs_funcs[scheme], w, N),
                "limit: exponentials of all log-weights": partial(np.exp, plain, out=target),
                "limit: log-weights read, ids and logs written": partial(move, plain, target),
            }
        )
        ours, kernel = found[f"steelyard, {whole}"], found[f"steelyard, {alone}, the scheme alone"]
        for name, value in found.items():
            ratio = value / (kernel if "alone" in name else ours)
            print(f"{scheme:<12} {name:<46} {value * 1e3:8.2f} ms  {ratio:6.2f} x steelyard")
    for d in (1, 2, 5):
        x = torch.randn(N, d, generator=g, dtype=torch.float64)
        found = side_by_side(
            {"hilbert_order": partial(hilbert_order, x), "particles": partial(hilbert_sort, x.numpy())}, 3
        )
        for name, value in found.items():
            print(
                f"Hilbert, {d} d   {name:<46} {value * 1e3:8.2f} ms  {value / found['hilbert_order']:6.2f} x steelyard"
            )


if __name__ == "__main__":
    main()
