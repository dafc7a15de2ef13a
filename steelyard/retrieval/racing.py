"""The runs of a comparison: an equal share of processor time each, successive halving, the test once a seed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import count_ranks, ranking_metrics, recall_by_popularity
from steelyard.files import read_json, read_tensors, write_json, write_tensors
from steelyard.ray_engine import on_ray
from steelyard.retrieval.adapters import FrozenVectors
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.contenders import SHRINK, TRIALS, Cell, settings_of, trials
from steelyard.retrieval.folder import sha256
from steelyard.retrieval.index import top_k
from steelyard.retrieval.job import build, validator
from steelyard.retrieval.loop import fit
from steelyard.retrieval.parts import Parts

CUTOFFS, GIVEN = (10, 20), 10
PROBE = 3
"""Epochs of the short run that tells how long one takes."""
EPOCHS = "epochs.json"


@dataclass(frozen=True)
class Ground:
    """What all cells run on: the same pairs, and the frozen vectors of the model "vectors".

    Args:
        parts: training, validation and test pairs.
        frozen: None without that model.
    """

    parts: Parts
    frozen: FrozenVectors | None = None

    @property
    def asked(self) -> Tensor:
        """The test queries: users with a held-out pair, rising, int64."""
        return (self.parts.test.known().counts > 0).nonzero().squeeze(1)

    def for_test(self) -> Parts:
        """The parts of a final run: validation pairs are trained on too, so that all models know the same."""
        train, more = self.parts.train, self.parts.validation
        both = replace(
            train,
            users=torch.cat([train.users, more.users]),
            items=torch.cat([train.items, more.items]),
            weights=_joined(train.weights, more.weights),
            times=_joined(train.times, more.times),
        )
        return replace(self.parts, train=both)


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat([first, second])


@dataclass(frozen=True)
class Unit:
    """One training: what a machine does at a time, and what is never done twice.

    Args:
        cell: number of the contender.
        epochs: passes over the data.
        seed: added to that of the settings.
        changes: settings tried.
        tested: a final run, which is trained on all but the test and measured there.
    """

    cell: int
    epochs: int
    seed: int
    changes: dict[str, Any]
    tested: bool = False

    @property
    def key(self) -> str:
        """The name of its result."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=10).hexdigest()


def train_unit(ground: Ground, config: TrainConfig, tested: bool, lists: bool = False) -> dict[str, Any]:
    """Train once; give the validation score of the last epoch, or for a final run what the test says of each query.

    A run whose loss is no longer finite has the score 0 and "diverged", if it is no final one.

    Args:
        ground: the pairs.
        config: the settings.
        tested: train on the validation pairs too, and look at the test.
        lists: give the first items for each test query, "given", int32 (queries, 10), -1 where there are fewer.

    Raises:
        FloatingPointError: the loss of a final run is no longer finite.
    """
    parts = ground.for_test() if tested else ground.parts
    frozen = ground.frozen if config.model == "vectors" else None
    config = config if frozen is None else frozen.settings(config)
    known = parts.train.known()
    model = build(parts, config, frozen)
    started = time.process_time()
    ends = [started]

    def clock() -> dict[str, float]:
        ends.append(time.process_time())
        return {}  # no scores: all epochs are trained, and the last one counts

    try:
        fit(
            model, parts.train.users, parts.train.items, known, parts.train.item_counts(), config, validate=clock
        )  # fmt: skip
    except FloatingPointError as error:
        if tested:
            raise FloatingPointError(
                f"{config.loss}, {config.negatives}: the settings that won diverge with another seed ({error})"
            ) from None
        ends.append(time.process_time())
        return {"validation": 0.0, "diverged": True} | _times(ends)
    result: dict[str, Any] = _times(ends)
    if not tested:
        scores = validator(model, parts.validation, known, config.metric)()
        return {"validation": scores[config.metric]} | result
    return result | _tested(model.encoder, parts, ground.asked, config.metric, lists)


def _times(ends: list[float]) -> dict[str, float]:
    """Processor seconds of a run, and of its quickest epoch: the first pays for compiling what the others use."""
    quickest = min(b - a for a, b in pairwise(ends))
    return {"cpu_seconds": round(ends[-1] - ends[0], 3), "epoch_seconds": round(quickest, 5)}


@torch.no_grad()
def _tested(encoder: Any, parts: Parts, asked: Tensor, metric: str, lists: bool) -> dict[str, Any]:
    """Metrics and best place of each test query, and recall by popularity."""
    test, targets = parts.test, parts.test.known().take(asked)
    items = encoder.items(torch.arange(test.n_items))
    if test.is_text:
        queries = encoder.encode(test.user_ids.cast(pl.String).gather(asked.numpy()))
    else:
        queries = encoder.queries(asked)
    seen = None if test.is_text else parts.seen.take(asked)
    ranks = count_ranks(queries, items, targets, seen)
    cut = int(metric.partition("@")[2])
    cuts = sorted({*CUTOFFS, cut})
    found = ranking_metrics(ranks, targets, k=tuple(cuts))
    wanted = sorted({metric, *(f"{name}@{k}" for k in cuts for name in ("recall", "ndcg"))})
    place = ranks.above + (ranks.tied.double() + 1) / 2
    first = torch.full((len(targets),), float("inf"), dtype=place.dtype)
    first.scatter_reduce_(0, targets.row_index(), place, "amin")
    slices = recall_by_popularity(ranks, targets, parts.train.item_counts(), k=20)
    result: dict[str, Any] = {
        "test": {name: found.per_query(name).tolist() for name in wanted},
        "first": first.tolist(),
        "slices": [asdict(part) for part in slices],
    }
    if lists:
        result["given"] = top_k(queries, items, GIVEN, exclude=seen)[1].to(torch.int32)
    return result


class Race:
    """The runs of a comparison, each done once, their results on disk.

    Args:
        ground: the pairs.
        base: settings that are the same for all.
        cells: the contenders.
        minutes: processor time for all, about.
        seeds: final runs of each.
        folder: where results are kept.
        engine: "local" or "ray".
        watch: called with the runs done and in all.
        say: called with a line at each stage.
    """

    def __init__(
        self,
        ground: Ground,
        base: TrainConfig,
        cells: Sequence[Cell],
        *,
        minutes: float,
        seeds: int,
        folder: Path,
        engine: str,
        watch: Callable[[int, int], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self.ground, self.base, self.cells = ground, base, cells
        self.seconds, self.seeds, self.folder = 60 * minutes / len(cells), seeds, folder
        self.engine, self.watch, self.say = engine, watch, say
        self.total = len(cells) * (1 + TRIALS + SHRINK + 1 + seeds)
        self.done = 0
        self.used: dict[str, dict[str, Any]] = {}
        """Results by the key of their run."""
        self.raced: list[str] = []
        """Keys of the trials and of the final runs, without the short ones that tell the time."""

    def epochs(self) -> list[int]:
        """How many epochs the share of each cell allows: nine trials, three, one and the seeds, a third each less.

        Found once and kept, since the seconds of a run that had to be done again would be others.
        """
        probes = [Unit(c, PROBE, 0, {}) for c in range(len(self.cells))]
        kept = _unsealed(self.folder / EPOCHS)
        if kept is not None and len(kept["epochs"]) == len(self.cells):
            self.results([unit for unit in probes if self._done(unit)])
            return list(kept["epochs"])
        rounds = TRIALS / SHRINK**2 + SHRINK / SHRINK + 1 + self.seeds
        found = []
        for cell, result in zip(self.cells, self.results(probes), strict=True):
            an_epoch = max(result["epoch_seconds"], 1e-3)
            found.append(max(1, int(self.seconds / (rounds * an_epoch))))
            self.say(f"{cell.name}: {an_epoch:.2f} s an epoch, {found[-1]} epochs.")
            if found[-1] < 5:
                self.say(f"{cell.name} has very few epochs in its share of the time; give a larger --budget.")
        write_json(self.folder / EPOCHS, _sealed({"epochs": found}))
        return found

    def tune(self, epochs: list[int]) -> list[tuple[dict[str, Any], float]]:
        """The best settings of each cell by validation, and their score.

        Raises:
            FloatingPointError: all settings of a cell diverge.
        """
        alive = [trials(self.base, cell) for cell in self.cells]
        best: list[tuple[dict[str, Any], float]] = []
        for rung in range(3):
            share = SHRINK ** (2 - rung)
            units = [
                [Unit(c, max(1, epochs[c] // share), 0, changes) for changes in alive[c]]
                for c in range(len(self.cells))
            ]
            results = iter(self.results([unit for row in units for unit in row]))
            self.raced += [unit.key for row in units for unit in row]
            keep, best = max(1, len(alive[0]) // SHRINK), []
            for c, row in enumerate(units):
                found = [next(results) for _ in row]
                order = sorted(
                    range(len(row)),
                    key=lambda i, found=found: (found[i].get("diverged", False), -found[i]["validation"]),  # type: ignore[misc]
                )
                if found[order[0]].get("diverged"):
                    raise FloatingPointError(
                        f"{self.cells[c].name}: the loss of all its settings is no longer finite; leave it out, or "
                        "give settings with a lower lr or a higher temperature."
                    )
                alive[c] = [alive[c][i] for i in order[:keep]]
                best.append((alive[c][0], found[order[0]]["validation"]))
        for cell, (settings, score) in zip(self.cells, best, strict=True):
            said = ", ".join(f"{name} {value}" for name, value in settings.items()) or "defaults"
            self.say(f"{cell.name}: {said}; validation {self.base.metric} {score:.4f}.")
        return best

    def finals(self, epochs: list[int], settings: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """The tested runs of each cell, one a seed."""
        units = [
            Unit(c, epochs[c], seed, settings[c], tested=True)
            for c in range(len(self.cells))
            for seed in range(1, self.seeds + 1)
        ]
        results = iter(self.results(units))
        self.raced += [unit.key for unit in units]
        return [[next(results) for _ in range(self.seeds)] for _ in self.cells]

    def lists(self, cell: int, epochs: int, settings: dict[str, Any]) -> Tensor:
        """What the first final run of a cell gives each test query, int32, (queries, 10)."""
        tensors, _ = read_tensors(self._lists(Unit(cell, epochs, 1, settings, tested=True)))
        return tensors["given"]

    def results(self, units: list[Unit]) -> list[dict[str, Any]]:
        """Results in the order of the units, each from disk if it is there and whole."""
        todo = [unit for unit in units if not self._done(unit)]
        self._advance(len(units) - len(todo))
        run = self._on_ray if self.engine == "ray" else self._here
        for unit, result in run(todo):
            given = result.pop("given", None)
            if given is not None:
                write_tensors(self._lists(unit), {"given": given})
                result["lists"] = sha256(self._lists(unit))
            result = asdict(unit) | result
            write_json(self._file(unit), _sealed(result))  # last: the run is done once this is there
            self.used[unit.key] = result
            self._advance(1)
        return [self.used[unit.key] for unit in units]

    def _done(self, unit: Unit) -> bool:
        """Whether the unit's result is known or on disk; says so where what is there is damaged."""
        if unit.key in self.used:
            return True
        if not self._file(unit).exists():
            return False
        found, lists = _unsealed(self._file(unit)), self._lists(unit)
        whole = found is not None and all(found.get(name) == value for name, value in asdict(unit).items())
        if found is None or not whole or ("lists" in found and not _unchanged(lists, found["lists"])):
            self.say(f"{self._file(unit)} or what goes with it is damaged; its run is done again.")
            return False
        self.used[unit.key] = found
        return True

    def _here(self, units: list[Unit]) -> Iterator[tuple[Unit, dict[str, Any]]]:
        for unit in units:
            yield unit, train_unit(self.ground, *self._arguments(unit))

    def _on_ray(self, units: list[Unit]) -> Iterator[tuple[Unit, dict[str, Any]]]:
        for place, result in on_ray(train_unit, self.ground, [self._arguments(unit) for unit in units]):
            yield units[place], result

    def _arguments(self, unit: Unit) -> tuple[TrainConfig, bool, bool]:
        changes = unit.changes | {"epochs": unit.epochs, "seed": self.base.seed + unit.seed}
        settings = settings_of(self.base, self.cells[unit.cell], changes)
        return settings, unit.tested, unit.tested and unit.seed == 1

    def _file(self, unit: Unit) -> Path:
        return self.folder / f"{unit.key}.json"

    def _lists(self, unit: Unit) -> Path:
        return self.folder / f"{unit.key}.safetensors"

    def _advance(self, count: int) -> None:
        self.done += count
        if self.watch is not None and count:
            self.watch(self.done, self.total)


def _sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With a digest, by which damage shows."""
    written = json.dumps(content, sort_keys=True).encode()
    return content | {"digest": hashlib.blake2b(written, digest_size=10).hexdigest()}


def _unsealed(path: Path) -> dict[str, Any] | None:
    """What `_sealed` was given, or None where the file is missing or damaged."""
    try:
        found = read_json(path)
    except (ValueError, OSError):
        return None
    if not isinstance(found, dict):
        return None
    content = {name: value for name, value in found.items() if name != "digest"}
    return content if found == _sealed(content) else None


def _unchanged(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path) == digest
