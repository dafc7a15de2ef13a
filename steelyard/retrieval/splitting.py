"""Hold out some interactions: at random, the last of each user, or everything after a moment."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from steelyard.retrieval.interactions import Interactions

LEAST_HISTORY = 3


def split(
    interactions: Interactions,
    how: str = "random",
    *,
    fraction: float = 0.1,
    users: int | None = None,
    seed: int,
) -> tuple[Interactions, Interactions]:
    """Split interactions into those to train on and those to test on, without losing one.

    - random: of each user `round(fraction * count)` interactions, at least one and never all; a user with one
      interaction keeps it. Text data: whole queries, `round(fraction * queries)` of them.
    - leave-last-out: the last interaction of each user with three or more; last by time, and where times are
      equal or absent, by the order of the rows.
    - time: everything from the `1 - fraction` quantile of the times on; equal times are never parted.

    Args:
        interactions: n pairs.
        how: "random", "leave-last-out" or "time".
        fraction: share to hold out, in (0, 1); leave-last-out does not use it.
        users: hold out of this many users at most (queries of text data), chosen at random.
        seed: the split depends on the interactions and on this alone.

    Returns:
        (kept, held out), with the vocabularies of `interactions`. `reading` of the held-out part says how
        many were held out of how many.

    Raises:
        ValueError: an unknown `how`, a `fraction` outside (0, 1), no times for a split by time, `users` with
            a split by time, or nothing that can be held out.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie strictly between 0 and 1, got {fraction}.")
    if users is not None and users < 1:
        raise ValueError(f"users must be at least 1, got {users}.")
    generator = torch.Generator().manual_seed(seed)
    if how == "random" and interactions.is_text:
        held = _whole_queries(interactions, fraction, users, generator)
    elif how == "random":
        held = _share_of_each_user(interactions, fraction, users, generator)
    elif how == "leave-last-out":
        held = _last_of_each_user(interactions, users, generator)
    elif how == "time":
        held = _after_a_moment(interactions, fraction, users)
    else:
        raise ValueError(f"Unknown split {how!r}; there are random, leave-last-out and time.")
    test = interactions.select(held)
    count = len(torch.unique(test.users))
    who = "queries" if interactions.is_text else "users"
    by_rows = how == "leave-last-out" and interactions.times is None
    order = ", by the order of the rows since there are no times" if by_rows else ""
    note = f"Held out {len(test):,} of {len(interactions):,} pairs ({how}{order}), of {count:,} {who}."
    reading = replace(test.reading, notes=[*test.reading.notes, note])
    return interactions.select(~held), replace(test, reading=reading)


def _sample(candidates: Tensor, limit: int | None, generator: torch.Generator) -> Tensor:
    """At most `limit` of the candidates, chosen at random."""
    if limit is None or limit >= len(candidates):
        return candidates
    return candidates[torch.randperm(len(candidates), generator=generator)[:limit]]


def _whole_queries(
    interactions: Interactions, fraction: float, limit: int | None, generator: torch.Generator
) -> Tensor:
    present = torch.unique(interactions.users)
    if len(present) < 2:
        raise ValueError("A random split of text data holds out whole queries, and there is one query only.")
    count = min(max(1, round(fraction * len(present))), len(present) - 1)
    chosen = _sample(present, count if limit is None else min(count, limit), generator)
    held = torch.zeros(interactions.n_users, dtype=torch.bool)
    held[chosen] = True
    return held[interactions.users]


def _share_of_each_user(
    interactions: Interactions, fraction: float, limit: int | None, generator: torch.Generator
) -> Tensor:
    counts = torch.bincount(interactions.users, minlength=interactions.n_users)
    eligible = torch.nonzero(counts >= 2)[:, 0]
    if len(eligible) == 0:
        raise ValueError("No user has two interactions, so none can be held out at random. Give a test file.")
    quota = torch.zeros_like(counts)
    chosen = _sample(eligible, limit, generator)
    share = (fraction * counts[chosen].double()).round().long().clamp(min=1)
    quota[chosen] = torch.minimum(share, counts[chosen] - 1)
    rows = torch.nonzero(quota[interactions.users])[:, 0]
    rows = rows[torch.randperm(len(rows), generator=generator)]
    rows = rows[torch.argsort(interactions.users[rows], stable=True)]
    owner = interactions.users[rows]
    place = torch.arange(len(rows)) - torch.searchsorted(owner, owner)
    held = torch.zeros(len(interactions), dtype=torch.bool)
    held[rows[place < quota[owner]]] = True
    return held


def _last_of_each_user(interactions: Interactions, limit: int | None, generator: torch.Generator) -> Tensor:
    counts = torch.bincount(interactions.users, minlength=interactions.n_users)
    eligible = torch.nonzero(counts >= LEAST_HISTORY)[:, 0]
    if len(eligible) == 0:
        raise ValueError(f"No user has {LEAST_HISTORY} interactions, so no last one can be held out.")
    chosen = torch.zeros(interactions.n_users, dtype=torch.bool)
    chosen[_sample(eligible, limit, generator)] = True
    rows = torch.nonzero(chosen[interactions.users])[:, 0]
    if interactions.times is not None:
        rows = rows[torch.argsort(interactions.times[rows], stable=True)]
    rows = rows[torch.argsort(interactions.users[rows], stable=True)]
    owner = interactions.users[rows]
    last = torch.ones(len(rows), dtype=torch.bool)
    last[:-1] = owner[1:] != owner[:-1]
    held = torch.zeros(len(interactions), dtype=torch.bool)
    held[rows[last]] = True
    return held


def _after_a_moment(interactions: Interactions, fraction: float, limit: int | None) -> Tensor:
    times = interactions.times
    if times is None:
        raise ValueError(
            "A split by time needs a time column. Name it (columns time=NAME) or split otherwise."
        )
    if limit is not None:
        raise ValueError(
            "A split by time cuts at one moment for all users, so `users` cannot limit it: what others did "
            "later would train the model on the future. Leave `users` out and evaluate a sample of users."
        )
    ordered = times.sort().values
    if bool(ordered[0] == ordered[-1]):
        raise ValueError(f"All {len(times):,} interactions have one and the same time, {ordered[0].item()}.")
    cut = ordered[min(len(ordered) - 1, int((1 - fraction) * len(ordered)))]
    held = times >= cut
    return times > cut if bool(held.all()) else held
