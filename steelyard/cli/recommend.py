"""`steelyard recommend`: the best items for a user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.answers import show


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a finished `steelyard train`.")],
    user: Annotated[
        list[str] | None, typer.Option(help="User id as in the training file; repeat for several.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(help="For sequence: item ids, the oldest first, joined by commas; repeat for several."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also items the user took in training.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend items to users, or after histories, those they took before left out."""
    from steelyard.retrieval import Retriever

    if bool(user) == bool(after):
        raise ValueError("Give --user ID, or for a model of sequences --after ITEM,ITEM,...; not both.")
    hide, retriever = False if include_seen else None, Retriever.load(model)
    if user:
        show(retriever.recommend(user, k, exclude_seen=hide), as_json)
    else:
        histories = [[item.strip() for item in line.split(",")] for line in after or []]
        show(retriever.recommend_after(histories, k, exclude_seen=hide), as_json)
