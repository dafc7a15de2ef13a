"""The selection job: a corpus of any size is scored, drawn from by a stated design, and copied out with weights."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.files import alone_in, check_job_folder, check_plan, check_writable, write_json
from steelyard.selection.checks import SAMPLE, check_texts, check_weights, verdicts
from steelyard.selection.config import SelectConfig
from steelyard.selection.corpus import Block, cut, find_files, fingerprint
from steelyard.selection.drawing import Drawn, Weights
from steelyard.selection.passes import Reading, Tally, count_block, read_tally, run, sample_block, score_block
from steelyard.selection.scorers import FITTED, SCORERS, Fitted
from steelyard.selection.writing import WEIGHTS, lines_of, write_selected, write_weights

SUMMARY, PLAN, WORK, SELECTED, REPORT = "selection.json", "plan.json", "work", "selected", "report.html"
SCORED_BY = ("method", "text_field", "n_grams", "buckets", "smoothing", "strict")
"""Settings on which scores depend; a killed job may go on with others for the draw."""
NAMES = {"raw": "corpus", "target": "target"}
FEW = 30
"""Rows of a target below which a word is said."""
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Selected:
    """What a selection leaves.

    Args:
        folder: where `selected/`, `weights.parquet` and `selection.json` are.
        summary: what `selection.json` holds.
    """

    folder: Path
    summary: dict[str, Any]


def select(
    raw: Sequence[str | Path],
    target: Sequence[str | Path],
    config: SelectConfig,
    *,
    out: str | Path,
    workers: int = 1,
    engine: str = "local",
    resume: bool = False,
    overwrite: bool = False,
    block: int = 2**24,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> Selected:
    """Draw rows of a corpus that look like a target, with known inclusion probabilities, in bounded memory.

    Three passes read the corpus: n-grams are counted, rows are scored, and the drawn ones are copied as they
    stand. Counts and scores of a block are written once finished, and `resume` goes on behind the last. A text
    that comes several times is one row. Noise is a hash of the seed and the text, so that the draw is the same
    whatever the workers, the engine, the order of the files and how they are cut.

    Args:
        raw: files, folders or patterns: JSONL, Parquet or text (a row a line), plain or compressed.
        target: likewise; the scorer "random" needs none.
        config: the settings.
        out: folder for `selected/`, `weights.parquet` and `selection.json`; scores lie in it meanwhile, 28
            bytes a row.
        workers: threads of the local engine.
        engine: "local", or "ray" to share blocks among the workers of a Ray cluster, which all see the folder.
        resume: go on with a killed job; the draw (n, design, temper, seed ...) may be another one.
        overwrite: replace what an earlier one left.
        block: bytes of a block, about; it changes nothing but the memory, about ten times so much a worker.
        watch: called with the name of a pass, and the number of blocks done and in all.
        say: called with a line at each stage.

    Returns:
        Where everything is, and the summary.

    Raises:
        FileExistsError: `out` holds something, and neither `resume` nor `overwrite` was given.
        FileNotFoundError: an input that is not there.
        ImportError: the engine is not installed.
        ValueError: an input of an unknown kind, that cannot be read or that was changed meanwhile; no text in
            it; more rows wanted than there are; the unfinished job was another one.
        OSError: no room to write.
    """
    say = say or (lambda _: None)
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be local or ray, got {engine!r}.")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    folder = Path(out).expanduser()
    _check_folder(folder, resume, overwrite)
    if SCORERS[config.method].wants_target and not target:
        raise ValueError(f"The method {config.method!r} needs a target: give --target.")
    blocks = cut(find_files(raw, besides=folder), block=block)
    wanted = cut(find_files(target, besides=folder), block=block) if target else []
    if not blocks:
        raise ValueError("The corpus is empty: all its files have no bytes.")
    if target and not wanted:
        raise ValueError("The target is empty: all its files have no bytes.")
    plan = {name: getattr(config, name) for name in SCORED_BY}
    plan |= {"raw": fingerprint(blocks), "target": fingerprint(wanted)}
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder)
    with alone_in(folder):
        _check_folder(folder, resume, overwrite)
        _same_plan(folder, plan, resume)
        size = sum({b.path: b.size for b in blocks}.values())
        say(f"{len({b.path for b in blocks}):,} files, {size / 1e6:,.1f} MB, in {len(blocks):,} blocks.")
        summary = _Job(folder, config, blocks, wanted, (engine, workers), watch, say).run()
        write_json(folder / SUMMARY, summary)
        shutil.rmtree(folder / WORK)
        (folder / PLAN).unlink()
    return Selected(folder, summary)


class _Job:
    """The passes, each of which finds on disk what the ones before it left."""

    def __init__(
        self,
        folder: Path,
        config: SelectConfig,
        blocks: list[Block],
        target: list[Block],
        engine: tuple[str, int],
        watch: Watch | None,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.work, self.config = folder, folder / WORK, config
        self.blocks, self.target = blocks, target
        self.engine, self.watch, self.say = engine, watch, say
        self.reading = Reading(config.text_field, config.ngrams_of(), config.strict)

    def run(self) -> dict[str, Any]:
        started, config, blocks = time.monotonic(), self.config, self.blocks
        counts = {name: self.counts(name, part) for name, part in (("target", self.target), ("raw", blocks))}
        scorer = SCORERS[config.method]
        texts = (
            (self.texts("target", self.target), self.texts("raw", blocks)) if scorer.wants_texts else ([], [])
        )
        table = scorer.table(
            Fitted(self.reading.ngrams, config.smoothing, counts["target"], counts["raw"], *texts)
        )
        tallies = self.score(table)
        firsts = lines_of(blocks, [t.lines for t in tallies])
        weights = Weights(self.work / "scored", len(blocks), config)
        self.say(
            f"{weights.rows:,} rows, worth {weights.histogram.effective_size():,.1f} under their weights; drawing."
        )
        drawn = weights.draw(min(config.n, SAMPLE))
        shards = write_selected(self.folder / SELECTED, blocks, drawn.rows)
        write_weights(self.folder / WEIGHTS, blocks, drawn.rows, firsts, drawn.log_probability, shards)
        check = check_weights(weights, drawn) | check_texts(
            drawn, blocks, self.reading.ngrams, config.text_field, counts["target"]
        )
        return {
            "selected": len(drawn.rows),
            "rows": sum(t.rows for t in tallies),
            "lines": sum(t.lines for t in tallies),
            "faults": self.faults(tallies, firsts),
            "files": len({b.path for b in blocks}),
            "bytes": sum({b.path: b.size for b in blocks}.values()),
            "target_rows": sum(t.rows for t in self.tallies("target", self.target)),
            "target_ngrams": 0 if counts["target"] is None else int(counts["target"].sum()),
            "copies_of_selected": int(drawn.rows["copies"].sum()) - len(drawn.rows),
            "shards": shards[0],
            "check": check,
            "verdicts": verdicts(check, config) + self.doubts(counts["target"]),
            "pictures": pictures(weights, drawn),
            "settings": asdict(config),
            "seconds": round(time.monotonic() - started, 1),
        }

    def doubts(self, target: NDArray[np.int64] | None) -> list[str]:
        """What to say of a target that is small."""
        rows = sum(t.rows for t in self.tallies("target", self.target))
        if target is None or rows >= FEW:
            return []
        return [
            f"The target has {rows:,} rows with {int(target.sum()):,} n-grams for {len(target):,} buckets: its model is "
            "mostly smoothing. Give more of it, or lower --buckets."
        ]

    def counts(self, name: str, blocks: list[Block]) -> NDArray[np.int64] | None:
        """The n-grams of a corpus by bucket, summed over its blocks; None where nobody asks."""
        if not self.target:
            return None
        folder = self.work / name
        self.passing(f"counting {name}", count_block, self.reading, blocks, folder)
        if not any(t.rows for t in self.tallies(name, blocks)):
            raise ValueError(
                _no_text(NAMES[name], self.config.text_field, blocks, self.tallies(name, blocks))
            )
        total = np.zeros(self.reading.ngrams.buckets, np.int64)
        for k in range(len(blocks)):
            total += np.load(folder / f"{k:06d}.npy")
        if not total.any():
            raise ValueError(
                f"The texts of the {NAMES[name]} in the field {self.config.text_field!r} are all empty: give another "
                "--text-field, or texts."
            )
        return total

    def faults(self, tallies: list[Tally], firsts: NDArray[np.int64]) -> dict[str, Any]:
        """What could not be used of the corpus, and then of the target."""
        told = self.tallies("target", self.target)
        wanted = _faults(self.target, told, lines_of(self.target, [t.lines for t in told]))
        found = _faults(self.blocks, tallies, firsts)
        return {
            "counts": found["counts"] | {f"{kind}, in the target": n for kind, n in wanted["counts"].items()},
            "examples": [*found["examples"], *wanted["examples"]],
        }

    def texts(self, name: str, blocks: list[Block]) -> list[str]:
        """An even sample of a corpus, each text once, in an order of its own."""
        rows = sum(t.rows for t in self.tallies(name, blocks))
        pieces = [(block, min(1.0, FITTED / max(rows, 1))) for block in blocks]
        found: dict[int, str] = {}
        for _, part in run(sample_block, self.reading, pieces, engine=self.engine):
            found |= part
        return [found[content] for content in sorted(found)]

    def score(self, table: NDArray[np.float64]) -> list[Tally]:
        """Score every row of the corpus."""
        known = (
            [t.digest for t in self.tallies("raw", self.blocks)] if self.target else [""] * len(self.blocks)
        )
        self.passing(
            "scoring",
            score_block,
            (self.reading, table),
            self.blocks,
            self.work / "scored",
            [(d,) for d in known],
        )
        return self.tallies("scored", self.blocks)

    def passing(
        self,
        name: str,
        task: Callable[..., Any],
        shared: Any,
        blocks: list[Block],
        folder: Path,
        more: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:
        """Do a pass over the blocks that it has not finished yet."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{k:06d}" for k in range(len(blocks))]
        todo = [k for k, path in enumerate(paths) if not path.with_suffix(".json").exists()]
        pieces = [(blocks[k], str(paths[k]), *(more[k] if more else ())) for k in todo]
        done = len(blocks) - len(todo)
        if self.watch is not None:
            self.watch(name, done, len(blocks))
        for _ in run(task, shared, pieces, engine=self.engine):
            done += 1
            if self.watch is not None:
                self.watch(name, done, len(blocks))

    def tallies(self, name: str, blocks: list[Block]) -> list[Tally]:
        return [read_tally(self.work / name / f"{k:06d}.json") for k in range(len(blocks))]


def pictures(weights: Weights, drawn: Drawn) -> dict[str, Any]:
    """What the report draws: log-weights of all rows and of the drawn ones, and weight against length."""
    middle, rows = weights.histogram.filled()
    low = weights.histogram.nth_largest(
        max(1, round(0.99 * weights.rows))
    )  # a few far rows would hide the others
    high = max(weights.histogram.high, low + 1e-9)
    edges = np.linspace(low, high, 65)
    counts = np.histogram(np.clip(middle, low, high), edges, weights=rows)[0]
    drawn_counts = np.histogram(np.clip(drawn.rows["log_w"], low, high), edges)[0]
    some = drawn.rows[np.argsort(drawn.rows["content"])[:1000]]
    even = drawn.uniform[np.argsort(drawn.uniform["content"])[:1000]]
    return {
        "low": low,
        "high": high,
        "all": counts.tolist(),
        "drawn": drawn_counts.tolist(),
        "drawn_points": [some["tokens"].tolist(), some["log_w"].tolist()],
        "even_points": [even["tokens"].tolist(), even["log_w"].tolist()],
    }


def _faults(blocks: Sequence[Block], tallies: Sequence[Tally], firsts: NDArray[np.int64]) -> dict[str, Any]:
    """How many lines could not be used, by what was wrong, and the first three."""
    counts: dict[str, int] = {}
    examples: list[str] = []
    for block, tally, first in zip(blocks, tallies, firsts, strict=True):
        for kind, count in tally.faults.items():
            counts[kind] = counts.get(kind, 0) + count
        for line, kind, content in tally.examples[: 3 - len(examples)]:
            examples.append(f"{block.path}, line {int(first) + line + 1}: {kind}: {content}")
    return {"counts": counts, "examples": examples}


def _no_text(name: str, text_field: str, blocks: Sequence[Block], tallies: Sequence[Tally]) -> str:
    """Why a corpus has not one text, as far as its lines tell."""
    kinds = {kind for tally in tallies for kind in tally.faults}
    found = _faults(blocks, tallies, lines_of(blocks, [t.lines for t in tallies]))
    if not kinds:
        return f"The {name} has no line with a text."
    if kinds == {"malformed JSON"}:
        return (
            f"No line of the {name} is a JSON object ({found['examples'][0]}). JSON files must hold an object a line; "
            "an array becomes that by jq -c '.[]'."
        )
    return f"No line of the {name} has a text in its field {text_field!r}: give --text-field ({found['examples'][0]})."


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    ours = {SUMMARY, PLAN, WORK, SELECTED, WEIGHTS, REPORT}
    found = check_job_folder(folder, ours, summary=SUMMARY, plan=PLAN, resume=resume, overwrite=overwrite)
    if SUMMARY in found and not overwrite:
        raise FileExistsError(f"The selection in {folder} is finished; give --overwrite to do it anew.")
    if PLAN in found and not (resume or overwrite):
        raise FileExistsError(f"{folder} holds an unfinished job; give --resume to go on, or --overwrite.")


def _same_plan(folder: Path, plan: dict[str, Any], resume: bool) -> None:
    """Write the plan, or check that an unfinished job had the same."""
    if resume and (folder / PLAN).exists():
        check_plan(folder / PLAN, plan)
        return
    # a kill on the way leaves a plan or a summary, by which the rest is known for ours, and no half of old scores
    for name in (WORK, SELECTED):
        old = folder / f".{name}.old"
        shutil.rmtree(old, ignore_errors=True)
        if (folder / name).exists():
            os.replace(folder / name, old)
            shutil.rmtree(old, ignore_errors=True)
    for name in (WEIGHTS, REPORT):
        (folder / name).unlink(missing_ok=True)
    (folder / WORK).mkdir()
    write_json(folder / PLAN, plan)
    (folder / SUMMARY).unlink(missing_ok=True)
