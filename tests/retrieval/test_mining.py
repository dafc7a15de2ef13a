"""Mining: the same negatives as the plainest search, rules that say why, chances that are right, jobs that go on."""

import math
from pathlib import Path

import polars as pl
import pytest
import torch

from steelyard.negatives import Uniform
from steelyard.negatives.context import Context
from steelyard.ragged import Ragged
from steelyard.retrieval import Collection, MiningRules, mine, mine_negatives
from steelyard.retrieval.layouts import LAYOUTS
from steelyard.retrieval.mining_job import BLOCK


def case(
    n: int = 40, items: int = 300, d: int = 8, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, Ragged]:
    g = torch.Generator().manual_seed(seed)
    documents = torch.nn.functional.normalize(torch.randn(items, d, generator=g), dim=1)
    positives = Ragged.from_pairs(torch.arange(n).repeat(2), torch.randint(items, (2 * n,), generator=g), n)
    near = torch.stack([documents[positives.row(q)].mean(0) for q in range(n)])
    queries = torch.nn.functional.normalize(near + 0.1 * torch.randn(n, d, generator=g), dim=1)
    return queries, documents, positives


def collection(positives: Ragged, items: int, text: bool = True) -> Collection:
    queries = pl.Series([f"q{i}" for i in range(len(positives))])
    documents = pl.Series([f"d{i}" for i in range(items)])
    texts = (queries + " text", documents + " text") if text else (None, None)
    return Collection(positives, queries, documents, *texts)


def by_hand(
    queries: torch.Tensor, documents: torch.Tensor, positives: Ragged, rules: MiningRules
) -> list[list[int]]:
    """Each query's negatives by a full sort and plain comparisons in float64."""
    found = []
    for q in range(len(queries)):
        score = (documents.double() @ queries[q].double()).tolist()
        wanted = set(positives.row(q).tolist())
        reference = min(score[p] for p in wanted)
        ranked = sorted((i for i in range(len(score)) if i not in wanted), key=lambda i: -score[i])
        kept = [
            i
            for rank, i in enumerate(ranked[: rules.range_max])
            if rank >= rules.range_min
            and rules.min_score <= score[i] <= rules.max_score
            and (rules.absolute_margin is None or score[i] <= reference - rules.absolute_margin)
            and (rules.percentage is None or score[i] <= reference - (1 - rules.percentage) * abs(reference))
        ]
        found.append(kept[: rules.negatives])
    return found


@pytest.mark.parametrize(
    "rules",
    [
        MiningRules(negatives=4, range_max=20),
        MiningRules(negatives=3, range_min=5, range_max=40),
        MiningRules(negatives=5, range_max=60, absolute_margin=0.1),
        MiningRules(negatives=5, range_max=60, percentage=0.8),
        MiningRules(negatives=6, range_max=300, min_score=-0.1, max_score=0.4),
    ],
)
def test_negatives_equal_those_of_a_full_sort(rules: MiningRules) -> None:
    queries, documents, positives = case()
    found = mine_negatives(queries, documents, positives, rules)
    taken = found.where(found.taken)
    got = [taken.document[taken.query == q].tolist() for q in range(len(queries))]
    assert got == by_hand(queries, documents, positives, rules)
    assert bool((taken.log_expected == 0).all())
    assert any(got)


def test_every_candidate_has_its_reason_and_a_copy_of_a_positive_goes() -> None:
    queries, documents, positives = case()
    alike = torch.arange(300)
    copy = int(next(i for i in mine_negatives(queries, documents, positives).document if True))
    alike[copy] = alike[
        positives.row(0)[0]
    ]  # the first candidate of the first query now has its positive's text
    rules = MiningRules(negatives=2, range_max=30, range_min=1, percentage=0.9)
    found = mine_negatives(queries, documents, positives, rules, alike=alike)
    assert found.rules == ("rank_window", "percentage_of_positive", "duplicates")
    assert len(found.query) == 40 * 30
    first = found.where((found.query == 0) & (found.document == copy))
    assert found.rules[int(first.refused[0])] == "rank_window"  # counted for the first rule that refuses it
    every = mine_negatives(queries, documents, positives, MiningRules(range_max=30), alike=alike)
    first = every.where((every.query == 0) & (every.document == copy))
    assert every.rules[int(first.refused[0])] == "duplicates"


@pytest.mark.parametrize("pick", ["random", "simans:8:-0.1"])
def test_the_chance_of_each_negative_is_the_one_it_says(pick: str) -> None:
    """Horvitz-Thompson: each kept candidate is counted once on average (z-test at 1e-4 over the pool)."""
    repeats = 4000
    queries, documents, positives = case(n=1)
    rules = MiningRules(negatives=3, range_max=12, pick=pick)
    found = mine_negatives(
        queries.expand(repeats, -1).contiguous(),
        documents,
        positives.take(torch.zeros(repeats, dtype=torch.int64)),
        rules,
        generator=torch.Generator().manual_seed(3),
    )
    taken = found.where(found.taken)
    assert len(taken.query) == 3 * repeats
    weight = torch.zeros(repeats, 300, dtype=torch.float64)
    weight[taken.query, taken.document] = torch.exp(-taken.log_expected.double())
    pool = weight[:, found.document[:12]]
    z = (pool.mean(0) - 1) / (pool.std(0) / math.sqrt(repeats))
    assert float(z.abs().max()) < 4.5  # 12 candidates at 1e-4 in all


def test_top_negatives_with_a_random_rest_leave_the_sum_over_everything_unbiased() -> None:
    queries, documents, positives = case(n=1)
    found = mine_negatives(queries, documents, positives, MiningRules(negatives=5, range_max=20))
    top = found.where(found.taken).document
    score = 3 * (documents @ queries[0]).double()
    want = float(score.exp().sum())
    context = Context(positives.values[:1], None)
    g = torch.Generator().manual_seed(0)
    sums = []
    for _ in range(3000):
        draws = Uniform(300).sample(context, 20, generator=g)
        log_expected = draws.log_expected.double()
        hard = torch.isin(draws.ids, top)
        log_expected = torch.where(hard, torch.logaddexp(log_expected, torch.zeros(())), log_expected)
        both = (score[draws.ids] - log_expected).exp().sum()
        at_top = math.log(20 / 300)
        both += (score[top] - torch.logaddexp(torch.tensor(0.0), torch.tensor(at_top))).exp().sum()
        sums.append(float(both))
    estimates = torch.tensor(sums, dtype=torch.float64)
    z = (estimates.mean() - want) / (estimates.std() / math.sqrt(len(sums)))
    assert abs(float(z)) < 3.9


def test_a_job_in_blocks_equals_one_call_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    n = 2 * BLOCK + 100
    queries, documents, positives = case(n=n, items=200)
    data = collection(positives, 200)
    rules = MiningRules(negatives=2, range_max=10, pick="random", seed=4)
    whole = mine(data, queries, documents, rules, out=tmp_path / "whole")
    stopped = tmp_path / "stopped"

    class Killed(Exception):
        pass

    def kill(done: int, _total: int) -> None:
        if done > BLOCK:
            raise Killed

    with pytest.raises(Killed):
        mine(data, queries, documents, rules, out=stopped, watch=kill)
    assert not (stopped / "negatives.parquet").exists()
    with pytest.raises(FileExistsError, match="--resume"):
        mine(data, queries, documents, rules, out=stopped)
    with pytest.raises(ValueError, match="differs in its rules"):
        mine(data, queries, documents, MiningRules(negatives=2, range_max=10), out=stopped, resume=True)
    with pytest.raises(ValueError, match="differs in its documents"):
        mine(data, queries, documents.flip(0), rules, out=stopped, resume=True)
    done: list[int] = []
    resumed = mine(
        data, queries, documents, rules, out=stopped, resume=True, watch=lambda d, _: done.append(d)
    )
    assert done == [n]
    assert pl.read_parquet(whole.path).equals(pl.read_parquet(resumed.path))
    assert sorted(p.name for p in stopped.iterdir()) == ["mining.json", "negatives.parquet"]
    assert whole.summary["negatives"] == 2 * n
    with pytest.raises(FileExistsError, match="finished"):
        mine(data, queries, documents, rules, out=stopped, resume=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_layouts_hold_the_same_negatives(layout: str, format: str, tmp_path: Path) -> None:
    queries, documents, positives = case()
    rules = MiningRules(negatives=3, range_max=30, absolute_margin=0.05)
    found = mine_negatives(queries, documents, positives, rules)
    taken = found.where(found.taken)
    want = {
        (f"q{q} text", f"d{d} text")
        for q, d in zip(taken.query.tolist(), taken.document.tolist(), strict=True)
    }
    mined = mine(
        collection(positives, 300),
        queries,
        documents,
        rules,
        out=tmp_path / "o",
        layout=layout,
        format=format,
    )
    frame = pl.read_parquet(mined.path) if format == "parquet" else pl.read_ndjson(mined.path)
    assert len(frame) == mined.summary["rows"]
    pairs = {
        (f"q{q} text", f"d{d} text") for q in range(40) for d in positives.row(q).tolist() if q in taken.query
    }
    if layout == "table":
        assert set(frame.select("query_text", "negative_text").rows()) == want
        assert frame.columns[:3] == ["query", "negative", "rank"]
        assert frame["score"].to_list() == pytest.approx(taken.score.tolist())
    elif layout == "triplet":
        assert set(frame.select("anchor", "negative").rows()) == want
        assert set(frame.select("anchor", "positive").rows()) == pairs
    elif layout == "n-tuple":
        full = [q for q in range(40) if int((taken.query == q).sum()) == 3]
        assert set(frame["anchor"]) == {f"q{q} text" for q in full}
        got = {(row[0], name) for row in frame.rows() for name in row[2:]}
        assert got == {(a, d) for a, d in want if a in set(frame["anchor"])}
    elif layout == "labeled-pair":
        assert set(frame.filter(pl.col("label") == 0).select("anchor", "document").rows()) == want
        assert set(frame.filter(pl.col("label") == 1).select("anchor", "document").rows()) == pairs
    else:
        assert {
            (row["anchor"], d)
            for row in frame.iter_rows(named=True)
            for d, label in zip(row["documents"], row["labels"], strict=True)
            if label == 0
        } == want


def test_removed_candidates_are_written_with_their_reasons(tmp_path: Path) -> None:
    queries, documents, positives = case()
    rules = MiningRules(negatives=1, range_max=10, range_min=2)
    mined = mine(
        collection(positives, 300, text=False),
        queries,
        documents,
        rules,
        out=tmp_path / "o",
        keep_removed=True,
    )
    removed = pl.read_parquet(tmp_path / "o" / "removed.parquet")
    assert dict(removed["reason"].value_counts().iter_rows()) == {"rank_window": 80, "not_drawn": 280}
    assert mined.summary["removed"] == {"rank_window": 80}
    assert len(pl.read_parquet(mined.path)) == 40


def test_rules_that_remove_everything_say_so_and_keep_the_rest(tmp_path: Path) -> None:
    queries, documents, positives = case()
    rules = MiningRules(negatives=1, range_max=10, max_score=-0.99)
    mined = mine(collection(positives, 300), queries, documents, rules, out=tmp_path / "o")
    assert mined.summary["queries_without_negatives"] == 40
    assert mined.summary["removed"]["score_range"] == 400
    assert len(pl.read_parquet(mined.path)) == 0
    assert pl.read_parquet(mined.path).columns[:2] == ["query", "negative"]


def test_bad_vectors_are_refused_with_the_mend(tmp_path: Path) -> None:
    queries, documents, positives = case()
    broken = documents.clone()
    broken[7, 1] = math.nan
    with pytest.raises(ValueError, match="Row 7 of the documents has NaN"):
        mine_negatives(queries, broken, positives)
    with pytest.raises(ValueError, match="same model"):
        mine_negatives(queries[:, :5], documents, positives)
    with pytest.raises(ValueError, match="different catalogues"):
        mine_negatives(queries, documents[:5], positives)
    empty = Ragged.from_pairs(torch.arange(39), torch.arange(39), 40)
    with pytest.raises(ValueError, match="Positive -1 is none"):
        mine_negatives(queries[:1], documents, Ragged(torch.tensor([0, 1]), torch.tensor([-1])))
    with pytest.raises(ValueError, match="Query 39 has no positive"):
        mine_negatives(queries, documents, empty)
    with pytest.raises(ValueError, match="another collection"):
        mine(collection(positives, 299), queries, documents, out=tmp_path / "o")
    with pytest.raises(ValueError, match="do not fit the 10 ranks"):
        MiningRules(negatives=11, range_max=10)
    with pytest.raises(ValueError, match="pick must be"):
        MiningRules(pick="best")


def test_equal_and_zero_vectors_are_ranked_by_row() -> None:
    documents = torch.zeros(20, 4)
    documents[:, 0] = 1
    documents[5:8] = 0
    positives = Ragged.from_pairs(torch.zeros(1, dtype=torch.int64), torch.tensor([1]), 1)
    found = mine_negatives(torch.eye(4)[:1], documents, positives, MiningRules(negatives=3, range_max=19))
    assert found.where(found.taken).document.tolist() == [0, 2, 3]
    assert found.document.tolist()[-3:] == [5, 6, 7]


def test_an_inverted_file_finds_most_and_knows_its_vectors(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the extra faiss is not installed")
    from steelyard.retrieval.ivf import ivf_search

    queries, documents, positives = case(n=60, items=3000)
    rules = MiningRules(negatives=5, range_max=20)
    search = ivf_search(documents, 20, probes=10_000, file=tmp_path / "i.ivf")
    every = mine_negatives(queries, documents, positives, rules, search=search)
    exact = mine_negatives(queries, documents, positives, rules)
    torch.testing.assert_close(every.score, exact.score)  # all lists looked through
    assert (every.document == exact.document).float().mean() > 0.99  # nearly equal scores may change places
    few = ivf_search(documents, 20, probes=8, file=tmp_path / "i.ivf")
    some = mine_negatives(queries, documents, positives, rules, search=few)
    shared = set(zip(some.query.tolist(), some.document.tolist(), strict=True)) & set(
        zip(exact.query.tolist(), exact.document.tolist(), strict=True)
    )
    assert len(shared) > 0.5 * len(exact.query)
    assert not any(d in positives.row(q) for q, d in zip(some.query.tolist(), some.document, strict=True))
    with pytest.raises(ValueError, match="built from other vectors"):
        ivf_search(documents.flip(0), 20, file=tmp_path / "i.ivf")


@pytest.mark.slow
def test_ray_gives_the_same_rows(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    queries, documents, positives = case(n=BLOCK + 10, items=200)
    data, rules = collection(positives, 200), MiningRules(negatives=2, range_max=10, pick="random")
    here = mine(data, queries, documents, rules, out=tmp_path / "here")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        there = mine(data, queries, documents, rules, out=tmp_path / "there", engine="ray")
    finally:
        ray.shutdown()
    a, b = pl.read_parquet(here.path), pl.read_parquet(there.path)
    assert a.select("query", "negative", "rank", "log_expected").equals(
        b.select("query", "negative", "rank", "log_expected")
    )
    assert a["score"].to_list() == pytest.approx(
        b["score"].to_list()
    )  # their matrix products may round otherwise


def test_an_exact_copy_of_the_positive_ties_with_it_to_the_last_bit() -> None:
    g = torch.Generator().manual_seed(0)
    documents = torch.nn.functional.normalize(torch.randn(300, 384, generator=g), dim=1)
    documents = torch.cat([documents, documents])
    queries = torch.nn.functional.normalize(
        documents[:300] + 0.05 * torch.randn(300, 384, generator=g), dim=1
    )
    positives = Ragged(torch.arange(301), torch.arange(300))
    kept = mine_negatives(queries, documents, positives, MiningRules(negatives=1, absolute_margin=0.0))
    assert kept.where(kept.taken).document.tolist() == list(range(300, 600))  # a margin of 0 keeps ties
    left = mine_negatives(queries, documents, positives, MiningRules(negatives=1, absolute_margin=1e-6))
    assert not bool((left.where(left.taken).document == torch.arange(300, 600)).any())


def test_what_a_killed_job_left_damaged_is_done_again(tmp_path: Path) -> None:
    n = BLOCK + 50
    queries, documents, positives = case(n=n, items=200)
    data, rules = collection(positives, 200), MiningRules(negatives=2, range_max=10)
    whole = mine(data, queries, documents, rules, out=tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(_done: int, _total: int) -> None:
        raise Killed

    out = tmp_path / "o"
    with pytest.raises(Killed):
        mine(data, queries, documents, rules, out=out, watch=kill)
    part = out / "parts" / "0000000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    again = mine(data, queries, documents, rules, out=out, resume=True)
    assert pl.read_parquet(again.path).equals(pl.read_parquet(whole.path))
    (out / "parts").mkdir()
    (out / "plan.json").write_text("{}")
    with pytest.raises(FileExistsError, match="finished"):
        mine(data, queries, documents, rules, out=out, resume=True)
    assert not (out / "parts").exists()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "plan.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="damaged"):
        mine(data, queries, documents, rules, out=tmp_path / "d", resume=True)
