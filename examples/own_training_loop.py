"""A training loop of your own: draw, mask, weigh, step; and the full sum after each epoch."""

import torch
from torch.nn import Embedding
from torch.nn.functional import normalize

from steelyard.losses import fused_sampled_softmax, fused_softmax
from steelyard.negatives import Context, Mixture, Popularity, Uniform
from steelyard.optim import RowAdagrad

N_USERS, N_ITEMS, DIM, SCALE = 2_000, 20_000, 32, 10.0
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)
users = torch.arange(N_USERS).repeat_interleave(10)
items = (users % 100) * 200 + (200 * torch.rand(len(users), generator=generator) ** 2).long()
counts = torch.bincount(items, minlength=N_ITEMS)

user_table, item_table = Embedding(N_USERS, DIM, sparse=True), Embedding(N_ITEMS, DIM, sparse=True)
optimizer = RowAdagrad([user_table.weight, item_table.weight], lr=0.3)
proposal = Mixture([Uniform(N_ITEMS), Popularity(counts, alpha=0.75)])

for epoch in range(4):
    for batch in torch.randperm(len(users), generator=generator).split(500):
        context = Context(positives=items[batch])
        draws = proposal.sample(context, 512, generator=generator)
        queries = normalize(user_table(users[batch]))
        candidates = normalize(item_table(draws.ids))
        positive = SCALE * (queries * normalize(item_table(items[batch]))).sum(1)
        hits = context.hits(draws.ids)
        loss = fused_sampled_softmax(
            positive, queries, candidates, draws.log_expected, scale=SCALE, hits=hits
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        queries = normalize(user_table(users[::10]))
        full = fused_softmax(queries, normalize(item_table.weight), items[::10], scale=SCALE)
    print(f"epoch {epoch + 1}: sampled loss of its last batch {loss.detach():.3f}, full loss {full:.3f}")
