"""`compare`: equal budgets, the same queries for all models, the test once a seed, and nothing run twice."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from steelyard.evaluation import paired_comparison
from steelyard.ragged import Ragged
from steelyard.retrieval import Cell, Interactions, TrainConfig, compare, racing
from steelyard.retrieval.contenders import settings_of, trials
from steelyard.retrieval.parts import over_rows, partition
from steelyard.retrieval.racing import Ground, Race, train_unit
from steelyard.retrieval.sequences import histories
from steelyard.retrieval.served import differing, worst
from tests.retrieval import planted
from tests.retrieval.test_adapters import Letters

pytestmark = pytest.mark.xdist_group("commands")
SMALL = TrainConfig(candidates=32, dim=8, batch=16, lr=0.05, validation_users=60)
CELLS = [Cell("softmax", "uniform"), Cell("bsl", "popularity:0.75")]
MODELS = [Cell("softmax", "uniform", "mf"), Cell("softmax", "uniform", "sequence")]
QUICK: dict[str, Any] = {"minutes": 0.01, "seeds": 1, "config": SMALL}


def units_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in results_in(folder)]


def results_in(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "units").glob("*.json") if path.name != "epochs.json")


def test_a_comparison_is_tuned_on_validation_and_tested_once_a_seed(tmp_path: Path) -> None:
    data = planted.interactions()
    done = compare(data, None, CELLS, minutes=0.02, seeds=2, config=SMALL, out=tmp_path / "c")
    units = units_of(tmp_path / "c")
    assert sum(unit["tested"] for unit in units) == 4
    assert all(
        ("test" in unit, "validation" in unit) == (unit["tested"], not unit["tested"]) for unit in units
    )
    for c, cell in enumerate(done.summary["cells"]):
        mine = [u for u in units if u["cell"] == c and not u["tested"]]
        longest = [u for u in mine if u["epochs"] == cell["epochs"] and u["changes"] == cell["settings"]]
        assert longest
        assert cell["validation"] == max(u["validation"] for u in longest)
        finals = [u["test"]["ndcg@20"] for u in units if u["cell"] == c and u["tested"]]
        spent = sum(u["cpu_seconds"] for u in units if u["cell"] == c)
        assert cell["spent_seconds"] == pytest.approx(spent)
        want = torch.tensor(finals, dtype=torch.float64).mean(0)
        torch.testing.assert_close(done.scores[cell["name"]], want)
    assert paired_comparison(done.scores, seed=SMALL.seed) == done.differences
    table = pl.read_parquet(tmp_path / "c" / "queries.parquet")
    assert table.columns == ["query", "history", *(cell.name for cell in CELLS)]
    assert set(table["query"]) <= set(data.user_ids)


def test_cells_race_over_the_same_points_and_the_first_is_the_defaults() -> None:
    plain, power = (trials(SMALL, cell) for cell in CELLS)
    assert plain[0] == power[0] == {}
    assert len(plain) == 9
    for a, b in zip(plain[1:], power[1:], strict=True):
        assert a == {k: v for k, v in b.items() if k != "loss"}
        assert b["loss"].startswith("bsl:1.")
        assert 0.045 <= a["temperature"] <= 0.18
    assert not any("loss" in t for t in trials(SMALL, Cell("bsl:1.3", "uniform")))
    weights = [t["loss"].partition(":") for t in trials(SMALL, Cell("sl@20", "uniform"))[1:]]
    assert {name for name, _, _ in weights} == {"sl@20"}
    assert all(1.5 <= float(number) <= 6 for _, _, number in weights)
    assert len(set(weights)) == 8
    assert not any("loss" in t for t in trials(SMALL, Cell("sl@20:2", "uniform")))


def test_another_model_has_its_own_defaults_and_what_was_changed_for_all() -> None:
    base = TrainConfig.of("mf", dim=48, metric="recall@10", seed=3)
    found = settings_of(base, MODELS[1], {"lr": 0.5})
    want = TrainConfig.of("sequence", dim=48, metric="recall@10", seed=3, patience=0, negatives="uniform")
    assert found == replace(want, lr=0.5)
    back = settings_of(TrainConfig.of("sequence", length=7, dim=48), MODELS[0], {})
    assert (back.length, back.dim, back.batch) == (0, 48, 0)
    assert settings_of(SMALL, Cell("softmax", "uniform"), {}) == settings_of(SMALL, MODELS[0], {})
    for cell in MODELS:  # each model races around its own temperature
        usual = settings_of(base, cell, {}).temperature
        assert all(usual / 2 <= t["temperature"] <= 2 * usual for t in trials(base, cell)[1:])


def test_models_are_asked_the_same_queries_with_the_same_wanted_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, asked = planted.interactions(), []
    count = racing.count_ranks

    def spy(queries: Tensor, items: Tensor, targets: Ragged, seen: Ragged | None) -> Any:
        asked.append((len(queries), targets, seen))
        return count(queries, items, targets, seen)

    fit, taught = racing.fit, []

    def listen(*given: Any, **more: Any) -> Any:
        taught.append(len(given[1]))
        return fit(*given, **more)

    monkeypatch.setattr(racing, "count_ranks", spy)
    monkeypatch.setattr(racing, "fit", listen)
    done = compare(data, None, MODELS, **QUICK, out=tmp_path / "c")
    assert taught[-2:] == [len(data) - data.n_users] * 2  # the validation pairs are back
    assert max(taught[:-2]) < taught[-1]
    (n, targets, seen), (other_n, other, other_seen) = asked
    assert n == other_n == data.n_users
    assert torch.equal(targets.values, other.values)
    assert torch.equal(targets.offsets, other.offsets)
    assert torch.equal(seen.values, other_seen.values)
    order = histories(data)
    assert targets.values.tolist() == [int(order.row(user)[-1]) for user in range(n)]  # what came last
    assert done.summary["split"] == "leave-last-out"
    assert [cell["model"] for cell in done.summary["cells"]] == ["mf", "sequence"]
    assert list(done.scores) == ["mf, softmax, uniform", "sequence, softmax, uniform"]


@pytest.mark.parametrize("split_by", ["leave-last-out", "time"])
def test_final_runs_train_on_all_but_the_test_in_the_order_of_time(split_by: str) -> None:
    data = planted.interactions()
    parts = partition(data, None, SMALL, split_by)
    final = Ground(parts).for_test().train
    together = torch.cat([final.users * 1000 + final.items, parts.test.users * 1000 + parts.test.items])
    assert torch.equal(together.sort().values, (data.users * 1000 + data.items).sort().values)
    before, everything = histories(final), histories(data)
    for user in range(data.n_users):
        mine = before.row(user)
        assert torch.equal(mine, everything.row(user)[: len(mine)])


def test_sessions_keep_their_order_without_times() -> None:
    data = planted.interactions()
    told = replace(data, times=None, reading=replace(data.reading, format="sessions"))
    timed, plain = (Ground(partition(d, None, SMALL, "leave-last-out")) for d in (data, told))
    assert torch.equal(timed.parts.test.items, plain.parts.test.items)
    assert torch.equal(histories(timed.for_test().train).values, histories(plain.for_test().train).values)


def texts_and_ids() -> tuple[Interactions, Interactions]:
    ids = planted.interactions()
    return planted.texts(), replace(ids, times=None)


def test_a_comparison_without_validation_data_is_refused(tmp_path: Path) -> None:
    cells = [Cell("softmax", "uniform"), Cell("bpr", "uniform")]
    with pytest.raises(ValueError, match="validation share above 0"):
        compare(
            texts_and_ids()[1],
            None,
            cells,
            minutes=0.01,
            config=replace(SMALL, validation=0.0),
            out=tmp_path / "c",
        )


@pytest.mark.parametrize(
    ("models", "texts", "more", "said"),
    [
        ("mf sequence", False, {}, "wants the order of time, and these data have no time column"),
        ("mf text", False, {}, "'text' does not fit data of ids; mf and sequence"),
        ("text sequence", True, {}, "'sequence' does not fit data of texts"),
        ("mf bert", False, {}, "Unknown model 'bert'|'bert' does not fit"),
        ("mf vectors", False, {}, "wants vectors of queries and documents"),
        ("text vectors", True, {}, "wants an encoder of texts"),
        ("text text", True, {}, "is there twice"),
        ("text", True, {}, "two different cells"),
        ("mf sequence", False, {"split_by": "random"}, "random split would train on what came later"),
    ],
)
def test_models_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, models: str, texts: bool, more: dict[str, Any], said: str
) -> None:
    data = texts_and_ids()[0 if texts else 1]
    cells = [Cell("softmax", "uniform", model) for model in models.split()]
    config = None if texts else SMALL
    with pytest.raises(ValueError, match=said):
        compare(data, None, cells, minutes=0.01, config=config, out=tmp_path / "c", **more)
    assert not (tmp_path / "c").exists()


def test_frozen_vectors_stand_beside_factors_on_the_same_queries(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    ids = planted.interactions()
    vectors = torch.randn(ids.n_users, 6, generator=g), torch.randn(ids.n_items, 6, generator=g)
    rows = replace(
        ids,
        user_ids=pl.int_range(ids.n_users, eager=True),
        item_ids=pl.int_range(ids.n_items, eager=True),
    )
    data = over_rows(rows, *vectors)
    cells = [Cell("softmax", "uniform", "mf"), Cell("softmax", "in-batch+uniform", "vectors")]
    with pytest.raises(ValueError, match="holds out whole queries, and mf cannot"):
        compare(data, None, cells, **QUICK, vectors=vectors, out=tmp_path / "c")
    done = compare(
        data,
        None,
        cells,
        minutes=0.01,
        seeds=1,
        vectors=vectors,
        split_by="leave-last-out",
        out=tmp_path / "c",
    )
    assert done.summary["queries"] == data.n_users
    with pytest.raises(ValueError, match="differs in its vectors"):
        compare(
            data, None, cells, minutes=0.01, seeds=1, vectors=(vectors[1][:1].expand(90, 6), vectors[1]),
            split_by="leave-last-out", out=tmp_path / "c", resume=True,
        )  # fmt: skip


def test_texts_are_compared_with_an_encoder_whose_vectors_are_made_once(tmp_path: Path) -> None:
    data, encoder = planted.texts(), Letters()
    cells = [Cell("softmax", "in-batch", "text"), Cell("softmax", "in-batch", "vectors")]
    small = TrainConfig.of("text", dim=16)
    done = compare(
        data, None, cells, minutes=0.01, seeds=1, config=small, encoder=encoder, out=tmp_path / "c"
    )
    assert encoder.asked == data.n_users + data.n_items
    assert done.summary["queries"] == 16  # whole queries held out, the same for both
    table = pl.read_parquet(tmp_path / "c" / "queries.parquet")
    assert table.columns[0] == "query"
    assert "history" not in table.columns
    assert set(table["query"]) <= set(data.user_ids)
    assert all(case["took"] is None for case in done.summary["served"]["worst"])


def test_queries_to_look_at_are_the_worst_and_those_most_apart(tmp_path: Path) -> None:
    done = compare(
        planted.interactions(), None, MODELS, minutes=0.02, seeds=1, config=SMALL, out=tmp_path / "c"
    )
    table = pl.read_parquet(tmp_path / "c" / "queries.parquet")
    served, metric = done.summary["served"], done.summary["metric"]
    best, second = sorted(done.scores, key=lambda name: -float(done.scores[name].mean()))
    lowest = sorted(table[best].to_list())[: len(served["worst"])]
    assert sorted(case["cells"][0]["score"] for case in served["worst"]) == lowest
    for kind, sign in (("ahead", 1), ("behind", -1)):
        gaps = sorted((sign * g for g in (table[best] - table[second]).to_list()), reverse=True)
        found = [sign * (case["cells"][0]["score"] - case["cells"][1]["score"]) for case in served[kind]]
        assert found == pytest.approx(gaps[: len(found)])
        assert min(found) > 0
    data, cells = planted.interactions(), {c["name"]: c for c in done.summary["cells"]}
    order = histories(data)
    for case in [c for kind in served.values() for c in kind]:
        row = order.row(data.user_ids.to_list().index(case["query"]))
        ids = data.item_ids.gather(row.numpy()).to_list()
        assert case["wanted"] == ids[-1:]
        assert case["took"] == len(ids) - 1
        assert case["history"] == ids[-2::-1][:8]
        for cell in case["cells"]:
            given = [g["item"] for g in cell["given"]]
            assert not set(given) & set(ids[:-1])
            assert [g["wanted"] for g in cell["given"]] == [item == ids[-1] for item in given]
            if cell["first"] <= 10:
                assert given[round(cell["first"]) - 1] == ids[-1]
            assert cell["score"] <= cells[cell["name"]]["test"][metric]["mean"] or cell["first"] <= 20


def test_ties_among_the_worst_and_the_differing_go_by_the_place_of_the_wanted() -> None:
    score = torch.tensor([0.0, 0.5, 0.0, 0.0]).double()
    assert worst(score, torch.tensor([30.0, 2.0, 90.0, 40.0]).double(), 2).tolist() == [2, 3]
    other = torch.tensor([0.3, 0.0, 0.0, 0.3]).double()
    places = torch.tensor([30.0, 2.0, 90.0, 40.0]), torch.tensor([3.0, 50.0, 90.0, 3.0])
    ahead, behind = differing(score, other, places, 6)
    assert (ahead.tolist(), behind.tolist()) == ([1], [3, 0])
    assert differing(score, other, places, 2)[1].tolist() == [3]
    assert differing(score, score, places)[0].tolist() == []


def test_the_first_epoch_of_a_process_does_not_cost_a_cell_its_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spend(seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def fit(*_: Any, validate: Callable[[], Any], **__: Any) -> None:
        for seconds in (0.2, 0.01, 0.01):  # numba compiles in the first
            spend(seconds)
            validate()

    monkeypatch.setattr(racing, "fit", fit)
    parts = partition(planted.interactions(), None, SMALL, "random")
    found = train_unit(Ground(parts), SMALL, tested=False)
    assert found["cpu_seconds"] > 0.2
    assert 0.009 < found["epoch_seconds"] < 0.05


def test_settings_that_diverge_lose_and_a_cell_of_them_alone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, limit = racing.fit, [0.05]

    def fragile(*given: Any, **more: Any) -> Any:
        if given[5].lr > limit[0]:
            raise FloatingPointError("The loss became nan")
        return fit(*given, **more)

    monkeypatch.setattr(racing, "fit", fragile)
    data = planted.interactions()
    done = compare(data, None, CELLS, **QUICK, out=tmp_path / "c")
    assert any(unit.get("diverged") for unit in done.summary["trials"])
    assert all(cell["settings"].get("lr", 0.05) <= 0.05 for cell in done.summary["cells"])
    limit[0] = 0.0
    with pytest.raises(FloatingPointError, match="softmax, uniform: the loss of all its settings"):
        compare(data, None, CELLS, **QUICK, out=tmp_path / "d")


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
        if done > 28:  # one final run is done
            raise Killed

    arguments = QUICK | {"out": tmp_path / "c"}
    data, units = planted.interactions(), tmp_path / "c" / "units"
    with pytest.raises(Killed):
        compare(data, None, CELLS, watch=kill, **arguments)
    before = {path.name: path.read_bytes() for path in units.iterdir()}
    assert len(before) > 20
    assert any(name.endswith(".safetensors") for name in before)
    (units / f".{'0' * 20}.json.123.part").write_text("{")
    with pytest.raises(FileExistsError, match="--resume"):
        compare(data, None, CELLS, **arguments)
    with pytest.raises(ValueError, match="differs in its cells"):
        compare(data, None, CELLS[::-1], resume=True, **arguments)
    with pytest.raises(ValueError, match="differs in its minutes"):
        compare(data, None, CELLS, resume=True, **(arguments | {"minutes": 0.03}))
    done = compare(data, None, CELLS, resume=True, **arguments)
    after = {path.name: path.read_bytes() for path in units.iterdir()}
    assert before.items() <= after.items()
    assert not list(units.glob(".*"))
    again = compare(data, None, CELLS, resume=True, **arguments)
    assert again.summary == done.summary


def damaged(path: Path, damage: str) -> None:
    """Put something else in place of a run's result."""
    content = json.loads(path.read_text())
    other = {
        "missing": None,
        "empty": "",
        "cut": path.read_text()[:40],
        "an empty object": "{}",
        "a list": "[]",
        "another epoch": json.dumps(content | {"epochs": 77_777}),
        "a word for a number": json.dumps(content | {"validation": "abc", "test": {}}),
    }[damage]
    path.unlink() if other is None else path.write_text(other)


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "cut", "an empty object", "a list", "another epoch", "a word for a number"]
)
def test_damaged_runs_are_done_again_with_the_same_result(tmp_path: Path, damage: str) -> None:
    data, units, said = planted.interactions(), tmp_path / "c" / "units", list[str]()
    done = compare(data, None, CELLS, out=tmp_path / "c", **QUICK)
    files = {path.name for path in units.iterdir()}
    runs = results_in(tmp_path / "c")
    for path in runs:
        damaged(path, damage)
    again = compare(data, None, CELLS, out=tmp_path / "c", resume=True, say=said.append, **QUICK)
    assert sum("damaged" in line for line in said) >= (0 if damage == "missing" else len(runs))
    assert [cell["epochs"] for cell in again.summary["cells"]] == [c["epochs"] for c in done.summary["cells"]]
    for name, scores in again.scores.items():
        assert torch.equal(scores, done.scores[name])
    assert len(again.summary["trials"]) == len(done.summary["trials"]) == 28
    assert {path.name for path in units.iterdir()} <= files


def test_lists_and_epochs_that_are_lost_are_found_again(tmp_path: Path) -> None:
    data, units, said = planted.interactions(), tmp_path / "c" / "units", list[str]()
    done = compare(data, None, CELLS, out=tmp_path / "c", **QUICK)
    lists = sorted(units.glob("*.safetensors"))
    lists[0].unlink()
    lists[1].write_bytes(lists[1].read_bytes()[:-8] + bytes(8))
    (units / "epochs.json").write_text("{")
    again = compare(data, None, CELLS, out=tmp_path / "c", resume=True, say=said.append, **QUICK)
    assert sum("is damaged; its run is done again" in line for line in said) == 2
    assert again.summary["served"] == done.summary["served"]
    assert again.differences == done.differences


def test_a_comparison_of_an_earlier_version_is_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    (folder / "units").mkdir(parents=True)
    old = {"data": "x", "cells": [{"loss": "softmax", "negatives": "uniform"}], "minutes": 0.01}
    (folder / "plan.json").write_text(json.dumps(old))
    with pytest.raises(ValueError, match="begun by another version of steelyard"):
        compare(planted.interactions(), None, CELLS, **QUICK, out=folder, resume=True)
    assert json.loads((folder / "plan.json").read_text()) == old


@pytest.mark.parametrize(
    "name",
    [
        "thesis.txt",
        "compare.json",
        "plan.json",
        "units/thesis.txt",
        "units/my.part",
        "units",
        "vectors/mine.npy",
    ],
)
def test_what_is_not_of_a_comparison_is_never_removed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "c"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    for way in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(FileExistsError, match="no part of a comparison"):
            compare(planted.interactions(), None, CELLS, **QUICK, out=folder, **way)
    assert path.read_text() == "mine"
    with pytest.raises(FileExistsError, match="is a file"):
        compare(planted.interactions(), None, CELLS, **QUICK, out=path)


def test_a_test_before_the_history_is_noted_and_one_query_is_too_few(tmp_path: Path) -> None:
    data = planted.interactions()
    assert data.times is not None
    early = data.select(data.times == 3)
    rest = data.select(data.times != 3)
    done = compare(rest, early, MODELS, **QUICK, out=tmp_path / "c")
    assert done.summary["notes"] == [
        "90 of 90 test pairs are earlier than what their user did in training; the model 'sequence' is asked what "
        "comes after all of that."
    ]
    one = data.select((data.times == 3) & (data.users == 0))
    with pytest.raises(ValueError, match="one query only"):
        compare(rest, one, CELLS, **QUICK, out=tmp_path / "d")


def test_equal_shares_of_the_time_give_epochs_by_what_they_cost(tmp_path: Path) -> None:
    parts = partition(planted.interactions(), None, SMALL, "random")
    race = Race(
        Ground(parts), SMALL, CELLS, minutes=1.0, seeds=3, folder=tmp_path, engine="local", watch=None,
        say=lambda _: None,
    )  # fmt: skip
    seconds = {0: 0.0499, 1: 0.1999}
    race.results = lambda units: [{"epoch_seconds": seconds[u.cell]} for u in units]  # type: ignore[method-assign]
    assert race.epochs() == [100, 25]  # 30 s each over 1 + 1 + 1 + 3 rounds


@pytest.mark.slow
def test_ray_runs_the_same_units(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    data = planted.interactions()
    try:
        done = compare(data, None, MODELS, **QUICK, out=tmp_path / "c", engine="ray")
    finally:
        ray.shutdown()
    here = compare(data, None, MODELS, **QUICK, out=tmp_path / "c2")
    assert [c["name"] for c in done.summary["cells"]] == [c["name"] for c in here.summary["cells"]]
    assert sum(unit["tested"] for unit in units_of(tmp_path / "c")) == 2
    assert done.summary["served"]["worst"]


def test_pairs_of_the_test_that_training_has_are_counted_in_a_note(tmp_path: Path) -> None:
    data = planted.interactions()
    rows = torch.zeros(len(data), dtype=torch.bool)
    rows[::7] = True
    test = data.select(rows)
    notes = compare(data, test, CELLS, out=tmp_path / "c", **QUICK).summary["notes"]
    assert (
        f"{len(test):,} of {len(test):,} test pairs stand in training too: no ranking can reach them."
        in notes
    )
