"""The report of a comparison: who is better, by how much, and how each was tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from steelyard.files import read_json
from steelyard.reports.figures import interval_rows, query_scatter, tuning_traces
from steelyard.reports.pages import write_page

SHOWN_TRIALS = 9


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
    scores = pl.read_parquet(folder / "queries.parquet")
    return write_page(folder / "compare.html", "comparing.html", _content(found, scores))


def _content(found: dict[str, Any], scores: pl.DataFrame) -> dict[str, Any]:
    metric = found["metric"]
    cells = sorted(found["cells"], key=lambda c: -c["test"][metric]["mean"])
    best, second = cells[0], cells[1]
    between = next(
        d for d in found["differences"] if {d["first"], d["second"]} == {best["name"], second["name"]}
    )
    sign = 1 if between["first"] == best["name"] else -1
    low, high = sorted((sign * between["low"], sign * between["high"]))
    sure = [d for d in found["differences"] if d["p_holm"] < 0.05]
    return {
        "title": "Comparison of losses and negatives",
        "lead": f"{len(cells)} contenders, about {found['minutes']:.0f} processor minutes in all, {found['seeds']} seeds; "
        f"{found['queries']:,} test queries over {found['items']:,} items, the whole catalogue ranked.",
        "cards": [
            {"name": f"best {metric}", "value": f"{best['test'][metric]['mean']:.4f}", "note": best["name"]},
            {
                "name": "ahead of the next",
                "value": f"{sign * between['difference']:+.4f}",
                "note": f"95 % {low:+.4f} to {high:+.4f}, Holm p {between['p_holm']:.2g}",
            },
            {
                "name": "differences shown",
                "value": f"{len(sure)} of {len(found['differences'])}",
                "note": "at 5 %, corrected for all",
            },
        ],
        "metric": metric,
        "cells": cells,
        "names": list(best["test"]),
        "differences": found["differences"],
        "bars": Markup(interval_rows([(c["name"], c["test"][metric], c["seeds"]) for c in cells], metric)),
        "scatter": Markup(
            query_scatter(
                scores[best["name"]].to_list(), scores[second["name"]].to_list(), best["name"], second["name"]
            )
        ),
        "traces": Markup(tuning_traces(found["trials"], [c["name"] for c in found["cells"]], metric)),
        "settings": found["settings"],
    }
