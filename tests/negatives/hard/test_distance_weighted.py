"""Distance weighted draws undo the density of distances, and know their probabilities."""

import math

import pytest
import torch
from scipy import integrate

from steelyard.negatives.hard.distance_weighted import distance_weighted, distance_weighted_log_weights
from tests.statistical import assert_unbiased

LABELS = torch.tensor([0, 1, 0, 1, 2, 2])
X = torch.nn.functional.normalize(
    torch.randn(6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64), dim=1
)
D = (X.unsqueeze(1) - X).norm(dim=2)


def plain_weight(d: float, n: int, cutoff: float) -> float:
    def q(at: float) -> float:
        return at ** (n - 2) * (1 - at * at / 4) ** ((n - 3) / 2)

    return min(1 / q(d) if q(d) > 0 else math.inf, 1 / q(cutoff))


@pytest.mark.parametrize(("n", "cutoff"), [(3, 0.5), (4, 0.5), (8, 0.9), (128, 0.5)])
def test_weights_are_the_inverse_density_capped_at_the_cutoff(n: int, cutoff: float) -> None:
    d = torch.tensor([0.0, 0.2, 0.49, 0.51, 1.0, 1.4, 1.9, 2.0], dtype=torch.float64)
    got = distance_weighted_log_weights(d, n, cutoff).exp().tolist()
    assert got == pytest.approx([plain_weight(x, n, cutoff) for x in d.tolist()])


def test_the_density_is_that_of_distances_on_the_sphere() -> None:
    """1 / w without a cap, against the distances of random pairs in five dimensions."""
    pairs = torch.randn(2, 40_000, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b = torch.nn.functional.normalize(pairs, dim=2)
    d = (a - b).norm(dim=1)

    def q(at: float) -> float:
        tiny = distance_weighted_log_weights(torch.tensor([at], dtype=torch.float64), 5, 1e-6)
        return math.exp(-float(tiny))

    total = integrate.quad(q, 0, 2)[0]
    for moment in (1, 2, 3):
        mean = integrate.quad(lambda at, m=moment: at**m * q(at), 0, 2)[0] / total
        assert_unbiased(d**moment, mean)


def test_draws_follow_their_law_and_weighed_they_sum_without_bias() -> None:
    n = 6000
    many = distance_weighted(D, LABELS, 5, n, generator=torch.Generator().manual_seed(4))
    law = torch.zeros(6, 6, dtype=torch.float64)
    for a in range(6):
        for j in range(6):
            if LABELS[a] != LABELS[j]:
                law[a, j] = plain_weight(float(D[a, j]), 5, 0.5)
    law /= law.sum(1, keepdim=True)
    hits = torch.nn.functional.one_hot(many.ids, 6).double()
    assert_unbiased(hits.transpose(0, 1), law)
    torch.testing.assert_close(many.log_expected_of(torch.arange(6)).exp(), law * n)
    torch.testing.assert_close(many.log_expected, many.log_expected_of(many.ids))
    each = (-D.gather(1, many.ids) - many.log_expected).exp() * n
    assert_unbiased(each.T, (-D).exp().masked_fill(LABELS.unsqueeze(1) == LABELS, 0).sum(1))


def test_far_negatives_are_left_out_and_lonely_anchors_have_empty_slots() -> None:
    bound = float(D[0, [1, 3, 4, 5]].median())
    draws = distance_weighted(D, LABELS, 5, 40, farthest=bound, generator=torch.Generator().manual_seed(1))
    assert bool((D.gather(1, draws.ids)[draws.log_expected < math.inf] < bound).all())
    none = distance_weighted(D, torch.zeros(6, dtype=torch.int64), 5, 2)
    assert none.ids.tolist() == [[0, 0]] * 6
    assert bool((none.log_expected == math.inf).all())
    assert bool((none.log_expected_of(torch.arange(-1, 7)) == -math.inf).all())
    assert distance_weighted(D, LABELS, 5, 0).ids.shape == (6, 0)
    assert distance_weighted(torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64), 5).ids.shape == (0, 1)


def test_many_dimensions_and_single_precision_neither_overflow_nor_lose_rows() -> None:
    d = torch.tensor([[0.0, 0.01, 2.0], [0.01, 0.0, 1.99], [2.0, 1.99, 0.0]], dtype=torch.float32)
    draws = distance_weighted(d, torch.arange(3), 4096, 50, generator=torch.Generator().manual_seed(1))
    assert bool(draws.log_expected.isfinite().all())
    answer = draws.log_expected_of(torch.arange(3))
    assert answer[0].exp().tolist() == pytest.approx([0, 25, 25])
    assert not bool(answer.isnan().any())


def test_what_is_not_on_the_sphere_is_refused() -> None:
    for bad, said in ((D * 3, "normalise"), (D * math.nan, "finite"), (-D, "negative")):
        with pytest.raises(ValueError, match=said):
            distance_weighted(bad, LABELS, 5)
    with pytest.raises(ValueError, match="dimension"):
        distance_weighted(D, LABELS, 1)
    with pytest.raises(ValueError, match="cutoff"):
        distance_weighted(D, LABELS, 5, cutoff=2.0)
    with pytest.raises(ValueError, match="n must"):
        distance_weighted(D, LABELS, 5, -1)
