"""Dynamic negative sampling draws uniformly among the best of its pool, by a law that is known."""

import itertools
import math

import pytest
import torch

from steelyard.negatives.hard.dns import dns, dns_log_probability
from tests.statistical import assert_unbiased

SCORE = torch.tensor([2.0, -1.0, 0.3, 1.7, 0.9, -3.0])


def enumerated(pool: int, n_best: int) -> list[float]:
    """The law of the sampler for each item of SCORE, by all pools there are."""
    law = [0.0] * len(SCORE)
    pools = list(itertools.combinations(range(len(SCORE)), pool))
    for some in pools:
        best = sorted(some, key=lambda j: -float(SCORE[j]))[:n_best]
        for j in best:
            law[j] += 1 / len(best) / len(pools)
    return law


@pytest.mark.parametrize(("pool", "n_best"), [(1, 1), (3, 1), (4, 2), (6, 2), (5, 5), (3, 9)])
def test_the_law_equals_enumeration_of_all_pools(pool: int, n_best: int) -> None:
    rank = (-SCORE).argsort().argsort()
    law = dns_log_probability(rank, 6, pool, n_best).exp()
    assert law.tolist() == pytest.approx(enumerated(pool, n_best), abs=1e-12)
    assert float(law.sum()) == pytest.approx(1)


def test_draws_follow_the_law_of_the_whole_scheme() -> None:
    """A pool of 4 of the 6 for each of many queries, then two draws among its 2 best."""
    generator = torch.Generator().manual_seed(5)
    pool = torch.rand(20_000, 6, generator=generator).argsort(1)[:, :4]
    columns, empty = dns(SCORE[pool], 2, 2, generator=generator)
    assert not bool(empty.any())
    drawn = torch.nn.functional.one_hot(pool.gather(1, columns), 6).double().mean(1)
    assert_unbiased(drawn, enumerated(4, 2))


def test_a_pairwise_loss_over_the_draws_estimates_the_partial_area() -> None:
    """The best n_best of the whole catalogue, equally weighted: the loss that partial AUC asks for."""
    generator = torch.Generator().manual_seed(6)
    columns, _ = dns(SCORE.expand(5000, 6), 3, 1, generator=generator)
    pairwise = torch.nn.functional.softplus(SCORE.double() - 1.0)
    best = SCORE.topk(3).indices
    assert_unbiased(pairwise[columns.squeeze(1)], float(pairwise[best].mean()))


def test_limits_are_the_best_and_the_whole_pool() -> None:
    assert dns(SCORE, 1, 4)[0].tolist() == [0, 0, 0, 0]
    columns, _ = dns(SCORE.expand(3000, 6), 6, 1, generator=torch.Generator().manual_seed(7))
    assert_unbiased(torch.nn.functional.one_hot(columns.squeeze(1), 6).double(), [1 / 6] * 6)


def test_masks_and_empty_pools_are_reported() -> None:
    mask = torch.tensor([[True, False, True, True, True, False], [True] * 6])
    columns, empty = dns(SCORE.expand(2, 6), 3, 50, mask, generator=torch.Generator().manual_seed(8))
    assert set(columns[0].tolist()) == {1, 5}
    assert columns[1].tolist() == [0] * 50
    assert empty.all(1).tolist() == [False, True]
    assert not bool(empty[0].any())
    assert dns(torch.zeros(2, 0), 1, 3)[1].tolist() == [[True] * 3] * 2
    assert dns(SCORE, 1, 0)[0].shape == (0,)
    ties = dns(torch.zeros(400, 3), 2, 1, generator=torch.Generator().manual_seed(9))[0]
    assert len(set(ties.flatten().tolist())) == 2


def test_the_same_generator_gives_the_same_draws() -> None:
    one, two = (dns(SCORE, 4, 9, generator=torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert one.tolist() == two.tolist()


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="n_best must"):
        dns(SCORE, 0)
    with pytest.raises(ValueError, match="n must"):
        dns(SCORE, 1, -1)
    with pytest.raises(ValueError, match="NaN"):
        dns(SCORE * math.nan, 1)
    with pytest.raises(ValueError, match="at most"):
        dns_log_probability(torch.tensor([0]), 6, 7, 1)
    with pytest.raises(ValueError, match="Ranks"):
        dns_log_probability(torch.tensor([6]), 6, 3, 1)
    with pytest.raises(TypeError, match="int64"):
        dns_log_probability(torch.tensor([0.0]), 6, 3, 1)
    assert dns_log_probability(torch.tensor([5]), 6, 4, 2).tolist() == [-math.inf]
