"""`steelyard select`: rows of a corpus that look like a target, drawn with known probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.answers import console, progress


def command(
    raw: Annotated[
        list[str],
        typer.Argument(
            metavar="RAW",
            help="The corpus: files, folders or patterns; .jsonl, .parquet or .txt, plain, .gz, .zst or .bz2.",
        ),
    ],
    n: Annotated[int, typer.Option("-n", "--rows", help="Rows to select.")],
    target: Annotated[
        list[str] | None, typer.Option(help="What it should look like, likewise; repeat for several.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="What scores the rows: dsir, classifier, betr or random.")
    ] = "dsir",
    design: Annotated[
        str, typer.Option(help="How rows are drawn: resample, top, poisson or stratified.")
    ] = "resample",
    temper: Annotated[
        str,
        typer.Option(
            help="none, length, ess=ROWS (below 1: a share of them), again=SHARE, or length,ess=.. or length,again=.."
        ),
    ] = "none",
    text_field: Annotated[str, typer.Option(help="Field or column with the text.")] = "text",
    n_grams: Annotated[int, typer.Option(help="Longest n-gram, in tokens.")] = 2,
    buckets: Annotated[int, typer.Option(help="Hash buckets of the n-grams.")] = 10_000,
    smoothing: Annotated[float, typer.Option(help="Count added to every bucket.")] = 1.0,
    min_tokens: Annotated[int, typer.Option(help="Shorter texts are left out, and counted.")] = 1,
    strata: Annotated[int, typer.Option(help="Parts of the stratified design.")] = 10,
    workers: Annotated[int, typer.Option(help="Threads of the local engine.")] = 2,
    engine: Annotated[str, typer.Option(help="local, or ray for many machines (extra ray).")] = "local",
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/selection"),
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first line that cannot be used, not count it.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a killed selection.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier one left.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Select rows of a corpus that look like a target, with weights, inclusion probabilities and a self-check.

    The corpus is streamed in bounded memory; the draw depends on the seed and the texts alone. Writes
    selected/ (rows as they stand, in their formats), weights.parquet, selection.json and report.html.
    """
    from steelyard.reports import write_selection_report
    from steelyard.selection import SelectConfig, select

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    config = SelectConfig(
        n, method, design, temper, text_field, n_grams, buckets, smoothing, min_tokens, strata, seed, strict  # type: ignore[arg-type]
    )  # fmt: skip
    with progress(as_json) as watch:
        done = select(
            raw, target or [], config, out=out, workers=workers, engine=engine, resume=resume, overwrite=overwrite,
            watch=watch, say=say,
        )  # fmt: skip
    report = write_selection_report(done.folder)
    if as_json:
        typer.echo(json.dumps(done.summary))
        return
    _print(done.summary)
    typer.echo(
        f"Rows in {done.folder / 'selected'}, weights in {done.folder / 'weights.parquet'}, report in {report}."
    )


def _print(summary: dict[str, Any]) -> None:
    from rich.table import Table

    check = summary["check"]
    table = Table(
        show_header=False, title=f"{summary['selected']:,} of {check['rows']:,} rows", title_justify="left"
    )
    for name, value in lines_of(check):
        table.add_row(name, value)
    console().print(table)
    for kind, count in summary["faults"]["counts"].items():
        typer.echo(f"- {count:,} lines: {kind}")
    for example in summary["faults"]["examples"]:
        typer.echo(f"    {example}")
    if check["short"]:
        typer.echo(f"- {check['short']:,} rows have fewer than {summary['settings']['min_tokens']} tokens")
    if summary["copies_of_selected"]:
        typer.echo(
            f"- {summary['copies_of_selected']:,} more rows are copies of selected ones, and were left out"
        )
    for verdict in summary["verdicts"]:
        typer.echo(f"! {verdict}")


def lines_of(check: dict[str, Any]) -> list[tuple[str, str]]:
    """The self-check in words and figures."""
    khat = "no fit" if check["khat_tempered"] is None else f"{check['khat_tempered']:.2f}"
    lines = [
        ("effective rows under the weights", f"{check['effective_rows']:,.1f}"),
        ("... as they drew", f"{check['effective_rows_tempered']:,.1f} (power {check['exponent']:.4g})"),
        ("k-hat", f"{khat} (limit {check['khat_threshold']:.2f})"),
        ("correlation of log-weight and length", f"{check['length_correlation']:+.2f}"),
        ("drawn again with another seed", f"{check['drawn_again']:.1%}"),
        ("among the highest scores", f"{check['among_top']:.1%}"),
    ]
    if check.get("kl_reduction") is not None:
        lines.append(
            ("nearer to the target than an even draw by", f"{check['kl_reduction']:+.4f} nats an n-gram")
        )
    if check.get("near_duplicates") is not None:
        lines.append(("near-duplicates", f"{check['near_duplicates']:.1%} of {check['looked_at']:,} rows"))
    return lines
