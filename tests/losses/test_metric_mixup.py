"""Metrix: what is mixed, what a share costs, and the losses it returns to at shares of 0 and 1."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.metric_mixup import (
    mix_pairs,
    mixed_contrastive,
    mixed_multi_similarity,
    utilization,
)
from steelyard.losses.multi_similarity import multi_similarity
from tests.statistical import assert_unbiased


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(9, 4, generator=g, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3])


def test_mixed_examples_lie_between_a_positive_and_a_negative_of_their_anchor() -> None:
    x, y = batch()
    got = mix_pairs(x, y, 6, generator=torch.Generator().manual_seed(1))
    assert got.mask.any(1).tolist() == [False] * 8 + [True]
    for i in range(8):
        for k in range(6):
            p, n, lam = int(got.positive[i, k]), int(got.negative[i, k]), float(got.share[i, k])
            assert p != i
            assert y[p] == y[i] != y[n]
            torch.testing.assert_close(got.embedding[i, k], lam * x[p] + (1 - lam) * x[n])
    again = mix_pairs(x, y, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(got.embedding, again.embedding, rtol=0, atol=0)
    with_anchor = mix_pairs(x, y, 2, with_anchor=True)
    assert not with_anchor.mask.any()
    assert with_anchor.positive.tolist() == [[i, i] for i in range(9)]


def test_draws_are_uniform_and_shares_are_beta() -> None:
    x, y = batch()
    got = mix_pairs(x, y, 4000, alpha=2.0, generator=torch.Generator().manual_seed(2))
    assert_unbiased(torch.nn.functional.one_hot(got.negative[0], 9).numpy(), np.r_[[0] * 3, [1 / 6] * 6])
    assert_unbiased(torch.nn.functional.one_hot(got.positive[0], 9).numpy(), np.r_[0, 0.5, 0.5, [0] * 6])
    assert_unbiased(got.share[0].numpy(), 0.5)
    assert_unbiased((got.share[0] - 0.5).square().numpy(), stats.beta(2, 2).var())


def test_shares_of_zero_and_one_give_the_unmixed_losses_exactly() -> None:
    x, y = batch()
    z = normalize(x, dim=1)
    s, same = z @ z.T, y[:, None] == y
    own = torch.eye(9, dtype=torch.bool)
    got = mixed_multi_similarity(s, same.double(), own, reduction="none")
    torch.testing.assert_close(got, multi_similarity(s, y, reduction="none"))
    got = mixed_contrastive(s, same.double(), own, margin=0.1, reduction="none")
    for i in range(9):
        pos = -sum(float(s[i, j]) for j in range(9) if j != i and same[i, j])
        neg = sum(max(float(s[i, j]) - 0.1, 0) for j in range(9) if not same[i, j])
        assert float(got[i]) == pytest.approx(pos + neg, abs=1e-12)
    for lam, other in ((1.0, "positive"), (0.0, "negative")):  # a mix of one part is that part
        mixed = mix_pairs(z, y, 3, share=torch.tensor(lam), generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(mixed.embedding, z[getattr(mixed, other)])


def test_shares_cost_what_a_plain_loop_says() -> None:
    g = torch.Generator().manual_seed(4)
    s = torch.rand(3, 5, generator=g, dtype=torch.float64) * 2 - 1
    y = torch.rand(3, 5, generator=g, dtype=torch.float64)
    y[0, 0], y[0, 1] = 0.0, 1.0
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 2] = True
    got = mixed_multi_similarity(s, y, mask, alpha=3.0, beta=7.0, base=0.2, reduction="none")
    for i in range(3):
        kept = [k for k in range(5) if not mask[i, k]]
        p = sum(float(y[i, k]) * math.exp(-3 * (s[i, k] - 0.2)) for k in kept)
        n = sum(float(1 - y[i, k]) * math.exp(7 * (s[i, k] - 0.2)) for k in kept)
        assert float(got[i]) == pytest.approx(math.log1p(p) / 3 + math.log1p(n) / 7, abs=1e-12)


def test_the_expected_contrastive_loss_over_shares_is_that_of_quadrature() -> None:
    x, y = batch()
    a, p, n = x[0], x[1], x[4]

    def at(lam: float) -> float:
        s = float(a @ (lam * p + (1 - lam) * n))
        return stats.beta(2, 2).pdf(lam) * (-lam * s + (1 - lam) * max(s - 0.3, 0))

    want, _ = integrate.quad(at, 0, 1)
    points = torch.stack([a, p, n])
    labels = torch.tensor([0, 0, 1])
    mixed = mix_pairs(points, labels, 20_000, generator=torch.Generator().manual_seed(5))
    s = (mixed.embedding[0] @ a)[:, None]
    got = mixed_contrastive(s, mixed.share[0][:, None], margin=0.3, reduction="none")
    assert_unbiased(got.numpy(), want)
    assert y.shape == (9,)


def test_gradients_agree_with_finite_differences() -> None:
    x, y = batch()
    x.requires_grad_()

    def loss(points: Tensor) -> Tensor:
        mixed = mix_pairs(points, y, 2, generator=torch.Generator().manual_seed(6))
        s = torch.einsum("bd,bkd->bk", normalize(points, dim=1), normalize(mixed.embedding, dim=2))
        return mixed_multi_similarity(s, mixed.share, mixed.mask, beta=8.0) + mixed_contrastive(
            s, mixed.share, mixed.mask, margin=-0.5
        )

    assert torch.autograd.gradcheck(loss, (x,))


def test_utilization_is_the_mean_squared_distance_to_the_nearest() -> None:
    x, _ = batch()
    query = x[:4] + 0.3
    want = np.mean([min(float((q - t).square().sum()) for t in x) for q in query])
    for chunk in (1, 3, 100):
        assert float(utilization(query, x, chunk=chunk)) == pytest.approx(want, abs=1e-12)
    assert float(utilization(x, x)) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="some of each"):
        utilization(x[:0], x)
    with pytest.raises(ValueError, match="chunk"):
        utilization(x, x, chunk=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_without_positives_or_negatives_and_low_precision(dtype: torch.dtype) -> None:
    x, _ = batch()
    low = x.to(dtype).requires_grad_()
    for y in (torch.zeros(9, dtype=torch.long), torch.arange(9)):
        mixed = mix_pairs(low, y, 3)
        assert mixed.mask.all()
        s = mixed.embedding.sum(2)
        for loss in (mixed_multi_similarity, mixed_contrastive):
            value = loss(s, mixed.share, mixed.mask)
            assert float(value.detach()) == 0
            assert torch.autograd.grad(value, low, retain_graph=True)[0].isfinite().all()
    empty = mix_pairs(x[:0], torch.zeros(0, dtype=torch.long), 3)
    assert empty.embedding.shape == (0, 3, 4)
    assert float(mixed_multi_similarity(empty.embedding.sum(2), empty.share, reduction="sum")) == 0


def test_what_is_wrong_is_named() -> None:
    x, y = batch()
    with pytest.raises(ValueError, match="n_mixed"):
        mix_pairs(x, y, 0)
    with pytest.raises(ValueError, match="alpha"):
        mix_pairs(x, y, 1, alpha=0.0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        mix_pairs(x, y, 1, share=torch.tensor(1.5))
    with pytest.raises(ValueError, match=r"\(B,\) labels"):
        mix_pairs(x, y[:2], 1)
    with pytest.raises(TypeError, match="integers"):
        mix_pairs(x, y.float(), 1)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        mixed_contrastive(x, torch.tensor(-0.1))
    with pytest.raises(ValueError, match="broadcast"):
        mixed_contrastive(x, torch.zeros(3))
    with pytest.raises(TypeError, match="bool"):
        mixed_multi_similarity(x, torch.tensor(0.5), torch.zeros(9, 4))
