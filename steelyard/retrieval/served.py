"""Test queries to look at: whom the best contender serves worst, and whom the two best serve most differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.retrieval.interactions import Interactions

SIDES, RECENT, WANTED = 6, 8, 8
"""Queries of each kind; of each, so many items that it took last and so many that it wanted."""
GIVEN_TEXTS, LETTERS = 5, 80
"""Documents shown of a list, since they are long, and the beginning of each."""


def worst(score: Tensor, place: Tensor, count: int = SIDES) -> Tensor:
    """The queries with the lowest score below 1; of equal ones those whose best wanted item stands lowest.

    Args:
        score: float64, (n,): metric of each query.
        place: float64, (n,): the place of the first wanted item, from 1.
        count: how many at most.

    Returns:
        int64, the worst first.
    """
    by_place = torch.argsort(place, descending=True, stable=True)
    order = by_place[torch.argsort(score[by_place], stable=True)][:count]
    return order[score[order] < 1]


def differing(
    first: Tensor, second: Tensor, places: tuple[Tensor, Tensor], count: int = SIDES
) -> tuple[Tensor, Tensor]:
    """The queries that one contender serves better by most, half in favour of each side where there are any.

    Args:
        first: float64, (n,): metric of each query under the one.
        second: the same under the other.
        places: of the first wanted item under each; decides between equal differences.
        count: how many at most.

    Returns:
        Queries that the first serves better, and those that the second does, the largest difference first.
    """
    gap = first - second
    apart = places[1] - places[0]
    found = []
    for sign in (1, -1):
        by_place = torch.argsort(-sign * apart, stable=True)
        order = by_place[torch.argsort(-sign * gap[by_place], stable=True)]
        found.append(order[sign * gap[order] > 0])
    ahead, behind = found
    half = count // 2
    room = count - min(half, len(behind))
    return ahead[:room], behind[: count - min(room, len(ahead))]


def account(
    rows: Tensor,
    asked: Tensor,
    test: Interactions,
    history: Ragged | None,
    contenders: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """What some queries took before, what they wanted, and what each contender gave them.

    Args:
        rows: places in `asked`.
        asked: users of the test queries.
        test: the held-out pairs.
        history: items of each user in the order of time; None for texts.
        contenders: "name", "score" and "first" (n,) and "given" (n, 10) of each.

    Returns:
        A plain dict a query.
    """
    targets = test.known()
    found = []
    for row in rows.tolist():
        user = int(asked[row])
        wanted = targets.row(user)
        took = None if history is None else history.row(user)
        found.append(
            {
                "query": test.user_ids[user],
                "took": None if took is None else len(took),
                "history": [] if took is None else _labels(test, took[-RECENT:].flip(0)),
                "wanted": _labels(test, wanted[:WANTED]),
                "wants": len(wanted),
                "cells": [
                    {
                        "name": cell["name"],
                        "score": float(cell["score"][row]),
                        "first": float(cell["first"][row]),
                        "given": _given(test, cell["given"][row].long(), wanted),
                    }
                    for cell in contenders
                ],
            }
        )
    return found


def _given(test: Interactions, items: Tensor, wanted: Tensor) -> list[dict[str, Any]]:
    items = items[items >= 0][: GIVEN_TEXTS if test.is_text else None]
    hits = torch.isin(items, wanted).tolist()
    return [{"item": item, "wanted": hit} for item, hit in zip(_labels(test, items), hits, strict=True)]


def _labels(test: Interactions, items: Tensor) -> list[Any]:
    """Ids, and of documents how they begin."""
    ids: list[Any] = test.item_ids.gather(items.numpy()).to_list()
    if test.item_texts is None:
        return ids
    texts = (" ".join(text.split()) for text in test.item_texts.gather(items.numpy()))
    starts = [text if len(text) <= LETTERS else text[:LETTERS] + "…" for text in texts]
    return [s if str(i)[:20] == s[:20] else f"{i}: {s}" for i, s in zip(ids, starts, strict=True)]
