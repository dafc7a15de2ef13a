"""`steelyard compare`: losses and negatives side by side on the person's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.cli.answers import console, progress
from steelyard.cli.train import read_pairs, roles_of

if TYPE_CHECKING:
    from steelyard.evaluation import PairedDifference


def command(
    data: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files or folders, as `steelyard train` reads.")
    ],
    losses: Annotated[str, typer.Option(help="Joined by commas: softmax,bsl.")] = "softmax,bsl",
    negatives: Annotated[
        str, typer.Option(help="Joined by commas: uniform,popularity:0.75,in-batch+uniform,...")
    ] = "uniform",
    budget: Annotated[float, typer.Option(help="Processor minutes for all together, about.")] = 30.0,
    seeds: Annotated[int, typer.Option(help="Final trainings of each contender.")] = 3,
    test: Annotated[
        list[str] | None, typer.Option(help="Held-out file or folder; repeat for several.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="auto, csv, tsv, parquet, jsonl, adjacency or sessions.")
    ] = "auto",
    columns: Annotated[
        str | None, typer.Option(help="user=..,item=..,time=.. or query=..,document=..,item=..")
    ] = None,
    split: Annotated[str, typer.Option(help="How to hold out: random, leave-last-out or time.")] = "random",
    model: Annotated[
        str | None, typer.Option(help="mf (ids) or text; default: what the columns say.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What decides, such as ndcg@20.")] = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors, the same for all.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for many machines (extra ray).")] = "local",
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/compare"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a killed comparison.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier one left.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Compare losses and negatives: an equal tuning budget each, the test once, intervals query by query.

    Every pair of a loss and a kind of negatives gets the same processor time for nine settings that race on
    validation data; the winner is trained with several seeds and measured on the test. Writes compare.json,
    queries.parquet (the metric of each query) and compare.html.
    """
    from steelyard.reports import write_comparison_report
    from steelyard.retrieval import Cell, TrainConfig, compare

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    pairs, held = read_pairs(data, test, format, roles_of(columns), model)
    say(str(pairs.reading))
    cells = [Cell(loss.strip(), kind.strip()) for loss in losses.split(",") for kind in negatives.split(",")]
    config = TrainConfig.of("text" if pairs.is_text else "mf", metric=metric, dim=dim, seed=seed)
    with progress(as_json) as watch:
        done = compare(
            pairs, held, cells, minutes=budget, out=out, seeds=seeds, config=config, split_by=split, engine=engine,
            resume=resume, overwrite=overwrite, watch=lambda n, total: watch("runs", n, total), say=say,
        )  # fmt: skip
    report = write_comparison_report(out)
    if as_json:
        typer.echo(json.dumps(done.summary))
        return
    _print(done.summary, done.differences)
    typer.echo(f"Report in {report}.")


def _print(summary: dict[str, Any], differences: list[PairedDifference]) -> None:
    from rich.table import Table

    metric = summary["metric"]
    table = Table(
        "loss, negatives", f"test {metric}", "validation", "epochs", "CPU s", "settings",
        title=f"{summary['queries']:,} test queries, {summary['seeds']} seeds", title_justify="left",
    )  # fmt: skip
    for cell in sorted(summary["cells"], key=lambda c: -c["test"][metric]["mean"]):
        test = cell["test"][metric]
        settings = ", ".join(f"{k} {v}" for k, v in cell["settings"].items()) or "defaults"
        table.add_row(
            cell["name"], f"{test['mean']:.4f} [{test['low']:.4f}, {test['high']:.4f}]", f"{cell['validation']:.4f}",
            str(cell["epochs"]), f"{cell['cpu_seconds']:.0f}", settings,
        )  # fmt: skip
    console().print(table)
    for difference in differences:
        typer.echo(f"- {difference}")
