"""`steelyard audit` as a person types it."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.cli.running import steelyard
from tests.retrieval import planted

pytestmark = pytest.mark.xdist_group("commands")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audit")
    planted.write_csv(planted.interactions(), root / "m.csv")
    done = steelyard(
        "train", "m.csv", "--epochs", "2", "--dim", "8", "--candidates", "32", "--out", "m", cwd=root
    )
    assert done.returncode == 0, done.stderr
    return root


def test_an_audit_prints_a_table_and_advice_and_writes_a_page(folder: Path) -> None:
    words = "uniform,popularity:0.75,in-batch,top5+uniform,clusters:4"
    done = steelyard(
        "audit", "m", "m.csv", "--negatives", words, "--candidates", "20", "--queries", "40", "--repeats", "4",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "errs least" in done.stdout
    assert "top5+uniform" in done.stdout
    assert (folder / "m" / "audit.html").is_file()
    found = json.loads((folder / "m" / "audit.json").read_text())
    assert [row["name"] for row in found["proposals"]] == words.split(",")


def test_json_and_a_folder_of_its_own(folder: Path) -> None:
    done = steelyard(
        "audit", "m", "m.csv", "--negatives", "uniform", "--candidates", "9", "--queries", "5", "--repeats", "2",
        "--json", "--out", "elsewhere", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["queries"] == 5
    assert (folder / "elsewhere" / "audit.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--candidates", "100000"], "candidates were asked for"),
        (["--candidates", "9", "--negatives", "unifrom"], "Unknown negatives"),
        (["--candidates", "9", "--negatives", "uniform,uniform"], "named twice"),
        (["--candidates", "9", "--queries", "0"], "queries must be at least 1"),
    ],
)
def test_what_cannot_be_audited_is_said(folder: Path, words: list[str], said: str) -> None:
    done = steelyard("audit", "m", "m.csv", *words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr


def test_data_of_another_catalogue_is_refused(folder: Path) -> None:
    pl.DataFrame({"user": ["zz"], "item": ["yy"]}).write_csv(folder / "other.csv")
    done = steelyard("audit", "m", "other.csv", "--candidates", "9", cwd=folder)
    assert done.returncode == 2
    assert "knows no pair" in done.stderr


def test_a_text_model_is_audited_on_its_pairs(tmp_path: Path) -> None:
    texts = planted.texts()
    frame = pl.DataFrame({"query": texts.user_ids, "document": texts.item_texts, "item": texts.item_ids})
    frame.write_ndjson(tmp_path / "t.jsonl")
    columns = "query=query,document=document,item=item"
    done = steelyard(
        "train", "t.jsonl", "--columns", columns, "--epochs", "1", "--dim", "16", "--batch", "32", "--out", "t",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = steelyard(
        "audit", "t", "t.jsonl", "--columns", columns, "--negatives", "uniform,in-batch", "--candidates", "20",
        "--queries", "30", "--repeats", "2", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No query has a held-out positive" in done.stderr
