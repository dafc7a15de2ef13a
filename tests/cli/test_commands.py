"""The commands as a person types them."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.cli.running import steelyard
from tests.retrieval import planted

pytestmark = pytest.mark.xdist_group("commands")  # one worker trains the models that all these ask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained models: runs/m on ids, runs/t on texts; and their data."""
    root = tmp_path_factory.mktemp("commands")
    data = planted.write_csv(planted.interactions(), root / "m.csv")
    texts = planted.texts()
    frame = pl.DataFrame({"query": texts.user_ids, "document": texts.item_texts, "item": texts.item_ids})
    frame.write_ndjson(root / "t.jsonl")
    done = steelyard(
        "train", str(data), "--epochs", "3", "--dim", "8", "--candidates", "32", "--batch", "128", cwd=root
    )
    assert done.returncode == 0, done.stderr
    assert "report" in done.stdout
    done = steelyard(
        "train", "t.jsonl", "--columns", "query=query,document=document,item=item", "--epochs", "2", "--dim", "32", "--batch", "32", "--json",
        cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["training"]["model"] == "text"
    return root


def test_training_leaves_everything_it_promises(folder: Path) -> None:
    metrics = json.loads((folder / "runs" / "m" / "metrics.json").read_text())
    assert {"test", "baselines", "popularity_slices", "epochs", "examples", "reading"} <= set(metrics)
    low, mean, high = (metrics["test"]["ndcg@10"][name] for name in ("low", "mean", "high"))
    assert 0 < low < mean < high < 1
    page = (folder / "runs" / "m" / "report.html").read_text()
    assert page.count("<svg") == 5
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert "<script" not in page


def test_questions_are_answered_as_tables_and_as_json(folder: Path) -> None:
    for words, columns in (
        (
            ("recommend", "runs/m", "--user", "u3", "--user", "u4", "-k", "2"),
            ["user", "rank", "item", "score"],
        ),
        (("neighbours", "runs/m", "--item", "i7", "-k", "4"), ["item", "rank", "neighbour", "score"]),
        (("search", "runs/t", "compress the archive", "-k", "4"), ["query", "rank", "item", "score", "text"]),
    ):
        answers = json.loads(steelyard(*words, "--json", cwd=folder).stdout)
        assert len(answers) == 4
        assert list(answers[0]) == columns
        table = steelyard(*words, cwd=folder)
        assert table.returncode == 0
        assert columns[1] in table.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train",), "--demo"),
        (("train", "nowhere.csv"), "nowhere.csv"),
        (("train", "m.csv", "--columns", "user=usr"), "user"),
        (("train", "m.csv", "--columns", "user"), "role=name"),
        (("train", "m.csv", "--negatives", "unifrom", "--out", "x"), "uniform"),
        (("train", "m.csv", "--model", "bert"), "mf and text"),
        (("train", "m.csv", "--split", "randomly", "--out", "y"), "leave-last-out"),
        (("train", "m.csv"), "--overwrite"),
        (("recommend", "runs/m", "--user", "u999"), "u9"),
        (("recommend", "runs/nothing", "--user", "u1"), "not a folder"),
        (("recommend", "runs/t", "--user", "u1"), "search"),
        (("recommend", "runs/m", "--user", "u1", "-k", "0"), "k must"),
        (("search", "runs/t", "  "), "empty text"),
        (("search", "runs/m", "words"), "recommend"),
    ],
)
def test_what_a_person_can_mend_is_said_in_a_line(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = steelyard(*words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()[-1]) < 400


def test_text_from_the_data_cannot_become_markup(tmp_path: Path) -> None:
    data = planted.interactions()
    evil = "<script>alert(1)</script>[red]"
    ids = pl.Series([evil, *data.item_ids.to_list()[1:]])
    frame = pl.DataFrame(
        {"user": data.user_ids.gather(data.users.numpy()), "item": ids.gather(data.items.numpy())}
    )
    frame.write_csv(tmp_path / "d.csv")
    done = steelyard("train", "d.csv", "--epochs", "1", "--dim", "4", "--out", "m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<script" not in (tmp_path / "m" / "report.html").read_text()
    answer = steelyard("recommend", "m", "--user", "u1", "-k", "60", "--include-seen", cwd=tmp_path)
    assert "[red]" in answer.stdout


def test_help_answers_without_torch() -> None:
    for words in (["--help"], ["train", "--help"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "steelyard", *words],
            capture_output=True,
            text=True,
            check=True,
        )
        for heavy in ("torch", "numpy", "polars", "numba", "matplotlib"):
            assert f" {heavy}\n" not in done.stderr


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import steelyard, sys; assert 'torch' not in sys.modules; steelyard.Draws; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
