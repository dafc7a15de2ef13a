"""`steelyard recommend`: the best items for a user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.answers import show


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a finished `steelyard train`.")],
    user: Annotated[list[str], typer.Option(help="User id as in the training file; repeat for several.")],
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also items the user took in training.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend items to users, those they took in training left out."""
    from steelyard.retrieval import Retriever

    show(Retriever.load(model).recommend(user, k, exclude_seen=not include_seen), as_json)
