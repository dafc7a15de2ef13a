"""`steelyard mine` as a person types it."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from steelyard.retrieval import MiningRules, mine_negatives
from tests.cli.running import steelyard
from tests.retrieval import planted
from tests.retrieval.test_mining import case

pytestmark = pytest.mark.xdist_group("commands")


def test_the_command_mines_files_of_vectors(tmp_path: Path) -> None:
    queries, documents, positives = case()
    queries[3] = 0
    np.save(tmp_path / "q.npy", 2 * queries.numpy())
    np.save(tmp_path / "d.npy", documents.double().numpy())
    pairs = pl.DataFrame({"user": positives.row_index().numpy(), "item": positives.values.numpy()})
    pairs.write_csv(tmp_path / "pairs.csv")
    vectors = ["--query-vectors", str(tmp_path / "q.npy"), "--document-vectors", str(tmp_path / "d.npy")]
    done = steelyard(
        "mine",
        str(tmp_path / "pairs.csv"),
        *vectors,
        "-n",
        "2",
        "--out",
        str(tmp_path / "o"),
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["queries"] == 39
    frame = pl.read_parquet(tmp_path / "o" / "negatives.parquet")
    found = mine_negatives(queries, documents, positives, MiningRules(negatives=2))
    taken = found.where(found.taken & (found.query != 3))
    assert frame.select("query", "negative").rows() == list(
        zip(taken.query.tolist(), taken.document.tolist(), strict=True)
    )
    again = steelyard(
        "mine", str(tmp_path / "pairs.csv"), *vectors, "-n", "2", "--out", str(tmp_path / "o"), cwd=tmp_path
    )
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    neither = steelyard("mine", str(tmp_path / "pairs.csv"), cwd=tmp_path)
    assert neither.returncode == 2
    assert "Say where vectors come from" in neither.stderr
    np.save(tmp_path / "few.npy", documents[:3].numpy())
    few = ["--query-vectors", str(tmp_path / "q.npy"), "--document-vectors", str(tmp_path / "few.npy")]
    wrong = steelyard("mine", str(tmp_path / "pairs.csv"), *few, "--out", str(tmp_path / "w"), cwd=tmp_path)
    assert wrong.returncode == 2
    assert "but there are 3 document vectors" in wrong.stderr


def test_a_trained_model_mines_its_own_data(tmp_path: Path) -> None:
    planted.write_csv(planted.interactions(), tmp_path / "m.csv")
    trained = steelyard(
        "train", "m.csv", "--epochs", "2", "--dim", "8", "--candidates", "32", "--out", "m", cwd=tmp_path
    )
    assert trained.returncode == 0, trained.stderr
    done = steelyard(
        "mine", "m.csv", "--model", "m", "-n", "3", "--range-max", "20", "--out", "n", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "taken as negatives" in done.stdout
    data = planted.interactions()
    wanted = {
        (data.user_ids[u], data.item_ids[i])
        for u, i in zip(data.users.tolist(), data.items.tolist(), strict=True)
    }
    frame = pl.read_parquet(tmp_path / "n" / "negatives.parquet")
    assert len(frame) > 0
    assert not wanted & {(str(a), str(b)) for a, b in frame.select("query", "negative").rows()}


def test_texts_by_id_are_mined_with_a_text_model(tmp_path: Path) -> None:
    texts = planted.texts()
    frame = pl.DataFrame({"query": texts.user_ids, "document": texts.item_texts, "item": texts.item_ids})
    frame.write_ndjson(tmp_path / "t.jsonl")
    done = steelyard(
        "train", "t.jsonl", "--columns", "query=query,document=document,item=item", "--epochs", "1", "--dim", "16",
        "--batch", "32", "--out", "t", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ids = [f"q{i}" for i in range(len(frame))]
    pl.DataFrame({"_id": ids, "text": frame["query"]}).write_ndjson(tmp_path / "queries.jsonl")
    corpus = pl.DataFrame({"_id": frame["item"], "title": "", "text": frame["document"]})
    corpus.write_ndjson(tmp_path / "corpus.jsonl")
    qrels = pl.DataFrame(
        {"query-id": [*ids, "q_gone"], "corpus-id": [*frame["item"], frame["item"][0]], "score": 1}
    )
    qrels.write_csv(tmp_path / "qrels.tsv", separator="\t")
    done = steelyard(
        "mine", "qrels.tsv", "--queries", "queries.jsonl", "--corpus", "corpus.jsonl", "--model", "t", "-n", "2",
        "--layout", "triplet", "--to", "jsonl", "--out", "n", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 pairs are left out" in done.stderr
    rows = pl.read_ndjson(tmp_path / "n" / "negatives.jsonl")
    assert rows.columns == ["anchor", "positive", "negative"]
    assert set(rows["anchor"]) <= set(frame["query"])
    assert all(a != b for a, b in rows.select("positive", "negative").rows())


def test_vectors_go_by_the_lines_of_the_queries_file(tmp_path: Path) -> None:
    """More queries in the file than the pairs name, as in every test split."""
    queries, documents, positives = case()
    np.save(tmp_path / "q.npy", queries.numpy())
    np.save(tmp_path / "d.npy", documents.numpy())
    pl.DataFrame({"_id": [f"q{i}" for i in range(40)], "text": [f"t{i}" for i in range(40)]}).write_ndjson(
        tmp_path / "queries.jsonl"
    )
    pl.DataFrame({"_id": [f"d{i}" for i in range(300)], "text": [f"x{i}" for i in range(300)]}).write_ndjson(
        tmp_path / "corpus.jsonl"
    )
    rows = [(f"q{q}", f"d{d}", 1) for q in (3, 17, 30) for d in positives.row(q).tolist()]
    pl.DataFrame(rows, schema=["query-id", "corpus-id", "score"], orient="row").write_csv(
        tmp_path / "qrels.tsv", separator="\t"
    )
    files = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl", "--query-vectors", "q.npy"]
    words = ["mine", "qrels.tsv", *files, "--document-vectors", "d.npy", "-n", "2"]
    done = steelyard(*words, "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = mine_negatives(queries, documents, positives, MiningRules(negatives=2))
    taken = found.where(found.taken)
    want = [
        (f"q{q}", f"d{d}")
        for q, d in zip(taken.query.tolist(), taken.document.tolist(), strict=True)
        if q in (3, 17, 30)
    ]
    assert pl.read_parquet(tmp_path / "o" / "negatives.parquet").select("query", "negative").rows() == want
    np.save(tmp_path / "q.npy", queries[:39].numpy())
    done = steelyard(*words, "--out", "p", cwd=tmp_path)
    assert done.returncode == 2
    assert "39 vectors for the 40 queries" in done.stderr


def test_what_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.doc").write_text("mine")
    for words, said in (
        (["--out", "foreign"], "thesis.doc"),
        (["--layout", "foo"], "layout must be"),
        (["--resume", "--overwrite"], "not both"),
    ):
        done = steelyard("mine", "nothing.csv", "--encoder", "nothing", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
    assert [p.name for p in (tmp_path / "foreign").iterdir()] == ["thesis.doc"]
