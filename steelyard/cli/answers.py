"""How answers are printed: a table for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

TEXT_WIDTH, PIPE_WIDTH = 100, 140


def show(answers: pl.DataFrame, as_json: bool) -> None:
    """Print answers; JSON is a list of objects with the columns' names."""
    if as_json:
        typer.echo(answers.write_json())
        return
    from rich.table import Table

    table = Table(*(name for name in answers.columns))
    for row in answers.iter_rows(named=True):
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    console().print(table)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, nothing elsewhere: call what it gives with a name, how much is done and of how much."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=screen, transient=True, disable=quiet or not screen.is_terminal,
    ) as bar:  # fmt: skip
        tasks: dict[str, Any] = {}

        def watch(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield watch


def console() -> Console:
    """Standard output; wide where it is not a terminal, so that tables are not folded."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def _cell(name: str, value: Any) -> str:
    from rich.markup import escape

    if isinstance(value, float):
        return f"{value:.4f}"
    text = " ".join(str(value).split())
    return (
        escape(text[:TEXT_WIDTH] + ("…" if len(text) > TEXT_WIDTH else ""))
        if name == "text"
        else escape(text)
    )
