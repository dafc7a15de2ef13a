"""The page of a selection says what the check found, and nothing of the corpus can run in it."""

from pathlib import Path

import pytest

from steelyard.reports import write_selection_report
from steelyard.selection import SelectConfig, select
from tests.selection.test_job import texts_of, write_jsonl


def test_the_page_holds_figures_verdicts_and_settings(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "raw.jsonl", texts_of(300, 1))
    with open(raw, "a") as file:
        file.write("<script>alert(1)</script>\n")
    target = write_jsonl(tmp_path / "target.jsonl", texts_of(60, 2, 50))
    done = select([raw], [target], SelectConfig(20), out=tmp_path / "out")
    page = write_selection_report(done.folder).read_text()
    assert "20 of 300 rows" in page
    assert f"{done.summary['check']['drawn_again']:.1%}" in page
    assert done.summary["verdicts"]
    assert all(verdict[:40] in page for verdict in done.summary["verdicts"])
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "https://" not in page.replace("https://www.w3.org", "")


def test_a_single_row_and_a_draw_of_none_have_a_page(tmp_path: Path) -> None:
    one = write_jsonl(tmp_path / "one.jsonl", ["one text"])
    done = select([one], [one], SelectConfig(1), out=tmp_path / "one")
    assert "1 of 1 rows" in write_selection_report(done.folder).read_text()
    many = write_jsonl(tmp_path / "many.jsonl", texts_of(50, 1))
    for seed in range(20):
        config = SelectConfig(1, "random", "poisson", seed=seed)
        done = select([many], [], config, out=tmp_path / "none", overwrite=True)
        if done.summary["selected"] == 0:
            break
    assert done.summary["selected"] == 0
    assert "0 of 50 rows" in write_selection_report(done.folder).read_text()


def test_a_folder_without_a_selection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"selection\.json is missing"):
        write_selection_report(tmp_path)
