"""The report of a selection: what was drawn, from which weights, and whether to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from steelyard.files import read_json
from steelyard.reports.figures import length_scatter, weight_histogram
from steelyard.reports.pages import write_page


def write_selection_report(folder: str | Path) -> Path:
    """Write `report.html` from the `selection.json` of a selection.

    Args:
        folder: output folder of `steelyard.selection.select`.

    Returns:
        The path of the report, a self-contained page.

    Raises:
        FileNotFoundError: no selection was made there.
        ValueError: the file is damaged.
        OSError: no room to write.
    """
    folder = Path(folder)
    return write_page(
        folder / "report.html", "selecting.html", _content(read_json(folder / "selection.json"))
    )


def _content(found: dict[str, Any]) -> dict[str, Any]:
    check, settings, pictures = found["check"], found["settings"], found["pictures"]
    reduction, repeated = check.get("kl_reduction"), check.get("near_duplicates")
    khat = "no fit" if check["khat_tempered"] is None else f"{check['khat_tempered']:.2f}"
    cards = [
        {
            "name": "effective rows",
            "value": f"{check['effective_rows_tempered']:,.0f}",
            "note": f"under the weights that drew; {check['effective_rows']:,.1f} under those as they are",
        },
        {
            "name": "drawn again",
            "value": f"{check['drawn_again']:.0%}",
            "note": "of the draw would come with another seed too",
        },
        {
            "name": "toward the target",
            "value": "-" if reduction is None else f"{reduction:+.3f}",
            "note": "nats an n-gram nearer than an even draw",
        },
        {
            "name": "near-duplicates",
            "value": "-" if repeated is None else f"{repeated:.1%}",
            "note": f"of {check.get('looked_at', 0):,} rows looked at",
        },
    ]
    figures = {
        "weights": weight_histogram(pictures),
        "length": length_scatter(pictures["even_points"], pictures["drawn_points"]),
    }
    return {
        "title": "Selection",
        "lead": f"{found['selected']:,} of {check['rows']:,} rows ({found['bytes'] / 1e6:,.1f} MB in {found['files']:,} "
        f"files), scored by {settings['method']} and drawn by the design {settings['design']}, seed {settings['seed']}.",
        "cards": cards,
        "verdicts": found["verdicts"] or ["Nothing speaks against this draw."],
        "figures": {name: Markup(figure) for name, figure in figures.items()},
        "check": check,
        "khat": khat,
        "found": found,
        "settings": settings,
    }
