"""The report of a comparison: who is better, by how much, for whom, and how each was tuned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from steelyard.files import read_json
from steelyard.reports.cells import (
    difference_rows,
    grouped_bars,
    interval_rows,
    query_scatter,
    tuning_traces,
)
from steelyard.reports.histories import history_lines
from steelyard.reports.pages import write_page

SHOWN_CELLS, SHOWN_DIFFERENCES = 4, 12


def write_comparison_report(folder: str | Path) -> Path:
    """Write `compare.html` from the `compare.json` and `queries.parquet` of a comparison.

    Args:
        folder: output folder of `steelyard.retrieval.compare`.

    Returns:
        The path of the report, a self-contained page.

    Raises:
        FileNotFoundError: no comparison was finished there.
        ValueError: a file is damaged.
        OSError: no room to write.
    """
    folder = Path(folder)
    found = read_json(folder / "compare.json")
    try:
        scores = pl.read_parquet(folder / "queries.parquet")
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{folder / 'queries.parquet'} is damaged ({error}); compare again.") from None
    return write_page(folder / "compare.html", "comparing.html", _content(found, scores))


def _content(found: dict[str, Any], scores: pl.DataFrame) -> dict[str, Any]:
    metric = found["metric"]
    cells = sorted(found["cells"], key=lambda c: -c["test"][metric]["mean"])
    best, second = cells[0], cells[1]
    differences = [_turned(d, [c["name"] for c in cells]) for d in found["differences"]]
    between = next(d for d in differences if (d["first"], d["second"]) == (best["name"], second["name"]))
    sure = [d for d in differences if d["p_holm"] < 0.05]
    one, two = scores[best["name"]], scores[second["name"]]
    text = "history" not in scores.columns
    spent = f" ({found['spent_minutes']:.3g} spent)" if "spent_minutes" in found else ""
    return {
        "title": "Comparison of models, losses and negatives",
        "lead": f"{len(cells)} contenders, about {found['minutes']:.3g} processor minutes in all{spent}; "
        f"{found['seeds']} {'seeds' if found['seeds'] > 1 else 'seed'}; {found['queries']:,} test queries over "
        f"{found['items']:,} {'documents' if text else 'items'}, the whole catalogue ranked.",
        "cards": _cards(metric, best, between, len(sure), len(differences)),
        "metric": metric,
        "cells": cells,
        "names": list(best["test"]),
        "differences": differences,
        "best": best["name"],
        "second": second["name"],
        "shares": {
            "ahead": float((one > two).mean() or 0),
            "behind": float((one < two).mean() or 0),
            "neither": float(((one == 0) & (two == 0)).mean() or 0),
        },
        "figures": {
            name: Markup(svg) if svg else ""
            for name, svg in _figures(found, cells, differences, scores).items()
        },
        "served": found.get("served"),
        "text": text,
        "notes": found.get("notes", []),
        "split": found.get("split"),
        "settings": found["settings"],
    }


def _cards(
    metric: str, best: dict[str, Any], between: dict[str, Any], sure: int, total: int
) -> list[dict[str, str]]:
    return [
        {"name": f"best {metric}", "value": f"{best['test'][metric]['mean']:.4f}", "note": best["name"]},
        {
            "name": "ahead of the next",
            "value": f"{between['difference']:+.4f}",
            "note": f"95 % {between['low']:+.4f} to {between['high']:+.4f}, Holm p {between['p_holm']:.2g}",
        },
        {"name": "differences shown", "value": f"{sure} of {total}", "note": "at 5 %, corrected for all"},
    ]


def _figures(
    found: dict[str, Any],
    cells: list[dict[str, Any]],
    differences: list[dict[str, Any]],
    scores: pl.DataFrame,
) -> dict[str, str]:
    metric, shown = found["metric"], cells[:SHOWN_CELLS]
    against = [d for d in differences if d["first"] == cells[0]["name"]][:SHOWN_DIFFERENCES]
    slices = cells[0].get("slices") or []
    told = [s for s, part in enumerate(slices) if part["targets"]]
    history = scores["history"].to_list() if "history" in scores.columns else []
    return {
        "bars": interval_rows([(c["name"], c["test"][metric], c["seeds"]) for c in cells], metric),
        "differences": difference_rows(
            [(d["second"], d["difference"], d["low"], d["high"], d["p_holm"] < 0.05) for d in against],
            f"{metric} of {cells[0]['name']} less that of the other",
        ),
        "scatter": query_scatter(
            _scores(scores, cells[0]), _scores(scores, cells[1]), cells[0]["name"], cells[1]["name"]
        ),
        "slices": grouped_bars(
            [f"{_place(s, len(slices))}\n{slices[s]['items']:,} items" for s in told],
            {c["name"]: [c["slices"][s]["recall"] for s in told] for c in shown},
            "share found in the first 20",
        )
        if len(told) > 1
        else "",
        "history": history_lines(history, {c["name"]: _scores(scores, c) for c in shown}, metric)
        if history
        else "",
        "traces": tuning_traces(found["trials"], [c["name"] for c in found["cells"]], f"validation {metric}"),
    }


def _scores(scores: pl.DataFrame, cell: dict[str, Any]) -> list[float]:
    values: list[float] = scores[cell["name"]].to_list()
    return values


def _turned(difference: dict[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """A difference with the better contender first."""
    if order.index(difference["first"]) < order.index(difference["second"]):
        return difference
    return difference | {
        "first": difference["second"],
        "second": difference["first"],
        "difference": -difference["difference"],
        "low": -difference["high"],
        "high": -difference["low"],
    }


def _place(index: int, count: int) -> str:
    return "most popular" if index == 0 else "rarest" if index == count - 1 else "middle"
