"""The report of a training run: one HTML file with everything in it, made from the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from steelyard.files import read_json
from steelyard.reports.figures import SECOND, curve, metric_bars, slice_bars
from steelyard.reports.histories import history_scatter
from steelyard.reports.pages import write_page

RECENT = 8
SHOWN = ("recall@10", "recall@20", "ndcg@10", "ndcg@20", "hit_rate@10", "mrr")


def write_training_report(folder: str | Path) -> Path:
    """Write `report.html` from the `metrics.json` and `log.jsonl` of a finished training run.

    Args:
        folder: output folder of `steelyard.retrieval.train`.

    Returns:
        The path of the report, a self-contained page.

    Raises:
        FileNotFoundError: the run is not finished.
        ValueError: a file is damaged.
        OSError: no room to write.
    """
    folder = Path(folder)
    metrics = read_json(folder / "metrics.json")
    log = _read_log(folder / "log.jsonl")
    return write_page(folder / "report.html", "training.html", _content(metrics, log))


def _read_log(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); train again.") from None


def _content(metrics: dict[str, Any], log: list[dict[str, Any]]) -> dict[str, Any]:
    settings, reading = metrics["training"], metrics["reading"]
    text = settings["model"] == "text" or "query" in reading["columns"]
    rows = {"model": metrics["test"], **metrics["baselines"]}
    steps = [entry for entry in log if entry["event"] == "step"]
    test, metric = metrics["test"], settings["metric"]
    ess, draws = (steps[-1]["ess"], steps[-1]["draws"]) if steps else (0.0, 0)
    return {
        "title": f"Training report: {'text search' if text else 'recommendation'}",
        "lead": f"{reading['kept']:,} pairs from {_files(reading['files'])}; {metrics['n_users']:,} "
        f"{'queries' if text else 'users'}, {metrics['n_items']:,} {'documents' if text else 'items'}; "
        f"best of {len(metrics['epochs'])} epochs in {metrics['train_seconds'] / 60:.1f} minutes.",
        "cards": [
            {"name": f"test {name}", "value": f"{test[name]['mean']:.4f}", "note": _interval(test[name])}
            for name in ("recall@20", "ndcg@20", "ndcg@10", "mrr")
        ],
        "queries": _queries(metrics),
        "seen": _seen(metrics),
        "rows": rows,
        "metric_names": list(test),
        "metric": metric,
        "figures": {name: Markup(svg) if svg else "" for name, svg in _figures(metrics, rows, steps).items()},
        "ess_note": f"At the end {ess:,.0f} of {draws:,} draws a batch: how many equally weighed "
        "negatives a query's draws are worth. A sharp softmax has few even when all items are taken; under random "
        "draws a number near 1 says that single draws carry the gradient: take more candidates.",
        "loss_note": "Sampled softmax with weighed negatives: an estimate of the full softmax loss."
        if settings["loss"] == "softmax"
        else f"{settings['loss']} with weighed negatives"
        + (
            "; a sum without the positive may fall below 0."
            if settings["loss"][:3] in ("bsl", "sl@")
            else "."
        ),
        "examples": [_case(example) for example in metrics["examples"]],
        "reading": _reading(reading),
        "settings": settings,
    }


def _queries(metrics: dict[str, Any]) -> str:
    histories = metrics.get("test_histories")
    positions = f"{metrics['test_queries']:,} queries"
    return positions if histories is None else f"{histories:,} histories, each position a query: {positions}"


def _figures(metrics: dict[str, Any], rows: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, str]:
    epochs, metric = metrics["epochs"], metrics["training"]["metric"]
    scored = [entry for entry in epochs if entry["validation"]]
    slices = metrics["popularity_slices"]
    names = [f"{_place(i, len(slices))}\n{s['items']:,} items" for i, s in enumerate(slices)]
    users = metrics.get("per_user")
    at, loss = [s["step"] for s in steps], [s["loss"] for s in steps]
    return {
        "metrics": metric_bars(rows, SHOWN),
        "validation": curve(
            [e["epoch"] + 1 for e in scored],
            [e["validation"][metric] for e in scored],
            label_x="epoch",
            label_y=metric,
            mark=metrics["best_epoch"],
        )
        if scored
        else "",
        "loss": curve(at, loss, label_x="step", label_y="loss"),
        "ess": curve(
            at, [s["ess"] for s in steps], label_x="step", label_y="effective negatives", colour=SECOND
        ),
        "slices": slice_bars(slices, names, [s["recall"] or 0.0 for s in slices])
        if sum(s["targets"] > 0 for s in slices) > 1
        else "",
        "history": history_scatter(users["history"], users["values"], metric) if users else "",
    }


def _case(example: dict[str, Any]) -> dict[str, Any]:
    """An example as `cases.html` takes it; older runs say neither how much a user took nor where the wanted stands."""
    given = {
        "name": "",
        "score": example.get("score"),
        "first": example.get("first"),
        "given": example["given"],
    }
    return {
        "query": example["user"],
        "took": example.get("took"),
        "history": example["history"][:RECENT],
        "wants": example.get("wants", len(example["wanted"])),
        "wanted": example["wanted"][:RECENT],
        "cells": [given],
    }


def _place(index: int, count: int) -> str:
    return "most popular" if index == 0 else "rarest" if index == count - 1 else "middle"


def _interval(value: dict[str, float | None]) -> str:
    return (
        "one query, no interval"
        if value["low"] is None
        else f"95 % {value['low']:.4f} to {value['high']:.4f}"
    )


def _files(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files"


def _seen(metrics: dict[str, Any]) -> str:
    words = f"Items seen in training: {metrics['seen_items']}. Ties are averaged, so a constant score gets the chance level."
    if metrics["unreachable_targets"]:
        words += f" {metrics['unreachable_targets']:,} test items were seen in training, which no ranking can reach."
    return words


def _reading(reading: dict[str, Any]) -> list[str]:
    lines = [
        f"{reading['rows']:,} rows of {reading['format']} from {_files(reading['files'])}, {reading['kept']:,} kept."
    ]
    lines += [f"Dropped: {count:,} {reason}." for reason, count in reading["dropped"].items()]
    return lines + list(reading["notes"])
