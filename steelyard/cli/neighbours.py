"""`steelyard neighbours`: the items closest to an item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.answers import show


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a finished `steelyard train`.")],
    item: Annotated[list[str], typer.Option(help="Item id as in the training file; repeat for several.")],
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the items closest to an item by the model's similarity."""
    from steelyard.retrieval import Retriever

    show(Retriever.load(model).neighbours(item, k), as_json)
