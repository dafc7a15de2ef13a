"""Weighted draws without replacement, with inclusion probabilities: against numpy, and over a stream.

python benchmarks/without_replacement.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numba
import numpy as np
import torch

from steelyard.sampling.reservoir import Reservoir
from steelyard.sampling.successive import _bounds, without_replacement

SIZES, SHARE, ROUNDS, BATCH = (1_000_000, 3_000_000, 10_000_000), 100, 7, 1_000_000
WORD = tuple(np.uint64(w) for w in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 27, 30, 31))


def side_by_side(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, in turns, the first round thrown away."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t[1:]) for name, t in times.items()}


def by_choice(log_p: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return rng.choice(len(p), k, replace=False, p=p)


def by_race(log_p: np.ndarray, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Exponential keys and a partial select: ids and inclusion probabilities."""
    p = np.exp(log_p)
    keys = rng.standard_exponential(len(p)) / p
    best = np.argpartition(keys, k)
    return best[:k], -np.expm1(-p[best[:k]] * keys[best[k]])


def by_topk(log_p: torch.Tensor, k: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.empty_like(log_p).exponential_(generator=generator).log_()
    keys, ids = (log_p - noise).topk(k + 1)
    return ids[:k], -torch.expm1(-torch.exp(log_p[ids[:k]] - keys[k]))


def hashed_keys(ids: np.ndarray, log_w: np.ndarray) -> np.ndarray:
    golden, a, b, s27, s30, s31 = WORD
    x = ids.view(np.uint64) * golden
    x = (x ^ (x >> s30)) * a
    x = (x ^ (x >> s27)) * b
    x ^= x >> s31
    return log_w - np.log(-np.log1p(-np.minimum((x.astype(np.float64) + 0.5) * 2.0**-64, 1 - 2.0**-53)))


def numpy_stream(ids: np.ndarray, log_w: np.ndarray, k: int) -> np.ndarray:
    """Hash every row of a batch, keep the k + 1 best of those and of the best so far."""
    best_keys, best_ids = np.empty(0), np.empty(0, np.int64)
    for start in range(0, len(ids), BATCH):
        keys = hashed_keys(ids[start : start + BATCH], log_w[start : start + BATCH])
        keys, names = (
            np.concatenate([best_keys, keys]),
            np.concatenate([best_ids, ids[start : start + BATCH]]),
        )
        at = np.argpartition(-keys, k)[: k + 1]
        best_keys, best_ids = keys[at], names[at]
    return best_ids


def stream(ids: torch.Tensor, log_w: torch.Tensor, k: int) -> torch.Tensor:
    reservoir = Reservoir(k, 1)
    for start in range(0, len(ids), BATCH):
        reservoir.add(ids[start : start + BATCH], log_w[start : start + BATCH])
    return reservoir.draws().ids


@numba.njit(cache=True)
def only_noise(log_w: np.ndarray) -> float:
    """The part of the work that no row is spared: a hash, its bound, one read."""
    uniform, bound, none = np.empty(512), np.empty(512), np.empty(0, np.int64)
    bits, total = uniform.view(np.int64), 0.0
    for start in range(0, len(log_w), 512):
        part = log_w[start : start + 512]
        _bounds(none, start, part, np.uint64(1), np.uint64(2), uniform, bits, bound)
        total += bound[0]
    return total


def main() -> None:
    print(
        f"torch {torch.__version__}, numpy {np.__version__}, numba {numba.__version__}, "
        f"{torch.get_num_threads()} threads; log-weights N(0, 1), float64; median of {ROUNDS} rounds in turns"
    )
    rng, g = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for n in SIZES:
        k = n // SHARE
        log_p = torch.randn(n, generator=g, dtype=torch.float64)
        plain = log_p.numpy()
        p = np.exp(plain) / np.exp(plain).sum()
        ours = "without_replacement"
        found = side_by_side(
            {
                ours: partial(without_replacement, log_p, k, generator=g),
                f"{ours}, float32": partial(without_replacement, log_p.float(), k, generator=g),
                "numpy choice, from log p": partial(by_choice, plain, k, rng),
                "numpy choice, given p": partial(rng.choice, n, k, replace=False, p=p),
                "numpy race + argpartition": partial(by_race, plain, k, rng),
                "torch race + topk": partial(by_topk, log_p, k, g),
                "limit: noise of every row": partial(only_noise, plain),
                "limit: n numpy exponentials": partial(rng.standard_exponential, n),
                "limit: read log p once": plain.sum,
            }
        )
        for name, value in found.items():
            print(
                f"{k:>7,} of {n:>10,}  {name:<28} {value * 1e3:9.2f} ms  {value / found[ours]:6.2f} x {ours}"
            )
    n = SIZES[-1]
    ids = torch.randperm(n, generator=g)
    log_w = torch.randn(n, generator=g, dtype=torch.float64)
    for k in (1_000, 100_000):
        found = side_by_side(
            {
                "Reservoir": partial(stream, ids, log_w, k),
                "numpy hash + argpartition": partial(numpy_stream, ids.numpy(), log_w.numpy(), k),
            }
        )
        for name, value in found.items():
            print(
                f"stream of {n:,} in batches of {BATCH:,}, k = {k:>7,}  {name:<26} {n / value / 1e6:7.1f} million "
                f"rows/s  {value / found['Reservoir']:6.2f} x Reservoir"
            )


if __name__ == "__main__":
    main()
