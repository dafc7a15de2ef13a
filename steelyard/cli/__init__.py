"""The command line: one file a command, each of which parses, calls one function of a job and prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import steelyard
from steelyard.cli import audit, compare, mine, neighbours, recommend, search, select, train

app = typer.Typer(
    name="steelyard",
    help="Learn when the sum over everything is too large: score a few candidates, sample them with known "
    "probabilities, weigh each draw by what it stands for.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.command)
app.command("audit")(audit.command)
app.command("compare")(compare.command)
app.command("mine")(mine.command)
app.command("select")(select.command)
app.command("recommend")(recommend.command)
app.command("search")(search.command)
app.command("neighbours")(neighbours.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(steelyard.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See the commands below; each explains itself with --help."""


def main() -> None:
    """Run a command; what a person can mend is said in one line, without a traceback.

    Exit codes: 0 done, 2 input or settings to mend, 130 interrupted.
    """
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        typer.echo(
            f"error: not enough memory ({str(error).splitlines()[0]}); take a smaller --dim, --candidates or --batch",
            err=True,
        )
        sys.exit(2)
