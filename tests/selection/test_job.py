"""The selection job: one draw whatever runs it, weights that mean what they say, and nothing lost."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from steelyard.selection import HashedNgrams, SelectConfig, kl_reduction, log_ratio, select
from steelyard.selection import job as job_module
from steelyard.selection import passes as passes_module
from steelyard.selection.checks import unmet

WORDS = [f"word{k}" for k in range(400)]


def texts_of(n: int, seed: int, favourites: int = 400) -> list[str]:
    """Texts of unequal length over a vocabulary, of which a part may be all they know."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS[:favourites], rng.integers(3, 60))) for _ in range(n)]


def write_jsonl(path: Path, texts: list[str], **more: Any) -> Path:
    path.write_text("".join(json.dumps({"id": k, "text": t} | more) + "\n" for k, t in enumerate(texts)))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, Path]:
    raw = texts_of(900, 0) + texts_of(100, 1, 50)
    order = np.random.default_rng(2).permutation(1000)
    write_jsonl(tmp_path / "raw.jsonl", [raw[k] for k in order], kept={"deep": [1, 2]})
    write_jsonl(tmp_path / "target.jsonl", texts_of(200, 3, 50))
    return tmp_path / "raw.jsonl", tmp_path / "target.jsonl"


def chosen(folder: Path) -> list[str]:
    lines = []
    for path in sorted((folder / "selected").iterdir()):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            lines += file.read().splitlines()
    return [json.loads(line)["text"] for line in lines]


def run(
    corpus: tuple[Path, Path], out: Path, n: int = 60, settings: dict[str, Any] | None = None, **more: Any
) -> Any:
    return select([corpus[0]], [corpus[1]], SelectConfig(n, **(settings or {})), out=out, **more)


def test_selected_rows_stand_as_they_were_with_their_scores_and_probabilities(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    done = run(corpus, tmp_path / "out", settings={"temper": "ess=200"})
    raw = corpus[0].read_bytes().splitlines()
    weights = pl.read_parquet(tmp_path / "out" / "weights.parquet")
    selected = (tmp_path / "out" / "selected" / "part-00000.jsonl").read_bytes().splitlines()
    assert [raw[k] for k in weights["line"]] == selected
    assert weights["row"].to_list() == list(range(60))
    texts = [json.loads(line)["text"] for line in raw]
    target = [json.loads(line)["text"] for line in corpus[1].read_bytes().splitlines()]
    grams = HashedNgrams()
    log_w = grams.scores(texts, log_ratio(grams.counts(target), grams.counts(texts)))[0]
    np.testing.assert_allclose(weights["score"], log_w[weights["line"]], atol=1e-9)
    power = done.summary["check"]["exponent"]
    tempered = np.exp(power * (log_w - log_w.max()))
    assert tempered.sum() ** 2 / (tempered**2).sum() == pytest.approx(200, rel=1e-3)
    gaps = (
        np.log(-np.log1p(-np.exp(weights["log_inclusion"].to_numpy()))) - power * weights["score"].to_numpy()
    )
    assert np.ptp(gaps) < 1e-6  # log(-log(1 - p)) = power * log w - threshold
    stood_for = weights["score"].to_numpy() - weights["log_inclusion"].to_numpy()
    assert np.ptp(weights["log_weight"].to_numpy() - stood_for) < 1e-9
    assert np.exp(weights["log_weight"].to_numpy()).mean() == pytest.approx(1)


def test_the_draw_is_one_whatever_workers_blocks_files_and_order(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = {"temper": "length,ess=300"}
    expected = run(corpus, tmp_path / "a", settings=settings)
    bytes_of = [
        (tmp_path / "a" / name).read_bytes() for name in ("selected/part-00000.jsonl", "weights.parquet")
    ]
    for out, more in (("b", {"workers": 2, "block": 5000}), ("c", {"workers": 3, "block": 2777})):
        run(corpus, tmp_path / out, settings=settings, **more)
        assert bytes_of == [
            (tmp_path / out / name).read_bytes() for name in ("selected/part-00000.jsonl", "weights.parquet")
        ]
    lines = corpus[0].read_bytes().splitlines(keepends=True)
    (tmp_path / "shards").mkdir()
    for k in range(4):
        (tmp_path / "shards" / f"{9 - k}.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[k::4])))
    again = select(
        [tmp_path / "shards"], [corpus[1]], SelectConfig(60, **settings), out=tmp_path / "d", workers=2
    )
    assert sorted(chosen(tmp_path / "d")) == sorted(chosen(tmp_path / "a"))
    assert again.summary["check"] == pytest.approx(expected.summary["check"])
    run(corpus, tmp_path / "e", settings=settings | {"seed": 1})
    assert sorted(chosen(tmp_path / "e")) != sorted(chosen(tmp_path / "a"))


def test_another_seed_draws_again_what_the_probabilities_say(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    shares = []
    first = run(corpus, tmp_path / "0", settings={"temper": "ess=150"})
    for seed in range(1, 13):
        run(corpus, tmp_path / "s", settings={"temper": "ess=150", "seed": seed}, overwrite=True)
        shares.append(len(set(chosen(tmp_path / "0")) & set(chosen(tmp_path / "s"))) / 60)
    said = first.summary["check"]["drawn_again"]
    assert abs(np.mean(shares) - said) < 4 * np.std(shares) / np.sqrt(12) + 0.02


def test_plain_weights_are_found_out_as_a_ranking_and_tempered_ones_are_not(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    plain = run(corpus, tmp_path / "a").summary
    assert plain["check"]["effective_rows"] < 20
    assert any("in disguise" in v for v in plain["verdicts"])
    tempered = run(corpus, tmp_path / "b", settings={"temper": "length,ess=240"}).summary
    assert tempered["check"]["effective_rows_tempered"] == pytest.approx(240, rel=1e-3)
    assert not any("in disguise" in v for v in tempered["verdicts"])
    assert tempered["check"]["kl_reduction"] > 0.02


def test_length_does_not_decide_at_equal_length(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    plain = run(corpus, tmp_path / "a").summary["check"]["length_correlation"]
    level = run(corpus, tmp_path / "b", settings={"temper": "length"}).summary["check"]["length_correlation"]
    assert abs(level) < 0.3 < abs(plain)


@pytest.mark.parametrize("design", ["top", "stratified", "poisson", "resample"])
def test_every_design_estimates_totals_of_the_corpus(
    corpus: tuple[Path, Path], tmp_path: Path, design: str
) -> None:
    settings = {"design": design, "temper": "ess=500"}
    rows = [json.loads(line)["text"] for line in corpus[0].read_bytes().splitlines()]
    totals, sizes = [], []
    for seed in range(2 if design == "top" else 12):
        run(corpus, tmp_path / "o", 100, settings | {"seed": seed}, overwrite=True)
        frame = pl.read_parquet(tmp_path / "o" / "weights.parquet")
        sizes.append(len(frame))
        totals.append(float(np.exp(-frame["log_inclusion"].to_numpy()).sum()))
    if design == "top":
        assert totals == [100.0] * 2  # nothing was left to chance: the rows stand for themselves
        best = pl.read_parquet(tmp_path / "o" / "weights.parquet")["score"].min()
        grams = HashedNgrams()
        target = [json.loads(line)["text"] for line in corpus[1].read_bytes().splitlines()]
        log_w = grams.scores(rows, log_ratio(grams.counts(target), grams.counts(rows)))[0]
        assert best == pytest.approx(np.sort(log_w)[-100])
        return
    assert abs(np.mean(totals) - 1000) < 6 * np.std(totals) / np.sqrt(12) + 1
    if design == "poisson":
        assert len(set(sizes)) > 1
        assert abs(np.mean(sizes) - 100) < 20
    else:
        assert sizes == [100] * 12


def test_a_killed_job_goes_on_and_gives_the_same_bytes(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    expected = tmp_path / "whole"
    run(corpus, expected, block=20_000)
    script = (
        "import sys, time\n"
        "from steelyard.selection import SelectConfig, select\n"
        "def watch(name, done, total):\n"
        "    print(name, done, flush=True)\n"
        "    time.sleep(0.05)\n"
        "select([sys.argv[1]], [sys.argv[2]], SelectConfig(60), out=sys.argv[3], block=20_000, watch=watch)\n"
    )
    out = tmp_path / "killed"
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, corpus), str(out)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("scoring 3"):
                os.kill(process.pid, signal.SIGKILL)
                break
    with pytest.raises(FileExistsError, match="give --resume"):
        run(corpus, out, block=20_000)
    with pytest.raises(ValueError, match="differs in its buckets"):
        run(corpus, out, settings={"buckets": 500}, block=20_000, resume=True)
    told: list[tuple[str, int]] = []
    run(corpus, out, block=20_000, resume=True, watch=lambda name, done, _: told.append((name, done)))
    assert min(done for name, done in told if name == "scoring") >= 3
    for name in ("selected/part-00000.jsonl", "weights.parquet"):
        assert (out / name).read_bytes() == (expected / name).read_bytes()
    assert not (out / "work").exists()


def test_a_draw_that_could_not_be_made_is_made_anew_from_the_same_scores(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="more than the 1,000 rows"):
        run(corpus, tmp_path / "out", 2000)
    told: list[tuple[str, int, int]] = []
    run(corpus, tmp_path / "out", 60, resume=True, watch=lambda *step: told.append(step))
    assert all(done == total for _, done, total in told)
    run(corpus, tmp_path / "fresh", 60)
    assert chosen(tmp_path / "out") == chosen(tmp_path / "fresh")


def test_a_file_that_changes_between_passes_stops_the_job(
    corpus: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = job_module._Job.score

    def changed(self: Any, table: Any) -> Any:
        time.sleep(0.01)
        write_jsonl(corpus[0], texts_of(1000, 9))
        return before(self, table)

    monkeypatch.setattr(job_module._Job, "score", changed)
    with pytest.raises(ValueError, match="was changed since the job began"):
        run(corpus, tmp_path / "out")
    assert not (tmp_path / "out" / "selected").exists()


def test_a_change_that_keeps_size_and_time_is_noticed_by_content(
    corpus: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = job_module._Job.score

    def changed(self: Any, table: Any) -> Any:
        state, content = corpus[0].stat(), corpus[0].read_bytes()
        corpus[0].write_bytes(content.replace(b"word1", b"word2", 1))
        os.utime(corpus[0], ns=(state.st_atime_ns, state.st_mtime_ns))
        return before(self, table)

    monkeypatch.setattr(job_module._Job, "score", changed)
    with pytest.raises(ValueError, match="changed between two passes"):
        run(corpus, tmp_path / "out")


def test_copies_are_one_row_and_counted(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    lines = corpus[0].read_bytes().splitlines(keepends=True)
    corpus[0].write_bytes(b"".join(lines * 3))
    done = run(corpus, tmp_path / "out")
    assert len(set(chosen(tmp_path / "out"))) == 60
    assert done.summary["copies_of_selected"] == 120
    with pytest.raises(ValueError, match="more than the 1,000 different texts"):
        run(corpus, tmp_path / "more", 1500)


def test_mixed_formats_come_back_each_in_its_own(tmp_path: Path) -> None:
    texts = texts_of(60, 5)
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", texts[:20])
    (tmp_path / "in" / "b.txt.gz").write_bytes(gzip.compress("\n".join(texts[20:40]).encode()))
    pl.DataFrame({"text": texts[40:], "n": range(20)}).write_parquet(tmp_path / "in" / "c.parquet")
    done = select([tmp_path / "in"], [], SelectConfig(60, "random"), out=tmp_path / "out")
    assert sorted(done.summary["shards"]) == ["part-00000.jsonl", "part-00001.txt.gz", "part-00002.parquet"]
    selected = tmp_path / "out" / "selected"
    assert (selected / "part-00000.jsonl").read_bytes() == (tmp_path / "in" / "a.jsonl").read_bytes()
    assert (
        gzip.decompress((selected / "part-00001.txt.gz").read_bytes()).decode().splitlines() == texts[20:40]
    )
    assert pl.read_parquet(selected / "part-00002.parquet").equals(
        pl.read_parquet(tmp_path / "in" / "c.parquet")
    )
    weights = pl.read_parquet(tmp_path / "out" / "weights.parquet")
    assert (weights["log_inclusion"] == 0).all()


def test_random_rows_are_an_even_draw(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "raw.jsonl", texts_of(400, 6))
    seen = np.zeros(400)
    for seed in range(20):
        select([path], [], SelectConfig(100, "random", seed=seed), out=tmp_path / "out", overwrite=True)
        weights = pl.read_parquet(tmp_path / "out" / "weights.parquet")
        seen[weights["line"]] += 1
    chi_square = ((seen - 5) ** 2 / (5 * 0.75)).sum()
    assert 290 < chi_square < 530  # 399 degrees: outside once in ten thousand


def test_short_rows_and_spoilt_lines_are_left_out_and_counted(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    with open(corpus[0], "ab") as file:
        file.write(b'{"text": ""}\n{"text": "one"}\n{broken\n{"none": 1}\n')
    done = run(corpus, tmp_path / "out", settings={"min_tokens": 2})
    assert done.summary["check"]["short"] == 2
    assert done.summary["faults"]["counts"] == {"malformed JSON": 1, "no text": 1}
    assert done.summary["faults"]["examples"][0].endswith("raw.jsonl, line 1003: malformed JSON: {broken")
    with pytest.raises(ValueError, match=r"line 1003: malformed JSON.*Without --strict"):
        run(corpus, tmp_path / "strict", settings={"strict": True}, block=5000)


def test_wishes_that_cannot_be_met_are_refused_in_words(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than the 1,000 rows"):
        run(corpus, tmp_path / "a", 1001)
    with pytest.raises(ValueError, match="field 'body': give --text-field"):
        run(corpus, tmp_path / "b", settings={"text_field": "body"})
    with pytest.raises(ValueError, match="needs a target"):
        select([corpus[0]], [], SelectConfig(5), out=tmp_path / "c")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(ValueError, match="corpus is empty"):
        select([tmp_path / "empty.jsonl"], [corpus[1]], SelectConfig(5), out=tmp_path / "d")
    with pytest.raises(ValueError, match="target is empty"):
        select([corpus[0]], [tmp_path / "empty.jsonl"], SelectConfig(5), out=tmp_path / "d")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        run(corpus, tmp_path / "foreign", overwrite=True)
    assert (tmp_path / "foreign" / "thesis.tex").exists()


def test_a_target_of_three_rows_is_enough_and_said_to_be_little(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    lines = corpus[1].read_bytes().splitlines(keepends=True)
    corpus[1].write_bytes(b"".join(lines[:3]))
    done = run(corpus, tmp_path / "out")
    assert any("3 rows" in v for v in done.summary["verdicts"])


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 0}, {"method": "magic"}, {"design": "guess"}, {"temper": "ess=-1"}, {"temper": "ess=0"}, {"temper": "again=1"}, {"temper": "again"}, {"seed": -1},
        {"smoothing": 0.0}, {"strata": 0}, {"min_tokens": 0}, {"text_field": ""}, {"n_grams": 9}, {"buckets": 0},
        {"design": "stratified", "strata": 99, "n": 10},
    ],
)  # fmt: skip
def test_settings_outside_their_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|above|cannot|may|n-grams"):
        SelectConfig(**({"n": 5} | settings))


def test_settings_of_another_type_are_refused() -> None:
    for settings in ({"n": "5"}, {"n": 5.0}, {"n": True}, {"seed": None}, {"strict": 1}):
        with pytest.raises(TypeError, match="must be of type"):
            SelectConfig(**({"n": 5} | settings))


@pytest.mark.slow
def test_a_ray_cluster_of_two_processes_selects_the_same_bytes(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'steelyard[ray]'")
    run(corpus, tmp_path / "local", block=20_000)
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        run(corpus, tmp_path / "ray", block=20_000, engine="ray")
    finally:
        ray.shutdown()
    for name in ("selected/part-00000.jsonl", "weights.parquet"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


def test_kl_reduction_in_the_check_is_that_of_the_drawn_texts(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    done = run(corpus, tmp_path / "out")
    grams = HashedNgrams()
    target = [json.loads(line)["text"] for line in corpus[1].read_bytes().splitlines()]
    rows = [json.loads(line)["text"] for line in corpus[0].read_bytes().splitlines()]
    counts = [grams.counts(t) for t in (target, rows[::17], chosen(tmp_path / "out"))]
    assert done.summary["check"]["kl_reduction"] == pytest.approx(kl_reduction(*counts), rel=0.5)


def test_a_folder_of_someone_else_is_not_emptied_for_the_names_of_what_is_in_it(
    corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in ("work", "selected"):
        theirs = tmp_path / f"of_{name}" / name / "thesis.tex"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("years of work")
        with pytest.raises(FileExistsError, match=f"holds {name}, which no such job wrote"):
            run(corpus, tmp_path / f"of_{name}", overwrite=True)
        assert theirs.exists()


def test_what_a_selection_wrote_is_no_part_of_the_corpus_around_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts_of(50, 1))
    (tmp_path / ".cache").mkdir()
    write_jsonl(tmp_path / ".cache" / "b.jsonl", texts_of(50, 2))
    out = tmp_path / "runs"
    for _ in range(2):
        done = select([tmp_path], [], SelectConfig(5, "random"), out=out, overwrite=True)
        assert done.summary["files"] == 1
    with pytest.raises(ValueError, match="lies in the output folder"):
        select([out / "selected"], [], SelectConfig(2, "random"), out=out, overwrite=True)
    assert len(chosen(out)) == 5


def test_a_link_is_of_the_kind_its_own_name_says(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "blob", texts_of(20, 1))
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "blob")
    done = select([tmp_path / "in"], [], SelectConfig(5, "random"), out=tmp_path / "out")
    assert (done.summary["files"], done.summary["rows"]) == (1, 20)
    assert pl.read_parquet(tmp_path / "out" / "weights.parquet")["file"][0] == str(
        tmp_path / "in" / "a.jsonl"
    )


def test_bytes_that_are_no_text_and_ends_of_lines_do_not_stop_the_check(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_bytes(b"\xef\xbb\xbfgood line\r\nbad \xff line\nsame\r\n\r\nsame\n")
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "first row"}\n')
    target = tmp_path / "raw.txt"
    done = select([target, tmp_path / "bom.jsonl"], [target], SelectConfig(4), out=tmp_path / "out")
    assert done.summary["copies_of_selected"] == 1
    assert (
        tmp_path / "out" / "selected" / "part-00000.txt"
    ).read_bytes() == b"good line\nbad \xff line\nsame\n"


def test_copies_move_no_threshold(tmp_path: Path) -> None:
    texts = texts_of(60, 4)
    path = write_jsonl(tmp_path / "raw.jsonl", texts + texts[:20] * 20)
    sizes = []
    for seed in range(15):
        config = SelectConfig(30, "random", "poisson", seed=seed)
        done = select([path], [], config, out=tmp_path / "p", overwrite=True)
        sizes.append(done.summary["selected"])
    assert done.summary["check"]["texts"] == 60
    assert done.summary["check"]["effective_rows"] == pytest.approx(60)
    assert abs(np.mean(sizes) - 30) < 5 * np.sqrt(60 / 4 / 15)  # copies counted as rows would give 4
    target = write_jsonl(tmp_path / "target.jsonl", texts_of(30, 5, 50))
    config = SelectConfig(45, design="stratified", strata=4, temper="ess=0.9")
    assert select([path], [target], config, out=tmp_path / "s").summary["selected"] == 45


def test_an_even_draw_is_no_nearer_to_the_target_than_another_though_texts_are_long_and_odd(
    tmp_path: Path,
) -> None:
    texts = texts_of(400, 1)
    for k in range(0, 400, 100):
        texts[k] = f"odd{k} " * 20_000
    path = write_jsonl(tmp_path / "raw.jsonl", texts)
    target = write_jsonl(tmp_path / "target.jsonl", texts_of(100, 2))
    found = []
    for seed in range(6):
        config = SelectConfig(100, temper="ess=1e9", seed=seed)
        done = select([path], [target], config, out=tmp_path / "out", overwrite=True)
        found.append(done.summary["check"]["kl_reduction"])
    assert max(map(abs, found)) < 0.1
    assert any(
        "ess=1,000,000,000 is more than the 400 different texts" in v for v in done.summary["verdicts"]
    )


@pytest.mark.parametrize(
    ("design", "temper", "said"),
    [
        ("resample", "again=0.001", "again=0.001 cannot be reached"),
        ("stratified", "again=0.5", "reckoned for the designs resample and poisson"),
        ("top", "again=0.5", "leaves nothing to chance"),
        ("resample", "again=0.5", ""),
        ("resample", "ess=200", ""),
    ],
)
def test_a_temper_that_has_no_effect_is_said_to_have_none(
    corpus: tuple[Path, Path], tmp_path: Path, design: str, temper: str, said: str
) -> None:
    config = SelectConfig(60, design=design, temper=temper)  # type: ignore[arg-type]
    done = select([corpus[0]], [corpus[1]], config, out=tmp_path / "out")
    told = unmet(done.summary["check"], config)
    assert bool(told) == bool(said)
    assert all(said in line and line in done.summary["verdicts"] for line in told)


def test_a_full_disk_is_named_while_scores_are_written(
    corpus: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, mode: str = "r") -> Any:
        return open("/dev/full", "wb") if "w" in mode and ".scores" in path.name else open(path, mode)

    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    monkeypatch.setattr(passes_module, "open", full, raising=False)
    with pytest.raises(OSError, match="no room to write"):
        run(corpus, tmp_path / "out")
