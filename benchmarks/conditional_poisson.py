"""Conditional Poisson sampling against the recursion of the R packages, vectorised over k in numpy.

python benchmarks/conditional_poisson.py

The peer is what `sampling::UPmaxentropy` does once it has weights: a table q of n times k conditional selection
probabilities (UPMEqfromw), a pass over it for the draw (UPMEsfromq) and one for the inclusion probabilities
(UPMEpikfromq). Its e_r(w) overflow a float at these sizes, so the table is kept in range in two ways: weights
scaled to coins of sum k, which is fast but has nothing left far from the mean, and logs, which are stable.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numba
import numpy as np
import torch

from steelyard.sampling.conditional_poisson import conditional_poisson, conditional_poisson_inclusion

SIZES, ROUNDS = ((1_000, 100), (3_000, 300), (10_000, 1_000)), 5


def scaled_table(p: np.ndarray, k: int) -> np.ndarray:
    """q[i, r]: probability of taking i when r are still wanted, from the law of the number of later coins."""
    n = len(p)
    law = np.zeros((n + 1, k + 1))
    law[n, 0] = 1
    for i in range(n - 1, -1, -1):
        np.multiply(law[i + 1], 1 - p[i], out=law[i])
        law[i, 1:] += p[i] * law[i + 1, :-1]
    q = np.zeros((n, k + 1))
    with np.errstate(invalid="ignore"):
        np.divide(p[:, None] * law[1:, :-1], law[:-1, 1:], out=q[:, 1:])
    return q


def log_table(log_w: np.ndarray, k: int) -> np.ndarray:
    n = len(log_w)
    e = np.full((n + 1, k + 1), -np.inf)
    e[n, 0] = 0
    for i in range(n - 1, -1, -1):
        e[i, 0] = 0
        np.logaddexp(e[i + 1, 1:], log_w[i] + e[i + 1, :-1], out=e[i, 1:])
    q = np.zeros((n, k + 1))
    with np.errstate(invalid="ignore"):
        q[:, 1:] = np.exp(log_w[:, None] + e[1:, :-1] - e[:-1, 1:])
    return q


def draw(q: np.ndarray, rng: np.random.Generator) -> list[int]:
    left, taken = q.shape[1] - 1, []
    for i, u in enumerate(rng.random(len(q))):
        if left and u < q[i, left]:
            taken.append(i)
            left -= 1
    return taken


def inclusion(q: np.ndarray) -> np.ndarray:
    q = np.nan_to_num(q)
    state, pi = np.zeros(q.shape[1]), np.empty(len(q))
    state[-1] = 1
    for i in range(len(q)):
        taken = state * q[i]
        pi[i] = taken.sum()
        state -= taken
        state[:-1] += taken[1:]
    return pi


def peer(
    table: Callable[[np.ndarray, int], np.ndarray],
    w: np.ndarray,
    k: int,
    rng: np.random.Generator,
    both: bool,
) -> tuple[list[int], np.ndarray | None]:
    q = table(w, k)
    return draw(q, rng), inclusion(q) if both else None


def coins(log_w: np.ndarray, k: int) -> np.ndarray:
    """Poisson probabilities with odds proportional to w and sum k, by bisection; outside the clock."""
    low, high = -1e3, 1e3
    for _ in range(100):
        c = (low + high) / 2
        p = 1 / (1 + np.exp(-log_w - c))
        low, high = (low, c) if p.sum() > k else (c, high)
    return p


def side_by_side(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, in turns, the first round thrown away."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t[1:]) for name, t in times.items()}


def main() -> None:
    print(
        f"torch {torch.__version__}, numpy {np.__version__}, numba {numba.__version__}, "
        f"{torch.get_num_threads()} threads; log-weights N(0, 1), float64; median of {ROUNDS} rounds in turns"
    )
    rng, g = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for n, k in SIZES:
        log_w = torch.randn(n, generator=g, dtype=torch.float64)
        plain = log_w.numpy()
        p = coins(plain, k)
        exact = conditional_poisson_inclusion(log_w, k).exp().numpy()
        gap = [np.abs(inclusion(table) - exact).max() for table in (scaled_table(p, k), log_table(plain, k))]
        found = side_by_side(
            {
                "conditional_poisson (draw and inclusion)": partial(
                    conditional_poisson, log_w, k, generator=g
                ),
                "numpy, scaled: draw and inclusion": partial(peer, scaled_table, p, k, rng, True),
                "numpy, scaled: draw alone": partial(peer, scaled_table, p, k, rng, False),
                "numpy, logs: draw and inclusion": partial(peer, log_table, plain, k, rng, True),
                "numpy, logs: draw alone": partial(peer, log_table, plain, k, rng, False),
                "conditional_poisson_inclusion": partial(conditional_poisson_inclusion, log_w, k),
            }
        )
        first = next(iter(found.values()))
        print(f"k = {k:,} of n = {n:,}; inclusion probabilities differ by at most {max(gap):.1e}")
        for name, value in found.items():
            print(f"    {name:<42} {value * 1e3:9.2f} ms  {value / first:8.2f} x conditional_poisson")


if __name__ == "__main__":
    main()
