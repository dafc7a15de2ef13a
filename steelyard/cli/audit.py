"""`steelyard audit`: what each kind of negative does to the gradient, on the person's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steelyard.cli.answers import console, progress
from steelyard.cli.train import roles_of

if TYPE_CHECKING:
    from steelyard.retrieval import ProposalAudit


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a finished `steelyard train`.")],
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA", help="Held-out pairs (ids), or pairs with several documents a query (text)."
        ),
    ],
    negatives: Annotated[
        str | None,
        typer.Option(
            help="Proposals, joined by commas: uniform,popularity:0.75,log-uniform,in-batch,top50+uniform,simans,"
            "best-of:4,clusters,midx,quadratic,fourier, and sums by +."
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(help="Draws of a query.")] = 1024,
    queries: Annotated[int, typer.Option(help="Queries looked at.")] = 512,
    repeats: Annotated[int, typer.Option(help="Repetitions of each proposal.")] = 32,
    format: Annotated[str, typer.Option(help="Of DATA: auto, csv, tsv, parquet, jsonl, adjacency.")] = "auto",
    columns: Annotated[
        str | None, typer.Option(help="user=..,item=.. or query=..,document=..,item=..")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of all draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for audit.json and audit.html; default the model's folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
) -> None:
    """Measure each proposal's bias, noise and cost against the full softmax gradient of a trained model.

    The page audit.html shows, for your catalogue and your model: how far off the gradient is with and without
    weights, the effective number of negatives, k-hat, false negatives, and microseconds a query; and which
    proposal to take.
    """
    from steelyard.reports import write_audit_report
    from steelyard.retrieval import Retriever, audit, read_interactions
    from steelyard.retrieval.auditing_job import DEFAULTS

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    retriever = Retriever.load(model)
    kind = "text" if retriever.item_texts is not None else "ids"
    pairs = read_interactions(data, format=format, columns=roles_of(columns), kind=kind)
    say(str(pairs.reading))
    folder = out or model
    specs = DEFAULTS if negatives is None else [word.strip() for word in negatives.split(",")]
    with progress(as_json) as watch:
        done = audit(
            retriever, pairs, specs, candidates, queries=queries, repeats=repeats, seed=seed, out=folder,
            watch=lambda n, total: watch("auditing", n, total), say=say,
        )  # fmt: skip
    report = write_audit_report(folder)
    if as_json:
        typer.echo(json.dumps(done.summary))
        return
    _print(done.audits, candidates, done.summary["queries"])
    for words in done.advice:
        typer.echo(f"- {words}")
    typer.echo(f"Report in {report}.")


def _print(audits: list[ProposalAudit], candidates: int, queries: int) -> None:
    from rich.table import Table

    heads = ("bias", "unweighed", "noise", "effective", "k-hat", "false", "push on false", "µs a query")
    table = Table(
        "negatives",
        *heads,
        title=f"{candidates:,} draws of a query, {queries:,} queries",
        title_justify="left",
    )
    for a in audits:
        table.add_row(
            a.name,
            f"{a.bias:.1%}",
            f"{a.bias_unweighed:.1%}",
            f"{a.noise:.1%}",
            f"{a.ess:,.0f}",
            "-" if a.khat != a.khat else f"{a.khat:.2f}",
            "-" if a.false_negatives is None else f"{a.false_negatives:.2%}",
            "-" if a.false_push is None else f"{a.false_push:.1%}",
            f"{a.microseconds:,.1f}",
        )
    console().print(table)
