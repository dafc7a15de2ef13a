"""The job: it learns, it chooses on validation data, it saves, and it goes on as if it had never stopped."""

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
import torch
from safetensors.torch import load_file

from steelyard.losses import LOSSES
from steelyard.reports import write_training_report
from steelyard.retrieval import Interactions, Retriever, Stopped, TrainConfig, loop, train
from steelyard.retrieval.job import build
from steelyard.retrieval.loop import Step
from steelyard.retrieval.parts import partition
from tests.retrieval import planted

SMALL = TrainConfig(candidates=32, dim=8, epochs=6, batch=8, lr=0.05, validation_users=60, patience=0)
COMMAND = [sys.executable, "-m", "steelyard", "train"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_model(a: Path, b: Path) -> None:
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "negatives",
    [
        "uniform",
        "popularity:0.75",
        "log-uniform",
        "in-batch",
        "in-batch+uniform",
        "everything",
        "top5+uniform",
        "simans:10+in-batch+uniform",
        "best-of:3",
        "clusters:4",
        "midx:3",
        "quadratic:100+uniform",
        "fourier:64",
    ],
)
def test_it_finds_the_planted_groups_whatever_the_negatives(negatives: str) -> None:
    config = TrainConfig.of(
        "mf", candidates=32, dim=8, epochs=15, batch=8, lr=0.05, negatives=negatives, patience=0
    )
    test = train(planted.interactions(), config=config).metrics
    assert test["test"]["ndcg@10"]["low"] > test["baselines"]["popularity"]["ndcg@10"]["high"]


@pytest.mark.parametrize("negatives", ["in-batch", "in-batch+uniform"])
def test_an_epoch_may_end_in_a_batch_of_one_pair(negatives: str) -> None:
    config = TrainConfig.of("text", epochs=1, batch=7, dim=8, negatives=negatives)
    parts = partition(planted.texts(), None, config, "random")
    last = TrainConfig.of("text", epochs=1, batch=len(parts.train) - 1, dim=8, negatives=negatives)
    assert train(planted.texts(), config=last).metrics["epochs"][0]["loss"] > 0


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_it_learns_with_each_similarity_and_optimiser(similarity: str, optimizer: str) -> None:
    lr = 0.05 if optimizer == "adam" else 0.1
    config = TrainConfig.of(
        "mf",
        candidates=32,
        dim=8,
        epochs=15,
        batch=8,
        similarity=similarity,
        optimizer=optimizer,
        lr=lr,
        learn_temperature=True,
    )
    trained = train(planted.interactions(), config=config)
    assert (
        trained.metrics["test"]["recall@10"]["low"]
        > trained.metrics["baselines"]["popularity"]["recall@10"]["mean"]
    )
    assert trained.metrics["temperature"] != config.temperature


def test_a_text_model_finds_held_out_queries_by_words_it_never_trained_on() -> None:
    config = TrainConfig.of("text", epochs=3, batch=32, candidates=32, dim=32)
    trained = train(planted.texts(), config=config)
    assert trained.metrics["test"]["mrr"]["low"] > 0.5
    assert trained.metrics["baselines"]["chance"]["mrr"]["high"] < 0.1


def test_the_test_set_takes_no_part_in_choosing_the_epoch() -> None:
    data = planted.interactions()
    held = data.select(torch.arange(len(data)) % 7 == 0)
    rest = data.select(torch.arange(len(data)) % 7 != 0)
    shuffled = held.select(torch.arange(len(held)).flip(0)[:40])
    a, b = train(rest, held, SMALL), train(rest, shuffled, SMALL)
    assert a.metrics["epochs"][-1]["validation"] == b.metrics["epochs"][-1]["validation"]
    torch.testing.assert_close(a.retriever.item_vectors, b.retriever.item_vectors, rtol=0, atol=0)


def test_without_validation_it_trains_on_everything_and_to_the_last_epoch(tmp_path: Path) -> None:
    data = planted.interactions()
    config = TrainConfig.of("mf", dim=8, epochs=6, lr=0.05, temperature=0.2, patience=2, validation=0.0)
    said: list[str] = []
    trained = train(data, config=config, out=tmp_path / "run", say=said.append)
    assert " 0 for validation" in said[0]
    assert any("The last epoch" in line for line in said)
    metrics = trained.metrics
    assert metrics["best_epoch"] == 5
    assert metrics["best_validation"] == {"ndcg@20": None}
    assert [entry["validation"] for entry in metrics["epochs"]] == [{}] * 6
    assert "Validation ndcg@20" not in write_training_report(tmp_path / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("metric", ["recall@7", "mrr@1"])
def test_any_cut_off_chooses_the_epoch_and_stands_in_the_report(tmp_path: Path, metric: str) -> None:
    config = TrainConfig.of("mf", dim=8, epochs=2, lr=0.05, temperature=0.2, metric=metric)
    metrics = train(planted.interactions(), config=config, out=tmp_path / "run").metrics
    assert all(metric in found for found in (metrics["test"], *metrics["baselines"].values()))
    assert metric in write_training_report(tmp_path / "run").read_text(encoding="utf-8")


def test_early_stopping_keeps_the_best_epoch_not_the_last() -> None:
    config = TrainConfig.of(
        "mf", candidates=32, dim=8, epochs=60, batch=8, lr=1.0, patience=3, temperature=0.05
    )
    metrics = train(planted.interactions(), config=config).metrics
    scores = [epoch["validation"]["ndcg@20"] for epoch in metrics["epochs"]]
    assert len(scores) < 60
    assert metrics["best_epoch"] == scores.index(max(scores))
    assert len(scores) == metrics["best_epoch"] + 4


def test_a_model_folder_answers_as_the_model_in_memory(tmp_path: Path) -> None:
    trained = train(planted.interactions(), config=SMALL, out=tmp_path / "m")
    loaded = Retriever.load(tmp_path / "m")
    assert loaded.config == SMALL
    for exclude in (True, False):
        want = trained.retriever.recommend(["u3", "u50"], 5, exclude_seen=exclude)
        assert loaded.recommend(["u3", "u50"], 5, exclude_seen=exclude).equals(want)
    assert loaded.neighbours(["i7"], 4).equals(trained.retriever.neighbours(["i7"], 4))
    files = {path.name for path in (tmp_path / "m").iterdir()}
    assert files == {
        "config.json",
        "model.safetensors",
        "users.parquet",
        "items.parquet",
        "seen.safetensors",
        "metrics.json",
        "log.jsonl",
    }
    text = train(
        planted.texts(), config=TrainConfig.of("text", epochs=1, dim=16, batch=32), out=tmp_path / "t"
    )
    assert (
        Retriever.load(tmp_path / "t")
        .search(["compress the abc"], 3)
        .equals(text.retriever.search(["compress the abc"], 3))
    )


class Stop(Exception):
    pass


@pytest.mark.parametrize("negatives", ["uniform", "in-batch+popularity", "top5+uniform", "clusters:4"])
def test_a_run_resumed_in_mid_epoch_is_bit_for_bit_the_uninterrupted_one(
    tmp_path: Path, negatives: str
) -> None:
    data = planted.interactions()
    config = TrainConfig.of(
        "mf",
        candidates=32,
        dim=8,
        epochs=4,
        batch=8,
        negatives=negatives,
        optimizer="adam",
        learn_temperature=True,
    )
    train(data, config=config, out=tmp_path / "whole")

    def stop(step: Step) -> None:
        if (step.epoch, step.step) == (2, 5):
            raise Stop

    with pytest.raises(Stop):
        train(data, config=config, out=tmp_path / "cut", checkpoint_seconds=0, watch=stop)
    train(data, config=config, out=tmp_path / "cut", resume=True)
    assert_same_model(tmp_path / "whole", tmp_path / "cut")
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    for entry in logs[0] + logs[1]:
        del entry["seconds"]
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_a_process_killed_in_mid_epoch_resumes_to_the_same_bits(tmp_path: Path) -> None:
    path = planted.write_csv(planted.interactions(n_users=200, each=20), tmp_path / "data.csv")
    settings = [
        str(path),
        "--epochs",
        "6",
        "--batch",
        "32",
        "--candidates",
        "64",
        "--patience",
        "0",
        "--checkpoint-every",
        "0.2",
    ]
    subprocess.run([*COMMAND, *settings, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    process = subprocess.Popen(
        [*COMMAND, *settings, "--out", str(tmp_path / "cut")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = tmp_path / "cut" / "log.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.exists() or '"epoch": 2' not in log.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    refused = subprocess.run(
        [*COMMAND, *settings, "--out", str(tmp_path / "cut")], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    subprocess.run(
        [*COMMAND, *settings, "--out", str(tmp_path / "cut"), "--resume"], check=True, capture_output=True
    )
    assert_same_model(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["bsl:1.2", "psl", "softmax --model sequence --length 7"])
def test_two_threads_give_the_same_bits_from_run_to_run(tmp_path: Path, loss: str) -> None:
    """Indexing adds its gradient up in the order in which threads come; what the loop uses does not."""
    path = planted.write_csv(planted.interactions(n_users=200, each=20), tmp_path / "data.csv")
    words = f"--epochs 3 --batch 32 --candidates 64 --patience 0 --loss {loss}".split()
    for name in ("a", "b"):
        subprocess.run(
            [*COMMAND, str(path), *words, "--out", str(tmp_path / name)],
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
        )
    assert_same_model(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = planted.write_csv(planted.interactions(n_users=200, each=20), tmp_path / "data.csv")
    settings = [
        str(path),
        "--epochs",
        "500",
        "--batch",
        "32",
        "--patience",
        "0",
        "--out",
        str(tmp_path / "m"),
    ]
    process = subprocess.Popen(
        [*COMMAND, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "m" / "log.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.exists() or '"epoch": 1' not in log.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said
    assert (tmp_path / "m" / "checkpoint.safetensors").exists()


def test_resuming_with_other_settings_or_data_is_refused_by_name(tmp_path: Path) -> None:
    data = planted.interactions()

    def stop(_: Step) -> None:
        raise Stop

    with pytest.raises(Stop):
        train(data, config=SMALL, out=tmp_path / "m", checkpoint_seconds=0, watch=stop)
    with pytest.raises(Stop):  # the first step is not yet saved when the watcher is called
        train(data, config=SMALL, out=tmp_path / "m", checkpoint_seconds=0, watch=stop, resume=True)
    counted = []

    def later(step: Step) -> None:
        counted.append(step)
        if len(counted) == 3:
            raise Stop

    with pytest.raises(Stop):
        train(data, config=SMALL, out=tmp_path / "m", checkpoint_seconds=0, watch=later, resume=True)
    other = TrainConfig(**(SMALL.to_dict() | {"lr": 0.2}))
    with pytest.raises(ValueError, match=r"lr was 0\.05 and is now 0\.2"):
        train(data, config=other, out=tmp_path / "m", resume=True)
    with pytest.raises(ValueError, match="data was"):
        train(planted.interactions(seed=1), config=SMALL, out=tmp_path / "m", resume=True)
    (tmp_path / "m" / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="damaged or foreign"):
        train(data, config=SMALL, out=tmp_path / "m", resume=True)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    folder, data = tmp_path / "m", planted.interactions()
    refused = []

    def second(_: str) -> None:
        if not refused:
            with pytest.raises(FileExistsError, match="Another run") as caught:
                train(data, config=SMALL, out=folder, overwrite=True)
            refused.append(caught)

    train(data, config=SMALL, out=folder, say=second)
    assert refused
    train(data, config=SMALL, out=folder, overwrite=True)  # the first has let go


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    data = planted.interactions()
    train(data, config=SMALL, out=tmp_path / "m")
    before = weights(tmp_path / "m")
    with pytest.raises(FileExistsError, match="--overwrite"):
        train(data, config=SMALL, out=tmp_path / "m")
    with pytest.raises(FileExistsError, match="finished"):
        train(data, config=SMALL, out=tmp_path / "m", resume=True)
    (tmp_path / "m" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        train(data, config=SMALL, out=tmp_path / "m", overwrite=True)
    assert all(torch.equal(before[name], t) for name, t in weights(tmp_path / "m").items())
    (tmp_path / "m" / "thesis.txt").unlink()
    train(data, config=TrainConfig(**(SMALL.to_dict() | {"seed": 5})), out=tmp_path / "m", overwrite=True)
    assert not torch.equal(before["items"], weights(tmp_path / "m")["items"])


@pytest.mark.slow
def test_a_disk_that_fills_up_is_said_and_leaves_no_half_file(tmp_path: Path) -> None:
    path = planted.write_csv(planted.interactions(), tmp_path / "data.csv")
    out = tmp_path / "m"
    command = [*COMMAND, str(path), "--epochs", "2", "--dim", "4096", "--out", str(out)]

    def tight() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=tight)
    assert done.returncode == 2, done.stderr
    assert "no room to write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [p for p in out.iterdir() if p.name.endswith(".part") or p.suffix == ".safetensors"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "items.parquet", "users.parquet", "seen.safetensors", "config.json"]
)
def test_a_damaged_or_missing_file_is_named_and_nothing_is_loaded(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    train(planted.interactions(), config=TrainConfig.of("mf", epochs=1, dim=4), out=folder)
    content = (folder / name).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"\x80\x04cos\nsystem\n(S'true'\ntR."):
        (folder / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=name.split(".")[0]):
            Retriever.load(folder)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name.split(".")[0]):
        Retriever.load(folder)


def test_an_unfinished_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a folder"):
        Retriever.load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model": "bert"}')
    with pytest.raises(ValueError, match="not written by"):
        Retriever.load(tmp_path)


def test_data_that_cannot_be_trained_on_is_refused() -> None:
    data = planted.interactions()
    with pytest.raises(ValueError, match="one user"):
        train(planted.interactions(n_users=1), config=SMALL)
    with pytest.raises(ValueError, match="does not fit data of ids"):
        train(data, config=TrainConfig.of("text"))
    with pytest.raises(FloatingPointError, match="temperature"):
        train(data, config=TrainConfig.of("mf", similarity="dot", lr=1e30))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dim": 0}, "dim"),
        ({"lr": -1}, "lr"),
        ({"temperature": 0}, "temperature"),
        ({"optimizer": "sgd"}, "adagrad"),
        ({"metric": "accuracy@3"}, "ndcg@20"),
        ({"metric": "ndcg@99999999999"}, "ndcg@20"),
        ({"seed": 2**70}, "seed"),
        ({"alpha": 1}, "Unknown settings alpha"),
        ({"loss": "bpl"}, "loss must be one of softmax, bsl"),
        ({"loss": "bsl:-1"}, "number of bsl"),
        ({"loss": "gbce:2"}, "number of gbce"),
        ({"loss": "gbce", "negatives": "popularity:0.75"}, "calibrated for uniform negatives"),
        ({"loss": "softmax:2"}, "takes no number"),
        ({"loss": "bsl:1.2", "similarity": "dot"}, "give --loss softmax"),
        ({"negatives": "topp"}, "Unknown negatives"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainConfig.of("mf", **changes)


@pytest.mark.parametrize(
    "changes", [{"dim": 8.5}, {"seed": True}, {"negatives": 3}, {"learn_temperature": 1}]
)
def test_settings_of_another_type_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="must be of type"):
        TrainConfig.of("mf", **changes)


def test_stopped_tells_where_it_stands() -> None:
    from steelyard.retrieval.loop import Counters

    assert "epoch 3 after 1,234 steps" in str(Stopped(Counters(epoch=2, step=1234), Path("runs/x")))


def test_resuming_needs_a_checkpoint_and_touches_nothing_foreign(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "log.jsonl").write_text("mine\n")
    with pytest.raises(FileExistsError, match="no checkpoint"):
        train(planted.interactions(), config=SMALL, out=tmp_path, resume=True)
    assert (tmp_path / "log.jsonl").read_text() == "mine\n"


def test_overwriting_leaves_a_model_of_other_makers_alone(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(
        FileExistsError, match=r"config\.json, model\.safetensors, which steelyard did not write"
    ):
        train(planted.interactions(), config=SMALL, out=tmp_path, overwrite=True)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("negatives", ["popularity:nan", "nothing"])
def test_overwriting_destroys_nothing_before_the_new_run_is_known_to_be_possible(
    tmp_path: Path, negatives: str
) -> None:
    data = planted.interactions()
    train(data, config=SMALL, out=tmp_path / "m")
    before = sorted(path.name for path in (tmp_path / "m").iterdir())
    with pytest.raises(ValueError, match=r"alpha|there are"):
        train(data, config=TrainConfig.of("mf", negatives=negatives), out=tmp_path / "m", overwrite=True)
    with pytest.raises(ValueError, match="one user"):
        train(planted.interactions(n_users=1), config=SMALL, out=tmp_path / "m", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == before
    Retriever.load(tmp_path / "m")


def test_what_a_killed_run_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model.safetensors.123.part").write_text("half")
    train(planted.interactions(), config=SMALL, out=tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_queries_without_a_single_word_are_ranked_by_chance_and_break_nothing() -> None:
    data = planted.texts()
    odd = pl.Series([f"{query}" if row % 5 else "?" * (row + 1) for row, query in enumerate(data.user_ids)])
    blank = Interactions(
        data.users, data.items, odd, data.item_ids, None, None, data.item_texts, data.reading
    )
    trained = train(blank, config=TrainConfig.of("text", epochs=1, dim=8, batch=32))
    assert 0 < trained.metrics["test"]["mrr"]["mean"] < 1


def test_a_test_of_one_query_has_no_interval_but_a_report(tmp_path: Path) -> None:
    data = planted.interactions()
    one = data.select((data.users == 3) & (data.items % 2 == 0))
    rest = data.select((data.users != 3) | (data.items % 2 == 1))
    metrics = train(rest, one, SMALL, out=tmp_path).metrics
    assert metrics["test"]["mrr"]["low"] is None
    assert "no interval" in write_training_report(tmp_path).read_text()


def test_unknown_ids_come_with_close_matches() -> None:
    retriever = train(planted.interactions(), config=SMALL).retriever
    with pytest.raises(ValueError, match=r"Unknown user 'u1000' among 90; close to it: u10"):
        retriever.recommend(["u1000"])
    with pytest.raises(ValueError, match="Unknown item"):
        retriever.neighbours(["x"])
    with pytest.raises(ValueError, match="trained on ids"):
        retriever.search(["a"])


def test_recommendations_leave_out_what_was_seen_and_never_invent_items() -> None:
    data = planted.interactions(n_items=18, each=17)
    trained = train(data, config=SMALL)
    retriever = trained.retriever
    for user in (0, 5):
        seen = {f"i{i}" for i in retriever.seen.row(user).tolist()}
        given = retriever.recommend([f"u{user}"], 18)["item"].to_list()
        assert set(given) == {f"i{i}" for i in range(18)} - seen
        assert len(given) == 18 - len(seen)
    answers = retriever.recommend(["u0"], 5, exclude_seen=False)
    assert answers["rank"].to_list() == [1, 2, 3, 4, 5]
    assert answers["score"].is_sorted(descending=True)
    assert isinstance(answers, pl.DataFrame)


@pytest.mark.parametrize("loss", [name.replace("@k", "@10") for name in LOSSES])
def test_it_finds_the_planted_groups_whatever_the_loss(loss: str) -> None:
    settings = {"epochs": 15, "lr": 0.05, "temperature": 0.2}
    if loss in ("bce", "gbce"):  # chances of single items want scores far below 0, and more time
        settings = {"epochs": 40, "lr": 0.1, "similarity": "dot", "temperature": 1.0}
    config = TrainConfig.of("mf", candidates=32, dim=8, batch=8, loss=loss, patience=0, **settings)
    test = train(planted.interactions(), config=config).metrics
    assert test["test"]["ndcg@10"]["low"] > test["baselines"]["popularity"]["ndcg@10"]["high"]


@pytest.mark.parametrize("loss", ["softmax", "bsl:1.3", "sl@3:0.5"])
def test_draws_of_each_querys_own_have_the_loss_of_shared_ones(loss: str) -> None:
    """Everything drawn for each query apart is everything drawn once."""
    from steelyard.draws import Draws
    from steelyard.negatives import Context, Everything

    class Apart:
        def sample(self, context: Context, n: int, *, generator: torch.Generator | None = None) -> Draws:
            shared = Everything(data.n_items).sample(context, n, generator=generator)
            ids = shared.ids.expand(len(context), -1)
            return Draws(ids, torch.zeros(ids.shape), shared.log_expected_of)

    data = planted.interactions()
    config = TrainConfig.of(
        "mf", dim=8, epochs=1, batch=16, negatives="everything", loss=loss, dropout=0.0, patience=0
    )
    losses = []
    for apart in (False, True):
        parts = partition(data, None, config, "random")
        run = loop._Run(
            build(parts, config), parts.train.users, parts.train.items, parts.train.known(),
            parts.train.item_counts(), config, None, {}, None,
        )  # fmt: skip
        run.refresh()
        if apart:
            run.proposal = Apart()
        for batch in run.queries[:48].split(16):
            run.step(batch)
        losses.append(run.counters.loss_sum)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_gbce_wants_fewer_draws_than_items_before_a_folder_is_made(tmp_path: Path) -> None:
    data = planted.interactions()
    few = TrainConfig.of("mf", loss="gbce", candidates=data.n_items, dim=8, epochs=1)
    with pytest.raises(ValueError, match="give fewer candidates"):
        train(data, config=few, out=tmp_path / "m")
    assert not (tmp_path / "m").exists()
    everything = TrainConfig.of("mf", loss="gbce", negatives="everything", dim=8, epochs=1)
    assert train(data, config=everything).metrics["test_queries"] > 0


def test_the_memory_said_counts_scores_that_are_gathered() -> None:
    data, said = planted.interactions(), dict[str, float]()
    for loss in ("softmax", "bpr"):
        lines: list[str] = []
        train(
            data, config=TrainConfig.of("mf", loss=loss, candidates=4096, dim=8, epochs=1), say=lines.append
        )
        said[loss] = next(float(line.split()[2]) for line in lines if line.startswith("Memory: about"))
    pairs = len(data) / data.n_users * TrainConfig.of("mf").batch_of(data.n_users)
    assert said["bpr"] - said["softmax"] == pytest.approx(14 * pairs * 4096 * 4 / 2**20, rel=0.3)


@pytest.mark.parametrize("name", ["log.jsonl", ".mine.part", "report.html"])
def test_what_a_run_did_not_write_is_never_removed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for mine in (name, "config.json"):
        (folder / mine).write_text("mine\n")
    for way in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(FileExistsError, match="another --out"):
            train(planted.interactions(), config=SMALL, out=folder, **way)
    assert {path.read_text() for path in folder.iterdir()} == {"mine\n"}
