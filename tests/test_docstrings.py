"""What a docstring says of the arguments is about the arguments there are."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import steelyard

PACKAGE = Path(steelyard.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def documented(docstring: str) -> list[str]:
    """Names in the section of arguments: those at its own depth."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(docstring) + "\n", re.MULTILINE)
    return re.findall(r"^    (\S.*?): ", section[1], re.MULTILINE) if section else []


def taken(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Parameters of a function; fields of a dataclass, and parameters of an `__init__`."""
    if isinstance(node, ast.FunctionDef):
        a = node.args
        return {x.arg for x in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg] if x}
    found = {
        x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
    }
    for made in node.body:
        if isinstance(made, ast.FunctionDef) and made.name == "__init__":
            found |= taken(made)
    return found


def definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_documented_arguments_exist_and_none_is_left_out(path: Path) -> None:
    for node in definitions(ast.parse(path.read_text(encoding="utf-8"))):
        names = documented(ast.get_docstring(node) or "")
        if not names:
            continue
        there = taken(node) - {"self", "cls"}
        assert set(names) <= there, f"{node.name} has no argument {set(names) - there}"
        assert len(names) == len(set(names)), f"{node.name} says an argument twice"
        if isinstance(node, ast.FunctionDef):
            assert set(names) == there, f"{node.name} does not say what {there - set(names)} is"
