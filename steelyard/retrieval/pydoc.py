"""The documentation of the installed Python as (query, document) pairs, with no download."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import polars as pl

from steelyard.retrieval.pysource import Source, find_modules, named_documents, read_modules

MOST_PAIRS = 60_000
FEWEST_WORDS = 3
LONGEST_DOCUMENT = 1000

# Importing these runs nothing but the interpreter's own start-up code.
_BUILTIN_MODULES = """
    array atexit binascii bisect builtins bz2 cmath codecs collections contextvars copy csv datetime decimal
    errno faulthandler fractions functools gc hashlib heapq hmac io itertools json lzma marshal math mmap
    operator os os.path pickle queue random re select signal socket sqlite3 ssl statistics string struct sys
    threading time tracemalloc types typing unicodedata warnings weakref zlib zoneinfo asyncio
""".split()  # noqa: SIM905
_SENTENCE_END = re.compile(r"(?<=[.!?])['\"`)]*\s+(?=[\"'`(\[*:]*[A-Z0-9])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|approx|Fig|Eq|No|St|Dr|Mr)\.|\b[A-Z]\.)['\"`)]*$"
)
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Documentation:
    """First sentences of docstrings, each with the documents it should find, and what was left out.

    Args:
        pairs: columns `query` (the first sentence), `document` (qualified name, signature, rest of the
            docstring, cut at 1000 characters), `item` (the qualified name, one a document), sorted by item.
        files: number of source files read.
        unreadable: files that are not valid Python.
        short: docstrings whose first sentence has fewer than three words.
        repeated: documents that repeat another one of the same package: same sentence, signature and text.
        capped: pairs left out because there were more than the cap.
    """

    pairs: pl.DataFrame
    files: int
    unreadable: int
    short: int
    repeated: int
    capped: int

    def __str__(self) -> str:
        queries = self.pairs["query"].n_unique()
        return (
            f"{len(self.pairs):,} documents and {queries:,} queries from {self.files:,} files; left out: "
            f"{self.short:,} with a first sentence under {FEWEST_WORDS} words, {self.repeated:,} repeats, "
            f"{self.capped:,} over the cap, {self.unreadable:,} unreadable files"
        )


def read_documentation(most_pairs: int = MOST_PAIRS, processes: int | None = None) -> Documentation:
    """Pair the first sentence of every public docstring of the environment with the rest of it.

    Reads the source of the standard library and of the installed packages without importing them, and the
    docstrings of functions written in C from a few modules of the standard library. Tests, private names and
    vendored copies are skipped. An object goes by the shortest public name under which its package offers it.

    Args:
        most_pairs: with more than this, the standard library comes first and a sample fixed by the hash of
            the qualified name fills the rest.
        processes: number of worker processes; by default the cores of this machine, at most 4.

    Returns:
        The pairs and the counts of what was left out. The same environment gives the same pairs.

    Raises:
        ValueError: `most_pairs` is below one.
    """
    if most_pairs < 1:
        raise ValueError(f"most_pairs must be at least 1, got {most_pairs}.")
    standard = Path(sysconfig.get_path("stdlib"))
    packages = {Path(sysconfig.get_path(scheme)) for scheme in ("purelib", "platlib")}
    modules: dict[str, Path] = {}
    for root in [*sorted(packages), standard]:
        modules |= find_modules(root)
    sources = read_modules(modules, min(4, os.cpu_count() or 1) if processes is None else processes)
    documents = named_documents(sources)
    for item, text in _builtin_docstrings():
        documents.setdefault(item, text)
    top = {name.partition(".")[0] for name, path in modules.items() if path.is_relative_to(standard)}
    top -= {name.partition(".")[0] for name, path in modules.items() if path.parent in packages}
    return _select(documents, top | set(sys.builtin_module_names), sources, most_pairs)


def _builtin_docstrings() -> Iterator[tuple[str, tuple[str, str]]]:
    for module_name in _BUILTIN_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        for name in sorted(getattr(module, "__all__", None) or vars(module)):
            value = getattr(module, name, None)
            home = str(getattr(value, "__module__", None) or module_name)
            is_own = home.lstrip("_") in (module_name, "posix", "nt", "builtins")
            if name.startswith("_") or not is_own or (home == "builtins" and module_name != "builtins"):
                continue
            yield from _described(f"{module_name}.{name}", value)
            if isinstance(value, type):
                for attribute, member in sorted(vars(value).items()):
                    if not attribute.startswith("_"):
                        yield from _described(f"{module_name}.{name}.{attribute}", member)


def _described(item: str, value: object) -> Iterator[tuple[str, tuple[str, str]]]:
    is_documented = inspect.isroutine(value) or inspect.isdatadescriptor(value) or isinstance(value, type)
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "") if is_documented else ""
    short = item.rpartition(".")[2]
    signature = short + (getattr(value, "__text_signature__", None) or "")
    written, text = _cut_signature(short, text)
    if text:
        yield item, (re.sub(r"\(\$?(?:self|module|type)(?:, )?", "(", written or signature, count=1), text)


def _cut_signature(name: str, text: str) -> tuple[str, str]:
    """The first line of the signatures that some docstrings begin with ("" for most), and what follows them."""
    lines = text.strip().split("\n")
    written = lines[0] if lines[0].startswith(f"{name}(") else ""
    while lines and (lines[0].startswith(f"{name}(") or (written and not lines[0].strip())):
        lines.pop(0)
    return written, "\n".join(lines)


def split_docstring(text: str) -> tuple[str, str]:
    """The first sentence of a cleaned docstring, whitespace normalised, and the rest as it stands.

    Args:
        text: docstring as `inspect.cleandoc` leaves it.
    """
    paragraph, _, rest = text.strip().partition("\n\n")
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[: end.end()].rstrip()):
            rest = f"{paragraph[end.end() :]}\n\n{rest}"
            paragraph = paragraph[: end.end()]
            break
    return " ".join(paragraph.split()), rest.strip()


def _select(
    documents: dict[str, tuple[str, str]], standard: set[str], sources: dict[str, Source], most_pairs: int
) -> Documentation:
    seen: set[tuple[str, str, str, str]] = set()
    rows: list[tuple[str, str, str]] = []
    short = repeated = 0
    for item in sorted(documents, key=lambda name: (name.count("."), name)):
        signature, text = documents[item]
        _, text = _cut_signature(item.rpartition(".")[2], text)
        query, rest = split_docstring(text)
        if query.startswith(">>>") or len(_WORD.findall(query)) < FEWEST_WORDS:
            short += 1
            continue
        key = (item.partition(".")[0], query, signature, rest)
        if rest and key in seen:
            repeated += 1
            continue
        seen.add(key)
        rows.append((query, f"{item}\n{signature}\n\n{rest}"[:LONGEST_DOCUMENT].rstrip(), item))

    def priority(row: tuple[str, str, str]) -> tuple[bool, bytes]:
        return row[2].partition(".")[0] not in standard, blake2b(row[2].encode(), digest_size=8).digest()

    kept = sorted(sorted(rows, key=priority)[:most_pairs], key=lambda row: row[2])
    return Documentation(
        pl.DataFrame(kept, schema=["query", "document", "item"], orient="row"),
        files=len(sources),
        unreadable=sum(not source.is_valid for source in sources.values()),
        short=short,
        repeated=repeated,
        capped=len(rows) - len(kept),
    )
