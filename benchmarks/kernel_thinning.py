"""Kernel thinning against goodpoints: seconds and maximum mean discrepancy, 4096 to 64 and 65536 to 256 rows.

`kt.thin` is its Python form in O(n d) memory, `kt.thin_K` its compiled form on a stored kernel matrix (34 GB in
float64 at 65536 rows, so not there), `compresspp_kt` its compiled Compress++.

pip install goodpoints
python benchmarks/kernel_thinning.py           (a minute or two)
python benchmarks/kernel_thinning.py --long    (and goodpoints' kt.thin of 65536 rows, several minutes a seed)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import numba
import numpy as np
import torch
from goodpoints import compress as peer_compress
from goodpoints import compressc, kt

from steelyard.sampling.compress import compress_plus_plus
from steelyard.sampling.kernel_thinning import GaussianKernel, kernel_thinning, mmd

D = 8
KERNEL = GaussianKernel(D**0.5)  # exp(-|x - y|^2 / (2 D)); goodpoints names the 2 D
SCALE = 2.0 * D


def evaluate(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The kernel as goodpoints' Python functions want it."""
    return np.exp(-((rows - y) ** 2).sum(1) / SCALE)


def stored(x: np.ndarray, m: int, seed: int) -> np.ndarray:
    k = np.empty((len(x), len(x)))
    compressc.compute_K(x, np.arange(len(x)), b"gaussian", np.array([SCALE]), k)
    return np.asarray(kt.thin_K(k, k, m, seed=seed))


def compressed(x: np.ndarray, g: int, seed: int) -> np.ndarray:
    return np.asarray(peer_compress.compresspp_kt(x, b"gaussian", np.array([SCALE]), g=g, seed=seed))


def measure(
    name: str, n: int, seeds: int, choose: Callable[[torch.Tensor, int], torch.Tensor]
) -> tuple[float, float]:
    """Median seconds and mean discrepancy; the rows of a seed are the same for all methods."""
    times, found = [], []
    for seed in range(seeds):
        x = torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        start = time.perf_counter()
        ids = choose(x, seed)
        times.append(time.perf_counter() - start)
        found.append(mmd(x.float(), ids, KERNEL))
    error = statistics.stdev(found) / len(found) ** 0.5 if seeds > 1 else float("nan")
    seconds, discrepancy = statistics.median(times), statistics.fmean(found)
    print(f"{n:>6} rows  {name:<30} {seconds:9.3f} s   MMD {discrepancy:.5f} +- {error:.5f}", flush=True)
    return seconds, discrepancy


def main() -> None:
    print(
        f"torch {torch.__version__}, goodpoints {version('goodpoints')}, numba {numba.__version__}, "
        f"{torch.get_num_threads()} threads; {D} dimensions; peers get float64 as they want it, ours float32 or float64"
    )

    def ours(x: torch.Tensor, m: int, seed: int) -> torch.Tensor:
        return kernel_thinning(x, m, KERNEL, generator=torch.Generator().manual_seed(seed))

    def fast(x: torch.Tensor, g: int, seed: int) -> torch.Tensor:
        return compress_plus_plus(x, KERNEL, oversampling=g, generator=torch.Generator().manual_seed(seed))

    for dtype in (torch.float32, torch.float64):  # compile outside the clock
        ours(torch.randn(1100, D, dtype=dtype), 2, 0)
        fast(torch.randn(64, D, dtype=dtype), 1, 0)
    for n, m, seeds in ((4096, 6, 10), (65536, 8, 3)):
        peers: dict[str, tuple[float, float]] = {}
        if n == 4096 or "--long" in sys.argv:
            peers["goodpoints kt.thin"] = measure(
                "goodpoints kt.thin",
                n,
                3 if n == 4096 else 1,
                lambda x, s, m=m: torch.from_numpy(kt.thin(x.numpy(), m, evaluate, evaluate, seed=s)),
            )
        if n == 4096:
            peers["goodpoints kt.thin_K"] = measure(
                "goodpoints kt.thin_K", n, seeds, lambda x, s, m=m: torch.from_numpy(stored(x.numpy(), m, s))
            )
        for g in (2, 4):
            name = f"goodpoints compresspp_kt, g = {g}"
            peers[name] = measure(
                name, n, seeds, lambda x, s, g=g: torch.from_numpy(compressed(x.numpy(), g, s))
            )
        mine = {
            "kernel_thinning": measure("kernel_thinning", n, seeds, lambda x, s, m=m: ours(x.float(), m, s)),
            "kernel_thinning, float64": measure(
                "kernel_thinning, float64", n, seeds, lambda x, s, m=m: ours(x, m, s)
            ),
        }
        for g in (2, 4):
            name = f"compress_plus_plus, g = {g}"
            mine[name] = measure(name, n, seeds, lambda x, s, g=g: fast(x.float(), g, s))
        measure("every t-th row", n, seeds, lambda x, _: torch.arange(0, len(x), int(len(x) ** 0.5)))
        for name, (seconds, discrepancy) in mine.items():
            for peer, (theirs, of_theirs) in peers.items():
                # Like with like: full thinning with full, Compress++ with Compress++ of the same oversampling.
                if ("kt.thin" in peer) == name.startswith("kernel") and (
                    name[-5:] == peer[-5:] or "kt.thin" in peer
                ):
                    print(
                        f"{n:>6} rows  {name:<30} {theirs / seconds:7.1f} times as fast as {peer:<31} "
                        f"MMD {discrepancy / of_theirs:.3f} of its"
                    )


if __name__ == "__main__":
    main()
