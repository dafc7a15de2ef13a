"""The guide in docs/train.md names the settings, options and files that there are."""

import json
from pathlib import Path

import pytest
import typer.main

from steelyard.cli import app
from steelyard.retrieval import TrainConfig
from steelyard.retrieval.checkpoint import CHECKPOINT
from steelyard.retrieval.config import OWN
from steelyard.retrieval.job import OURS

GUIDE = (Path(__file__).parents[1] / "docs" / "train.md").read_text(encoding="utf-8")


def table(after: str) -> list[list[str]]:
    """The cells of the first table after a heading, header and rule left out."""
    lines = GUIDE.split(f"\n## {after}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][
        2:
    ]


def shown(name: str, value: object) -> str:
    """A default as the guide writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in OWN and not value:  # a setting that the model does not take
        return ""
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


@pytest.mark.parametrize(("model", "column"), [("mf", 2), ("text", 3), ("vectors", 4), ("sequence", 5)])
def test_the_table_of_settings_has_every_setting_with_its_default(model: str, column: int) -> None:
    defaults = TrainConfig.of(model).to_dict()  # type: ignore[arg-type]
    said = {row[1].strip("`"): row[column] for row in table("Settings")}
    assert said == {name: shown(name, value) for name, value in defaults.items() if name != "model"}


def test_the_options_named_exist_and_set_what_the_table_says() -> None:
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    options = {option: parameter.name for parameter in command.params for option in parameter.opts}
    named = {row[0].strip("`"): row[1].strip("`") for row in table("Settings") if row[0]}
    assert {option: options.get(option) for option in named} == named


def test_the_table_of_files_names_what_a_run_leaves() -> None:
    named = {name.strip("` ") for row in table("The output folder") for name in row[0].split(",")}
    assert named == OURS
    assert CHECKPOINT in named


def test_the_answer_shown_is_the_beginning_of_a_json_list() -> None:
    line = next(line for line in GUIDE.splitlines() if line.startswith('[{"item"'))
    assert list(json.loads(line.removesuffix(", ...") + "]")[0]) == ["item", "rank", "neighbour", "score"]


@pytest.mark.parametrize(
    ("name", "page"),
    [("mine", "negatives.md"), ("audit", "negatives.md"), ("compare", "losses.md"), ("select", "select.md")],
)
def test_the_guides_name_every_option(name: str, page: str) -> None:
    guide = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert any(f"`{option}" in guide or f" {option} " in guide for option in parameter.opts), (
                parameter.opts
            )


def test_the_guide_to_negatives_names_every_proposal() -> None:
    from steelyard.negatives import PROPOSALS

    guide = (Path(__file__).parents[1] / "docs" / "negatives.md").read_text(encoding="utf-8")
    for name in PROPOSALS:
        assert f"`{name}" in guide


def test_the_guide_to_selection_names_every_scorer_and_design() -> None:
    from steelyard.selection.designs import DESIGNS
    from steelyard.selection.scorers import SCORERS

    guide = (Path(__file__).parents[1] / "docs" / "select.md").read_text(encoding="utf-8")
    for name in (*SCORERS, *DESIGNS):
        assert f"| `{name}`" in guide


def test_the_guide_to_losses_names_every_loss_that_trains() -> None:
    from steelyard.losses import LOSSES

    guide = (Path(__file__).parents[1] / "docs" / "losses.md").read_text(encoding="utf-8")
    for name in LOSSES:
        assert f"`{name.replace('@k', '@20')}" in guide
