"""The ledger in docs/methods.md says the truth: paths import, tests exist and are collected, nothing is missing."""

import ast
import inspect
import re
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import steelyard
from steelyard import evaluation, losses, negatives, optim, sampling, selection, weights
from steelyard.negatives import batches, hard, schedules

REPO = Path(__file__).parents[1]
LEDGER = REPO / "docs" / "methods.md"

# Public names that compute nothing by themselves: containers, protocols, and names that make or tidy others.
NOT_METHODS = {
    "steelyard.losses.Mixed",
    "steelyard.losses.OperatingPoints",
    "steelyard.losses.Proxies",
    "steelyard.losses.LogitMoments",
    "steelyard.losses.moments_of_logits",
    "steelyard.losses.false_accept_threshold",
    "steelyard.losses.contextual_similarity",
    "steelyard.losses.adaface_margins",
    "steelyard.losses.nonnegative",
    "steelyard.losses.spanning_tree",
    "steelyard.losses.class_prototypes",
    "steelyard.losses.icnn_score",
    "steelyard.losses.LOSSES",
    "steelyard.losses.RetrievalLoss",
    "steelyard.losses.Scored",
    "steelyard.losses.retrieval_loss",
    "steelyard.negatives.PROPOSALS",
    "steelyard.negatives.Catalogue",
    "steelyard.negatives.Context",
    "steelyard.negatives.Filter",
    "steelyard.negatives.Mined",
    "steelyard.negatives.adapts",
    "steelyard.negatives.first_refusal",
    "steelyard.negatives.hard.Triplets",
    "steelyard.negatives.schedules.Replacement",
    "steelyard.negatives.proposal",
    "steelyard.selection.Attempts",
    "steelyard.selection.Feasibility",
    "steelyard.selection.ScoreTransitions",
    "steelyard.selection.SelectConfig",
    "steelyard.selection.Selected",
    "steelyard.selection.select",
    "steelyard.evaluation.PairedDifference",
    "steelyard.evaluation.PopularitySlice",
    "steelyard.evaluation.RankingMetrics",
    "steelyard.evaluation.Ranks",
}


@dataclass(frozen=True)
class Row:
    id: str
    method: str
    path: str
    paper: str
    where: str
    test: str
    formula: str


def rows() -> list[Row]:
    """The rows of all tables: lines of cells that are neither a header nor a rule."""
    found = []
    for line in LEDGER.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and not line.startswith(("|---", "| id |")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == len(fields(Row)), line
            found.append(Row(*cells))
    return found


def in_code(cell: str) -> str:
    assert re.fullmatch(r"`[^`]+`", cell), f"{cell} is not in backticks"
    return cell[1:-1]


def resolved(path: str) -> object:
    """What `from package import name` gives: an attribute before a submodule of the same name."""
    module, *names = path.split(".")
    found: object = import_module(module)
    for name in names:
        module = f"{module}.{name}"
        found = getattr(found, name) if hasattr(found, name) else import_module(module)
    return found


@cache
def collected(file: str) -> frozenset[str]:
    """Names of the test functions of a file that pytest collects and does not skip always."""
    path = REPO / file
    assert path.is_file(), f"{file} is missing"
    assert path.is_relative_to(REPO / "tests"), f"{file} is outside tests/"
    assert path.name.startswith("test_"), f"pytest does not collect {file}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return frozenset(
        node.name
        for node in functions
        if node.name.startswith("test_")
        and not any("mark.skip" in ast.unparse(d) for d in node.decorator_list)
    )


def public_names(module: ModuleType) -> set[str]:
    """What a module offers: `__all__`, else the functions and classes that it defines without underscore."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]
    return {f"{module.__name__}.{name}" for name in names}


def test_the_ledger_has_rows_and_no_method_twice() -> None:
    methods = [(row.path, row.id) for row in rows()]  # one function may be two published methods
    assert len(methods) > 20
    assert len(set(methods)) == len(methods)


@pytest.mark.parametrize(
    "row", rows(), ids=lambda row: row.path.strip("`") + (row.id if row.id != "-" else "")
)
def test_a_row_imports_and_is_verified_by_a_test_that_is_collected(row: Row) -> None:
    assert callable(resolved(in_code(row.path)))
    file, _, name = in_code(row.test).partition("::")
    assert name in collected(file), f"{file} has no test {name} that always runs"
    assert row.formula in ("published", "reconstructed")
    assert row.id == "-" or re.fullmatch(r"\d{3}-\d{3}", row.id)
    assert row.method
    assert row.where


def test_every_public_method_is_in_the_ledger() -> None:
    public = set().union(
        *(
            public_names(m)
            for m in (
                evaluation,
                losses,
                negatives,
                batches,
                hard,
                schedules,
                optim,
                sampling,
                selection,
                weights,
            )
        )
    )
    listed = {in_code(row.path) for row in rows()}
    assert public - listed - NOT_METHODS == set()
    assert public >= NOT_METHODS, "an exception that no longer exists"
    assert not NOT_METHODS & listed


def test_the_core_types_are_in_the_ledger_or_are_containers() -> None:
    listed = {in_code(row.path) for row in rows()}
    core = {f"steelyard.{name}" for name in steelyard.__all__}
    assert core - listed == {"steelyard.Proposal", "steelyard.Weighted", "steelyard.__version__"}
