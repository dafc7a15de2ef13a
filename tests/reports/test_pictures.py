"""What the pictures and pages of reports are made of."""

import json
import re
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
import torch

from steelyard.reports import write_comparison_report, write_training_report
from steelyard.reports.cells import interval_rows, query_scatter
from steelyard.reports.figures import curve
from steelyard.reports.histories import GROUPS, history_groups, history_lines, history_scatter, means_of
from steelyard.retrieval import Cell, TrainConfig, compare, train
from tests.retrieval import planted

SMALL = TrainConfig(candidates=32, dim=8, batch=16, lr=0.05, epochs=1, validation_users=60)


def test_groups_by_history_hold_every_query_once_and_part_no_equal_counts() -> None:
    g = torch.Generator().manual_seed(0)
    history = torch.randint(1, 40, (997,), generator=g).tolist() + [3] * 300
    groups = history_groups(history)
    assert 1 < len(groups) <= GROUPS
    assert sorted(q for _, group in groups for q in group) == list(range(len(history)))
    of = {history[q]: name for name, group in groups for q in group}
    assert all(of[history[q]] == name for name, group in groups for q in group)
    ends = [(min(history[q] for q in group), max(history[q] for q in group)) for _, group in groups]
    assert all(high < low for (_, high), (low, _) in pairwise(ends))
    assert [name for name, _ in groups] == [f"{a} to {b}" for a, b in ends]
    assert [len(group) for _, group in history_groups(list(range(100)))] == [20] * 5
    assert [name for name, _ in history_groups([7] * 9)] == ["7"]


def test_means_of_groups_are_the_plain_formula() -> None:
    values = [0.0, 1.0, 0.5, 0.25, 0.9]
    (mean, error), (alone, none) = means_of(values, [("a", [0, 1, 3]), ("b", [4])])
    some = torch.tensor([0.0, 1.0, 0.25], dtype=torch.float64)
    assert mean == pytest.approx(float(some.mean()))
    assert error == pytest.approx(1.96 * float(some.std()) / 3**0.5)
    assert (alone, none) == (0.9, 0.0)


def test_users_who_took_as_much_give_no_picture_by_history() -> None:
    assert history_lines([5] * 4, {"a": [0.0, 1, 0, 1]}, "ndcg@10") == ""
    assert history_scatter([5] * 4, [0.0, 1, 0, 1], "ndcg@10") == ""
    assert "<svg" in history_scatter([0, 1, 2, 50], [0.0, 1, 0, 1], "ndcg@10")


def test_a_picture_takes_its_colours_from_the_page_and_repeats_no_names() -> None:
    value = {"mean": 0.4, "low": 0.3, "high": 0.5}
    pictures = [
        curve([1, 2, 3], [0.1, 0.3, 0.2], label_x="epoch", label_y="ndcg@10", mark=1),
        interval_rows([("a & <b>", value, [0.35, 0.45]), ("b", value, [0.4])], "ndcg@10"),
        query_scatter([0.0, 0.0], [0.0, 0.0], "a", "b"),
    ]
    for picture in pictures:
        assert not re.search(r"(?<!, )#[0-9a-f]{6}", picture)  # only as what is taken where a page has none
        assert "metadata" not in picture
        assert not re.search(r'id="\w+_\d+"', picture)
    assert "a &amp; &lt;b&gt;" in pictures[1]


def test_a_comparison_of_an_earlier_version_still_has_its_page(tmp_path: Path) -> None:
    cells = [Cell("softmax", "uniform"), Cell("bsl", "uniform")]
    compare(planted.interactions(), None, cells, minutes=0.01, seeds=1, config=SMALL, out=tmp_path)
    found = json.loads((tmp_path / "compare.json").read_text())
    for name in ("served", "notes", "split", "spent_minutes"):
        del found[name]
    for cell in found["cells"]:
        del cell["slices"], cell["model"], cell["spent_seconds"]
    (tmp_path / "compare.json").write_text(json.dumps(found))
    table = pl.read_parquet(tmp_path / "queries.parquet").drop("query", "history")
    table.write_parquet(tmp_path / "queries.parquet")
    page = write_comparison_report(tmp_path).read_text()
    assert page.count("<svg") == 4
    assert "Worst served" not in page
    (tmp_path / "queries.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"queries\.parquet is damaged"):
        write_comparison_report(tmp_path)


def test_a_training_page_shows_users_by_history_where_the_run_tells(tmp_path: Path) -> None:
    train(planted.interactions(), config=SMALL, out=tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    metrics["per_user"] = {"history": [1, 2, 9, 30], "values": [0.0, 0.2, 0.5, 1.0]}
    case = {"user": "u1", "took": 7, "history": ["i1"], "wants": 2, "wanted": ["i2"], "score": 0.25, "first": 31, "given": []}  # fmt: skip
    metrics["examples"] = [case]
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    page = write_training_report(tmp_path).read_text()
    assert "by how much a user took before" in page
    assert "7 items in training, the last first" in page
    assert "first wanted at place 31" in page
    del metrics["per_user"]
    metrics["examples"] = [{k: case[k] for k in ("user", "history", "wanted", "given")}]
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    page = write_training_report(tmp_path).read_text()
    assert "by how much a user took before" not in page
    assert "took before:" in page
