"""Batches are pure in their stratum, an epoch holds each row once, and topics are drawn as TAS-B draws them."""

import pytest
import torch

from steelyard.negatives.batches.strata import source_clusters, stratified_batches, topic_batches
from tests.negatives.batches.clustered import hard_share, is_epoch, planted, random_batches
from tests.statistical import assert_unbiased


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_epoch_is_pure_in_its_strata_and_holds_each_row_once() -> None:
    strata = torch.tensor([7, -2, 7, 7, 40, -2, 7, 7, -2, 7, 7, 7] * 9)
    batches = stratified_batches(strata, 16, generator=generator())
    assert is_epoch(batches, len(strata))
    for b in range(len(batches)):
        assert len(strata[batches.row(b)].unique()) == 1
    full = {s: int((strata == s).sum()) // 16 for s in (7, -2, 40)}
    assert int((batches.counts == 16).sum()) == sum(full.values())
    assert len(batches) == sum(-(-int((strata == s).sum()) // 16) for s in full)


def test_each_pair_of_a_stratum_meets_equally_often() -> None:
    source, together = generator(), []
    for _ in range(3000):
        batches = stratified_batches([0, 0, 0, 0, 1, 1], 2, generator=source)
        home = torch.empty(6, dtype=torch.int64)
        home[batches.values] = batches.row_index()
        together.append([float(home[i] == home[j]) for i in range(6) for j in range(i)])
    truth = [1 / 3 if i < 4 else float((i, j) == (5, 4)) for i in range(6) for j in range(i)]
    assert_unbiased(together, truth)


def test_clusters_lie_within_their_source_and_one_a_source_is_the_source() -> None:
    x, _ = planted(900, 12)
    source = torch.randint(3, (900,), generator=generator(3)) * 5
    strata = source_clusters(x, source, 60, generator=generator())
    for s in strata.unique().tolist():
        assert len(source[strata == s].unique()) == 1
    assert len(strata.unique()) == sum(int((source == s).sum()) // 60 for s in (0, 5, 10))
    assert torch.equal(source_clusters(x, source, 10**6), source // 5)
    assert torch.equal(source_clusters(x, source, 500), source // 5)


def test_batches_of_clusters_hold_more_hard_negatives_than_batches_of_sources_and_random_ones() -> None:
    x, _ = planted(2000, 40)
    source = torch.randint(2, (2000,), generator=generator(3))
    strata = source_clusters(x, source, 100, generator=generator())
    shares = [
        hard_share(stratified_batches(labels, 32, generator=generator(1)), x) for labels in (strata, source)
    ]
    chance = hard_share(random_batches(2000, 32), x)
    assert shares[0] > 4 * shares[1]
    assert shares[0] > 4 * chance


def test_in_batch_similarity_rises_with_clusters() -> None:
    x, _ = planted(2000, 40)
    strata = source_clusters(x, torch.zeros(2000).long(), 100, generator=generator())

    def mean_similarity(labels: torch.Tensor) -> float:
        batches = stratified_batches(labels, 32, generator=generator(1))
        rows = [x[batches.row(b)] for b in range(len(batches)) if int(batches.counts[b]) == 32]
        return float(torch.stack([(r @ r.T).fill_diagonal_(0).sum() / (32 * 31) for r in rows]).mean())

    assert mean_similarity(strata) > 0.5 + mean_similarity(torch.zeros(2000).long())


@pytest.mark.parametrize("topics_per_batch", [1, 3])
def test_a_topic_batch_holds_few_topics_and_no_query_twice(topics_per_batch: int) -> None:
    _, topic = planted(600, 9)
    batches = topic_batches(topic, 16, 200, topics_per_batch=topics_per_batch, generator=generator())
    assert len(batches) == 200
    smallest = int(topic.bincount().min())
    for b in range(200):
        rows = batches.row(b)
        assert len(rows.unique()) == len(rows)
        found, counts = topic[rows].unique(return_counts=True)
        assert len(found) == topics_per_batch
        assert bool((counts == min(16 // topics_per_batch, smallest)).all())


def test_topics_are_equally_likely_and_so_are_the_queries_of_one() -> None:
    topic = torch.tensor([5, 5, 5, 5, 5, 2, 2, 9])
    batches = topic_batches(topic, 2, 20000, generator=generator())
    drawn = torch.zeros(20000, 8).index_put_((batches.row_index(), batches.values), torch.tensor(1.0))
    assert_unbiased(drawn, [2 / 15] * 5 + [1 / 3] * 3)
    batches = topic_batches(topic, 4, 20000, topics_per_batch=2, generator=generator())
    drawn = torch.zeros(20000, 8).index_put_((batches.row_index(), batches.values), torch.tensor(1.0))
    assert_unbiased(drawn, [4 / 15] * 5 + [2 / 3] * 3)


def test_topic_batches_hold_more_hard_negatives_than_random_ones() -> None:
    x, topic = planted(2000, 40)
    score = (x @ x.T).fill_diagonal_(-2)
    top = score.topk(8, 1).indices
    share = []
    for batches in (topic_batches(topic, 32, 60, generator=generator()), random_batches(2000, 32)):
        rows = [batches.row(b) for b in range(len(batches))]
        share.append(float(torch.cat([torch.isin(top[r], r).double().mean(1) for r in rows]).mean()))
    assert share[0] > 4 * share[1]


def test_wrong_input_is_refused_and_nothing_gives_nothing() -> None:
    for bad, kind, said in (
        (lambda: stratified_batches([0.5], 2), TypeError, "integers"),
        (lambda: stratified_batches([[1]], 2), ValueError, "one a row"),
        (lambda: stratified_batches([1], 0), ValueError, "at least 1"),
        (lambda: stratified_batches([1], True), TypeError, "integer"),
        (lambda: topic_batches([1, 1], 4, 3, topics_per_batch=2), ValueError, "1 topics"),
        (lambda: topic_batches([], 4, 3), ValueError, "0 topics"),
        (lambda: topic_batches([1], 4, -1), ValueError, "n_batches"),
        (lambda: source_clusters(torch.ones(2, 1), [0], 5), ValueError, "one source a vector"),
        (lambda: source_clusters(torch.ones(2, 1) / 0, [0, 1], 5), ValueError, "finite"),
    ):
        with pytest.raises(kind, match=said):
            bad()
    assert len(stratified_batches([], 4)) == 0
    assert len(topic_batches([1, 2], 4, 0)) == 0
