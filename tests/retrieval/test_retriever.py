"""The door: what it takes as a list, which ids it tells apart, and which folders it refuses to open."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from steelyard.retrieval import Retriever, TrainConfig, train
from tests.retrieval import planted

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def ids_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ids") / "m"
    train(planted.interactions(), config=TrainConfig.of("mf", epochs=1, dim=4), out=folder)
    return folder


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "m"
    train(planted.texts(), config=TrainConfig.of("text", epochs=1, dim=4), out=folder)
    return folder


@pytest.fixture(scope="module")
def by_ids(ids_folder: Path) -> Retriever:
    return Retriever.load(ids_folder)


@pytest.fixture(scope="module")
def by_text(text_folder: Path) -> Retriever:
    return Retriever.load(text_folder)


@pytest.fixture(scope="module")
def numbered() -> Retriever:
    data = planted.interactions()
    data = dataclasses.replace(data, user_ids=pl.Series(range(90)), item_ids=pl.Series(range(1000, 1060)))
    return train(data, config=TrainConfig.of("mf", epochs=1, dim=4)).retriever


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy"))


def edit_config(folder: Path, change: Change) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rehash(folder: Path, name: str) -> None:
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    edit_config(folder, lambda content: content["files"].update({name: digest}))


def edit_tensors(folder: Path, name: str, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change a file and its hash, so that only the checks after the hash can find it."""
    tensors = {key: t.clone() for key, t in load_file(folder / name).items()}
    change(tensors)
    save_file(tensors, folder / name)
    rehash(folder, name)


def test_one_id_or_text_in_place_of_a_list_is_refused_with_the_mend(
    by_ids: Retriever, by_text: Retriever
) -> None:
    with pytest.raises(TypeError, match=r"Give a list of users, such as \['u1'\], not 'u1' alone"):
        by_ids.recommend("u1")
    with pytest.raises(TypeError, match=r"Give a list of items, such as \['i1'\]"):
        by_ids.neighbours("i1")
    with pytest.raises(TypeError, match=r"Give a list of texts, such as \['gzip'\]"):
        by_text.search("gzip")
    with pytest.raises(TypeError, match=r"Give a list of users, such as \[7\]"):
        by_ids.recommend(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Give a list of users, such as \[7\]"):
        by_ids.recommend(torch.tensor(7))
    with pytest.raises(TypeError, match=r"Give a list of cut-offs, such as \[10\]"):
        by_ids.evaluate(planted.interactions(), k=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [torch.tensor([7, 3]), np.array([7, 3]), pl.Series([7, 3]), (7, 3), ["7", "3"], iter([7, 3])],
    ids=["tensor", "array", "series", "tuple", "strings", "iterator"],
)
def test_a_tensor_an_array_or_a_series_of_ids_is_a_list_of_ids(numbered: Retriever, ids: Any) -> None:
    assert numbered.recommend(ids, 3).equals(numbered.recommend([7, 3], 3))


def test_arrays_of_strings_are_ids_and_texts(by_ids: Retriever, by_text: Retriever) -> None:
    assert by_ids.neighbours(np.array(["i7"]), 2).equals(by_ids.neighbours(["i7"], 2))
    query = "compress the bytes"
    assert by_text.search(pl.Series([query]), 2).equals(by_text.search([query], 2))
    assert by_text.search(np.array([query]), 2).equals(by_text.search([query], 2))


@pytest.mark.parametrize("unlike", ["007", "7.0", "+7", " 7", 7.0, True, None, 2**70, b"7"])
def test_what_is_not_written_like_an_integer_id_is_not_that_id(numbered: Retriever, unlike: Any) -> None:
    assert numbered.recommend(["7"], 1)["user"].to_list() == [7]
    with pytest.raises(ValueError, match="Unknown user"):
        numbered.recommend([3, unlike])
    with pytest.raises(ValueError, match="An empty user was given"):
        numbered.recommend([3, ""])


def test_a_missing_id_is_not_the_id_none() -> None:
    data = dataclasses.replace(
        planted.interactions(), user_ids=pl.Series(["None", *(f"u{i}" for i in range(89))])
    )
    retriever = train(data, config=TrainConfig.of("mf", epochs=1, dim=4)).retriever
    assert len(retriever.recommend(["None"], 2)) == 2
    with pytest.raises(ValueError, match="Unknown user None"):
        retriever.recommend([None])


def test_no_query_and_queries_that_are_not_text_are_refused(by_ids: Retriever, by_text: Retriever) -> None:
    with pytest.raises(ValueError, match="No text"):
        by_text.search([])
    with pytest.raises(ValueError, match="No user"):
        by_ids.recommend([])
    with pytest.raises(ValueError, match="empty text"):
        by_text.search(["bytes", " \n"])
    with pytest.raises(TypeError, match=r"must be strings, got 5; write it as '5'"):
        by_text.search(["bytes", 5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="must be strings, got None"):
        by_text.search([None])  # type: ignore[list-item]


@pytest.mark.parametrize("k", [2.5, 2.0, True, "3", None, [3]])
def test_k_that_is_no_whole_number_is_refused(by_ids: Retriever, by_text: Retriever, k: Any) -> None:
    for ask in (
        lambda: by_ids.recommend(["u1"], k),
        lambda: by_ids.neighbours(["i1"], k),
        lambda: by_text.search(["bytes"], k),
    ):
        with pytest.raises(TypeError, match="k must be a whole number such as 10"):
            ask()


def test_k_may_be_any_whole_number_from_one(by_ids: Retriever) -> None:
    assert by_ids.neighbours(["i1"], np.int64(3)).equals(by_ids.neighbours(["i1"], 3))  # type: ignore[arg-type]
    assert len(by_ids.neighbours(["i1"], 10**30)) == 59
    for k in (0, -1):
        with pytest.raises(ValueError, match="k must be at least 1"):
            by_ids.recommend(["u1"], k)


def test_a_folder_may_be_named_by_a_string_and_what_was_loaded_saves_the_same(
    by_ids: Retriever, ids_folder: Path, by_text: Retriever, text_folder: Path, tmp_path: Path
) -> None:
    for retriever, source in ((by_ids, ids_folder), (by_text, text_folder)):
        target = tmp_path / source.parent.name / "deeper"
        retriever.save(str(target))
        files = json.loads((source / "config.json").read_text())["files"]
        assert {path.name for path in target.iterdir()} == {*files, "config.json"}
        for name in ("config.json", "model.safetensors"):
            assert (target / name).read_bytes() == (source / name).read_bytes()
        loaded = Retriever.load(str(target))
        torch.testing.assert_close(loaded.item_vectors, retriever.item_vectors, rtol=0, atol=0)


@pytest.mark.parametrize("learnt", [True, False])
def test_a_loaded_model_is_real_and_learns_what_it_learnt_before(tmp_path: Path, learnt: bool) -> None:
    config = TrainConfig.of("mf", epochs=1, dim=4, learn_temperature=learnt)
    trained = train(planted.interactions(), config=config, out=tmp_path / "m")
    model = Retriever.load(tmp_path / "m").model
    assert not any(p.is_meta for p in model.parameters())
    for (name, p), (_, q) in zip(
        trained.retriever.model.named_parameters(), model.named_parameters(), strict=True
    ):
        assert torch.equal(p, q), name
        assert p.requires_grad == q.requires_grad, name


@pytest.mark.parametrize("files", [[], None, {}, 5, "model.safetensors", ["model.safetensors"]])
def test_a_config_that_leaves_out_hashes_is_refused(ids_folder: Path, tmp_path: Path, files: object) -> None:
    folder = copied(ids_folder, tmp_path)
    edit_config(folder, lambda content: content.update(files=files))
    with pytest.raises(ValueError, match=r"must give the hashes of exactly model\.safetensors, items"):
        Retriever.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "items.parquet", "users.parquet", "seen.safetensors"])
def test_each_file_must_have_its_hash(ids_folder: Path, tmp_path: Path, name: str) -> None:
    folder = copied(ids_folder, tmp_path)
    edit_config(folder, lambda content: content["files"].update({name: None}))
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        Retriever.load(folder)
    edit_config(folder, lambda content: content["files"].pop(name))
    with pytest.raises(ValueError, match="must give the hashes of exactly"):
        Retriever.load(folder)


def test_a_file_of_another_kind_of_model_or_outside_the_folder_is_refused(
    text_folder: Path, tmp_path: Path
) -> None:
    folder = copied(text_folder, tmp_path)
    for name in ("users.parquet", "../../etc/passwd"):
        edit_config(folder, lambda content, name=name: content["files"].update({name: "0" * 64}))
        with pytest.raises(ValueError, match=r"exactly model\.safetensors, items\.parquet, got"):
            Retriever.load(folder)
        edit_config(folder, lambda content, name=name: content["files"].pop(name))
    Retriever.load(folder)


def test_json_that_is_nested_deeply_or_holds_nan_is_refused(ids_folder: Path, tmp_path: Path) -> None:
    folder = copied(ids_folder, tmp_path)
    path = folder / "config.json"
    whole = path.read_text()
    for text in ("[" * 200_000, '{"a":' * 200_000, whole.replace('"lr": 0.01', '"lr": NaN')):
        assert text != whole
        path.write_text(text)
        with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
            Retriever.load(folder)


@pytest.mark.parametrize(
    "training",
    [None, [], {"model": "bert"}, {"model": []}, {"dim": "wide"}, {"dim": 2.5}, {"dim": None}, {"alpha": 1}],
)
def test_settings_that_make_no_sense_are_refused(
    ids_folder: Path, tmp_path: Path, training: dict[str, object] | None
) -> None:
    folder = copied(ids_folder, tmp_path)
    edit_config(
        folder,
        lambda content: content.update(
            training=content["training"] | training if isinstance(training, dict) else training
        ),
    )
    with pytest.raises(ValueError, match="not a model of this version of steelyard, or damaged"):
        Retriever.load(folder)


@pytest.mark.parametrize("dim", [3, 5, 10**9, 10**13, 10**18, 10**40])
def test_a_dim_unlike_the_weights_is_refused_before_any_memory_is_taken(
    ids_folder: Path, text_folder: Path, tmp_path: Path, dim: int
) -> None:
    said = "was expected" if dim <= 10**13 else "or damaged"  # torch itself cannot count the larger ones
    folder = copied(ids_folder, tmp_path / "ids")
    edit_config(folder, lambda content: content["training"].update(dim=dim))
    with pytest.raises(ValueError, match=said):
        Retriever.load(folder)
    folder = copied(text_folder, tmp_path / "text")
    edit_config(folder, lambda content: content["training"].update(dim=dim))
    with pytest.raises(ValueError, match=f"the encoder has 4 dimensions, the training {dim}"):
        Retriever.load(folder)
    edit_config(folder, lambda content: content["encoder"].update(dim=dim))
    with pytest.raises(ValueError, match=said):
        Retriever.load(folder)


@pytest.mark.parametrize("words", [-1, 2, 10**9, 10**12, 10**40, 2.5, True, "many"])
def test_a_text_vocabulary_unlike_the_weights_is_refused(
    text_folder: Path, tmp_path: Path, words: object
) -> None:
    folder = copied(text_folder, tmp_path)
    said = "was expected" if words in (2, 10**9) else "or damaged"
    edit_config(folder, lambda content: content["encoder"].update(words=words))
    with pytest.raises(ValueError, match=said):
        Retriever.load(folder)


def test_a_kind_of_model_unlike_the_files_is_refused(
    ids_folder: Path, text_folder: Path, tmp_path: Path
) -> None:
    for source, kind in ((ids_folder, "text"), (text_folder, "mf")):
        folder = copied(source, tmp_path / kind)
        edit_config(folder, lambda content, kind=kind: content["training"].update(model=kind))
        with pytest.raises(ValueError, match="must give the hashes of exactly"):
            Retriever.load(folder)


USER, ITEM = "model/encoder.user.weight", "model/encoder.item.weight"
WEIGHT_FAULTS: dict[str, tuple[Change, str]] = {
    "one item vector too few": (lambda t: t.update(items=t["items"][:-1]), r"items in .* \(59, 4\)"),
    "item vectors too wide": (lambda t: t.update(items=torch.zeros(60, 5)), r"items in .* \(60, 5\)"),
    "item vectors flat": (lambda t: t.update(items=torch.zeros(240)), r"\(240,\)"),
    "item vectors in double": (lambda t: t.update(items=t["items"].double()), "float64"),
    "one user too many": (lambda t: t.update({USER: torch.zeros(91, 4)}), r"user.weight in .* \(91, 4\)"),
    "an item table too narrow": (
        lambda t: t.update({ITEM: torch.zeros(60, 1)}),
        r"item.weight in .* \(60, 1\)",
    ),
    "a NaN item vector": (lambda t: t["items"][3].fill_(float("nan")), "items in .* NaN"),
    "an infinite user": (lambda t: t[USER][0, 0].fill_(float("inf")), "user.weight in .* infinite"),
    "a NaN temperature": (lambda t: t["model/log_scale"].fill_(float("nan")), "log_scale in .* NaN"),
    "no item vectors": (lambda t: t.pop("items"), "items were expected"),
    "a table too many": (lambda t: t.update(extra=torch.zeros(1)), "holds .*extra"),
}


@pytest.mark.parametrize("fault", WEIGHT_FAULTS)
def test_weights_that_do_not_fit_are_refused_even_with_the_right_hash(
    ids_folder: Path, tmp_path: Path, fault: str
) -> None:
    folder = copied(ids_folder, tmp_path)
    change, said = WEIGHT_FAULTS[fault]
    edit_tensors(folder, "model.safetensors", change)
    with pytest.raises(ValueError, match=said):
        Retriever.load(folder)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


SEEN_FAULTS: dict[str, tuple[Change, str]] = {
    "a user too few": (
        lambda t: t.update(offsets=t["offsets"][:-1], values=t["values"][: t["offsets"][-2]]),
        "89 rows",
    ),
    "no user": (lambda t: t.update(offsets=torch.tensor([0]), values=ints()), "0 rows for 90 users"),
    "an item too high": (lambda t: t["values"][t["offsets"][1] - 1].fill_(60), r"outside \[0, 60\)"),
    "an item below 0": (lambda t: t["values"][0].fill_(-1), r"outside \[0, 60\)"),
    "values cut short": (lambda t: t.update(values=t["values"][:-1]), "offsets must rise"),
    "an item twice": (lambda t: t["values"][1].copy_(t["values"][0]), "do not rise"),
    "values as floats": (lambda t: t.update(values=t["values"] + 0.5), "float32, not int32"),
    "values in two dimensions": (lambda t: t.update(values=t["values"][:, None]), "one-dimensional"),
    "no offsets": (lambda t: t.pop("offsets"), "offsets"),
}


@pytest.mark.parametrize("fault", SEEN_FAULTS)
def test_seen_items_that_do_not_fit_are_refused_even_with_the_right_hash(
    ids_folder: Path, tmp_path: Path, fault: str
) -> None:
    folder = copied(ids_folder, tmp_path)
    change, said = SEEN_FAULTS[fault]
    edit_tensors(folder, "seen.safetensors", change)
    with pytest.raises(ValueError, match=said):
        Retriever.load(folder)


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("items.parquet", {"item": [f"i{i}" for i in range(59)]}, r"\(60, 4\)|outside"),
        ("items.parquet", {"item": ["i0"] * 60}, "item ids are not distinct"),
        ("users.parquet", {"user": [*(f"u{i}" for i in range(89)), None]}, "user ids are not distinct"),
        ("users.parquet", {"user": [f"u{i}" for i in range(91)]}, "90 rows for 91 users"),
        ("users.parquet", {"person": [f"u{i}" for i in range(90)]}, "user"),
    ],
)
def test_ids_that_do_not_fit_are_refused_even_with_the_right_hash(
    ids_folder: Path, tmp_path: Path, name: str, table: dict[str, list[str | None]], said: str
) -> None:
    folder = copied(ids_folder, tmp_path)
    pl.DataFrame(table).write_parquet(folder / name)
    rehash(folder, name)
    with pytest.raises(ValueError, match=said):
        Retriever.load(folder)


def test_texts_that_are_not_text_are_refused(text_folder: Path, tmp_path: Path) -> None:
    folder = copied(text_folder, tmp_path)
    items = pl.read_parquet(folder / "items.parquet")
    items.with_columns(text=pl.lit(1)).write_parquet(folder / "items.parquet")
    rehash(folder, "items.parquet")
    with pytest.raises(ValueError, match=r"texts in items\.parquet are Int32, not text"):
        Retriever.load(folder)
