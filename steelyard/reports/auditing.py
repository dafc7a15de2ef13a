"""The report of an audit: what each proposal does to the gradient, and what to take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from steelyard.files import read_json
from steelyard.reports.figures import cost_and_error, error_bars
from steelyard.reports.pages import write_page


def write_audit_report(folder: str | Path) -> Path:
    """Write `audit.html` from the `audit.json` of an audit.

    Args:
        folder: output folder of `steelyard.retrieval.audit`.

    Returns:
        The path of the report, a self-contained page.

    Raises:
        FileNotFoundError: no audit was made there.
        ValueError: the file is damaged.
        OSError: no room to write.
    """
    folder = Path(folder)
    found = read_json(folder / "audit.json")
    return write_page(folder / "audit.html", "auditing.html", _content(found))


def _content(found: dict[str, Any]) -> dict[str, Any]:
    rows = found["proposals"]
    error = {row["name"]: math.hypot(row["bias"], row["noise"]) for row in rows}
    best = min(rows, key=lambda row: error[row["name"]])
    worst = max(rows, key=lambda row: row["bias_unweighed"])
    return {
        "title": "Audit of negatives",
        "lead": f"{len(rows)} proposals at {found['candidates']:,} draws of a query, measured against the full softmax "
        f"gradient over {found['items']:,} items on {found['queries']:,} queries, {found['repeats']} times each.",
        "cards": [
            {
                "name": "least error",
                "value": best["name"],
                "note": f"{error[best['name']]:.0%} of the gradient a step",
            },
            {
                "name": "farthest off without weights",
                "value": f"{worst['bias_unweighed']:.0%}",
                "note": f"{worst['name']}; with weights {worst['bias']:.0%}",
            },
            {
                "name": "effective negatives",
                "value": f"{max(row['ess'] for row in rows):,.0f}",
                "note": f"the most, of {found['candidates']:,} draws",
            },
            {
                "name": "held-out positives",
                "value": f"{found['held_out']:,}",
                "note": "drawn by mistake they are false negatives",
            },
        ],
        "advice": found["advice"],
        "rows": [row | {"error": error[row["name"]]} for row in rows],
        "bars": Markup(error_bars(rows)),
        "scatter": Markup(cost_and_error(rows, error)),
    }
