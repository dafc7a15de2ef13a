"""Who takes part in a comparison: a model with its loss and negatives, and the settings that it may try."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from steelyard.losses import retrieval_loss
from steelyard.retrieval.config import DEFAULTS, OWN, Model, TrainConfig
from steelyard.retrieval.interactions import Interactions

TRIALS, SHRINK = 9, 3
"""Settings tried in a cell, and what each rung of successive halving leaves: 9, 3, 1."""


@dataclass(frozen=True)
class Cell:
    """One contender: a loss with its negatives, and the model that they train.

    Args:
        loss: as `TrainConfig.loss`.
        negatives: as `TrainConfig.negatives`.
        model: as `TrainConfig.model`; empty: that of the comparison's settings.
    """

    loss: str
    negatives: str
    model: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        return ", ".join(part for part in (self.model, self.loss, self.negatives) if part)


def settings_of(base: TrainConfig, cell: Cell, changes: dict[str, Any]) -> TrainConfig:
    """The settings of one run of a cell.

    A model other than that of `base` has its own defaults, and of `base` the metric and what was changed there,
    save settings that only other models take, and the length of vectors where they are given.

    Args:
        base: what is the same for all.
        cell: the contender.
        changes: what this run tries.

    Raises:
        ValueError: an unknown model, loss or negatives, or settings that do not fit.
    """
    model = cell.model or base.model
    if model not in DEFAULTS:
        raise ValueError(f"Unknown model {model!r}; there are {', '.join(DEFAULTS)}.")
    values = base.to_dict()
    if model != base.model:
        usual = DEFAULTS[base.model].to_dict()
        shared = {k: v for k, v in values.items() if v != usual[k] and k not in OWN} | {"metric": base.metric}
        if model == "vectors":
            shared.pop("dim", None)  # that of the vectors given
        values = DEFAULTS[model].to_dict() | shared | {"model": model}
    values |= {"loss": cell.loss, "negatives": cell.negatives, "patience": 0} | changes
    if values["candidates"] == DEFAULTS[model].candidates:
        values["candidates"] = None  # the default of the negatives
    return TrainConfig.of(cast("Model", values.pop("model")), **values)


def trials(base: TrainConfig, cell: Cell) -> list[dict[str, Any]]:
    """Nine settings to race in a cell, the first the defaults; the same points in all cells.

    The others are a Halton sequence around the model's defaults: temperature by a factor of 1/2 to 2, learning rate
    by 1/3 to 3, dropout 0 to 0.3 where the model has one, for "bsl" without a number the power from 1 to 1.4, and for
    "sl@K" without one the temperature of its weights from 1.5 to 6.
    """
    usual = settings_of(base, cell, {})
    found: list[dict[str, Any]] = [{}]
    for i in range(1, TRIALS):
        u, v, w, x = (_halton(i, prime) for prime in (2, 3, 5, 7))
        changes: dict[str, Any] = {
            "temperature": round(usual.temperature * 2 ** (2 * u - 1), 4),
            "lr": round(usual.lr * 3 ** (2 * v - 1), 6),
        }
        if usual.model in ("mf", "sequence"):
            changes["dropout"] = round(0.3 * w, 3)
        if cell.loss == "bsl":  # a power of the person's own stays
            changes["loss"] = f"bsl:{1 + 0.4 * x:.2f}"
        elif cell.loss.startswith("sl@") and ":" not in cell.loss:
            changes["loss"] = f"{cell.loss}:{3 * 2 ** (2 * x - 1):.2f}"
        found.append(changes)
    return found


def _halton(i: int, prime: int) -> float:
    value, share = 0.0, 1.0
    while i:
        share /= prime
        value += share * (i % prime)
        i //= prime
    return value


def named(base: TrainConfig, cells: Sequence[Cell]) -> list[Cell]:
    """The cells with their models said, two or more and none twice.

    Raises:
        ValueError: otherwise.
    """
    full = [replace(cell, model=cell.model or base.model) for cell in cells]
    plain = [(c.model, retrieval_loss(c.loss), ":" in c.loss, _plain(c.negatives)) for c in full]
    twice = [cell.name for cell, same in zip(full, plain, strict=True) if plain.count(same) > 1]
    if twice:
        raise ValueError(f"A comparison needs different cells, and {twice[0]} is there twice.")
    if len(full) < 2:
        raise ValueError(f"A comparison needs two different cells at least, got {[c.name for c in cells]}.")
    return full


def _plain(spec: str) -> str:
    """A name with its numbers written one way: "popularity:.750" is "popularity:0.75"."""
    return re.sub(r":(\d*\.?\d+)", lambda found: f":{float(found[1])}", spec)


def check_models(
    models: set[str], data: Interactions, split_by: str, *, vectors: bool = False, encoder: bool = False
) -> None:
    """Refuse models that do not fit the data, or that cannot be asked the same queries.

    Args:
        models: of all cells.
        data: the pairs.
        split_by: how the test is held out.
        vectors: vectors of queries and documents were given.
        encoder: an encoder of texts was given.

    Raises:
        ValueError: says which model does not fit, and the mend.
    """
    fitting = ("text", "vectors") if data.is_text else ("mf", "sequence", "vectors")
    for model in sorted(models - set(fitting)):
        kind = "texts" if data.is_text else "ids"
        raise ValueError(f"The model {model!r} does not fit data of {kind}; {' and '.join(fitting)} do.")
    wanted = (not data.is_text, data.is_text) if "vectors" in models else (False, False)
    if (vectors, encoder) != wanted:
        what = "an encoder of texts" if data.is_text else "vectors of queries and documents"
        raise ValueError(
            f"The model 'vectors' wants {what} for these data and nothing else, and no other model does."
        )
    if "sequence" in models:
        _check_order(data, split_by)
    if not data.is_text and "vectors" in models and len(models) > 1 and split_by == "random":
        others = " and ".join(sorted(models - {"vectors"}))
        raise ValueError(
            f"For the model 'vectors' a random split holds out whole queries, and {others} cannot be asked one that "
            "training never saw: give --split leave-last-out or --split time."
        )


def _check_order(data: Interactions, split_by: str) -> None:
    if split_by == "random":
        raise ValueError(
            "The model 'sequence' asks what comes next, and a random split would train on what came later: give "
            "--split leave-last-out or --split time."
        )
    if data.times is None and data.reading.format != "sessions":
        raise ValueError(
            "The model 'sequence' wants the order of time, and these data have no time column: name it (--columns "
            "time=NAME), or give sessions (--format sessions), whose items stand in their order."
        )
