"""Estimate log Z, the log of a sum over 100,000 items, from 1,000 of them, hard negatives included."""

import math

import torch
from torch import Tensor

from steelyard import Draws
from steelyard.negatives import Context, Uniform

N_ITEMS, N_HARD, N_DRAWS, REPEATS = 100_000, 200, 1_000, 100
generator = torch.Generator().manual_seed(0)
context = Context(positives=torch.tensor([0]))
score = 2 * torch.randn(N_ITEMS, generator=generator)
truth = float(score.logsumexp(0))

# The items that an older, noisier model ranks highest, taken with certainty: expected count 1, log 0.
hard = (score + 2 * torch.randn(N_ITEMS, generator=generator)).topk(N_HARD).indices
is_hard = torch.zeros(N_ITEMS, dtype=torch.bool).index_fill(0, hard, True)
mined = Draws(hard, torch.zeros(N_HARD), lambda ids: torch.where(is_hard[ids], 0.0, -math.inf))


def show(name: str, estimates: list[Tensor]) -> None:
    error = torch.stack(estimates) - truth
    spread = error.square().mean().sqrt()
    print(f"{name:<27} mean of Z / true Z {error.exp().mean():.2f}  typical error of log Z {spread:.3f}")


uniform, unweighed, weighed = [], [], []
for _ in range(REPEATS):
    alone = Uniform(N_ITEMS).sample(context, N_DRAWS, generator=generator)
    uniform.append((score[alone.ids] - alone.log_expected).logsumexp(0))
    rest = Uniform(N_ITEMS).sample(context, N_DRAWS - N_HARD, generator=generator)
    draws = Draws.merge([mined, rest])
    weighed.append((score[draws.ids] - draws.log_expected).logsumexp(0))
    unweighed.append((score[draws.ids] - math.log(N_DRAWS / N_ITEMS)).logsumexp(0))
show("1,000 uniform", uniform)
show("200 hard + 800, unweighed", unweighed)
show("200 hard + 800, weighed", weighed)
