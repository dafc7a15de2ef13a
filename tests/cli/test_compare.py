"""`steelyard compare` as a person types it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import steelyard.retrieval
from tests.cli.running import steelyard as command
from tests.retrieval import planted

pytestmark = pytest.mark.xdist_group("commands")
TINY = ("--budget", "0.01", "--seeds", "1", "--dim", "8")


def timed_csv(path: Path) -> Path:
    data = planted.interactions()
    frame = pl.DataFrame(
        {
            "user": data.user_ids.gather(data.users.numpy()),
            "item": data.item_ids.gather(data.items.numpy()),
            "time": data.times.numpy(),
        }
    )
    frame.write_csv(path)
    return path


def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    planted.write_csv(planted.interactions(), tmp_path / "m.csv")
    done = command(
        "compare", "m.csv", "--losses", "softmax,bsl", "--negatives", "uniform", "--budget", "0.02", "--seeds", "1",
        "--dim", "8", "--out", "c", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Holm p" in done.stdout
    page = (tmp_path / "c" / "compare.html").read_text()
    assert page.count("<svg") == 5  # all users took as much: no picture by history
    assert "softmax, uniform" in page
    assert "Worst served by" in page
    again = command("compare", "m.csv", "--out", "c", cwd=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--losses", "softmax"], "two different cells"),
        (["--losses", "softmax,softmax"], "is there twice"),
        (["--losses", "bsl:1.2,bsl:1.20"], "is there twice"),
        (["--losses", "softmax,,bsl"], "wants names joined by commas"),
        (["--losses", ""], "wants names joined by commas"),
        (["--losses", "softmax,hinge"], "loss must be"),
        (["--negatives", "uniform,unifrom"], "Unknown negatives"),
        (["--negatives", "uniform,popularity:much"], "popularity"),
        (["--negatives", "uniform,top0+uniform"], "top"),
        (["--budget", "0"], "minutes must be positive"),
        (["--budget", "-3"], "minutes must be positive"),
        (["--budget", "nan"], "minutes must be positive"),
        (["--budget", "inf"], "minutes must be positive"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--engine", "slurm"], "engine must be"),
        (["--models", "mf,bert"], "Unknown model 'bert'"),
        (["--models", "mf,text"], "document"),
        (["--models", "mf,sequence"], "have no time column"),
        (["--models", "mf,vectors"], "--query-vectors"),
        (["--query-vectors", "q.npy"], "go with --model vectors"),
        (["--split", "randomly"], "Unknown split"),
        (["--metric", "ndgc@20"], "metric must be"),
        (["--dim", "0"], "dim must be"),
        (["--resume", "--overwrite"], "not both"),
        (["--test", "nowhere.csv"], "nowhere.csv"),
        (["--test", "nowhere.csv", "--losses", "softmax,nothing"], "loss must be one of"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(
    tmp_path: Path, words: list[str], said: str
) -> None:
    planted.write_csv(planted.interactions(), tmp_path / "m.csv")
    done = command("compare", "m.csv", *words, "--out", "c", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "c").exists()


def test_models_are_compared_over_one_split(tmp_path: Path) -> None:
    timed_csv(tmp_path / "m.csv")
    done = command(
        "compare",
        "m.csv",
        "--models",
        "mf,sequence",
        "--losses",
        "softmax",
        *TINY,
        "--out",
        "c",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "sequence, softmax, uniform" in done.stdout
    page = (tmp_path / "c" / "compare.html").read_text()
    assert "held out: leave-last-out" in page


def test_a_test_with_strangers_says_how_many_and_goes_on(tmp_path: Path) -> None:
    timed_csv(tmp_path / "m.csv")
    (tmp_path / "t.csv").write_text("user,item,time\nu1,i3,99\nu2,i59,99\nnobody,i3,99\nu3,nothing,99\n")
    done = command("compare", "m.csv", "--test", "t.csv", *TINY, "--out", "c", "--overwrite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 unknown user" in done.stderr
    assert "1 unknown item" in done.stderr
    assert "(a file of its own)" in (tmp_path / "c" / "compare.html").read_text()
    (tmp_path / "t.csv").write_text("user,item,time\nnobody,i3,99\n")
    done = command("compare", "m.csv", "--test", "t.csv", *TINY, "--out", "d", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("content", ["", "user,item\n", "user,item\nu1,i1\n", "user,item\nu1,i1\nu2,i2\n"])
def test_data_of_nothing_is_said_in_a_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "m.csv").write_text(content)
    done = command("compare", "m.csv", *TINY, "--out", "c", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()[-1]) < 400
    assert not (tmp_path / "c").exists()


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise steelyard.retrieval.Stopped(steelyard.retrieval.loop.Counters(), None)

    monkeypatch.setattr(steelyard.retrieval, "compare", stopped)
    timed_csv(tmp_path / "m.csv")
    done = command("compare", "m.csv", *TINY, "--out", "c", cwd=tmp_path)
    assert done.returncode == 130
    assert "--resume" in done.stderr


@pytest.mark.slow
def test_a_killed_command_goes_on_after_a_full_disk_too(tmp_path: Path) -> None:
    timed_csv(tmp_path / "m.csv")
    words = ["compare", "m.csv", *TINY, "--out", "c"]
    run = [sys.executable, "-m", "steelyard", *words]

    def tight() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # results of final runs are longer
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    full = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, preexec_fn=tight, check=False)
    assert full.returncode == 2, full.stderr
    assert "no room to write" in full.stderr
    units = tmp_path / "c" / "units"
    kept = {path.name: path.read_bytes() for path in units.iterdir()}
    assert len(kept) >= 20
    for path in list(units.iterdir())[5:]:
        path.unlink()
    kept = {path.name: path.read_bytes() for path in units.iterdir()}
    process = subprocess.Popen([*run, "--resume"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while len(list(units.glob("*.json"))) < 8 and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept |= {path.name: path.read_bytes() for path in units.glob("*.json")}
    done = command(*words, "--resume", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cells"]
    assert kept.items() <= {path.name: path.read_bytes() for path in units.iterdir()}.items()
