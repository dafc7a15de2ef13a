"""A wide proposal gives an answer to trust, a narrow one an answer that warns of itself.

python examples/trust_a_weighted_sample.py [picture.png]
"""

import math
import sys

import torch
from matplotlib.figure import Figure

from steelyard.weights import expectation, log_normalizer, pareto_smooth

N = 4000
generator = torch.Generator().manual_seed(0)
figure = Figure((7, 4), layout="tight")
axes = figure.subplots()
axes.set(xscale="log", yscale="log", xlabel="weight", ylabel="share of draws above")

for name, spread, colour in (("wide", 1.5, "tab:blue"), ("narrow", 0.4, "tab:red")):
    x = spread * torch.randn(N, generator=generator, dtype=torch.float64)
    log_w = math.log(spread) - x.square() / 2 + (x / spread).square() / 2  # towards N(0, 1)
    control = {"control": x.abs(), "control_mean": math.sqrt(2 / math.pi)}
    print(f"{name} proposal N(0, {spread}^2): the true variance is 1, the true log normaliser 0")
    print("  variance, from its weights:    ", expectation(x.square(), log_w))
    print("  knowing the mean of |x| as well:", expectation(x.square(), log_w, **control))
    print("  log normaliser, smoothed:      ", log_normalizer(log_w, smooth=True))

    smooth, khat = pareto_smooth(log_w)
    tail = log_w.argsort(descending=True)[: int(3 * N**0.5)]
    above = (torch.arange(len(tail)) + 0.5) / N
    axes.plot(log_w[tail].exp(), above, ".", color=colour, alpha=0.4, label=f"{name} proposal")
    axes.plot(smooth[tail].exp(), above, color=colour, label=f"fitted Pareto tail, k-hat {khat:.2f}")

if len(sys.argv) > 1:
    axes.legend()
    figure.savefig(sys.argv[1], dpi=120)
