"""Losses and negatives side by side: an equal tuning budget each, the test once, paired intervals."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import PairedDifference, count_ranks, paired_bootstrap, ranking_metrics
from steelyard.evaluation.bootstrap import resampled_means
from steelyard.files import alone_in, check_plan, read_json, replacing, write_json
from steelyard.ray_engine import on_ray
from steelyard.retrieval.config import DEFAULTS, TrainConfig
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.job import build, partition, validator
from steelyard.retrieval.loop import fit
from steelyard.retrieval.measuring import Parts

SUMMARY, PLAN, UNITS, QUERIES = "compare.json", "plan.json", "units", "queries.parquet"
TRIALS, SHRINK = 9, 3
"""Settings tried in a cell, and what each rung of successive halving leaves: 9, 3, 1."""
CUTOFFS = (10, 20)


@dataclass(frozen=True)
class Cell:
    """One contender: a loss with its negatives.

    Args:
        loss: as `TrainConfig.loss`.
        negatives: as `TrainConfig.negatives`.
    """

    loss: str
    negatives: str

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.loss}, {self.negatives}"


@dataclass(frozen=True)
class Compared:
    """What a comparison leaves.

    Args:
        summary: what `compare.json` holds.
        differences: every two cells on the same test queries.
        scores: the test metric of each query under each cell, averaged over seeds.
    """

    summary: dict[str, Any]
    differences: list[PairedDifference]
    scores: dict[str, Tensor]


def compare(
    data: Interactions,
    test: Interactions | None,
    cells: Sequence[Cell],
    *,
    minutes: float,
    out: str | Path,
    seeds: int = 3,
    config: TrainConfig | None = None,
    split_by: str = "random",
    engine: str = "local",
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Compared:
    """Compare losses and negatives at an equal tuning budget, with paired intervals on the test.

    Each cell gets the same processor time. A short run tells how long an epoch takes in it, and thereby how many
    epochs its share allows. Nine settings (temperature, learning rate, dropout, power; the same nine points in
    all cells) race by successive halving on validation data: all for a ninth of the epochs, the best three for a
    third, the best for all. The winner is trained with each seed, and only then is the test looked at, once a
    seed. Metrics of a query are averaged over seeds; cells are compared query by query, corrected for the number
    of comparisons.

    Args:
        data: interactions, or (query, document) pairs.
        test: held-out pairs; None holds out a part of the data.
        cells: what to compare.
        minutes: processor minutes for all cells together, about.
        out: folder for `compare.json`, `queries.parquet` and the finished units.
        seeds: trainings of the winner of each cell.
        config: settings that are the same for all; the defaults of the data's kind where None.
        split_by: "random", "leave-last-out" or "time".
        engine: "local", or "ray" to share units among the workers of a Ray cluster.
        resume: go on with a killed comparison; finished units are not run again.
        overwrite: replace what an earlier one left.
        watch: called with the number of units done and in all.
        say: called with a line at each stage.

    Returns:
        Summary, differences and scores.

    Raises:
        FileExistsError: `out` holds something, and neither `resume` nor `overwrite` was given.
        ValueError: fewer than two cells, one named twice, settings that do not fit, or another comparison to
            resume.
        ImportError: the engine is not installed.
        OSError: no room to write.

    Reference:
        Jamieson & Talwalkar (2016), Non-stochastic best arm identification and hyperparameter optimization,
        AISTATS (successive halving).
    """
    say = say or (lambda _: None)
    base = config or TrainConfig.of("text" if data.is_text else "mf")
    if len(cells) < 2 or len(set(cells)) < len(cells):
        raise ValueError(f"A comparison needs two different cells at least, got {[c.name for c in cells]}.")
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes must be positive, got {minutes}.")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}.")
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be local or ray, got {engine!r}.")
    for cell in cells:
        settings_of(base, cell, {})  # says what does not fit before anything is run
    folder = Path(out).expanduser()
    parts = partition(data, test, base, split_by)
    plan = {
        "data": data.fingerprint(),
        "test": parts.test.fingerprint(),
        "split": split_by,
        "cells": [asdict(cell) for cell in cells],
        "minutes": minutes,
        "seeds": seeds,
        "settings": base.to_dict(),
    }
    _check_folder(folder, resume, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _check_folder(folder, resume, overwrite)  # again: another comparison may have just finished
        _open(folder, plan, resume)
        run = _Race(parts, base, list(cells), minutes, seeds, folder, engine, watch, say)
        return run.run()


def settings_of(base: TrainConfig, cell: Cell, changes: dict[str, Any]) -> TrainConfig:
    """The settings of one run of a cell."""
    values = base.to_dict() | {"loss": cell.loss, "negatives": cell.negatives, "patience": 0} | changes
    if values["candidates"] == DEFAULTS[base.model].candidates:
        values["candidates"] = None  # the default of the negatives
    return TrainConfig.of(values.pop("model"), **values)


def trials(base: TrainConfig, cell: Cell) -> list[dict[str, Any]]:
    """Nine settings to race in a cell, the first the defaults; the same points in all cells.

    The others are a Halton sequence around the defaults: temperature by a factor of 1/2 to 2, learning rate by 1/3
    to 3, dropout 0 to 0.3, and for "bsl" without a number the power from 1 to 1.4.
    """
    found: list[dict[str, Any]] = [{}]
    for i in range(1, TRIALS):
        u, v, w, x = (_halton(i, prime) for prime in (2, 3, 5, 7))
        changes: dict[str, Any] = {
            "temperature": round(base.temperature * 2 ** (2 * u - 1), 4),
            "lr": round(base.lr * 3 ** (2 * v - 1), 6),
        }
        if base.model == "mf":
            changes["dropout"] = round(0.3 * w, 3)
        if cell.loss == "bsl":  # a power of the person's own stays
            changes["loss"] = f"bsl:{1 + 0.4 * x:.2f}"
        found.append(changes)
    return found


def _halton(i: int, prime: int) -> float:
    value, share = 0.0, 1.0
    while i:
        share /= prime
        value += share * (i % prime)
        i //= prime
    return value


@dataclass(frozen=True)
class _Unit:
    """One training: what a machine does at a time, and what is never done twice."""

    cell: int
    epochs: int
    seed: int
    changes: dict[str, Any]
    tested: bool = False

    @property
    def key(self) -> str:
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=10).hexdigest()


class _Race:
    """The units of a comparison, run once each, their results on disk."""

    def __init__(
        self,
        parts: Parts,
        base: TrainConfig,
        cells: list[Cell],
        minutes: float,
        seeds: int,
        folder: Path,
        engine: str,
        watch: Callable[[int, int], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self.parts, self.base, self.cells = parts, base, cells
        self.seconds, self.seeds, self.folder = 60 * minutes / len(cells), seeds, folder
        self.engine, self.watch, self.say = engine, watch, say
        self.total = len(cells) * (1 + TRIALS + SHRINK + 1 + seeds)
        self.done = 0

    def run(self) -> Compared:
        epochs = self.epochs()
        winners = self.tune(epochs)
        finals = [
            _Unit(c, epochs[c], seed, winners[c][0], tested=True)
            for c in range(len(self.cells))
            for seed in range(1, self.seeds + 1)
        ]
        return self.conclude(epochs, winners, self.results(finals))

    def epochs(self) -> list[int]:
        """How many epochs the share of each cell allows: nine trials, three, one and the seeds, a third each less."""
        probes = [_Unit(c, 2, 0, {}) for c in range(len(self.cells))]
        rounds = TRIALS / SHRINK**2 + SHRINK / SHRINK + 1 + self.seeds
        found = []
        for cell, result in zip(self.cells, self.results(probes), strict=True):
            an_epoch = max(result["cpu_seconds"] / 2, 1e-3)
            found.append(max(1, int(self.seconds / (rounds * an_epoch))))
            self.say(f"{cell.name}: {an_epoch:.2f} s an epoch, {found[-1]} epochs.")
            if found[-1] < 5:
                self.say(f"{cell.name} has very few epochs in its share of the time; give a larger --budget.")
        return found

    def tune(self, epochs: list[int]) -> list[tuple[dict[str, Any], float]]:
        """The best settings of each cell by validation, and their score."""
        alive = [trials(self.base, cell) for cell in self.cells]
        scores: list[list[float]] = []
        for rung in range(3):
            share = SHRINK ** (2 - rung)
            units = [
                [_Unit(c, max(1, epochs[c] // share), 0, changes) for changes in alive[c]]
                for c in range(len(self.cells))
            ]
            flat = self.results([unit for row in units for unit in row])
            results = iter(flat)
            scores = [[next(results)["validation"] for _ in row] for row in units]
            keep = max(1, len(alive[0]) // SHRINK)
            for c, row in enumerate(scores):
                order = sorted(range(len(row)), key=lambda i, row=row: -row[i])[:keep]  # type: ignore[misc]
                alive[c] = [alive[c][i] for i in order]
                scores[c] = [row[i] for i in order]
        for cell, settings, score in zip(self.cells, alive, scores, strict=True):
            self.say(
                f"{cell.name}: {settings[0] or 'defaults'}, validation {self.base.metric} {score[0]:.4f}."
            )
        return [(settings[0], score[0]) for settings, score in zip(alive, scores, strict=True)]

    def results(self, units: list[_Unit]) -> list[dict[str, Any]]:
        """Results in the order of the units, each from disk if it is there."""
        todo = [unit for unit in units if not self._file(unit).exists()]
        self._advance(len(units) - len(todo))
        run = self._on_ray if self.engine == "ray" else self._here
        for unit, result in run(todo):
            write_json(self._file(unit), asdict(unit) | result)
            self._advance(1)
        return [read_json(self._file(unit)) for unit in units]

    def _here(self, units: list[_Unit]) -> Iterator[tuple[_Unit, dict[str, Any]]]:
        for unit in units:
            yield unit, train_unit(self.parts, self._settings(unit), unit.tested)

    def _on_ray(self, units: list[_Unit]) -> Iterator[tuple[_Unit, dict[str, Any]]]:
        pieces = [(self._settings(unit), unit.tested) for unit in units]
        for place, result in on_ray(train_unit, self.parts, pieces):
            yield units[place], result

    def _settings(self, unit: _Unit) -> TrainConfig:
        changes = unit.changes | {"epochs": unit.epochs, "seed": self.base.seed + unit.seed}
        return settings_of(self.base, self.cells[unit.cell], changes)

    def _file(self, unit: _Unit) -> Path:
        return self.folder / UNITS / f"{unit.key}.json"

    def _advance(self, count: int) -> None:
        self.done += count
        if self.watch is not None and count:
            self.watch(self.done, self.total)

    def conclude(
        self,
        epochs: list[int],
        winners: list[tuple[dict[str, Any], float]],
        finals: list[dict[str, Any]],
    ) -> Compared:
        """Average over seeds, compare every two cells, and write everything down."""
        metric = self.base.metric
        scores: dict[str, Tensor] = {}
        rows: list[dict[str, Any]] = []
        for c, cell in enumerate(self.cells):
            mine = [result for result in finals if result["cell"] == c]
            each = {
                name: torch.tensor([r["test"][name] for r in mine], dtype=torch.float64)
                for name in mine[0]["test"]
            }
            scores[cell.name] = each[metric].mean(0)
            rows.append(
                {
                    "name": cell.name,
                    **asdict(cell),
                    "settings": winners[c][0],
                    "epochs": epochs[c],
                    "validation": winners[c][1],
                    "cpu_seconds": sum(r["cpu_seconds"] for r in mine) / len(mine),
                    "test": {name: interval(values.mean(0)) for name, values in each.items()},
                    "seeds": [float(v) for v in each[metric].mean(1)],
                }
            )
        differences = paired_bootstrap(scores, seed=self.base.seed)
        with replacing(self.folder / QUERIES) as temporary:
            pl.DataFrame({name: values.numpy() for name, values in scores.items()}).write_parquet(temporary)
        units = [read_json(path) for path in sorted((self.folder / UNITS).glob("*.json"))]
        summary = {
            "metric": metric,
            "queries": len(next(iter(scores.values()))),
            "items": self.parts.train.n_items,
            "seeds": self.seeds,
            "minutes": self.seconds * len(self.cells) / 60,
            "settings": self.base.to_dict(),
            "cells": rows,
            "differences": [asdict(d) for d in differences],
            "trials": [{k: v for k, v in unit.items() if k != "test"} for unit in units],
        }
        write_json(self.folder / SUMMARY, summary)
        return Compared(summary, differences, scores)


def train_unit(parts: Parts, config: TrainConfig, tested: bool) -> dict[str, Any]:
    """Train once; give the validation score of the last epoch, and for a final run the test metrics of each query.

    Args:
        parts: training, validation and test pairs.
        config: the settings.
        tested: look at the test.
    """
    known = parts.train.known()
    model = build(parts, config)
    started = time.process_time()
    fit(model, parts.train.users, parts.train.items, known, parts.train.item_counts(), config)
    seconds = time.process_time() - started
    score = validator(model, parts.validation, known, config.metric)()[config.metric]
    result: dict[str, Any] = {"validation": score, "cpu_seconds": round(seconds, 3)}
    if tested:
        encoder: Any = model.encoder
        targets = parts.test.known()
        asked = (targets.counts > 0).nonzero().squeeze(1)
        with torch.no_grad():
            items = encoder.items(torch.arange(parts.train.n_items))
            text = parts.test.is_text
            queries = (
                encoder.encode(parts.test.user_ids.cast(pl.String))
                if text
                else encoder.queries(torch.arange(parts.test.n_users))
            )
            ranks = count_ranks(
                queries[asked], items, targets.take(asked), None if text else parts.seen.take(asked)
            )
        cut = sorted({*CUTOFFS, int(config.metric.partition("@")[2] or 20)})
        found = ranking_metrics(ranks, targets.take(asked), k=tuple(cut))
        wanted = {config.metric, *(f"{name}@{k}" for k in cut for name in ("recall", "ndcg"))}
        result["test"] = {name: found.per_query(name).tolist() for name in sorted(wanted)}
    return result


def interval(values: Tensor) -> dict[str, float]:
    """Mean over queries, (n,), with its 95 % bootstrap interval."""
    means = resampled_means(values.unsqueeze(0), 1000, 0).squeeze(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return {"mean": float(values.mean()), "low": low, "high": high}


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    """Refuse what would be lost."""
    if resume and overwrite:
        raise ValueError("Give --resume to go on or --overwrite to start anew, not both.")
    ours = {SUMMARY, PLAN, UNITS, QUERIES, "compare.html"}
    found = {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.exists() else set()
    if found - ours:
        raise FileExistsError(
            f"{folder} holds {sorted(found - ours)[0]}, which is no part of a comparison; give another --out."
        )
    if found and not (resume or overwrite):
        raise FileExistsError(
            f"{folder} is not empty; give --resume to go on, --overwrite to start anew, or another --out."
        )


def _open(folder: Path, plan: dict[str, Any], resume: bool) -> None:
    """Write the plan, or check that an unfinished comparison had the same."""
    if resume and (folder / PLAN).exists():
        check_plan(folder / PLAN, plan)
        return
    (folder / UNITS).mkdir(parents=True, exist_ok=True)
    for path in [*(folder / UNITS).iterdir(), folder / SUMMARY, folder / QUERIES]:
        path.unlink(missing_ok=True)
    write_json(folder / PLAN, plan)
