"""A training step of the output layer as the classes grow: the Z-loss by factored update against dense steps.

A step is loss, gradient of the hidden states and plain SGD of all weights, B = 128, d = 64, float32, one
thread. Contenders: the Z-loss by `FactoredOutput`; the same loss by `logit_moments` and autograd, O(C d^2); and
softmax cross-entropy, O(B C d), up to what fits in 2 GB. Each runs in a process of its own; medians of rounds
that alternate. A refresh of the factored layer comes once in C examples: its share of a step is added.

    python benchmarks/spherical.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from steelyard.losses.factored_output import FactoredOutput
from steelyard.losses.spherical import logit_moments, z_loss

B, D, RATE, Z_AT = 128, 64, 0.1, 3.0
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LIMIT = 2e9
Step = Callable[[Tensor, Tensor], object]


def dense_bytes(n_classes: int) -> int:
    """Of cross-entropy: weights and their gradient; logits, log-probabilities and the gradient of the logits."""
    return 4 * (2 * n_classes * D + 3 * B * n_classes)


def dense(weight: Tensor, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
    parameter = torch.nn.Parameter(weight)
    optimizer = torch.optim.SGD([parameter], lr=RATE)

    def step(hidden: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        loss(hidden, parameter, labels).backward()
        optimizer.step()

    return step


def factored(layer: FactoredOutput) -> Step:
    def step(hidden: Tensor, labels: Tensor) -> None:
        z_loss(layer.moments(hidden, labels), b=Z_AT).backward()
        layer.step(RATE)

    return step


def one(name: str, n_classes: int) -> None:
    """Time one contender and print milliseconds a step, and of a refresh."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(n_classes, D, generator=g)
    layer = FactoredOutput(weight, refresh_after=10**12) if name == "factored" else None
    if layer is not None:
        step = factored(layer)
    elif name == "moments":
        step = dense(weight, lambda h, w, y: z_loss(logit_moments(h, w, y), b=Z_AT))
    else:
        step = dense(weight, lambda h, w, y: cross_entropy(h @ w.T, y))
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 4 or (len(times) < 200 and time.perf_counter() - began < 2):
        hidden = torch.randn(B, D, generator=g).requires_grad_()
        labels = torch.randint(n_classes, (B,), generator=g)
        start = time.perf_counter()
        step(hidden, labels)
        times.append(time.perf_counter() - start)
    found = {"ms": 1e3 * statistics.median(times[1:])}
    if layer is not None:
        start = time.perf_counter()
        layer.refresh()
        found["refresh"] = 1e3 * (time.perf_counter() - start)
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "CLASSES"))
    args = parser.parse_args()
    if args.one:
        one(args.one[0], int(args.one[1]))
        return
    print(f"torch {torch.__version__}, one thread, {platform.processor() or platform.machine()}; ms a step")
    print(
        f"{'classes':>9} {'factored':>9} {'refresh':>9} {'with share':>11} {'moments':>9} {'cross-entropy':>14} "
        f"{'times, moments':>15} {'times, c.-e.':>13}"
    )
    for n_classes in SIZES:
        names = ["factored", "moments"] + (["cross-entropy"] if dense_bytes(n_classes) <= LIMIT else [])
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name, found in runs.items():
                command = [sys.executable, __file__, "--one", name, str(n_classes)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.append(json.loads(output))
        ms = {name: statistics.median(r["ms"] for r in found) for name, found in runs.items()}
        refresh = statistics.median(r["refresh"] for r in runs["factored"])
        ours = ms["factored"] + refresh * min(1.0, B / n_classes)
        entropy = ms.get("cross-entropy")
        print(
            f"{n_classes:>9,} {ms['factored']:>9.2f} {refresh:>9.2f} {ours:>11.2f} {ms['moments']:>9.1f} "
            f"{'over 2 GB' if entropy is None else f'{entropy:.1f}':>14} {ms['moments'] / ours:>15.1f} "
            f"{'' if entropy is None else f'{entropy / ours:.1f}':>13}"
        )


if __name__ == "__main__":
    main()
