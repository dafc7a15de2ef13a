"""Sequences: a state sees the past alone, padding counts for nothing, and what comes next is found."""

import json
import shlex
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.reports import write_training_report
from steelyard.retrieval import Interactions, Reading, Retriever, TrainConfig, loop, train
from steelyard.retrieval.config import PRESETS, preset_changes
from steelyard.retrieval.job import build
from steelyard.retrieval.loop import Step
from steelyard.retrieval.parts import partition
from steelyard.retrieval.sequences import SequenceModel, _windows, histories, positions
from tests.cli.running import steelyard
from tests.retrieval import planted
from tests.retrieval.test_training import Stop, assert_same_model


def chains(n_users: int = 120, n_items: int = 30, seed: int = 0, *, times: bool = True) -> Interactions:
    """Each user starts anywhere and goes to the next item but one around a circle, mostly; rows are shuffled."""
    g = torch.Generator().manual_seed(seed)
    users, items, at = [], [], []
    for user in range(n_users):
        length = int(torch.randint(4, 11, (1,), generator=g))
        start = int(torch.randint(n_items, (1,), generator=g))
        users += [user] * length
        items += [(start + 2 * t) % n_items for t in range(length)]
        at += list(range(length))
    order = torch.randperm(len(users), generator=g) if times else torch.arange(len(users))
    return Interactions(
        torch.tensor(users)[order],
        torch.tensor(items)[order],
        pl.Series([f"u{i}" for i in range(n_users)]),
        pl.Series([f"i{i}" for i in range(n_items)]),
        None,
        torch.tensor(at)[order] if times else None,
        None,
        Reading(["chains"], "memory", {}, len(users), len(users)),
    )


def config(**changes: object) -> TrainConfig:
    settings = {"epochs": 30, "batch": 32, "candidates": 16, "dim": 16, "lr": 0.02, "patience": 0}
    return TrainConfig.of("sequence", **(settings | {"dropout": 0.1, "length": 8, "layers": 1} | changes))


def model(cell: str, rows: list[list[int]], **settings: object) -> SequenceModel:
    counts = torch.tensor([0, *map(len, rows)])
    items = Ragged(counts.cumsum(0), torch.tensor([i for row in rows for i in row]))
    generator = torch.Generator().manual_seed(0)
    return SequenceModel(20, 8, cell, items_of=items, generator=generator, **{"length": 5} | settings)  # type: ignore[arg-type]


def of(*rows: list[int]) -> Ragged:
    return Ragged(
        torch.tensor([0, *map(len, rows)]).cumsum(0), torch.tensor([i for r in rows for i in r]).long()
    )


CELLS = pytest.mark.parametrize("cell", ["transformer", "gru"])


def test_histories_are_in_the_order_of_time_and_equal_times_in_that_of_the_rows() -> None:
    data = chains()
    rows = histories(data)
    for user in range(data.n_users):
        steps = rows.row(user).diff() % data.n_items
        assert bool((steps == 2).all())
    untimed = chains(times=False)
    assert torch.equal(histories(untimed).values, untimed.items)


@CELLS
def test_the_training_pairs_are_each_position_with_the_next_item_in_windows_of_the_length(cell: str) -> None:
    rows = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12], [13, 14]]
    encoder = model(cell, rows)
    assert encoder.pair_counts.tolist() == [2, 0, 7, 1]
    states, items, owner = encoder.pairs(torch.tensor([2, 0, 3]))
    assert items.tolist() == [6, 7, 8, 9, 10, 11, 12, 2, 3, 14]
    assert owner.tolist() == [0] * 7 + [1, 1, 2]
    for at, window in ((1, [5, 6]), (6, [7, 8, 9, 10, 11]), (8, [1, 2]), (9, [13])):
        torch.testing.assert_close(states[at], encoder.after(of(window))[0])
    assert "10 (position, next item) pairs; 1 of 4 users" in encoder.account()
    assert "1 have one item" in encoder.account()


@settings(max_examples=100)
@given(
    counts=st.lists(st.integers(2, 30), min_size=1, max_size=6),
    length=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_windows_hold_each_step_of_a_history_once_wherever_they_are_cut(
    counts: list[int], length: int, seed: int
) -> None:
    rows = Ragged(torch.tensor([0, *counts]).cumsum(0), torch.arange(sum(counts)))
    shift = torch.randint(length, (len(counts),), generator=torch.Generator().manual_seed(seed))
    windows = _windows(rows, length, shift)
    assert int(windows.counts.max()) <= length + 1
    steps = [pair for w in range(len(windows)) for pair in pairwise(windows.row(w).tolist())]
    assert steps == [pair for r in range(len(rows)) for pair in pairwise(rows.row(r).tolist())]


def test_long_histories_are_cut_elsewhere_in_each_pass() -> None:
    encoder = model("gru", [list(range(1, 18))])
    g = torch.Generator().manual_seed(0)
    runs = [encoder.pairs(torch.tensor([0]), generator=g) for _ in range(20)]
    assert all(items.tolist() == list(range(2, 18)) for _, items, _ in runs)
    alone = encoder.after(of([13]))[0]  # 13 begins a window where one is cut there
    assert 0 < sum(bool(torch.allclose(states[12], alone, atol=1e-6)) for states, _, _ in runs) < 20


@CELLS
@pytest.mark.parametrize("cosine", [False, True])
def test_a_state_is_that_of_its_past_alone_however_the_batch_is_padded(cell: str, cosine: bool) -> None:
    """Compared with a batch of one, without padding and without future; the GRU has no places to shift."""
    rows = [[3, 1, 4, 1, 5, 9], [2, 6, 5], [7, 8]]
    encoder = model(cell, rows, cosine=cosine, layers=2)
    if cell == "transformer":
        with torch.no_grad():
            encoder.place.zero_()  # a shorter past stands elsewhere in the window
    states, _, owner = encoder.pairs(torch.arange(3))
    for row in range(5):
        alone = encoder.after(of(rows[0][: row + 1]))
        torch.testing.assert_close(states[owner == 0][row], alone[0])
    for row in range(2):
        torch.testing.assert_close(states[owner == 1][row], encoder.after(of(rows[1][: row + 1]))[0])
    together = encoder.after(of(*rows))
    for row, history in enumerate(rows):
        torch.testing.assert_close(together[row], encoder.after(of(history[-5:]))[0])


def test_places_are_counted_from_the_end_of_the_window() -> None:
    encoder = model("transformer", [[1, 2, 3, 4, 5, 6]])
    states, _, _ = encoder.pairs(torch.tensor([0]))
    torch.testing.assert_close(states[-1], encoder.after(of([1, 2, 3, 4, 5]))[0])
    short = encoder.after(of([5]))
    with torch.no_grad():
        encoder.place[:-1].normal_()  # places that one item does not reach
    torch.testing.assert_close(encoder.after(of([5])), short)


@CELLS
def test_an_empty_history_has_the_zero_state(cell: str) -> None:
    states = model(cell, [[1, 2]]).after(of([], [3]))
    assert float(states[0].detach().abs().sum()) == 0
    assert float(states[1].detach().abs().sum()) > 0


def test_a_transformer_block_is_the_plain_formula() -> None:
    """Attention of each position over those up to it, computed pair by pair."""
    encoder = model("transformer", [[3, 1, 4]], layers=1).double()
    block, x = encoder.blocks[0], encoder.item.weight[torch.tensor([3, 1, 4])].detach() * 8**0.5
    x = x + encoder.place[2:].detach()
    q, k, v = block.project(block.before(x)).chunk(3, dim=-1)
    rows = []
    for t in range(3):
        weight = torch.stack([torch.exp(q[t] @ k[s] / 8**0.5) for s in range(t + 1)])
        attended = sum(w / weight.sum() * v[s] for s, w in enumerate(weight))
        y = x[t] + block.out(attended)
        rows.append(y + block.outer(torch.relu(block.inner(block.between(y)))))
    want = encoder.last(torch.stack(rows))[2]
    torch.testing.assert_close(encoder._run(of([3, 1, 4]), 0.0, None)[0][0, 2], want)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cell": "gru"},
        {"negatives": "everything"},
        {"negatives": "in-batch+uniform", "loss": "softmax"},
        {"loss": "gbce:0.75", "epochs": 60, "lr": 0.01, "temperature": 0.1},
        {"negatives": "top5+uniform"},
        {"loss": "bsl:1.2"},
        {"similarity": "dot", "temperature": 1.0},
    ],
)
def test_it_finds_what_comes_next(changes: dict[str, object]) -> None:
    trained = train(chains(), config=config(**changes), split_by="leave-last-out")
    metrics = trained.metrics
    assert metrics["test"]["hit_rate@5"]["mean"] > 0.8
    assert metrics["baselines"]["popularity"]["hit_rate@5"]["high"] < 0.5
    assert metrics["epochs"][-1]["loss"] < metrics["epochs"][0]["loss"]


def test_the_test_is_asked_by_the_state_after_all_that_came_before() -> None:
    data = chains()
    trained = train(data, config=config(epochs=1), split_by="leave-last-out")
    rows = histories(data)
    encoder = trained.retriever.model.encoder
    assert isinstance(encoder, SequenceModel)
    given = trained.retriever.user_vectors(torch.arange(data.n_users))
    for user in (0, 7):
        before: Tensor = rows.row(user)[:-1]
        torch.testing.assert_close(given[user], encoder.after(of(before.tolist()))[0])


@CELLS
def test_a_run_resumed_in_mid_epoch_is_bit_for_bit_the_uninterrupted_one_and_the_folder_answers(
    tmp_path: Path, cell: str
) -> None:
    settings = config(epochs=4, cell=cell, length=3, learn_temperature=True)
    data = chains()
    whole = train(data, config=settings, split_by="leave-last-out", out=tmp_path / "whole")

    def stop(step: Step) -> None:
        if (step.epoch, step.step) == (2, 2):
            raise Stop

    cut = {"config": settings, "split_by": "leave-last-out", "out": tmp_path / "cut"}
    with pytest.raises(Stop):
        train(data, **cut, checkpoint_seconds=0, watch=stop)
    torch.rand(1)  # the global generator is not ours
    train(data, **cut, resume=True)
    assert_same_model(tmp_path / "whole", tmp_path / "cut")
    loaded = Retriever.load(tmp_path / "cut")
    assert loaded.recommend(["u3", "u50"], 5).equals(whole.retriever.recommend(["u3", "u50"], 5))
    assert loaded.neighbours(["i7"], 4).equals(whole.retriever.neighbours(["i7"], 4))
    a, b = (r.model.encoder.after(of([3, 5, 7])) for r in (loaded, whole.retriever))  # type: ignore[operator]
    torch.testing.assert_close(a, b)


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    model("gru", [[1, 2]])
    assert torch.equal(torch.rand(1), want)


def test_a_step_draws_its_own_item_as_a_negative_never() -> None:
    """The loss under all items is the cross-entropy of the next item."""
    settings = config(negatives="everything", dropout=0.0)
    data = chains()
    parts = partition(data, None, settings, "leave-last-out")
    built = build(parts, settings)
    run = loop._Run(
        built, parts.train.users, parts.train.items, parts.train.known(), parts.train.item_counts(),
        settings, None, {}, None,
    )  # fmt: skip
    run.refresh()
    encoder = built.encoder
    assert isinstance(encoder, SequenceModel)
    with torch.no_grad():
        states, items, _ = encoder.pairs(run.queries[:32])
        logits = states @ encoder.items(torch.arange(30)).T / settings.temperature
        want = torch.nn.functional.cross_entropy(logits, items)
    run.step(run.queries[:32])
    assert run.counters.loss_sum / run.counters.pairs == pytest.approx(float(want), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="leave-last-out"):
        train(chains(), config=config())
    with pytest.raises(ValueError, match="does not fit data of texts"):
        train(planted.texts(), config=config(), split_by="leave-last-out")
    for changes, said in (
        ({"cell": "lstm"}, "transformer, gru"),
        ({"length": 0}, "length must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            config(**changes)
    with pytest.raises(ValueError, match="a setting of the model sequence"):
        TrainConfig.of("mf", length=10)
    alone = chains().select(torch.arange(1))
    settings = config()
    with pytest.raises(ValueError, match="No user has two items"):
        loop._Run(
            loop.Model(SequenceModel.of(settings, 30, items_of=histories(alone)), settings),
            alone.users, alone.items, alone.known(), alone.item_counts(), settings, None, {}, None,
        )  # fmt: skip


def sessions(rows: list[list[int]], n_items: int = 30, name: str = "s") -> Interactions:
    users = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(r) for r in rows]))
    return Interactions(
        users,
        torch.tensor([i for r in rows for i in r], dtype=torch.int64),
        pl.Series([f"{name}{i}" for i in range(len(rows))]),
        pl.Series([f"i{i}" for i in range(n_items)]),
        None,
        None,
        None,
        Reading(["sessions"], "sessions", {}, len(users), len(users)),
    )


@settings(max_examples=50)
@given(
    rows=st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=5),
    length=st.integers(1, 8) | st.none(),
)
def test_each_position_but_the_first_is_asked_with_what_came_before(
    rows: list[list[int]], length: int | None
) -> None:
    data = sessions(rows)
    want = [
        (f"s{s} after {n}", r[max(0, n - (length or n)) : n], r[n])
        for s, r in enumerate(rows)
        for n in range(1, len(r))
    ]
    if not want:
        with pytest.raises(ValueError, match="two items"):
            positions(data)
        return
    asked, at = positions(data)
    assert asked.users.tolist() == list(range(len(want)))
    known = at.known(length=length)
    got = [(asked.user_ids[q], known.row(q).tolist(), int(asked.items[q])) for q in range(len(want))]
    assert got == want
    assert at.history.tolist() == [int(name[1]) for name, _, _ in want]
    hidden = at.left_out()
    for q in range(len(want)):
        session, n = int(at.history[q]), int(at.before[q])
        assert hidden.row(q).tolist() == sorted(set(rows[session][:n]))
    some = torch.tensor([len(want) - 1, 0])
    assert [at.known(some).row(k).tolist() for k in (0, 1)] == [at.known().row(int(q)).tolist() for q in some]


@pytest.mark.parametrize("repeats", [False, True])
def test_new_sessions_are_asked_position_by_position_and_repeats_are_found_where_items_come_again(
    tmp_path: Path, repeats: bool
) -> None:
    """Sessions go two steps on around a circle, and then return to their second item: 5 7 9 7."""
    make = lambda starts: [[s % 30, (s + 2) % 30, (s + 4) % 30, (s + 2) % 30] for s in starts]  # noqa: E731
    data, test = sessions(make(range(120))), sessions(make(range(30)), name="new")
    if not repeats:
        data, test = (part.select(torch.arange(len(part)) % 4 < 3) for part in (data, test))
    trained = train(
        data,
        test,
        config(epochs=40, validation=0.0, repeats=repeats),
        split_by="leave-last-out",
        out=tmp_path / "m",
    )
    retriever, metrics = Retriever.load(tmp_path / "m"), trained.metrics
    assert metrics["test_queries"] == (90 if repeats else 60)
    assert metrics["test_histories"] == 30
    assert metrics["per_user"]["history"] == [4 if repeats else 3] * 30
    evaluated = retriever.evaluate(test, k=(5,))
    assert evaluated.mean("mrr") == pytest.approx(metrics["test"]["mrr"]["mean"])
    assert evaluated.interval("mrr") == pytest.approx(
        (metrics["test"]["mrr"]["low"], metrics["test"]["mrr"]["high"])
    )
    assert "30 histories, each position a query" in write_training_report(tmp_path / "m").read_text(
        encoding="utf-8"
    )
    ranks = []
    for user in range(test.n_users):
        items = histories(test).row(user).tolist()
        for n in range(1, len(items)):
            history = [f"i{i}" for i in items[:n]]
            given = retriever.recommend_after([history], 30)["item"].to_list()
            assert repeats or not set(given) & set(history)
            ranks.append(given.index(f"i{items[n]}"))
    assert metrics["test"]["hit_rate@5"]["mean"] == pytest.approx(sum(r < 5 for r in ranks) / len(ranks))
    if repeats:
        last = ranks[2::3]
        assert sum(r < 3 for r in last) > 0.8 * len(last)
        assert metrics["seen_items"].startswith("left in the ranking")
        own = retriever.recommend(["s0"], 30)
        assert set(own["item"]) == set(data.item_ids)
    for example in metrics["examples"]:
        name, _, n = example["user"].partition(" after ")
        items = histories(test).row(int(name.removeprefix("new"))).tolist()[: int(n)]
        assert example["took"] == int(n)
        assert example["history"] == [f"i{i}" for i in reversed(items)]


def test_what_came_before_the_window_is_left_out_too_where_items_do_not_come_again() -> None:
    """A window of 2 over nine items: all that came before is hidden, so that chance has fewer items to hit."""
    data = sessions([[(s + 2 * t) % 30 for t in range(9)] for s in range(60)])
    test = sessions([[(s + 2 * t) % 30 for t in range(9)] for s in range(30)], name="new")
    metrics = train(data, test, config(epochs=1, length=2), split_by="leave-last-out").metrics
    want = sum(10 / (30 - n) for n in range(1, 9)) / 8
    assert metrics["baselines"]["chance"]["recall@10"]["mean"] == pytest.approx(want)


def test_histories_that_cannot_be_asked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data, test = sessions([[1, 2, 3], [4, 5, 6]]), sessions([[1, 2]], name="new")
    with pytest.raises(ValueError, match="has no vector for"):
        train(data, test, TrainConfig.of("mf", dim=4, epochs=1))
    with pytest.raises(ValueError, match="another item vocabulary"):
        train(data, sessions([[1, 2]], n_items=9), config(epochs=1), split_by="leave-last-out")
    with pytest.raises(ValueError, match="setting of the model sequence"):
        TrainConfig.of("mf", repeats=True)
    with monkeypatch.context() as small:
        small.setattr("steelyard.retrieval.sequences.MOST_BEFORE", 20)
        _, many = positions(sessions([list(range(8))]))
        with pytest.raises(ValueError, match="7 positions of the test have 28 items before them"):
            many.left_out()
        assert len(many.known(length=2)) == 7
    retriever = train(data, test, config(epochs=1), split_by="leave-last-out").retriever
    with pytest.raises(ValueError, match="No history"):
        retriever.recommend_after([])
    with pytest.raises(ValueError, match="No item"):
        retriever.recommend_after([[]])
    with pytest.raises(TypeError, match="list of items"):
        retriever.recommend_after(["i1"])
    with pytest.raises(ValueError, match="close to it"):
        retriever.recommend_after([["i1", "i"]])
    with pytest.raises(ValueError, match="An empty item was given"):
        retriever.recommend_after([["i1", ""]])
    other = train(planted.interactions(), config=TrainConfig.of("mf", dim=4, epochs=1, batch=8)).retriever
    with pytest.raises(ValueError, match="knows no order"):
        other.recommend_after([["i1"]])


def test_presets_are_settings_of_sequence_that_options_win_over() -> None:
    for name in PRESETS:
        model, changes = preset_changes(name, None)
        assert TrainConfig.of(model, **changes).to_dict().items() >= changes.items()
    with pytest.raises(ValueError, match="there are sasrec"):
        preset_changes("bert4rec", None)
    with pytest.raises(ValueError, match="of the model sequence"):
        preset_changes("gru4rec", "mf")


def test_the_command_trains_on_sessions_in_their_order(tmp_path: Path) -> None:
    data = chains(times=False)
    frame = {
        "user": data.user_ids.gather(data.users.numpy()),
        "item": data.item_ids.gather(data.items.numpy()),
    }
    pl.DataFrame(frame).write_csv(tmp_path / "s.csv")
    words = shlex.split(
        "--preset gru4rec --loss bpr --length 8 --epochs 3 --dim 8 --dropout 0.2 --validation 0"
    )
    done = steelyard("train", "s.csv", *words, "--candidates", "16", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    training = json.loads(done.stdout)["training"]
    wanted = ("gru", 1, "bpr", "in-batch+popularity:0.75", 0.2, 0.0)
    names = ("cell", "layers", "loss", "negatives", "dropout", "validation")
    assert tuple(training[name] for name in names) == wanted
    done = steelyard("recommend", "runs/s", "--user", "u3", "-k", "2", "--json", cwd=tmp_path)
    assert len(json.loads(done.stdout)) == 2
    done = steelyard(
        "recommend", "runs/s", "--after", "i3,i5", "--after", "i7", "-k", "2", "--json", cwd=tmp_path
    )
    assert [answer["history"] for answer in json.loads(done.stdout)] == [0, 0, 1, 1]
    for words in ((), ("--user", "u3", "--after", "i3")):
        done = steelyard("recommend", "runs/s", *words, cwd=tmp_path)
        assert done.returncode != 0
        assert "Give --user ID" in done.stderr
