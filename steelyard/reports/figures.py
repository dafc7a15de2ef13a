"""The pictures of a report, as SVG text that goes into a page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

INK, ACCENT, SECOND, PALE, VIOLET, GRID = "#22303c", "#0f6b6b", "#c4622d", "#9aa7b0", "#6b5b95", "#e8ecee"
BASE_COLOURS = (ACCENT, PALE, SECOND, VIOLET)
VARIABLES = {INK: "ink", ACCENT: "accent", SECOND: "second", PALE: "faint", VIOLET: "violet", GRID: "grid"}
"""The page's names of the colours, by which it changes them in the dark."""


def new_figure(width: float = 5.2, height: float = 2.9, *, grid: str = "y") -> tuple[Figure, Axes]:
    """An empty picture; half the page wide as it is, 10.6 for the whole."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(colors=INK, labelsize=8, length=3)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    return figure, axes


def name_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Say what the axes are."""
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)


def svg_of(figure: Figure) -> str:
    """The picture as SVG for a page: colours by the page's names, no metadata, and no names that other pictures have."""
    buffer = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "steelyard", "font.family": "sans-serif"}
    ):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    for colour, name in VARIABLES.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    kind = "wide" if figure.get_figwidth() > 7 else "half"
    return text.replace("<svg ", f'<svg class="{kind}" role="img" ', 1)


def curve(
    x: Sequence[float],
    y: Sequence[float],
    *,
    label_x: str,
    label_y: str,
    mark: int | None = None,
    colour: str = ACCENT,
) -> str:
    """A line, with the chosen point marked."""
    figure, axes = new_figure()
    axes.plot(x, y, color=colour, linewidth=1.6, marker="o" if len(x) < 60 else None, markersize=2.5)
    if mark is not None:
        axes.plot(
            [x[mark]], [y[mark]], "o", color=SECOND, markersize=7, markerfacecolor="none", markeredgewidth=1.8
        )
        axes.annotate(
            "chosen",
            (x[mark], y[mark]),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_axes(axes, label_x, label_y)
    return svg_of(figure)


def metric_bars(rows: Mapping[str, Mapping[str, Mapping[str, float]]], names: Sequence[str]) -> str:
    """Groups of bars, one group a metric and one bar a row, with their intervals."""
    figure, axes = new_figure(10.6, 3.0)
    width = 0.8 / len(rows)
    for r, (row, values) in enumerate(rows.items()):
        means = [values[name]["mean"] for name in names]
        ends = [(values[name]["low"], values[name]["high"]) for name in names]
        # A single query has no interval.
        below = [0.0 if low is None else max(0.0, m - low) for m, (low, _) in zip(means, ends, strict=True)]
        above = [
            0.0 if high is None else max(0.0, high - m) for m, (_, high) in zip(means, ends, strict=True)
        ]
        places = [i + (r - (len(rows) - 1) / 2) * width for i in range(len(names))]
        axes.bar(places, means, width * 0.92, color=BASE_COLOURS[r % 4], label=row)
        axes.errorbar(places, means, [below, above], fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    axes.set_xticks(range(len(names)), names)
    axes.legend(frameon=False, fontsize=8, ncols=len(rows), loc="upper left", bbox_to_anchor=(0, 1.14))
    return svg_of(figure)


def slice_bars(slices: Sequence[Mapping[str, Any]], labels: Sequence[str], values: Sequence[float]) -> str:
    """One bar a popularity slice."""
    figure, axes = new_figure()
    axes.bar(range(len(slices)), values, 0.6, color=ACCENT)
    for i, value in enumerate(values):
        axes.annotate(
            f"{value:.3f}",
            (i, value),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    axes.set_xticks(range(len(slices)), labels, fontsize=8)
    axes.set_ylabel("share found in the first 20", fontsize=9, color=INK)
    return svg_of(figure)


def error_bars(rows: Sequence[Mapping[str, Any]]) -> str:
    """For each proposal its bias with weights and without, and its noise."""
    figure, axes = new_figure(10.6, 0.9 + 0.62 * len(rows), grid="x")
    kinds = (
        ("bias", "bias, weighed", ACCENT),
        ("bias_unweighed", "bias, unweighed", SECOND),
        ("noise", "noise of a step", PALE),
    )
    for k, (key, label, colour) in enumerate(kinds):
        places = [i + (k - 1) * 0.27 for i in range(len(rows))]
        axes.barh(places, [row[key] for row in rows], 0.24, color=colour, label=label)
        if key == "bias":
            below = [row["bias"] - row["bias_low"] for row in rows]
            above = [row["bias_high"] - row["bias"] for row in rows]
            values = [row["bias"] for row in rows]
            axes.errorbar(
                values, places, xerr=[below, above], fmt="none", ecolor=INK, elinewidth=1, capsize=2
            )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0))
    return svg_of(figure)


def cost_and_error(rows: Sequence[Mapping[str, Any]], error: Mapping[str, float]) -> str:
    """Each proposal as a point: microseconds a query, and the error of a step."""
    figure, axes = new_figure(10.6, 3.6)
    for i, row in enumerate(rows):
        x, y = max(row["microseconds"], 1e-3), error[row["name"]]
        axes.plot([x], [y], "o", color=BASE_COLOURS[i % 4], markersize=7)
        axes.annotate(row["name"], (x, y), xytext=(7, 3), textcoords="offset points", fontsize=8, color=INK)
    axes.set_xscale("log")
    axes.margins(x=0.18, y=0.2)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    name_axes(axes, "microseconds to draw and score a query's candidates", "error of one step")
    return svg_of(figure)


def weight_histogram(pictures: Mapping[str, Any]) -> str:
    """Log-weights of all rows and of the drawn ones, each as shares, on bins of equal width."""
    figure, axes = new_figure()
    bins = len(pictures["all"])
    low, high = pictures["low"], max(pictures["high"], pictures["low"] + 1e-9)
    edges = [low + (high - low) * k / bins for k in range(bins + 1)]
    for values, label, colour in (
        (pictures["all"], "all rows", PALE),
        (pictures["drawn"], "drawn", ACCENT),
    ):
        total = max(sum(values), 1)
        axes.stairs([v / total for v in values], edges, fill=True, color=colour, alpha=0.7, label=label)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    name_axes(axes, "log-weight", "share of the rows")
    axes.legend(frameon=False, fontsize=8)
    return svg_of(figure)


def length_scatter(even: Sequence[Sequence[float]], drawn: Sequence[Sequence[float]]) -> str:
    """Tokens against log-weight: an even draw, and the selection."""
    figure, axes = new_figure()
    for (x, y), label, colour in ((even, "even draw", PALE), (drawn, "drawn", ACCENT)):
        axes.plot([max(v, 1) for v in x], y, "o", color=colour, markersize=2.5, alpha=0.5, label=label)
    values = sorted([*even[1], *drawn[1]])
    if (
        values and (low := values[len(values) // 100]) < values[-1]
    ):  # a few far rows would press the others together
        axes.set_ylim(low - 0.05 * (values[-1] - low), values[-1] + 0.05 * (values[-1] - low))
    axes.set_xscale("log")
    name_axes(axes, "tokens", "log-weight")
    axes.legend(frameon=False, fontsize=8)
    return svg_of(figure)
