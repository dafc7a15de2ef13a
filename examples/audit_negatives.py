"""What does each kind of negative do to the gradient? Measured against the full softmax."""

import torch
from torch.nn.functional import normalize

from steelyard.negatives import Catalogue, proposal
from steelyard.ragged import Ragged
from steelyard.retrieval import Scene, audit_proposals

N_QUERIES, N_ITEMS, DIM, SCALE, DRAWS = 128, 5_000, 16, 8.0, 256
generator = torch.Generator().manual_seed(0)
items = normalize(torch.randn(N_ITEMS, DIM, generator=generator), dim=1)
counts = (10_000 / torch.arange(1, N_ITEMS + 1) ** 0.9).long() + 1
positives = torch.multinomial(counts.double(), N_QUERIES, replacement=True, generator=generator)
noise = normalize(torch.randn(N_QUERIES, DIM, generator=generator), dim=1)
queries = normalize(items[positives] + 0.6 * noise, dim=1)
nothing = torch.zeros(0, dtype=torch.int64)

scene = Scene(
    queries,
    items,
    positives,
    known=Ragged(torch.arange(N_QUERIES + 1), positives),
    held_out=Ragged(torch.zeros(N_QUERIES + 1, dtype=torch.int64), nothing),
    population=torch.repeat_interleave(torch.arange(N_ITEMS), counts),
    scale=SCALE,
)
catalogue = Catalogue(counts, items=items, scale=SCALE)
names = ["uniform", "popularity", "in-batch+uniform", "top20+uniform", "clusters:64"]
made = {name: proposal(name, catalogue, generator=generator) for name in names}
for a in audit_proposals(scene, made, DRAWS, generator=generator):
    print(f"{a.name:18} bias {a.bias:6.1%}   unweighed {a.bias_unweighed:6.1%}   noise {a.noise:6.1%}")
