"""What Python source documents, read without importing it: docstrings and the public names of objects."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

LONGEST_SIGNATURE = 300

_SKIPPED_FOLDERS = frozenset(
    """
    test tests testing _testing site-packages dist-packages __pycache__ examples _vendor _vendored vendor
    vendored extern externals third_party thirdparty lib2to3 idlelib turtledemo test_utils conftest
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Docstring:
    """A documented object as its module writes it: `name` within the module, header and cleaned docstring."""

    name: str
    signature: str
    text: str


@dataclass(frozen=True)
class Source:
    """What one module documents, and what it imports by name: `(module, name, name here)`, `*` for all."""

    docstrings: tuple[Docstring, ...] = ()
    defined: frozenset[str] = frozenset()
    imports: tuple[tuple[str, str, str], ...] = ()
    listed: tuple[str, ...] | None = None
    is_package: bool = False
    is_valid: bool = True


def find_modules(root: Path) -> dict[str, Path]:
    """Dotted name and file of every module under a folder, tests and vendored code left out.

    Args:
        root: folder that would stand on `sys.path`.
    """
    modules: dict[str, Path] = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if name.isidentifier() and name not in _SKIPPED_FOLDERS
        )
        parts = Path(folder).relative_to(root).parts
        for name in sorted(files):
            stem = name.removesuffix(".py")
            if (
                stem == name
                or not stem.isidentifier()
                or stem in _SKIPPED_FOLDERS
                or stem.startswith("test_")
            ):
                continue
            dotted = parts if stem == "__init__" else (*parts, stem)
            if dotted and dotted[-1] != "__main__":
                modules[".".join(dotted)] = Path(folder) / name
    return modules


def read_modules(modules: dict[str, Path], processes: int = 1) -> dict[str, Source]:
    """Parse all public modules, and of the private ones those that a parsed module takes names from.

    Args:
        modules: dotted name to file.
        processes: number of worker processes; 1 works in this process.
    """
    sources: dict[str, Source] = {}
    wanted = {name for name in modules if not _is_private(name)}
    while wanted:
        ordered = sorted(wanted)
        sources |= zip(
            ordered, _parse_all([(name, modules[name]) for name in ordered], processes), strict=True
        )
        named = {target for name in ordered for target, _, _ in sources[name].imports}
        wanted = {name for name in named if name in modules and name not in sources}
    return sources


def _parse_all(files: list[tuple[str, Path]], processes: int) -> list[Source]:
    if processes <= 1 or len(files) < 200:
        return [read_source(name, path) for name, path in files]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(read_source, *zip(*files, strict=True), chunksize=32))


def read_source(module: str, path: Path) -> Source:
    """The docstrings and imports of one file; `is_valid` is false where it is not Python of this version.

    Args:
        module: dotted name of the module.
        path: its file.
    """
    is_package = path.name == "__init__.py"
    try:
        content = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return Source(is_package=is_package, is_valid=False)
    reader = _Reader(module if is_package else module.rpartition(".")[0], content.decode("utf-8", "replace"))
    reader.read_block(tree.body, "")
    return Source(
        tuple(reader.docstrings),
        frozenset(reader.defined),
        tuple(reader.imports),
        reader.listed,
        is_package,
    )


@dataclass
class _Reader:
    package: str
    source: str
    docstrings: list[Docstring] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    imports: list[tuple[str, str, str]] = field(default_factory=list)
    listed: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.lines = re.split(r"\r\n|\r|\n", self.source)

    def read_block(self, body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.read_object(node, prefix)
            elif isinstance(node, ast.If | ast.Try | ast.With):
                for block in ("body", "orelse", "handlers", "finalbody"):
                    for child in getattr(node, block, ()):
                        self.read_block(
                            child.body if isinstance(child, ast.ExceptHandler) else [child], prefix
                        )
            elif isinstance(node, ast.ImportFrom) and not prefix:
                target = self.absolute(node)
                self.imports += [(target, alias.name, alias.asname or alias.name) for alias in node.names]
            elif isinstance(node, ast.Assign) and not prefix and "__all__" in [_id(t) for t in node.targets]:
                self.listed = _literal_names(node.value)

    def read_object(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, prefix: str) -> None:
        if node.name.startswith("_"):
            return
        if not prefix:
            self.defined.add(node.name)
        text = ast.get_docstring(node)
        if text:
            self.docstrings.append(Docstring(prefix + node.name, self.signature(node), text))
        if isinstance(node, ast.ClassDef):
            self.read_block(node.body, f"{prefix}{node.name}.")

    def signature(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
        header = self.header(node)
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef) and child.name == "__init__":
                    arguments = self.header(child).removeprefix("def __init__")
                    header += " " + re.sub(r"^\(self(?:, )?", "(", arguments)
        else:
            header = re.sub(r"^(?:async )?def ", "", header)
            header = re.sub(r"\((?:self|cls)(?:, )?", "(", header, count=1)
        return header[:LONGEST_SIGNATURE]

    def header(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
        body = node.body[0]
        lines = self.lines[node.lineno - 1 : body.lineno]
        # The docstring may stand on the line of the header, where it would give the query away.
        lines[-1] = lines[-1].encode()[: body.col_offset].decode("utf-8", "replace")
        text = " ".join(line.strip() for line in lines).strip()
        text = re.sub(r":\s*(?:#.*)?$", "", re.sub(r"([(\[]) | (?=[)\]])", r"\1", text))
        return re.sub(r",\)( ->.*)?$", r")\1", text)

    def absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, node.module] if node.module else base)


def _id(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _literal_names(node: ast.expr) -> tuple[str, ...] | None:
    try:
        return tuple(str(name) for name in ast.literal_eval(node))
    except (ValueError, TypeError):
        return None


def _is_private(dotted: str) -> bool:
    return any(part.startswith("_") for part in dotted.split("."))


def named_documents(sources: dict[str, Source]) -> dict[str, tuple[str, str]]:
    """The shortest public name of every documented object, with its signature and docstring.

    A package re-exports an object when its `__init__` imports it; a private module has public names only so.

    Args:
        sources: dotted module name to its content.

    Returns:
        Qualified name to `(signature, docstring)`.
    """
    names: dict[tuple[str, str], str] = {}
    exports = _Exports(sources)
    for module in sorted(sources):
        if _is_private(module):
            continue
        for name, origin in exports.of(module).items():
            home = origin[0]
            offered = (
                module == home
                or home.startswith(module + ".")
                or (
                    _is_private(home)
                    and (sources[module].is_package or name in (sources[module].listed or ()))
                )
            )
            if not name.startswith("_") and offered:
                known = names.get(origin, f"{module}.{name}")
                names[origin] = min(known, f"{module}.{name}", key=lambda n: (n.count("."), len(n), n))
    documents: dict[str, tuple[str, str]] = {}
    for module in sorted(sources):
        for doc in sources[module].docstrings:
            top, dot, rest = doc.name.partition(".")
            if (module, top) in names:
                documents.setdefault(names[module, top] + dot + rest, (doc.signature, doc.text))
    return documents


class _Exports:
    def __init__(self, sources: dict[str, Source]) -> None:
        self.sources = sources
        self.known: dict[str, dict[str, tuple[str, str]]] = {}

    def of(self, module: str) -> dict[str, tuple[str, str]]:
        """Name in the module to where it is defined: (module, name)."""
        if module in self.known:
            return self.known[module]
        source = self.sources.get(module, Source())
        found = self.known[module] = {name: (module, name) for name in sorted(source.defined)}
        for target, name, here in source.imports:
            if target not in self.sources:
                continue
            theirs = self.of(target)
            if name == "*":
                listed = self.sources[target].listed
                for each in theirs if listed is None else listed:
                    if each in theirs and not each.startswith("_"):
                        found.setdefault(each, theirs[each])
            elif name in theirs:
                found.setdefault(here, theirs[name])
        return found
