"""Pictures of how well users are served, by how much they took before."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from steelyard.reports.figures import ACCENT, PALE, SECOND, VIOLET, name_axes, new_figure, svg_of

COLOURS = (ACCENT, SECOND, VIOLET, PALE)
GROUPS, DOTS = 5, 2000


def history_groups(history: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Queries in at most five groups of about equal size by how much their user took before.

    Args:
        history: items each query's user took in training.

    Returns:
        Name and queries of each group, the shortest histories first; equal counts are never parted.
    """
    rising = sorted(history)
    groups: dict[int, list[int]] = {}
    for query in sorted(range(len(history)), key=lambda q: history[q]):
        fewer = bisect_left(rising, history[query])
        groups.setdefault(fewer * GROUPS // len(history), []).append(query)
    found = []
    for group in groups.values():
        low, high = history[group[0]], history[group[-1]]
        found.append((f"{low:,}" if low == high else f"{low:,} to {high:,}", group))
    return found


def means_of(
    values: Sequence[float], groups: Sequence[tuple[str, Sequence[int]]]
) -> list[tuple[float, float]]:
    """Mean of each group, and 1.96 standard errors."""
    found = []
    for _, group in groups:
        some = [values[q] for q in group]
        mean = math.fsum(some) / len(some)
        spread = math.fsum((v - mean) ** 2 for v in some) / max(len(some) - 1, 1)
        found.append((mean, 1.96 * math.sqrt(spread / len(some))))
    return found


def history_lines(history: Sequence[int], cells: Mapping[str, Sequence[float]], label: str) -> str:
    """The mean of each contender by how much a user took before, with intervals; empty where all took as much."""
    groups = history_groups(history)
    if len(groups) < 2:
        return ""
    figure, axes = new_figure(10.6, 3.6)
    for c, (name, values) in enumerate(cells.items()):
        found = means_of(values, groups)
        places = [i + 0.07 * (c - (len(cells) - 1) / 2) for i in range(len(groups))]
        axes.errorbar(
            places, [m for m, _ in found], [e for _, e in found], color=COLOURS[c % 4], marker="o", markersize=4,
            linewidth=1.5, elinewidth=1, capsize=2, label=name,
        )  # fmt: skip
    axes.set_xticks(range(len(groups)), [f"{name}\n{len(group):,}" for name, group in groups], fontsize=8)
    axes.set_ylim(bottom=0)
    name_axes(axes, "items taken in training, and how many queries", label)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg_of(figure)


def history_scatter(history: Sequence[int], values: Sequence[float], label: str) -> str:
    """A dot a user, at most 2,000 evenly taken, and the means of groups of users; empty where all took as much."""
    groups = history_groups(history)
    if len(groups) < 2:
        return ""
    figure, axes = new_figure(10.6, 3.0)
    step = -(-len(history) // DOTS)
    at = [max(h, 0.7) for h in history]
    axes.plot(at[::step], values[::step], "o", color=ACCENT, markersize=2.5, alpha=0.3, markeredgewidth=0)
    found = means_of(values, groups)
    middles = [math.exp(math.fsum(math.log(at[q]) for q in group) / len(group)) for _, group in groups]
    axes.errorbar(
        middles, [m for m, _ in found], [e for _, e in found], color=SECOND, marker="o", markersize=4, linewidth=1.6,
        elinewidth=1, capsize=2,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    name_axes(axes, "items taken in training", label)
    return svg_of(figure)
