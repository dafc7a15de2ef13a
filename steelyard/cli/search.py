"""`steelyard search`: the best documents for a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.answers import show


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a finished `steelyard train` on text.")],
    text: Annotated[str, typer.Argument(help="What to search for.")],
    k: Annotated[int, typer.Option("-k", help="How many documents.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search the catalogue of a text model."""
    from steelyard.retrieval import Retriever

    show(Retriever.load(model).search([text], k), as_json)
