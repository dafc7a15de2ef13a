"""`steelyard select` as a person types it."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.cli.running import steelyard
from tests.selection.test_job import texts_of, write_jsonl

pytestmark = pytest.mark.xdist_group("commands")


def files(folder: Path) -> None:
    (folder / "corpus").mkdir()
    write_jsonl(folder / "corpus" / "a.jsonl", texts_of(200, 1))
    (folder / "corpus" / "b.txt").write_text("\n".join(texts_of(100, 2, 50)))
    write_jsonl(folder / "wanted.jsonl", texts_of(60, 3, 50))


def test_the_command_selects_and_says_what_the_draw_is_worth(tmp_path: Path) -> None:
    files(tmp_path)
    with open(tmp_path / "wanted.jsonl", "a") as file:
        file.write("{spoilt\n")
    words = ["select", "corpus/", "--target", "wanted.jsonl", "-n", "40", "--temper", "length,again=0.5"]
    done = steelyard(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "40 of 300 rows" in done.stdout
    assert "- 1 lines: malformed JSON, in the target" in done.stdout
    assert "drawn again with another seed" in done.stdout
    out = tmp_path / "runs" / "selection"
    assert sorted(p.name for p in out.iterdir()) == [
        "report.html", "selected", "selection.json", "weights.parquet",
    ]  # fmt: skip
    assert len(pl.read_parquet(out / "weights.parquet")) == 40
    again = steelyard(*words, "--out", "other", "--json", cwd=tmp_path)
    assert again.returncode == 0
    assert json.loads(again.stdout)["check"] == json.loads((out / "selection.json").read_text())["check"]
    once_more = steelyard(*words, cwd=tmp_path)
    assert once_more.returncode == 2
    assert "--overwrite" in once_more.stderr


def test_what_cannot_be_done_is_said_in_words(tmp_path: Path) -> None:
    files(tmp_path)
    (tmp_path / "array.json").write_text(json.dumps([{"text": "a b"}, {"text": "c d"}]))
    for words, said in (
        (["--target", "wanted.jsonl", "-n", "301"], "more than the 300 rows"),
        (["-n", "5"], "give --target"),
        (["--target", "nowhere.jsonl", "-n", "5"], "There is no file nowhere.jsonl"),
        (["--target", "array.json", "-n", "5"], "an array becomes that by jq"),
        (["--target", "wanted.jsonl", "-n", "5", "--temper", "hot"], "temper must be none, length"),
        (["--target", "wanted.jsonl", "-n", "5", "--resume", "--overwrite"], "not both"),
    ):
        done = steelyard("select", "corpus", *words, "--out", f"out{len(words)}{said[:3]}", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in " ".join(done.stderr.split())
