"""Two-level proposals draw by the law of their centroids, which uniform draws cannot match on clusters."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from steelyard.draws import Proposal
from steelyard.negatives import two_level
from steelyard.negatives.context import Context
from steelyard.negatives.two_level import Clusters, InvertedMultiIndex
from steelyard.negatives.uniform import Uniform
from steelyard.ragged import Ragged
from tests.negatives.laws import (
    assert_design_is_kept,
    assert_sums_are_unbiased,
    generator,
    log_normalizer_variance,
    plain_law,
)

QUERY = torch.tensor([[1.0, -0.5, 0.3, 2.0], [0.0, 1.0, -1.0, 0.5]])
BATCH = Context(torch.tensor([0, 3]), Ragged.from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 4, 3]), 2))
GROUP = torch.tensor([0, 2, 2, 3, 0, 2, 0])  # cluster 1 is empty
CENTROIDS = torch.tensor(
    [[0.5, 0.0, 1.0, -1.0], [9.0, 9.0, 9.0, 9.0], [1.0, 0.2, 0.0, 0.3], [-1.0, 1.0, 0.0, 0.4]]
)
CODES = torch.tensor([[0, 1], [2, 0], [0, 1], [2, 1], [0, 0], [2, 0], [2, 0]])
FIRST, SECOND = torch.tensor([[0.5, 1.0], [7.0, 7.0], [-1.0, 0.4]]), torch.tensor([[1.0, 0.0], [-0.5, 0.6]])
SCORE = torch.tensor([[1.0, -0.4, 0.2, 2.0, 0.3, -1.0, 0.5], [0.2, 1.4, -0.3, 0.6, 1.1, 0.4, -2.0]])


def asks(vectors: torch.Tensor) -> Any:
    """The query vectors of a batch, or of that batch many times over."""
    return lambda context: vectors.repeat(-(-len(context) // len(vectors)), 1)[: len(context)]


def clusters(temperature: float = 0.7) -> Clusters:
    return Clusters(GROUP, CENTROIDS, asks(QUERY), temperature=temperature)


def index(temperature: float = 0.7) -> InvertedMultiIndex:
    return InvertedMultiIndex(CODES, FIRST, SECOND, asks(QUERY), temperature=temperature)


def clustered() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Context]:
    """Items in 12 tight groups of very unequal scores: vectors, queries, scores, batch."""
    g = generator(11)
    middle = torch.randn(12, 8, generator=g) * 1.5
    x = middle[torch.randint(12, (600,), generator=g)] + 0.15 * torch.randn(600, 8, generator=g)
    q = torch.randn(3, 8, generator=g)
    return x, q, q @ x.T, Context(torch.tensor([1, 2, 3]))


def test_clusters_have_the_law_of_the_formula() -> None:
    got = plain_law(clusters(), BATCH, 7)
    for b, q in enumerate(QUERY.double().tolist()):
        weight = [
            math.exp(sum(a * m for a, m in zip(q, CENTROIDS[c].double().tolist(), strict=True)) / 0.7)
            for c in GROUP.tolist()
        ]
        np.testing.assert_allclose(got[b], np.array(weight) / sum(weight), rtol=1e-5)


def test_the_index_has_the_law_of_the_formula() -> None:
    got = plain_law(index(), BATCH, 7)
    for b, q in enumerate(QUERY.double()):
        weight = [
            math.exp(float(q[:2] @ FIRST[k].double() + q[2:] @ SECOND[s].double()) / 0.7)
            for k, s in CODES.tolist()
        ]
        np.testing.assert_allclose(got[b], np.array(weight) / sum(weight), rtol=1e-5)


@pytest.mark.parametrize("made", [clusters(), index(), clusters(0.05), index(0.05)])
def test_draws_follow_the_design(made: Proposal) -> None:
    assert isinstance(made, Proposal)
    assert_design_is_kept(made, BATCH, 7)


@pytest.mark.parametrize("made", [clusters(), index()])
def test_sums_over_everything_are_unbiased(made: Proposal) -> None:
    assert_sums_are_unbiased(made, BATCH, SCORE)


def test_on_clustered_vectors_the_log_normaliser_varies_less_than_with_uniform_draws() -> None:
    x, q, score, context = clustered()
    even = log_normalizer_variance(Uniform(600, per_query=True), context, score, 20)
    for made in (
        Clusters.fit(x, 12, asks(q), generator=generator()),
        InvertedMultiIndex.fit(x, 12, asks(q), generator=generator()),
    ):
        varied = log_normalizer_variance(made, context, score, 20)
        assert bool((varied < even / 10).all()), (varied, even)


def test_one_cluster_is_uniform_and_one_item_a_cluster_the_softmax() -> None:
    x, q, _, context = clustered()
    uniform = plain_law(Clusters.fit(x, 1, asks(q)), context, 600)
    np.testing.assert_allclose(uniform, 1 / 600, rtol=1e-5)
    want = torch.softmax(q.double() @ x[:40].double().T, 1)
    for made in (
        Clusters(torch.arange(40), x[:40], asks(q)),
        InvertedMultiIndex(torch.arange(40).view(-1, 1).expand(-1, 2), x[:40, :4], x[:40, 4:], asks(q)),
    ):
        np.testing.assert_allclose(plain_law(made, context, 40), want, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e3, 1e8])
def test_large_spreads_of_scores_do_not_overflow(scale: float) -> None:
    for made in (
        Clusters(GROUP, CENTROIDS, asks(QUERY * scale)),
        InvertedMultiIndex(CODES, FIRST, SECOND, asks(QUERY * scale)),
    ):
        assert_design_is_kept(made, BATCH, 7, n=500)


def test_a_row_of_cells_far_below_the_best_codeword_keeps_its_weight() -> None:
    """The best second codeword has no cell under the best first one; exp of the difference is 0 in float64."""
    codes = torch.tensor([[0, 0], [1, 1], [1, 1], [0, 0]])
    made = InvertedMultiIndex(codes, [[2001.0], [0.0]], [[0.0], [2000.0]], asks(torch.ones(1, 2)))
    law = plain_law(made, Context(torch.tensor([0])), 4)[0]
    p = math.e / (1 + math.e) / 2
    np.testing.assert_allclose(law, [p, 0.5 - p, 0.5 - p, p], rtol=1e-5)
    assert_design_is_kept(made, Context(torch.tensor([0])), 4)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = index(0.001).sample(BATCH, 50, generator=generator(4))
    monkeypatch.setattr(two_level, "CHUNK", 1)
    part = index(0.001).sample(BATCH, 50, generator=generator(4))
    assert torch.equal(whole.ids, part.ids)
    assert torch.equal(whole.log_expected, part.log_expected)


def test_fit_reads_the_halves_of_odd_vectors_and_repeats_itself() -> None:
    x = torch.randn(60, 5, generator=generator(8))
    made = InvertedMultiIndex.fit(x, 4, asks(torch.zeros(1, 5)), generator=generator(1))
    assert (made.first.shape, made.second.shape, made.codes.shape) == ((4, 2), (4, 3), (60, 2))
    for half, book, code in ((x[:, :2], made.first, 0), (x[:, 2:], made.second, 1)):
        assert torch.equal(torch.cdist(half, book).argmin(1), made.codes[:, code])
    again = InvertedMultiIndex.fit(x, 4, asks(torch.zeros(1, 5)), generator=generator(1))
    assert torch.equal(made.codes, again.codes)
    copies = InvertedMultiIndex.fit(torch.ones(9, 4), 3, asks(torch.zeros(1, 4)))
    np.testing.assert_allclose(plain_law(copies, Context(torch.tensor([0])), 9), 1 / 9, rtol=1e-6)


def test_a_single_item_is_always_drawn_and_half_precision_queries_will_do() -> None:
    ask = asks(torch.ones(1, 2, dtype=torch.bfloat16))
    for made in (
        Clusters([0], [[1.0, 2.0]], ask),
        InvertedMultiIndex([[0, 0]], [[1.0]], [[2.0]], ask),
        Clusters.fit([[1, 2]], 1, ask),
    ):
        draws = made.sample(Context(torch.tensor([0])), 3)
        assert draws.ids.tolist() == [[0, 0, 0]]
        assert draws.log_expected.exp().tolist() == [pytest.approx([3] * 3)]


def test_what_the_caller_gave_is_not_looked_at_again() -> None:
    group = GROUP.clone()
    made = Clusters(group, CENTROIDS, asks(QUERY))
    before = plain_law(made, BATCH, 7)
    group.zero_()
    assert torch.equal(plain_law(made, BATCH, 7), before)


def test_bad_input_is_refused() -> None:
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature"):
            clusters(temperature)
        with pytest.raises(ValueError, match="temperature"):
            index(temperature)
    with pytest.raises(ValueError, match=r"assignment must lie in \[0, 3\), got 0 to 3"):
        Clusters(GROUP, CENTROIDS[:3], asks(QUERY))
    with pytest.raises(TypeError, match="assignment must be int64"):
        Clusters(GROUP.float(), CENTROIDS, asks(QUERY))
    with pytest.raises(ValueError, match="number for each item"):
        Clusters(torch.zeros(0, dtype=torch.int64), CENTROIDS, asks(QUERY))
    with pytest.raises(ValueError, match="centroids must be finite; row 1"):
        Clusters(GROUP, CENTROIDS.masked_fill(CENTROIDS > 8, math.nan), asks(QUERY))
    with pytest.raises(ValueError, match=r"codes must be \(I, 2\)"):
        InvertedMultiIndex(CODES[:, :1], FIRST, SECOND, asks(QUERY))
    with pytest.raises(ValueError, match="second half must lie"):
        InvertedMultiIndex(CODES.flip(1), FIRST, SECOND, asks(QUERY))
    with pytest.raises(ValueError, match="no two halves"):
        InvertedMultiIndex.fit(torch.ones(3, 1), 1, asks(QUERY))
    for wrong, error, said in (
        (QUERY[:, :3], ValueError, r"\(2, 4\), got \(2, 3\)"),
        (QUERY.long(), TypeError, "floating point"),
        (QUERY.masked_fill(QUERY == 2, math.nan), ValueError, "query 0 is not"),
        (QUERY.double() * 1e308 * 1.5, ValueError, "exceed float64|must be finite"),
    ):
        for broken in (
            Clusters(GROUP, CENTROIDS, asks(wrong)),
            InvertedMultiIndex(CODES, FIRST, SECOND, asks(wrong)),
        ):
            with pytest.raises(error, match=said):
                broken.sample(BATCH, 2)
    for made in (clusters(), index()):
        with pytest.raises(TypeError, match="integer"):
            made.sample(BATCH, 1.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="negative"):
            made.sample(BATCH, -1)
