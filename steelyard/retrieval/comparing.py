"""Models, losses and negatives side by side: an equal tuning budget each, the test once, paired intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from steelyard.evaluation import PairedDifference, paired_comparison
from steelyard.evaluation.bootstrap import expanded_interval, resampled_means
from steelyard.files import (
    alone_in,
    check_plan,
    check_writable,
    half_written,
    read_json,
    replacing,
    write_json,
)
from steelyard.ragged import Ragged
from steelyard.retrieval.adapters import VECTORS, FrozenVectors, holds_other
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.contenders import Cell, check_models, named, settings_of
from steelyard.retrieval.encoding import SentenceEncoder
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.job import check_negatives
from steelyard.retrieval.parts import Parts, partition
from steelyard.retrieval.racing import EPOCHS, Ground, Race
from steelyard.retrieval.sequences import histories
from steelyard.retrieval.served import account, differing, worst

__all__ = ["Cell", "Compared", "compare"]

SUMMARY, PLAN, UNITS, QUERIES, PAGE = "compare.json", "plan.json", "units", "queries.parquet", "compare.html"
VERSION = 3
SHOWN_CELLS = 4
FEW = 30
UNIT_FILE = re.compile(rf"[0-9a-f]{{20}}\.(json|safetensors)|{re.escape(EPOCHS)}")


@dataclass(frozen=True)
class Compared:
    """What a comparison leaves.

    Args:
        summary: what `compare.json` holds.
        differences: every two cells on the same test queries.
        scores: the test metric of each query under each cell, by the cell's name, averaged over seeds.
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
    vectors: tuple[Any, Any] | None = None,
    encoder: SentenceEncoder | None = None,
    split_by: str | None = None,
    engine: str = "local",
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Compared:
    """Compare models, losses and negatives at an equal tuning budget, with paired intervals on the test.

    Each cell gets about the same processor time. A short run tells how long an epoch takes in it, and thereby how many
    epochs its share allows. Nine settings (temperature, learning rate, dropout, power; the same nine points in
    all cells) race by successive halving on validation data: all for a ninth of the epochs, the best three for a
    third, the best for all. The winner is trained with each seed on everything outside the test, and only then is
    the test looked at, once a seed. All cells rank the same catalogue for the same queries. Metrics of a query are
    averaged over seeds; cells are compared query by query, corrected for the number of comparisons.

    Args:
        data: interactions, or (query, document) pairs.
        test: held-out pairs; None holds out a part of the data.
        cells: what to compare.
        minutes: processor minutes for all cells together, about.
        out: folder for `compare.json`, `queries.parquet` and the finished units.
        seeds: trainings of the winner of each cell.
        config: settings that are the same for all; the defaults of the first cell's model, or of the data's kind,
            where None.
        vectors: of the model "vectors" on ids: float (n_users, d) and (n_items, d), in the order of the ids.
        encoder: of the model "vectors" on texts: what makes their vectors.
        split_by: "random", "leave-last-out" or "time"; None is leave-last-out with the model "sequence", else random.
        engine: "local", or "ray" to share units among the workers of a Ray cluster.
        resume: go on with a killed comparison; finished units are not run again.
        overwrite: replace what an earlier one left.
        watch: called with the number of units done and in all.
        say: called with a line at each stage.

    Returns:
        Summary, differences and scores.

    Raises:
        FileExistsError: `out` holds something, and neither `resume` nor `overwrite` was given.
        ValueError: fewer than two cells, one named twice, models or settings that do not fit, or another comparison
            to resume.
        FloatingPointError: a cell's loss is finite under none of its settings.
        ImportError: the engine is not installed.
        OSError: no room to write.
        Stopped: Ctrl-C; finished units are kept and `resume` goes on.

    Reference:
        Jamieson & Talwalkar (2016), Non-stochastic best arm identification and hyperparameter optimization,
        AISTATS (successive halving).
    """
    say = say or (lambda _: None)
    base = config or TrainConfig.of(_first_model(cells) or ("text" if data.is_text else "mf"))  # type: ignore[arg-type]
    cells = list(cells)
    full = named(base, cells)
    models = {cell.model for cell in full}
    split_by = split_by or ("leave-last-out" if "sequence" in models else "random")
    _check_numbers(minutes, seeds, engine)
    check_models(models, data, split_by, vectors=vectors is not None, encoder=encoder is not None)
    given = None if vectors is None else FrozenVectors.given(*vectors, data)
    folder = Path(out).expanduser()
    _check_folder(folder, resume, overwrite)
    for cell in cells:  # says what does not fit before anything is run
        settings = settings_of(base, cell, {})
        adapted = given if settings.model == "vectors" else None
        check_negatives(adapted.settings(settings) if adapted else settings, data.item_counts())
    parts = _parts(data, test, base, models, split_by)
    notes = _notes(parts, "sequence" in models)
    for note in notes:
        say(note)
    plan = {
        "version": VERSION,
        "data": data.fingerprint(),
        "test": parts.test.fingerprint(),
        "split": split_by,
        "cells": [asdict(cell) for cell in full],
        "minutes": minutes,
        "seeds": seeds,
        "settings": base.to_dict(),
        "vectors": None if given is None else given.fingerprint(),
        "encoder": None if encoder is None else encoder.fingerprint(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _check_folder(folder, resume, overwrite)  # again: another comparison may have just finished
        check_writable(folder)
        _open(folder, plan, resume)
        if encoder is not None:
            say(f"Encoding {data.n_users:,} queries and {data.n_items:,} documents with {encoder.name}.")
            made = FrozenVectors.encoded(data, parts.test, encoder, folder / VECTORS, overwrite=overwrite)
            given = replace(made, encoder=None)  # all texts are known: no run needs the encoder
        race = Race(
            Ground(parts, given), base, cells, minutes=minutes, seeds=seeds, folder=folder / UNITS, engine=engine,
            watch=watch, say=say,
        )  # fmt: skip
        epochs = race.epochs()
        winners = race.tune(epochs)
        finals = race.finals(epochs, [settings for settings, _ in winners])
        done = _conclude(race, epochs, winners, finals, folder)
        done.summary.update(split=split_by if test is None else None, minutes=minutes, notes=notes)
        write_json(folder / SUMMARY, done.summary)
        return done


def _conclude(
    race: Race,
    epochs: list[int],
    winners: list[tuple[dict[str, Any], float]],
    finals: list[list[dict[str, Any]]],
    folder: Path,
) -> Compared:
    """Average over seeds, compare every two cells, and write the queries down."""
    metric, ground = race.base.metric, race.ground
    scores = {
        cell.name: _table(run["test"][metric] for run in runs).mean(0)
        for cell, runs in zip(race.cells, finals, strict=True)
    }
    rows = [
        _row(replace(cell, model=cell.model or race.base.model), metric, runs)
        | {"name": cell.name, "settings": settings, "epochs": n, "validation": validation}
        for cell, runs, n, (settings, validation) in zip(race.cells, finals, epochs, winners, strict=True)
    ]
    differences = paired_comparison(scores, seed=race.base.seed)
    history = None if ground.parts.test.is_text else histories(ground.for_test().train)
    _write_queries(folder / QUERIES, ground, history, scores)
    order = sorted(range(len(rows)), key=lambda c: -rows[c]["test"][metric]["mean"])[:SHOWN_CELLS]
    shown = [
        {
            "name": race.cells[c].name,
            "score": scores[race.cells[c].name],
            "first": _table(run["first"] for run in finals[c]).mean(0),
            "given": race.lists(c, epochs[c], winners[c][0]),
        }
        for c in order
    ]
    units = list(race.used.values())
    for c, row in enumerate(rows):
        row["spent_seconds"] = sum(unit["cpu_seconds"] for unit in units if unit["cell"] == c)
    left_out = ("test", "first", "slices", "lists")
    summary = {
        "metric": metric,
        "queries": len(ground.asked),
        "items": ground.parts.test.n_items,
        "seeds": race.seeds,
        "spent_minutes": sum(row["spent_seconds"] for row in rows) / 60,
        "settings": race.base.to_dict(),
        "cells": rows,
        "differences": [asdict(d) for d in differences],
        "served": _served(ground, history, shown),
        "trials": [{k: v for k, v in race.used[key].items() if k not in left_out} for key in race.raced],
    }
    return Compared(summary, differences, scores)


def _row(cell: Cell, metric: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the final runs of a cell say, averaged over seeds."""
    each = {name: _table(run["test"][name] for run in runs) for name in runs[0]["test"]}
    return asdict(cell) | {
        "cpu_seconds": sum(run["cpu_seconds"] for run in runs) / len(runs),
        "test": {name: interval(values.mean(0)) for name, values in each.items()},
        "seeds": [float(v) for v in each[metric].mean(1)],
        "slices": _mean_slices([run["slices"] for run in runs]),
    }


def _served(ground: Ground, history: Ragged | None, shown: list[dict[str, Any]]) -> dict[str, Any]:
    """Queries to look at: the worst of the best cell, and those that it serves most unlike the next."""
    one, two = shown[:2]
    ahead, behind = differing(one["score"], two["score"], (one["first"], two["first"]))
    chosen = {"worst": worst(one["score"], one["first"]), "ahead": ahead, "behind": behind}
    return {
        kind: account(rows, ground.asked, ground.parts.test, history, shown if kind == "worst" else shown[:2])
        for kind, rows in chosen.items()
    }


def _write_queries(path: Path, ground: Ground, history: Ragged | None, scores: dict[str, Tensor]) -> None:
    """The metric of each test query under each cell, averaged over seeds."""
    asked = ground.asked
    table: dict[str, Any] = {"query": ground.parts.test.user_ids.gather(asked.numpy())}
    if history is not None:
        table["history"] = history.counts[asked].numpy()
    with replacing(path) as temporary:
        pl.DataFrame(table | {name: values.numpy() for name, values in scores.items()}).write_parquet(
            temporary
        )


def _table(rows: Any) -> Tensor:
    return torch.tensor(list(rows), dtype=torch.float64)


def _mean_slices(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Recall by popularity, averaged over seeds; the slices are the same for all."""
    return [
        same[0]
        | {"recall": None if same[0]["recall"] is None else sum(s["recall"] for s in same) / len(same)}
        for same in zip(*runs, strict=True)
    ]


def interval(values: Tensor) -> dict[str, float]:
    """Mean over queries, (n,), with its 95 % bootstrap interval."""
    means = resampled_means(values.unsqueeze(0), 1000, 0).squeeze(1)
    low, high = expanded_interval(means, len(values))
    return {"mean": float(values.mean()), "low": low, "high": high}


def _first_model(cells: Sequence[Cell]) -> str:
    return next((cell.model for cell in cells if cell.model), "")


def _parts(
    data: Interactions, test: Interactions | None, base: TrainConfig, models: set[str], split_by: str
) -> Parts:
    """What is trained on and asked, the same for all models."""
    if base.repeats:
        raise ValueError("A comparison leaves out of every ranking what a user took before: leave repeats.")
    if not base.validation:
        raise ValueError("A comparison tunes every cell on validation data: give a validation share above 0.")
    kind = "vectors" if "vectors" in models else "text" if data.is_text else "mf"
    shared = {"validation": base.validation, "validation_users": base.validation_users, "seed": base.seed}
    parts = partition(data, test, TrainConfig.of(kind, **shared), split_by)  # type: ignore[arg-type]
    if int((parts.test.known().counts > 0).sum()) < 2:
        raise ValueError("The test has one query only, and a comparison is made query by query: give more.")
    return parts


def _check_numbers(minutes: float, seeds: int, engine: str) -> None:
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes must be positive, got {minutes}.")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}.")
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be local or ray, got {engine!r}.")


def _notes(parts: Parts, ordered: bool) -> list[str]:
    """What a reader of the test should know."""
    test = parts.test
    asked = test.known().counts > 0
    found: list[str] = []
    if int(asked.sum()) < FEW:
        found.append(
            f"The test has {int(asked.sum())} queries; below {FEW} little can be shown, and intervals are a little narrow."
        )
    if test.is_text:
        return found
    taken = test.n_items * parts.seen.row_index() + parts.seen.values
    hidden = int(torch.isin(test.n_items * test.users + test.items, taken).sum())
    if hidden:
        found.append(
            f"{hidden:,} of {len(test):,} test pairs stand in training too: no ranking can reach them."
        )
    new = int((asked & (parts.seen.counts == 0)).sum())
    if new:
        found.append(f"{new:,} of {int(asked.sum()):,} test queries took nothing in training.")
    times = (parts.train.times, parts.validation.times, test.times)
    if ordered and all(t is not None for t in times):
        users = torch.cat([parts.train.users, parts.validation.users])
        latest = torch.full((test.n_users,), -math.inf, dtype=torch.float64)
        latest.scatter_reduce_(0, users, torch.cat([times[0], times[1]]).double(), "amax")  # type: ignore[list-item]
        early = int((times[2].double() < latest[test.users]).sum())  # type: ignore[union-attr]
        if early:
            found.append(
                f"{early:,} of {len(test):,} test pairs are earlier than what their user did in training; the model "
                "'sequence' is asked what comes after all of that."
            )
    return found


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    """Refuse what would be lost."""
    if resume and overwrite:
        raise ValueError("Give --resume to go on or --overwrite to start anew, not both.")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give --out a folder.")
    ours = {SUMMARY, PLAN, UNITS, QUERIES, PAGE, VECTORS}
    found = {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.exists() else set()
    foreign = sorted(found - ours)
    foreign += sorted(name for name in found & (ours - {UNITS, VECTORS}) if not (folder / name).is_file())
    if UNITS in found:
        units = folder / UNITS
        inside = list(units.iterdir()) if units.is_dir() and not units.is_symlink() else [units]
        foreign += sorted(str(path.relative_to(folder)) for path in inside if not _is_unit(path))
    if not _is_plan(
        folder / PLAN
    ):  # every comparison begins with its plan; names alone do not make files ours
        foreign += sorted(found & ours - {VECTORS})
    if VECTORS in found and holds_other(folder / VECTORS):
        foreign.append(VECTORS)
    if foreign:
        raise FileExistsError(
            f"{folder} holds {foreign[0]}, which is no part of a comparison; give another --out."
        )
    if found and not (resume or overwrite):
        raise FileExistsError(
            f"{folder} is not empty; give --resume to go on, --overwrite to start anew, or another --out."
        )
    if resume and found and PLAN not in found:
        raise FileExistsError(f"{folder} holds no comparison to resume; give --overwrite, or another --out.")


def _is_unit(path: Path) -> bool:
    name = half_written(path) or path.name
    return bool(UNIT_FILE.fullmatch(name)) and path.is_file() and not path.is_symlink()


def _is_plan(path: Path) -> bool:
    try:
        found = read_json(path) if path.is_file() else None
    except ValueError:
        return False
    return isinstance(found, dict) and "cells" in found and "minutes" in found


def _left_behind(folder: Path) -> list[Path]:
    """Temporary files of a comparison that was killed."""
    ours = [path for path in folder.iterdir() if half_written(path) in (SUMMARY, PLAN, QUERIES, PAGE)]
    return ours + [path for path in (folder / UNITS).iterdir() if half_written(path)]


def _open(folder: Path, plan: dict[str, Any], resume: bool) -> None:
    """Write the plan, or check that an unfinished comparison had the same; remove what was half written."""
    if resume and (folder / PLAN).exists():
        before = read_json(folder / PLAN)
        if isinstance(before, dict) and before.get("version") != VERSION:
            raise ValueError(
                f"The comparison in {folder} was begun by another version of steelyard, whose runs do not compare "
                "with those of this one: finish it there, or give --overwrite."
            )
        check_plan(folder / PLAN, plan)
        (folder / UNITS).mkdir(exist_ok=True)
        for path in _left_behind(folder):
            path.unlink()
        return
    (folder / UNITS).mkdir(parents=True, exist_ok=True)
    old = [folder / name for name in (SUMMARY, QUERIES, PAGE)]
    for path in [
        *_left_behind(folder),
        *(folder / UNITS).iterdir(),
        *old,
    ]:  # the old plan goes last, as the mark
        path.unlink(missing_ok=True)
    write_json(folder / PLAN, plan)
