"""Seven ways to take 40 of 400 with the same probabilities, and how far each estimate of the total strays.

python examples/compare_designs.py [picture.png]
"""

import math
import sys

import torch
from matplotlib.figure import Figure

from steelyard.sampling import (
    conditional_poisson,
    conditional_poisson_weights,
    pivotal,
    poisson,
    proportional_inclusion,
    systematic,
    without_replacement,
)

N, K, RUNS = 400, 40, 400
g = torch.Generator().manual_seed(0)
x = torch.rand(N, 2, generator=g, dtype=torch.float64)
x = x[x[:, 0].argsort()]
size = 1 + 4 * x[:, 1]
value = size * (2 + torch.sin(6 * x[:, 0])) + 0.3 * torch.randn(N, generator=g, dtype=torch.float64)
pi = proportional_inclusion(size.log(), K).exp()
many, log_w = pi.expand(RUNS, N), conditional_poisson_weights(pi)
designs = {
    "Poisson": poisson(pi.log().expand(RUNS, N), K, generator=g),
    "successive": without_replacement(size.log().expand(RUNS, N), K, generator=g),
    "conditional Poisson": conditional_poisson(log_w.expand(RUNS, N), K, generator=g),
    "pivotal, random order": pivotal(many, generator=g),
    "systematic, random order": systematic(many, order="random", generator=g),
    "systematic, given order": systematic(many, generator=g),
    "pivotal, local in space": pivotal(many, order="local", x=x, generator=g),
}
spread = {n: float((value[d.ids] / d.log_expected.exp()).sum(-1).std()) for n, d in designs.items()}
print(f"{'total ' + format(float(value.sum()), '.0f'):26} standard deviation of the estimate")
for name, deviation in spread.items():
    print(f"{name:26} {deviation:6.1f} {'#' * math.ceil(deviation / 8)}")
if len(sys.argv) > 1:
    figure = Figure((9, 3.2), layout="tight")
    shown = ("Poisson", "systematic, given order", "pivotal, local in space")
    for axes, name in zip(figure.subplots(1, 3), shown, strict=True):
        taken = designs[name].ids[0][designs[name].log_expected[0] < math.inf]
        axes.scatter(*x.T, s=12 * pi / pi.mean(), color="0.85")
        axes.scatter(*x[taken].T, s=14, color="tab:blue")
        axes.set(title=f"{name}\nstandard deviation {spread[name]:.0f}", xticks=[], yticks=[])
    figure.savefig(sys.argv[1], dpi=120)
