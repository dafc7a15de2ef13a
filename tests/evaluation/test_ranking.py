"""Ranking metrics equal the plain definitions, averaged over every order of ties."""

import json
import math

import numpy as np
import pytest
import torch

from steelyard.evaluation import (
    PopularitySlice,
    count_ranks,
    ranking_metrics,
    ranks_from_lists,
    ranks_from_scores,
    recall_by_popularity,
)
from steelyard.evaluation.bootstrap import resampled_means
from steelyard.ragged import Ragged
from tests.evaluation.slow_ranking import expected_metrics, metrics_of_list
from tests.evaluation.test_ranks import ragged, skewed_case
from tests.statistical import assert_coverage

# trec_eval (pytrec_eval-terrier 0.5.11) on the scores and gains of `golden_case`; mrr@3 from ranx 0.3.21.
GOLDEN = {
    "recall@3": [0.2, 1.0, 0.14285714285714285],
    "recall@10": [0.4, 1.0, 0.14285714285714285],
    "precision@3": [0.3333333333333333, 0.3333333333333333, 0.3333333333333333],
    "precision@10": [0.2, 0.1, 0.1],
    "ndcg@3": [0.13249650743056282, 0.5, 0.09153475171037909],
    "ndcg@10": [0.17282593290207793, 0.5, 0.0751119444469588],
    "map@3": [0.1, 0.3333333333333333, 0.07142857142857142],
    "map@10": [0.15714285714285714, 0.3333333333333333, 0.07142857142857142],
    "hit_rate@3": [1.0, 1.0, 1.0],
    "mrr@3": [0.5, 0.3333333333333333, 0.5],
    "mrr": [0.5, 0.3333333333333333, 0.5],
}


def golden_case() -> tuple[torch.Tensor, Ragged, torch.Tensor]:
    scores = torch.tensor([[float((i * 7 + u * 11 + 3) % 31) for i in range(30)] for u in range(3)])
    targets = ragged([[0, 4, 9, 17, 25], [2], [1, 5, 6, 11, 12, 20, 28]])
    return scores, targets, torch.tensor([1, 3, 2, 1, 1, 2, 1, 1, 4, 2, 1, 3, 1])


def assert_expected(
    scores: list[float], relevant: dict[int, float], seen: list[int], cuts: list[int]
) -> None:
    targets = ragged([sorted(relevant)])
    gains = torch.tensor([relevant[item] for item in sorted(relevant)], dtype=torch.float64)
    ranks = ranks_from_scores(torch.tensor([scores], dtype=torch.float64), targets, ragged([seen]))
    got = ranking_metrics(ranks, targets, cuts, gains)
    for k in cuts:
        for name, value in expected_metrics(scores, seen, relevant, k).items():
            full = {"mrr": "mrr", "mrr@k": f"mrr@{k}"}.get(name, f"{name}@{k}")
            assert got.mean(full) == pytest.approx(value, rel=1e-12, abs=1e-14), (full, scores, relevant)


def test_ties_are_averaged_over_every_order():
    assert_expected([5, 2, 2, 2, 2, 1, 1], {1: 1.0, 3: 3.0, 4: 2.0, 5: 1.0}, [], [1, 2, 3, 4, 6, 10])
    assert_expected([0] * 7, {0: 2.0, 5: 1.0, 6: 0.5}, [], [1, 3, 7, 9])
    assert_expected([1, 1, 1, 1, 0, 0, 0], {4: 1.0, 6: 5.0}, [1], [1, 3, 4, 5, 8])
    assert_expected([3, 3, 2, 2, 2, 2, 1], {0: 1.0, 1: 2.0, 3: 1.0, 5: 4.0, 6: 1.0}, [6, 4], [2, 3, 5, 6])
    assert_expected([1.0, 1.0], {0: 1.0, 1: 1.0}, [], [1, 2])
    assert_expected([4.0], {0: 2.0}, [], [1, 2])


def test_random_small_cases_are_averaged_over_every_order():
    generator = np.random.default_rng(0)
    for _ in range(40):
        scores = generator.integers(0, 3, 7).astype(float).tolist()
        relevant = {int(i): float(generator.integers(1, 4)) for i in generator.permutation(7)[:3]}
        seen = [int(i) for i in generator.permutation(7)[: generator.integers(0, 3)]]
        assert_expected(scores, relevant, sorted(seen), [1, 2, 4, 7])


def test_a_constant_scorer_gets_the_chance_level():
    n_items, n_targets, k = 40981, 9, 20
    targets = ragged([list(range(0, 9000, 1000)), [40980]])
    metrics = ranking_metrics(count_ranks(torch.zeros(2, 4), torch.randn(n_items, 4), targets), targets)
    assert metrics.per_query("recall@20").tolist() == pytest.approx([k / n_items] * 2, rel=1e-12)
    assert metrics.per_query("precision@20").tolist() == pytest.approx([9 / n_items, 1 / n_items], rel=1e-12)
    hit = 1 - math.comb(n_items - n_targets, k) / math.comb(n_items, k)
    assert float(metrics.per_query("hit_rate@20")[0]) == pytest.approx(hit, rel=1e-10)
    first = sum(
        math.comb(n_items - j, n_targets - 1) / math.comb(n_items, n_targets) / j for j in range(1, 4000)
    )
    rest = math.comb(n_items - 3999, n_targets) / math.comb(n_items, n_targets) / 4000
    assert first < float(metrics.per_query("mrr")[0]) < first + rest
    harmonic = sum(1 / j for j in range(1, n_items + 1))
    assert float(metrics.per_query("mrr")[1]) == pytest.approx(harmonic / n_items, rel=1e-10)


def test_untied_lists_follow_the_plain_definitions():
    targets, _ = skewed_case(40, 60, 1)
    scores = torch.rand(40, 60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    lists = scores.argsort(dim=1, descending=True)[:, :25]
    gains = torch.rand(len(targets.values), generator=torch.Generator().manual_seed(3)) + 0.1
    metrics = ranking_metrics(ranks_from_lists(lists, targets), targets, (1, 5, 25, 40), gains)
    assert metrics.skipped == 40 - metrics.n_queries > 0
    for column, q in enumerate(metrics.queries.tolist()):
        span = slice(int(targets.offsets[q]), int(targets.offsets[q + 1]))
        relevant = dict(zip(targets.row(q).tolist(), gains[span].tolist(), strict=True))
        for k in (1, 5, 25, 40):
            for name, value in metrics_of_list(lists[q].tolist(), relevant, k).items():
                full = {"mrr": "mrr", "mrr@k": f"mrr@{k}"}.get(name, f"{name}@{k}")
                assert float(metrics.per_query(full)[column]) == pytest.approx(value, rel=1e-12, abs=1e-15)


def test_metrics_agree_with_trec_eval_and_ranx():
    scores, targets, gains = golden_case()
    metrics = ranking_metrics(ranks_from_scores(scores, targets), targets, (3, 10), gains)
    for name, values in GOLDEN.items():
        assert metrics.per_query(name).tolist() == pytest.approx(values, rel=1e-12), name


def test_metrics_agree_with_an_installed_pytrec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    targets, _ = skewed_case(50, 80, 4)
    scores = torch.rand(50, 80, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gains = torch.randint(1, 5, (len(targets.values),), generator=torch.Generator().manual_seed(6))
    metrics = ranking_metrics(ranks_from_scores(scores, targets), targets, (1, 5, 20), gains)
    qrels: dict[str, dict[str, int]] = {}
    for q, item, gain in zip(
        targets.row_index().tolist(), targets.values.tolist(), gains.tolist(), strict=True
    ):
        qrels.setdefault(f"q{q}", {})[f"d{item}"] = gain
    run = {f"q{q}": {f"d{i}": float(s) for i, s in enumerate(row)} for q, row in enumerate(scores)}
    names = {
        "recall": "recall",
        "P": "precision",
        "ndcg_cut": "ndcg",
        "map_cut": "map",
        "success": "hit_rate",
    }
    wanted = {f"{name}.1,5,20" for name in names} | {"recip_rank"}
    result = pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run)
    for column, q in enumerate(metrics.queries.tolist()):
        theirs = result[f"q{q}"]
        assert float(metrics.per_query("mrr")[column]) == pytest.approx(theirs["recip_rank"], rel=1e-12)
        for name, ours in names.items():
            for k in (1, 5, 20):
                got = float(metrics.per_query(f"{ours}@{k}")[column])
                assert got == pytest.approx(theirs[f"{name}_{k}"], rel=1e-12, abs=1e-15), (name, k)


def test_unreachable_targets_count_as_misses():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    targets = ragged([[0, 1], [2]])
    metrics = ranking_metrics(ranks_from_scores(scores, targets, ragged([[0], [2]])), targets, (1, 5))
    assert metrics.unreachable == 2
    assert metrics.per_query("recall@1").tolist() == [0.5, 0.0]
    assert metrics.per_query("ndcg@5").tolist() == pytest.approx([1 / (1 + 1 / math.log2(3)), 0.0])
    assert metrics.per_query("mrr").tolist() == [1.0, 0.0]


def test_queries_without_targets_are_skipped_and_counted():
    targets = ragged([[], [1], [], [0]])
    metrics = ranking_metrics(ranks_from_scores(torch.eye(4), targets), targets, (1,))
    assert (metrics.n_queries, metrics.skipped) == (2, 2)
    assert metrics.queries.tolist() == [1, 3]
    assert metrics.per_query("recall@1").tolist() == pytest.approx([1.0, 0.0])


def test_depths_keep_their_meaning_in_any_order():
    scores, targets, _ = golden_case()
    ranks = ranks_from_scores(scores, targets)
    forward, backward = ranking_metrics(ranks, targets, (3, 10)), ranking_metrics(ranks, targets, (10, 3))
    assert forward.to_dict() == backward.to_dict()


def test_bad_requests_are_refused():
    scores, targets, gains = golden_case()
    ranks = ranks_from_scores(scores, targets)
    for k in ((), (0,), (5, 5)):
        with pytest.raises(ValueError, match="Depths"):
            ranking_metrics(ranks, targets, k)
    for wrong in (gains[1:], gains - 1, gains / 0.0):
        with pytest.raises(ValueError, match="gain"):
            ranking_metrics(ranks, targets, (3,), wrong)
    with pytest.raises(ValueError, match="do not belong"):
        ranking_metrics(ranks, targets.take(torch.tensor([0, 1])), (3,))
    empty = ragged([[], []])
    nothing = ranks_from_scores(torch.zeros(2, 3), empty)
    with pytest.raises(ValueError, match="No query has a target"):
        ranking_metrics(nothing, empty)
    metrics = ranking_metrics(ranks, targets, (3,))
    with pytest.raises(ValueError, match="recall@3"):
        metrics.mean("recall@4")
    with pytest.raises(ValueError, match="level"):
        metrics.interval("mrr", level=1.0)


def test_one_query_has_no_interval():
    targets = ragged([[1]])
    metrics = ranking_metrics(ranks_from_scores(torch.tensor([[0.0, 1.0]]), targets), targets, (1,))
    assert metrics.to_dict()["recall@1"] == {"mean": 1.0, "low": None, "high": None}
    with pytest.raises(ValueError, match="two queries"):
        metrics.interval("mrr")


def test_intervals_are_ordered_repeatable_and_json_ready():
    targets, seen = skewed_case(300, 50, 10)
    scores = torch.rand(300, 50, generator=torch.Generator().manual_seed(11))
    ranks = ranks_from_scores(scores, targets, seen)
    metrics, again = ranking_metrics(ranks, targets), ranking_metrics(ranks, targets)
    result = json.loads(json.dumps(metrics.to_dict()))
    assert result == again.to_dict()
    assert all(entry["low"] <= entry["mean"] <= entry["high"] for entry in result.values())
    narrow, wide = metrics.interval("mrr", 0.5), metrics.interval("mrr", 0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert metrics.interval("mrr", seed=1) != metrics.interval("mrr")
    low, high = metrics.interval("ndcg@10", resamples=4000)
    stderr = float(metrics.per_query("ndcg@10").std()) / math.sqrt(metrics.n_queries)
    assert (high - low) / (2 * 1.96 * stderr) == pytest.approx(1.0, abs=0.06)


def test_queries_of_a_group_are_resampled_together():
    """Copies of a query tell nothing new: the interval of 40 queries five times over is that of the 40."""
    g = torch.Generator().manual_seed(15)
    scores, wanted = torch.rand(40, 20, generator=g), torch.randint(20, (40,), generator=g)
    five = torch.arange(40).repeat_interleave(5)
    once, often = (
        (scores[rows], Ragged(torch.arange(len(rows) + 1), wanted[rows])) for rows in (torch.arange(40), five)
    )
    alone = ranking_metrics(ranks_from_scores(*once), once[1], (5,))
    together = ranking_metrics(ranks_from_scores(*often), often[1], (5,), groups=five + 7)
    apart = ranking_metrics(ranks_from_scores(*often), often[1], (5,))
    assert together.mean("mrr") == pytest.approx(alone.mean("mrr"))
    assert together.interval("mrr") == pytest.approx(alone.interval("mrr"))
    low, high = apart.interval("mrr")
    assert high - low < 0.6 * (alone.interval("mrr")[1] - alone.interval("mrr")[0])
    with pytest.raises(ValueError, match="two groups"):
        ranking_metrics(ranks_from_scores(*often), often[1], (5,), groups=five * 0).interval("mrr")
    with pytest.raises(ValueError, match="groups must be int64"):
        ranking_metrics(ranks_from_scores(*often), often[1], (5,), groups=five[:3])


def test_resampled_means_of_groups_of_unequal_size_weigh_each_query_alike():
    values, groups = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.5]]).double(), torch.tensor([4, 4, 4, 2, 9])
    got = resampled_means(values, 50, 3, groups)[:, 0]
    drawn = torch.randint(3, (50, 3), generator=torch.Generator().manual_seed(3))
    members = [[3], [0, 1, 2], [4]]  # in the order of the groups' numbers
    for row in range(50):
        taken = [i for group in drawn[row].tolist() for i in members[group]]
        assert float(got[row]) == pytest.approx(sum(float(values[0, i]) for i in taken) / len(taken))


@pytest.mark.slow
def test_bootstrap_intervals_cover_the_mean_over_all_queries():
    generator = torch.Generator().manual_seed(12)
    n_queries, n_items = 200, 30
    hits = []
    for seed in range(600):
        rows = torch.arange(n_queries).repeat_interleave(2)
        targets = Ragged.from_pairs(rows, torch.randint(n_items, rows.shape, generator=generator), n_queries)
        scores = torch.rand(n_queries, n_items, generator=generator)
        metrics = ranking_metrics(ranks_from_scores(scores, targets), targets, (5,))
        low, high = metrics.interval("recall@5", level=0.9, resamples=400, seed=seed)
        hits.append(low <= 5 / n_items <= high)
    assert_coverage(hits, 0.9, band=0.02)


def test_popularity_slices_hold_equal_shares_of_the_interactions():
    counts = torch.tensor([1, 60, 20, 0, 19, 20])
    targets = ragged([[0, 1, 2], [1, 3], [4]])
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    slices = recall_by_popularity(ranks_from_scores(scores, targets), targets, counts, k=1)
    assert slices == (
        PopularitySlice(items=1, targets=2, recall=0.25),
        PopularitySlice(items=1, targets=1, recall=0.0),
        PopularitySlice(items=4, targets=3, recall=pytest.approx((1 + 0 + 1 / 6) / 3)),
    )


def test_popularity_slices_sum_to_all_items_and_targets():
    targets, seen = skewed_case(200, 400, 13)
    counts = torch.bincount(seen.values, minlength=400)
    scores = torch.rand(200, 400, generator=torch.Generator().manual_seed(14))
    ranks = ranks_from_scores(scores, targets, seen)
    slices = recall_by_popularity(ranks, targets, counts, k=20)
    assert sum(s.items for s in slices) == 400
    assert sum(s.targets for s in slices) == len(targets.values)
    hits = sum(s.targets * s.recall for s in slices if s.recall is not None)
    assert hits == pytest.approx(float(((ranks.above < 20) & (ranks.tied > 0)).sum()))
    with pytest.raises(ValueError, match="Counts"):
        recall_by_popularity(ranks, targets, counts[:10], k=20)
