"""Cluster-aware contrast: when it is exact, and what its penalty allows."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.clusters import (
    bidirectional_margin,
    clusterns,
    nearest_centroids,
    pamc,
    pamc_log_negatives,
)

CLOSE = {"atol": 1e-11, "rtol": 1e-11}
T = 0.5


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int) -> Tensor:
    return torch.nn.functional.normalize(normal(*shape, seed=seed), dim=-1)


def all_pairs(z: Tensor) -> float:
    return math.log(sum(math.exp(float(a @ b) / T) for a in z for b in z))


def test_pair_sums_are_exact_for_singletons_and_for_clusters_of_equal_embeddings() -> None:
    z = unit(12, 3, seed=1)
    single = pamc_log_negatives(z, torch.eye(12, dtype=torch.float64), temperature=T)
    assert float(single) == pytest.approx(all_pairs(z), abs=1e-11)
    label = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2])
    equal = z[:3][label]
    hard = torch.nn.functional.one_hot(label, 4).double()  # the fourth cluster is empty
    got = pamc_log_negatives(equal, hard, temperature=T)
    assert float(got) == pytest.approx(all_pairs(equal), abs=1e-11)
    soft = torch.full((12, 2), 0.5, dtype=torch.float64)
    got = pamc_log_negatives(z[:1].expand(12, 3), soft, temperature=T)
    assert float(got) == pytest.approx(2 * math.log(12) + 1 / T, abs=1e-11)


def test_soft_clusters_equal_a_plain_loop_and_bound_the_full_sum_from_below() -> None:
    for seed in range(30):
        z, c = unit(9, 3, seed=seed), (2 * normal(9, 4, seed=100 + seed)).softmax(-1)
        n = [sum(float(c[i, a]) for i in range(9)) for a in range(4)]
        m = [sum(c[i, a] * z[i] for i in range(9)) / n[a] for a in range(4)]
        want = math.log(
            sum(n[a] * n[b] * math.exp(float(m[a] @ m[b]) / T) for a in range(4) for b in range(4))  # type: ignore[operator]
        )
        got = float(pamc_log_negatives(z, c, temperature=T))
        assert got == pytest.approx(want, abs=1e-11)
        assert got < all_pairs(z)


def test_the_gap_shrinks_as_clusters_split() -> None:
    z = unit(16, 2, seed=3)
    z = z[torch.atan2(z[:, 1], z[:, 0]).argsort()]
    gaps = []
    for k in (1, 2, 4, 8, 16):
        nested = torch.eye(k, dtype=torch.float64).repeat_interleave(16 // k, 0)
        gaps.append(all_pairs(z) - float(pamc_log_negatives(z, nested, temperature=T)))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.3
    assert gaps[-1] == pytest.approx(0, abs=1e-11)


def test_pamc_equals_a_plain_loop_over_neighbours() -> None:
    z, c = unit(5, 3, seed=4), normal(5, 2, seed=5).softmax(-1)
    edges = torch.tensor([[0, 0, 1, 3, 3], [1, 2, 0, 0, 4]])
    terms = []
    for i in range(5):
        near = [j for s, j in edges.T.tolist() if s == i]
        if near:
            terms.append(math.log(sum(math.exp(float(z[i] @ z[j]) / T) for j in near)))
    want = float(pamc_log_negatives(z, c, temperature=T)) - sum(terms) / 3
    assert float(pamc(z, c, edges, temperature=T)) == pytest.approx(want, abs=1e-11)


def test_the_penalty_is_zero_exactly_between_its_margins() -> None:
    alpha, beta = 0.1, 0.4
    gap = torch.linspace(-1, 0.2, 25, dtype=torch.float64)
    for d in gap.tolist():
        cosine = torch.tensor([[0.8, 0.8 + d], [0.8 + d, 0.8]], dtype=torch.float64)
        got = float(bidirectional_margin(cosine, torch.tensor([3, 3]), alpha=alpha, beta=beta))
        want = max(d + alpha, 0) + max(-d - beta, 0)
        assert got == pytest.approx(want, abs=1e-12)
        assert (got < 1e-12) == (-beta - 1e-12 <= d <= -alpha + 1e-12)


def test_the_loss_equals_a_plain_loop() -> None:
    cosine, hard = torch.tanh(normal(4, 4, seed=6)), torch.tanh(normal(4, 4, seed=7))
    cluster, mu, weight = torch.tensor([1, 0, 1, 1]), 1.7, 0.3
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[0, 3] = mask[2, 2] = True  # an item's own positive is never left out
    got = clusterns(
        cosine,
        hard,
        cluster,
        mask,
        temperature=T,
        alpha=0.1,
        beta=0.4,
        weight=weight,
        hard_log_weight=math.log(mu),
        reduction="none",
    )
    for i in range(4):
        total = sum(math.exp(cosine[i, j] / T) for j in range(4) if j == i or not mask[i, j])
        total += sum((mu if j == i else 1) * math.exp(hard[i, j] / T) for j in range(4))
        want = math.log(total) - float(cosine[i, i]) / T
        mates = [j for j in range(4) if j != i and cluster[j] == cluster[i]]
        for j in mates:
            d = float(cosine[i, j] - cosine[i, i])
            want += weight * (max(d + 0.1, 0) + max(-d - 0.4, 0)) / len(mates)
        assert float(got[i]) == pytest.approx(want, abs=1e-11)


def test_without_clusters_it_is_the_loss_of_simcse() -> None:
    cosine = torch.tanh(normal(6, 6, seed=8))
    want = torch.nn.functional.cross_entropy(cosine / T, torch.arange(6))
    got = clusterns(cosine, temperature=T, alpha=0.1, beta=0.4)
    torch.testing.assert_close(got, want, **CLOSE)
    alone = clusterns(cosine, None, torch.arange(6), temperature=T, alpha=0.1, beta=0.4)
    torch.testing.assert_close(alone, want, **CLOSE)


def test_items_of_one_topic_are_flagged_and_the_hard_centroid_is_the_nearest_of_another() -> None:
    g = torch.Generator().manual_seed(9)
    topics = torch.nn.functional.normalize(torch.randn(5, 16, generator=g), dim=-1)
    topics[1] = torch.nn.functional.normalize(topics[0] + 0.8 * topics[1], dim=-1)  # a neighbour of topic 0
    label = torch.randint(5, (120,), generator=g)
    x = topics[label] + 0.1 * torch.randn(120, 16, generator=g)
    centroids = topics + 0.02 * torch.randn(5, 16, generator=g)
    own, hard = nearest_centroids(x, centroids)
    flagged = (own[:, None] == own).fill_diagonal_(False)
    right = flagged & (label[:, None] == label)
    assert float(right.sum() / flagged.sum()) > 0.95
    assert bool((own != hard).all())
    assert float((hard[label == 0] == 1).double().mean()) > 0.95


def test_gradients_agree_with_finite_differences() -> None:
    z, logits = unit(6, 3, seed=10).requires_grad_(), normal(6, 3, seed=11).requires_grad_()
    temperature = torch.tensor(T, dtype=torch.float64, requires_grad=True)
    edges = torch.tensor([[0, 0, 1, 3], [1, 2, 0, 4]])
    assert torch.autograd.gradcheck(
        lambda x, c, t: pamc(x, c.softmax(-1), edges, temperature=t), (z, logits, temperature)
    )
    cosine = torch.tanh(normal(4, 4, seed=12)).requires_grad_()
    hard, cluster = torch.tanh(normal(4, 4, seed=13)), torch.tensor([0, 0, 1, 0])
    assert torch.autograd.gradcheck(
        lambda s, t: clusterns(s, hard, cluster, temperature=t, alpha=0.1, beta=0.3), (cosine, temperature)
    )


def test_a_cluster_that_nobody_is_in_has_no_gradient_and_no_nan() -> None:
    c = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    z = torch.randn(2, 3, requires_grad=True)
    pamc(z, c, torch.tensor([[0], [1]]), temperature=T).backward()
    assert c.grad.isfinite().all()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cold_temperature_gives_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    z = unit(6, 3, seed=14).to(dtype).requires_grad_()
    c = normal(6, 2, seed=15).softmax(-1).to(dtype)
    edges = torch.tensor([[0, 1], [1, 0]])
    loss = pamc(z, c, edges, temperature=1e-3) + clusterns(
        z @ z.T, None, torch.zeros(6), temperature=1e-3, alpha=0.1, beta=0.3
    )
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    z, c, edges = torch.ones(3, 2), torch.full((3, 2), 0.5), torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=r"\(N, d\)"):
        pamc_log_negatives(z, c[:2], temperature=T)
    with pytest.raises(ValueError, match="sum 1"):
        pamc_log_negatives(z, 2 * c, temperature=T)
    with pytest.raises(ValueError, match="sum 1"):
        pamc_log_negatives(z, torch.tensor([[1.5, -0.5]] * 3), temperature=T)
    with pytest.raises(ValueError, match="temperature"):
        pamc_log_negatives(z, c, temperature=-1.0)
    with pytest.raises(TypeError, match="int64"):
        pamc(z, c, edges.float(), temperature=T)
    with pytest.raises(ValueError, match="E > 0"):
        pamc(z, c, edges[:, :0], temperature=T)
    with pytest.raises(ValueError, match="lie in"):
        pamc(z, c, edges + 2, temperature=T)
    with pytest.raises(ValueError, match="neighbouring"):
        nearest_centroids(z, z[:1])
    with pytest.raises(ValueError, match=r"\(k, d\)"):
        nearest_centroids(z, torch.ones(3, 4))
    square = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="alpha"):
        bidirectional_margin(square, torch.zeros(3), alpha=0.5, beta=0.1)
    with pytest.raises(ValueError, match=r"\(B,\)"):
        bidirectional_margin(square, torch.zeros(2), alpha=0.1, beta=0.5)
    with pytest.raises(ValueError, match=r"\(B, B\)"):
        clusterns(z, temperature=T, alpha=0.1, beta=0.5)
    with pytest.raises(ValueError, match="hard_cosine"):
        clusterns(square, z, temperature=T, alpha=0.1, beta=0.5)


def test_a_vector_that_is_not_finite_has_no_nearest_centroid() -> None:
    centroids = torch.eye(3)
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="near to nothing"):
            nearest_centroids(torch.tensor([[1.0, wrong, 0.0]]), centroids)
        with pytest.raises(ValueError, match="near to nothing"):
            nearest_centroids(torch.eye(3), centroids.index_fill(0, torch.tensor([1]), wrong))
    with pytest.raises(TypeError, match="floating point"):
        nearest_centroids(torch.eye(3).long(), centroids)
