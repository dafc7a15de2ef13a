"""A small data set with structure: users and items in groups, a user takes mostly from its own."""

from pathlib import Path

import polars as pl
import torch

from steelyard.retrieval import Interactions, Reading

GROUPS = 6


def interactions(n_users: int = 90, n_items: int = 60, each: int = 14, seed: int = 0) -> Interactions:
    """Nine in ten of a user's items come from its own group, by a skewed popularity inside the group."""
    g = torch.Generator().manual_seed(seed)
    item_group = torch.arange(n_items) % GROUPS
    popularity = 1 / (1 + torch.arange(n_items) // GROUPS).double()
    users, items = [], []
    for user in range(n_users):
        affinity = torch.where(item_group == user % GROUPS, 9.0, 0.2) * popularity
        users.append(torch.full((each,), user))
        items.append(torch.multinomial(affinity, each, generator=g))
    return Interactions(
        torch.cat(users),
        torch.cat(items),
        pl.Series([f"u{i}" for i in range(n_users)]),
        pl.Series([f"i{i}" for i in range(n_items)]),
        None,
        torch.arange(n_users * each) % each,
        None,
        Reading(["planted"], "memory", {}, n_users * each, n_users * each),
    )


TOPICS = {
    "compress": "gzip deflate archive bytes level",
    "matrix": "linear algebra inverse rows columns",
    "socket": "network port address listen bind",
    "colour": "hue red green palette shade",
}


def texts(n: int = 160, seed: int = 0) -> Interactions:
    """A query holds a topic word and one word of its own; its document holds words of the topic and that word."""
    g = torch.Generator().manual_seed(seed)
    topics = list(TOPICS.items())
    queries, documents = [], []
    for row in range(n):
        topic, words = topics[row % len(topics)]
        own = "".join(chr(97 + int(c)) for c in torch.randint(26, (7,), generator=g))
        picked = [words.split()[int(i)] for i in torch.randperm(5, generator=g)[:3]]
        queries.append(f"{topic} the {own}")
        documents.append(" ".join([*picked, own]))
    order = torch.arange(n)
    reading = Reading(["planted"], "memory", {}, n, n)
    ids = pl.Series([f"d{i}" for i in range(n)])
    return Interactions(order, order, pl.Series(queries), ids, None, None, pl.Series(documents), reading)


def write_csv(data: Interactions, path: Path) -> Path:
    """The pairs as a CSV file with a header."""
    frame = pl.DataFrame(
        {"user": data.user_ids.gather(data.users.numpy()), "item": data.item_ids.gather(data.items.numpy())}
    )
    frame.write_csv(path)
    return path
