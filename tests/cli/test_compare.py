"""`steelyard compare`: equal budgets, the test once, resumable, and a page that says who is better."""

import json
from pathlib import Path

import polars as pl
import pytest
import torch

from steelyard.evaluation import paired_bootstrap
from steelyard.retrieval import Cell, TrainConfig, compare
from steelyard.retrieval.comparing import trials
from tests.cli.running import steelyard
from tests.retrieval import planted

pytestmark = pytest.mark.xdist_group("commands")
SMALL = TrainConfig(candidates=32, dim=8, batch=16, lr=0.05, validation_users=60)
CELLS = [Cell("softmax", "uniform"), Cell("bsl", "popularity:0.75")]


def test_a_comparison_is_tuned_on_validation_and_tested_once_a_seed(tmp_path: Path) -> None:
    done = compare(
        planted.interactions(), None, CELLS, minutes=0.02, seeds=2, config=SMALL, out=tmp_path / "c"
    )
    units = [json.loads(path.read_text()) for path in (tmp_path / "c" / "units").iterdir()]
    assert sum(unit["tested"] for unit in units) == 4
    assert all("test" not in unit for unit in units if not unit["tested"])
    for c, cell in enumerate(done.summary["cells"]):
        mine = [u for u in units if u["cell"] == c and not u["tested"]]
        longest = [u for u in mine if u["epochs"] == cell["epochs"] and u["changes"] == cell["settings"]]
        assert longest
        assert cell["validation"] == max(u["validation"] for u in longest)
        finals = [u["test"]["ndcg@20"] for u in units if u["cell"] == c and u["tested"]]
        want = torch.tensor(finals, dtype=torch.float64).mean(0)
        torch.testing.assert_close(done.scores[cell["name"]], want)
    again = paired_bootstrap(done.scores, seed=SMALL.seed)
    assert again == done.differences
    table = pl.read_parquet(tmp_path / "c" / "queries.parquet")
    assert table.columns == [cell.name for cell in CELLS]


def test_cells_race_over_the_same_points_and_the_first_is_the_defaults() -> None:
    plain, power = (trials(SMALL, cell) for cell in CELLS)
    assert plain[0] == power[0] == {}
    assert len(plain) == 9
    for a, b in zip(plain[1:], power[1:], strict=True):
        assert a == {k: v for k, v in b.items() if k != "loss"}
        assert b["loss"].startswith("bsl:1.")
        assert 0.045 <= a["temperature"] <= 0.18
    assert not any("loss" in t for t in trials(SMALL, Cell("bsl:1.3", "uniform")))


def test_a_comparison_at_work_keeps_another_out_of_its_folder(tmp_path: Path) -> None:
    def again(_done: int, _total: int) -> None:
        before = sorted((tmp_path / "c" / "units").iterdir())
        with pytest.raises(FileExistsError, match="Another run is writing"):
            compare(data, None, CELLS, minutes=0.02, config=SMALL, out=tmp_path / "c", overwrite=True)
        assert sorted((tmp_path / "c" / "units").iterdir()) == before
        raise KeyboardInterrupt

    data = planted.interactions()
    with pytest.raises(KeyboardInterrupt):
        compare(data, None, CELLS, minutes=0.02, config=SMALL, out=tmp_path / "c", watch=again)


def test_a_killed_comparison_goes_on_and_runs_nothing_twice(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, _total: int) -> None:
        if done > 12:
            raise Killed

    arguments = {"minutes": 0.02, "seeds": 1, "config": SMALL, "out": tmp_path / "c"}
    data = planted.interactions()
    with pytest.raises(Killed):
        compare(data, None, CELLS, watch=kill, **arguments)  # type: ignore[arg-type]
    before = {path.name: path.read_bytes() for path in (tmp_path / "c" / "units").iterdir()}
    assert len(before) > 10
    with pytest.raises(FileExistsError, match="--resume"):
        compare(data, None, CELLS, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differs in its cells"):
        compare(data, None, CELLS[::-1], resume=True, **arguments)  # type: ignore[arg-type]
    compare(data, None, CELLS, resume=True, **arguments)  # type: ignore[arg-type]
    after = {path.name: path.read_bytes() for path in (tmp_path / "c" / "units").iterdir()}
    assert before.items() <= after.items()


def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    planted.write_csv(planted.interactions(), tmp_path / "m.csv")
    done = steelyard(
        "compare", "m.csv", "--losses", "softmax,bsl", "--negatives", "uniform", "--budget", "0.02", "--seeds", "1",
        "--dim", "8", "--out", "c", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Holm p" in done.stdout
    page = (tmp_path / "c" / "compare.html").read_text()
    assert page.count("<svg") == 3
    assert "softmax, uniform" in page
    again = steelyard("compare", "m.csv", "--out", "c", cwd=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--losses", "softmax"], "two different cells"),
        (["--losses", "softmax,softmax"], "two different cells"),
        (["--losses", "softmax,hinge"], "loss must be"),
        (["--negatives", "uniform,unifrom"], "Unknown negatives"),
        (["--budget", "0"], "minutes must be positive"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--engine", "slurm"], "engine must be"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(
    tmp_path: Path, words: list[str], said: str
) -> None:
    planted.write_csv(planted.interactions(), tmp_path / "m.csv")
    done = steelyard("compare", "m.csv", *words, "--out", "c", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_ray_runs_the_same_units(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        done = compare(
            planted.interactions(),
            None,
            CELLS,
            minutes=0.02,
            seeds=1,
            config=SMALL,
            out=tmp_path / "c",
            engine="ray",
        )
    finally:
        ray.shutdown()
    here = compare(
        planted.interactions(), None, CELLS, minutes=0.02, seeds=1, config=SMALL, out=tmp_path / "c2"
    )
    assert [c["name"] for c in done.summary["cells"]] == [c["name"] for c in here.summary["cells"]]
    units = [json.loads(path.read_text()) for path in (tmp_path / "c" / "units").iterdir()]
    assert sum(unit["tested"] for unit in units) == 2
