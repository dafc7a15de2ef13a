"""Same-cluster corruption never makes a known triple, and knows the probability of each that it makes."""

import math

import pytest
import torch

from steelyard.draws import Draws
from steelyard.negatives.context import Context
from steelyard.negatives.hard.clusters import same_cluster_corruption
from steelyard.negatives.uniform import Uniform
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased

CLUSTER = torch.tensor([2, 0, 2, 0, 2, 1, 2, 0, 3])
ENTITY = torch.tensor([2, 1, 5, 8, 4])
PAIRS = [(0, 6), (0, 2), (0, 3), (1, 3), (3, 0), (3, 7)]
KNOWN = Ragged.from_pairs(torch.tensor([r for r, _ in PAIRS]), torch.tensor([j for _, j in PAIRS]), 5)


def enumerated() -> list[list[int]]:
    allowed = []
    for b, entity in enumerate(ENTITY.tolist()):
        known = {j for r, j in PAIRS if r == b} | {entity}
        alike = [j for j in range(9) if CLUSTER[j] == CLUSTER[entity] and j not in known]
        allowed.append(alike or [j for j in range(9) if j not in known])
    return allowed


def test_probabilities_are_uniform_over_the_cluster_without_the_known() -> None:
    draws, fell_back = same_cluster_corruption(CLUSTER, ENTITY, KNOWN, 4)
    assert fell_back.tolist() == [False, False, True, True, False]
    answer = draws.log_expected_of(torch.arange(-1, 10)).exp()
    for row, allowed in zip(answer.tolist(), enumerated(), strict=True):
        want = [4 / len(allowed) if j in allowed else 0 for j in range(-1, 10)]
        assert row == pytest.approx(want)
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))


def test_draws_follow_them_and_their_weighed_sum_is_that_over_the_cluster() -> None:
    draws, _ = same_cluster_corruption(
        CLUSTER, ENTITY, KNOWN, 5000, generator=torch.Generator().manual_seed(1)
    )
    law = torch.zeros(5, 9, dtype=torch.float64)
    for b, allowed in enumerate(enumerated()):
        law[b, allowed] = 1 / len(allowed)
    hits = torch.nn.functional.one_hot(draws.ids, 9).double().transpose(0, 1)
    assert_unbiased(hits, law)
    value = torch.linspace(0.1, 2.0, 9, dtype=torch.float64)
    each = value[draws.ids] / draws.log_expected.exp() * 5000
    assert_unbiased(each.T, ((law > 0) * value).sum(1))


def test_no_negative_is_a_known_triple() -> None:
    draws, _ = same_cluster_corruption(CLUSTER, ENTITY, KNOWN, 500)
    assert not bool(Context(ENTITY, KNOWN).mask(draws.ids).any())


def test_one_cluster_is_uniform_corruption() -> None:
    one, fell_back = same_cluster_corruption(
        torch.zeros(9, dtype=torch.int64), ENTITY, KNOWN, 6, generator=torch.Generator().manual_seed(2)
    )
    rows = torch.cat([KNOWN.row_index(), torch.arange(5)])
    whole = Ragged.from_pairs(rows, torch.cat([KNOWN.values, ENTITY]), 5)
    even = Uniform(9, per_query=True).sample(
        Context(ENTITY, whole), 6, generator=torch.Generator().manual_seed(2)
    )
    assert torch.equal(one.ids, even.ids)
    torch.testing.assert_close(one.log_expected.float(), even.log_expected)
    assert not bool(fell_back.any())


def test_negatives_of_the_cluster_score_higher_where_likeness_does() -> None:
    """Clusters of text embeddings: those of the entity's own are nearer to it than any."""
    centres = 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    cluster = torch.arange(120) % 6
    text = centres[cluster] + 0.3 * torch.randn(120, 4, generator=torch.Generator().manual_seed(4))
    none = Ragged(torch.zeros(121, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    means = []
    for groups in (cluster, torch.zeros_like(cluster)):
        draws, _ = same_cluster_corruption(
            groups, torch.arange(120), none, 50, generator=torch.Generator().manual_seed(5)
        )
        means.append(float(-(text.unsqueeze(1) - text[draws.ids]).norm(dim=2).mean()))
    assert means[0] > means[1] + 1


def test_mixed_with_uniform_draws_the_sum_over_everything_is_unbiased() -> None:
    entity = ENTITY[:1].expand(4000)
    known = Ragged(torch.arange(4001), entity.clone())
    generator = torch.Generator().manual_seed(6)
    near, _ = same_cluster_corruption(CLUSTER, entity, known, 2, generator=generator)
    even = Uniform(9, per_query=True).sample(Context(entity, known), 2, generator=generator)
    both = Draws.merge([near, even])
    value = torch.linspace(0.1, 2.0, 9, dtype=torch.float64)
    total = (value[both.ids] / both.log_expected.double().exp()).sum(1)
    assert_unbiased(total, float(value.sum() - value[2]))


def test_nothing_left_and_nothing_asked_are_empty() -> None:
    everything = Ragged(torch.tensor([0, 2]), torch.tensor([0, 1]))
    draws, fell_back = same_cluster_corruption(torch.tensor([0, 0]), torch.tensor([0]), everything, 2)
    assert draws.ids.tolist() == [[0, 0]]
    assert draws.log_expected.tolist() == [[math.inf, math.inf]]
    assert fell_back.tolist() == [True]
    assert draws.log_expected_of(torch.arange(2)).tolist() == [[-math.inf, -math.inf]]
    assert same_cluster_corruption(CLUSTER, ENTITY, KNOWN, 0)[0].ids.shape == (5, 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="known has"):
        same_cluster_corruption(CLUSTER, ENTITY[:2], KNOWN, 1)
    with pytest.raises(ValueError, match="entity must lie"):
        same_cluster_corruption(CLUSTER, ENTITY + 5, KNOWN, 1)
    with pytest.raises(ValueError, match="known must lie"):
        same_cluster_corruption(CLUSTER[:6], torch.zeros(5, dtype=torch.int64), KNOWN, 1)
    with pytest.raises(ValueError, match="numbered from 0"):
        same_cluster_corruption(CLUSTER - 1, ENTITY, KNOWN, 1)
    with pytest.raises(TypeError, match="int64"):
        same_cluster_corruption(CLUSTER.float(), ENTITY, KNOWN, 1)
