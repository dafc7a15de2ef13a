"""The pictures of a comparison: intervals, differences, queries and slices of its contenders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from steelyard.reports.figures import ACCENT, INK, PALE, SECOND, VIOLET, name_axes, new_figure, svg_of

COLOURS = (ACCENT, SECOND, VIOLET, PALE)
GRID_STEPS = 20


def interval_rows(rows: Sequence[tuple[str, Mapping[str, float], Sequence[float]]], label: str) -> str:
    """A bar a contender up to its mean, with the interval, and a mark for each seed."""
    figure, axes = new_figure(10.6, 0.9 + 0.42 * len(rows), grid="x")
    means = [value["mean"] for _, value, _ in rows]
    ends = [[v["mean"] - v["low"] for _, v, _ in rows], [v["high"] - v["mean"] for _, v, _ in rows]]
    axes.barh(range(len(rows)), means, 0.62, color=ACCENT, alpha=0.35)
    axes.errorbar(
        means, range(len(rows)), xerr=ends, fmt="o", color=ACCENT, ecolor=INK, markersize=6, capsize=3
    )
    for i, (_, _, seeds) in enumerate(rows):
        axes.plot(seeds, [i] * len(seeds), "|", color=SECOND, markersize=13, markeredgewidth=1.8)
    _name_rows(axes, [name for name, _, _ in rows])
    axes.set_xlim(left=0)
    name_axes(axes, label)
    return svg_of(figure)


def difference_rows(rows: Sequence[tuple[str, float, float, float, bool]], label: str) -> str:
    """A line a difference with its interval about zero; coloured where it is shown at 5 %."""
    figure, axes = new_figure(10.6, 0.9 + 0.38 * len(rows), grid="x")
    axes.axvline(0, color=INK, linewidth=1)
    for i, (_, difference, low, high, sure) in enumerate(rows):
        colour = ACCENT if sure else PALE
        axes.plot([low, high], [i, i], color=colour, linewidth=2.4)
        axes.plot([difference], [i], "o", color=colour, markersize=7)
    _name_rows(axes, [name for name, *_ in rows])
    name_axes(axes, label)
    return svg_of(figure)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)


def query_scatter(first: Sequence[float], second: Sequence[float], label: str, other: str) -> str:
    """Queries by their scores under two contenders, in cells of 0.05; the area of a dot is their number.

    Queries that both score 0 are left out, since their dot would hide the others.
    """
    figure, axes = new_figure(5.2, 4.6)
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a > 0 or b > 0]
    found = Counter((round(a * GRID_STEPS), round(b * GRID_STEPS)) for a, b in pairs)
    most = max(found.values(), default=1)
    end = 1.05 * max((max(pair) for pair in pairs), default=1.0)
    axes.plot([0, end], [0, end], color=PALE, linewidth=1)
    for way, colour in ((0, PALE), (1, ACCENT), (-1, SECOND)):
        some = [(a, b, n) for (a, b), n in found.items() if (a > b) - (a < b) == way]
        axes.scatter(
            [b / GRID_STEPS for _, b, _ in some],
            [a / GRID_STEPS for a, _, _ in some],
            [max(6.0, 220 * n / most) for *_, n in some],
            color=colour,
            alpha=0.7,
            linewidths=0,
        )
    axes.set_xlim(-0.05 * end, end)
    axes.set_ylim(-0.05 * end, end)
    axes.set_aspect("equal")
    name_axes(axes, other, label)
    return svg_of(figure)


def grouped_bars(groups: Sequence[str], cells: Mapping[str, Sequence[float | None]], label: str) -> str:
    """Groups of bars, one bar a contender."""
    figure, axes = new_figure(5.2, 4.6)
    width = 0.84 / len(cells)
    for c, (name, values) in enumerate(cells.items()):
        places = [i + (c - (len(cells) - 1) / 2) * width for i in range(len(groups))]
        axes.bar(places, [v or 0.0 for v in values], width * 0.92, color=COLOURS[c % 4], label=name)
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    name_axes(axes, y=label)
    legend_above(axes)
    return svg_of(figure)


def legend_above(axes: Axes) -> None:
    """One line a contender, above the picture."""
    axes.legend(frameon=False, fontsize=8, ncols=1, loc="lower left", bbox_to_anchor=(0, 1.0))


def tuning_traces(trials: Sequence[Mapping[str, Any]], names: Sequence[str], label: str) -> str:
    """Validation scores of the settings of each contender against the epochs that they were given."""
    figure, axes = new_figure(10.6, 3.4)
    for c, name in enumerate(names):
        mine = [t for t in trials if t["cell"] == c and t["seed"] == 0 and not t["tested"]]
        colour, line = COLOURS[c % 4], ("-", "--", ":", "-.")[c // 4 % 4]
        axes.plot([t["epochs"] for t in mine], [t["validation"] for t in mine], "o", color=colour, markersize=4, alpha=0.5)  # fmt: skip
        best: dict[int, float] = {}
        for t in mine:
            best[t["epochs"]] = max(best.get(t["epochs"], 0.0), t["validation"])
        axes.plot(
            sorted(best), [best[e] for e in sorted(best)], line, color=colour, linewidth=1.5, label=name
        )
    axes.set_xscale("log")
    name_axes(axes, "epochs", label)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg_of(figure)
