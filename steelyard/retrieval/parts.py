"""One data set cut in three: trained on, used to choose the epoch, and held out to the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.sequences import Positions, histories, positions
from steelyard.retrieval.splitting import split
from steelyard.retrieval.vectors import numbered


@dataclass(frozen=True)
class Parts:
    """One data set cut in three: trained on, used to choose the epoch, and held out to the end.

    Args:
        train: pairs that steps are taken on.
        validation: pairs that choose the epoch; out of `train`'s source, never of the test's.
        test: pairs for the final metrics.
        seen: items each user is known to have taken outside the test.
        history: of ids: the same in the order of time.
        asked: of test histories that training never saw: the position of each test query.
    """

    train: Interactions
    validation: Interactions
    test: Interactions
    seen: Ragged
    history: Ragged | None = None
    asked: Positions | None = None

    @property
    def groups(self) -> Tensor | None:
        """The history of each test query, where several are of one."""
        return None if self.asked is None else self.asked.history

    def left_out(self, repeats: bool) -> Ragged:
        """What the ranking of each test query leaves out: what its user took, unless items come again."""
        if repeats:
            return Ragged(torch.zeros(self.test.n_users + 1, dtype=torch.int64), self.seen.values[:0])
        return self.seen if self.asked is None else self.asked.left_out()


def partition(data: Interactions, test: Interactions | None, config: TrainConfig, split_by: str) -> Parts:
    """Cut data into training, validation and test pairs.

    Raises:
        ValueError: nothing is left to train on, or nothing can be held out.
    """
    if config.model == "sequence" and split_by == "random":
        raise ValueError(
            "The model 'sequence' asks what comes next, and a random split would train on what came later: "
            "give --split leave-last-out or --split time."
        )
    if data.n_items < 2:
        raise ValueError("There is one item in the catalogue, so there is nothing to rank.")
    if data.n_users < 2:
        raise ValueError("There is one user (or query), so nothing can be held out from others.")
    rest, asked = data, None
    if test is not None and not test.item_ids.equals(data.item_ids):
        raise ValueError("The test has another item vocabulary than the data; read it with `read_test`.")
    if test is None:
        rest, test = _split(data, split_by, config, seed=config.seed)
    elif not data.is_text and not test.user_ids.equals(data.user_ids):
        if config.model != "sequence":
            raise ValueError(
                f"The test asks about users that training does not know, and the model {config.model} has no vector for "
                "them; the model sequence does."
            )
        test, asked = positions(test)
    kept, validation = rest, rest.select(torch.zeros(len(rest), dtype=torch.bool))
    if config.validation:
        users = None if split_by == "time" else config.validation_users
        try:
            kept, validation = _split(
                rest, split_by, config, fraction=config.validation, users=users, seed=config.seed + 1
            )
        except ValueError as error:
            raise ValueError(
                f"No validation data can be carved out of what is left for training: {error}"
            ) from None

    seen = (
        rest.known() if not data.is_text else Ragged.from_pairs(rest.users[:0], rest.items[:0], test.n_users)
    )
    return Parts(kept, validation, test, seen, None if data.is_text else histories(rest), asked)


def _split(
    data: Interactions, how: str, config: TrainConfig, **settings: Any
) -> tuple[Interactions, Interactions]:
    """Split; with vectors a query never trained on can be asked, so that whole queries are held out, as of texts."""
    if config.model != "vectors" or data.is_text:
        return split(data, how, **settings)
    as_texts = replace(data, item_texts=data.item_ids.cast(pl.String))
    kept, held = split(as_texts, how, **settings)
    return replace(kept, item_texts=None), replace(held, item_texts=None)


def over_rows(data: Interactions, queries: Tensor, documents: Tensor) -> Interactions:
    """Pairs of row numbers into two matrices of vectors, as pairs over all their rows.

    Documents that no pair names are candidates too, and queries that no pair names can be asked.

    Args:
        data: pairs of integer ids, rows counted from 0.
        queries: float, (Q, d).
        documents: float, (I, d).

    Returns:
        The same pairs; user u is row u of `queries`, item i is row i of `documents`.

    Raises:
        ValueError: ids that are no row numbers of the vectors.
    """
    numbered(data, queries[:, :1], documents[:, :1])  # says which id is no row
    users, items = (torch.from_numpy(ids.to_numpy().copy()) for ids in (data.user_ids, data.item_ids))
    return replace(
        data,
        users=users[data.users],
        items=items[data.items],
        user_ids=pl.int_range(len(queries), eager=True).alias("user"),
        item_ids=pl.int_range(len(documents), eager=True).alias("item"),
    )
