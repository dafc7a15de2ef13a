"""The mining job: blocks of queries, each finished once, into one table of negatives with its reasons."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from steelyard.files import alone_in, check_job_folder, check_plan, check_writable, replacing, write_json
from steelyard.ray_engine import on_ray
from steelyard.retrieval.bounded_search import CodedItems, code_items
from steelyard.retrieval.collection import Collection, vectors_fingerprint
from steelyard.retrieval.index import top_k
from steelyard.retrieval.layouts import LAYOUTS, arranged
from steelyard.retrieval.mining import MiningRules, Negatives, Search, check_vectors, pick_negatives

SUMMARY, PLAN, PARTS = "mining.json", "plan.json", "parts"
BLOCK = 1024
"""Queries a block: the unit of resuming, of the draw's generator and of the work that machines share."""
AT_ONCE = 8
Found = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class MinedTable:
    """What a mining job leaves.

    Args:
        path: the table of negatives.
        summary: what `mining.json` holds.
    """

    path: Path
    summary: dict[str, Any]


def check_job(out: str | Path, layout: str, format: str, engine: str, resume: bool, overwrite: bool) -> None:
    """Refuse what a mining job cannot do, before anything dear is done for it.

    Raises:
        FileExistsError: `out` holds something, and neither `resume` nor `overwrite` was given.
        ValueError: an unknown layout, format or engine.
        OSError: nothing can be written there.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.")
    if format not in ("parquet", "jsonl"):
        raise ValueError(f"format must be parquet or jsonl, got {format!r}.")
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be local or ray, got {engine!r}.")
    folder = Path(out).expanduser()
    _check_folder(folder, resume, overwrite)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder)
    if made:
        folder.rmdir()


def mine(
    collection: Collection,
    queries: Tensor,
    documents: Tensor,
    rules: MiningRules | None = None,
    *,
    out: str | Path,
    layout: str = "table",
    format: str = "parquet",
    keep_removed: bool = False,
    search: Search | None = None,
    searched_by: str = "exact",
    engine: str = "local",
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> MinedTable:
    """Mine hard negatives for every query, in bounded memory, into one table.

    Blocks of 1,024 queries are searched, ruled and drawn from, and each is written once finished; `resume`
    goes on behind the last. The result depends on the seed and the data alone: not on the engine, nor on
    where the job was killed. Memory: both sets of vectors, and a block's scores.

    Args:
        collection: queries, documents and positives.
        queries: float, (Q, d).
        documents: float, (I, d).
        rules: what is looked at and taken.
        out: folder for the table, `removed.parquet` and `mining.json`.
        layout: "table" (query, negative, rank, score, positive_score, log_expected), or as trainers read it:
            "triplet", "n-tuple", "labeled-pair", "labeled-list".
        format: "parquet" or "jsonl".
        keep_removed: write the candidates that were dropped too, each with its reason.
        search: another search than the exact one.
        searched_by: its name, written into the summary and checked when a job is resumed.
        engine: "local", or "ray" to share the blocks among the workers of a Ray cluster.
        resume: go on behind the finished blocks of a killed job.
        overwrite: replace what an earlier job left.
        watch: called with the number of queries done and in all.

    Returns:
        Where the table is, and the summary.

    Raises:
        FileExistsError: `out` holds something, and neither `resume` nor `overwrite` was given.
        ImportError: the engine is not installed.
        ValueError: vectors and collection do not fit; the unfinished job was another one.
        OSError: no room to write.
    """
    rules = rules or MiningRules()
    check_job(out, layout, format, engine, resume, overwrite)
    for name, vectors, ids in (
        ("query", queries, collection.query_ids),
        ("document", documents, collection.document_ids),
    ):
        if len(vectors) != len(ids):
            raise ValueError(
                f"{len(vectors):,} {name} vectors do not fit {len(ids):,} {name} ids: were they made from "
                "another collection?"
            )
    check_vectors(queries, documents, collection.positives)
    folder = Path(out).expanduser()
    plan = {
        "collection": collection.fingerprint(),
        "queries": vectors_fingerprint(queries),
        "documents": vectors_fingerprint(documents),
        "rules": rules.to_dict(),
        "search": searched_by,
        "keep_removed": keep_removed,
    }
    started = time.monotonic()
    parts = folder / PARTS
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _check_folder(folder, resume, overwrite)  # again: another job may have just finished
        parts.mkdir(exist_ok=True)
        _same_plan(folder, plan, resume)
        blocks = range(0, len(queries), BLOCK)
        todo = [start for start in blocks if not _whole_part(_part(parts, start))]
        done = len(queries) - sum(min(BLOCK, len(queries) - start) for start in todo)
        coded = code_items(documents, queries, rules.range_max) if search is None else None
        work = _Work(collection, queries, documents, rules, search, keep_removed, coded)
        run = _on_ray if engine == "ray" else _here
        for start, table in run(work, todo):
            with replacing(_part(parts, start)) as temporary:
                pq.write_table(table, temporary)
            done += min(BLOCK, len(queries) - start)
            if watch is not None:
                watch(done, len(queries))
        tables = [_part(parts, start) for start in blocks]
        path = folder / f"negatives.{format}"
        rows = arranged(tables, collection, layout, rules.negatives, path)
        if keep_removed:
            arranged(tables, collection, "removed", rules.negatives, folder / "removed.parquet")
        summary = _summary(tables, len(queries)) | {
            "documents": len(documents),
            "layout": layout,
            "rows": rows,
            "rules": rules.to_dict(),
            "search": searched_by,
            "vectors": {"queries": plan["queries"], "documents": plan["documents"]},
            "seconds": round(time.monotonic() - started, 1),
        }
        write_json(folder / SUMMARY, summary)
        for table_path in tables:
            table_path.unlink()
        parts.rmdir()
        (folder / PLAN).unlink()
    return MinedTable(path, summary)


@dataclass(frozen=True)
class _Work:
    """What a block needs; shared by all of them."""

    collection: Collection
    queries: Tensor
    documents: Tensor
    rules: MiningRules
    search: Search | None
    keep_removed: bool
    coded: CodedItems | None

    def rows(self, start: int, blocks: int = 1) -> Tensor:
        return torch.arange(start, min(start + blocks * BLOCK, len(self.queries)))

    def found(self, rows: Tensor) -> Found:
        """The best documents of some queries, their positives left out."""
        queries, positives = self.queries[rows], self.collection.positives.take(rows)
        if self.search is not None:
            return self.search(queries, positives)
        documents = self.documents if self.coded is None else self.coded.items  # the same, on any machine
        return top_k(queries, documents, self.rules.range_max, exclude=positives, coded=self.coded)

    def block(self, start: int, found: Found | None = None) -> pa.Table:
        rows = self.rows(start)
        best = self.found(rows) if found is None else found
        generator = torch.Generator().manual_seed(self.rules.seed * 1_000_003 + start)
        mined = pick_negatives(
            self.queries[rows],
            self.documents,
            self.collection.positives.take(rows),
            self.rules,
            best,
            alike=self.collection.alike,
            generator=generator,
        )
        return _table(mined, start, self.keep_removed)


def _table(found: Negatives, start: int, keep_removed: bool) -> pa.Table:
    """The block's rows, and in its metadata how many candidates each rule removed."""
    counts = torch.bincount(found.refused + 2, minlength=len(found.rules) + 2).tolist()
    reasons = dict(zip(["not drawn", "taken", *found.rules], counts, strict=True))
    if not keep_removed:
        found = found.where(found.taken)
    names = ["not_drawn", "taken", *found.rules]
    dictionary = pa.DictionaryArray.from_arrays(
        pa.array((found.refused + 2).to(torch.int8).numpy()), pa.array(names)
    )
    columns = {
        "query": (found.query + start).numpy(),
        "document": found.document.numpy(),
        "rank": found.rank.to(torch.int32).numpy(),
        "score": found.score.float().numpy(),
        "positive_score": found.positive_score.float().numpy(),
        "log_expected": found.log_expected.float().numpy(),
    }
    table = pa.table({**columns, "reason": dictionary})
    return table.replace_schema_metadata({name: str(count) for name, count in reasons.items()})


def _here(work: _Work, starts: list[int]) -> Iterator[tuple[int, pa.Table]]:
    """Several blocks are searched at once, since the search gives each core a block of queries."""
    while starts:
        together = 1
        while together < min(AT_ONCE, len(starts)) and starts[together] == starts[0] + together * BLOCK:
            together += 1
        score, ids = work.found(work.rows(starts[0], together))
        for place, start in enumerate(starts[:together]):
            part = slice(place * BLOCK, (place + 1) * BLOCK)
            yield start, work.block(start, (score[part], ids[part]))
        starts = starts[together:]


def _on_ray(work: _Work, starts: list[int]) -> Iterator[tuple[int, pa.Table]]:
    for place, table in on_ray(_Work.block, work, [(start,) for start in starts]):
        yield starts[place], table


def _summary(tables: list[Path], n_queries: int) -> dict[str, Any]:
    """Counts over all blocks: taken, removed by each rule, and the queries that got too few."""
    reasons: dict[str, int] = {}
    counts = []
    for path in tables:
        for name, count in (pq.read_schema(path).metadata or {}).items():
            if not name.startswith(b"ARROW"):
                reasons[name.decode()] = reasons.get(name.decode(), 0) + int(count)
        frame = pl.read_parquet(path, columns=["query", "reason"])
        taken = frame.filter(pl.col("reason").cast(pl.String) == "taken")
        counts.append(taken.group_by("query").len())
    per_query = pl.concat(counts)["len"] if counts else pl.Series([], dtype=pl.UInt32)
    found = {int(k): int(v) for k, v in per_query.value_counts(sort=True).iter_rows()}
    return {
        "queries": n_queries,
        "negatives": reasons.pop("taken", 0),
        "not_drawn": reasons.pop("not drawn", 0),
        "removed": reasons,
        "queries_without_negatives": n_queries - len(per_query),
        "queries_by_negatives": {str(k): found[k] for k in sorted(found)},
    }


def _part(parts: Path, start: int) -> Path:
    return parts / f"{start // BLOCK:07d}.parquet"


def _whole_part(path: Path) -> bool:
    """Whether a block is there and can be read; what is damaged is done again."""
    if not path.exists():
        return False
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid):
        path.unlink()
        return False
    return True


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    ours = {SUMMARY, PLAN, PARTS, "negatives.parquet", "negatives.jsonl", "removed.parquet", "vectors"}
    found = check_job_folder(
        folder, ours, summary=SUMMARY, plan=PLAN, resume=resume, overwrite=overwrite, before="vectors"
    )
    if SUMMARY in found and PARTS in found and resume:  # killed while tidying up
        for path in [*(folder / PARTS).iterdir(), folder / PLAN]:
            path.unlink(missing_ok=True)
        (folder / PARTS).rmdir()
    if SUMMARY in found and not overwrite:
        raise FileExistsError(f"The mining in {folder} is finished; give --overwrite to do it anew.")
    if PLAN in found and not (resume or overwrite):
        raise FileExistsError(f"{folder} holds an unfinished job; give --resume to go on, or --overwrite.")


def _same_plan(folder: Path, plan: dict[str, Any], resume: bool) -> None:
    """Write the plan, or check that an unfinished job had the same."""
    if resume and (folder / PLAN).exists():
        check_plan(folder / PLAN, plan)
        return
    for name in (SUMMARY, PLAN, "negatives.parquet", "negatives.jsonl", "removed.parquet"):
        (folder / name).unlink(missing_ok=True)
    for path in (folder / PARTS).iterdir():
        path.unlink()
    write_json(folder / PLAN, plan)
