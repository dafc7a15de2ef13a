"""How answers are printed: a table for people, JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import polars as pl

TEXT_WIDTH = 100


def show(answers: pl.DataFrame, as_json: bool) -> None:
    """Print answers; JSON is a list of objects with the columns' names."""
    if as_json:
        typer.echo(answers.write_json())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*(name for name in answers.columns))
    for row in answers.iter_rows(named=True):
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    Console().print(table)


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
