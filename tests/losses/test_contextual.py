"""Contextual similarity: exact sets forward, straight-through steps backward."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.contextual import contextual_loss, contextual_similarity


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(12, 5, generator=g, dtype=torch.float64), dim=1)
    return x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4])


@pytest.mark.parametrize(("k", "epsilon"), [(4, 0.0), (4, 0.3), (5, 0.0), (2, 0.05)])
def test_the_forward_value_is_that_of_the_sets_themselves(k: int, epsilon: float) -> None:
    s, _ = batch()
    d = 2 - 2 * s
    everyone = set(range(12))

    def neighbours(i: int, count: int) -> set[int]:
        bound = sorted(d[i].tolist())[count - 1] + epsilon
        return {j for j in everyone if d[i, j] <= bound}

    def shared(i: int, j: int) -> float:
        a, b = neighbours(i, k), neighbours(j, k)
        if j not in a:
            return 0.0
        away = everyone - a
        return (len(a & b) / len(a) + (len(away - b) / len(away) if away else 0.0)) / 2

    def context(i: int, j: int) -> float:
        mutual = [m for m in neighbours(i, k // 2) if i in neighbours(m, k // 2)]
        return sum(shared(m, j) for m in mutual) / len(mutual)

    got = contextual_similarity(s, k, epsilon=epsilon)
    for i in range(12):
        for j in range(12):
            assert float(got[i, j]) == pytest.approx((context(i, j) + context(j, i)) / 2, abs=1e-12)


def test_it_is_symmetric_and_within_zero_and_one() -> None:
    s, _ = batch()
    got = contextual_similarity(s, 5)
    torch.testing.assert_close(got, got.T)
    assert float(got.min()) >= 0
    assert float(got.max()) <= 1 + 1e-12


def test_value_and_gradient_equal_those_of_the_authors_code() -> None:
    s, y = batch()
    s.requires_grad_()
    loss = contextual_loss(s, y)
    (gradient,) = torch.autograd.grad(loss, s)
    assert float(loss.detach()) == pytest.approx(0.499254650500535, abs=1e-12)
    assert float(gradient.norm()) == pytest.approx(0.7488626940698775, abs=1e-12)
    assert float(gradient[0, 4]) == pytest.approx(-0.03409583516090118, abs=1e-12)
    assert float(gradient[7, 2]) == pytest.approx(-0.023353647660901183, abs=1e-12)


def test_perfect_clusters_have_loss_zero() -> None:
    y = torch.arange(3).repeat_interleave(4)
    s = (y[:, None] == y).double()
    assert float(contextual_loss(s, y, context_weight=1.0, mean_weight=0.0)) == 0
    got = contextual_loss(s, y, context_weight=0.5, mean_weight=0.2, mean_similarity=1 / 3)
    assert float(got) == pytest.approx(0, abs=1e-15)


def test_the_gradient_pulls_a_stray_member_into_its_class() -> None:
    g = torch.Generator().manual_seed(1)
    y = torch.arange(3).repeat_interleave(4)
    x = torch.eye(3, 6)[y] + 0.25 * torch.randn(12, 6, generator=g)
    x[0] = torch.eye(3, 6)[1] + 0.5 * torch.eye(3, 6)[0]
    x.requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.02)
    values = []
    for _ in range(60):
        z = normalize(x, dim=1)
        loss = contextual_loss(z @ z.T, y, context_weight=0.9, mean_weight=0.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(float(loss.detach()))
    assert values[-1] < values[0] / 4
    z = normalize(x.detach(), dim=1)
    assert bool((y[(z @ z.T).fill_diagonal_(-2).argmax(1)] == y).all())


def test_a_wrong_label_pushes_true_neighbours_apart_less_than_the_contrastive_term_does() -> None:
    y = torch.arange(3).repeat_interleave(4)
    clean = torch.where(y[:, None] == y, 0.7, 0.1).double()
    clean.fill_diagonal_(1.0)
    noisy = y.clone()
    noisy[0] = 1
    pushes = []
    for weight in (0.0, 1.0):
        s = clean.clone().requires_grad_()
        loss = contextual_loss(
            s,
            noisy,
            context_weight=weight,
            mean_weight=0.0,
            epsilon=0.2,
            positive_margin=0.9,
            negative_margin=0.6,
        )
        (g,) = torch.autograd.grad(loss, s)
        pushes.append(float(g[0, 1:4].sum() / g.abs().sum()))
    assert pushes[1] < pushes[0]


def test_a_collapsed_batch_one_class_and_low_precision_stay_finite() -> None:
    s, _ = batch()
    for low in (
        torch.ones(6, 6, requires_grad=True),
        s.bfloat16().requires_grad_(),
        s.float().requires_grad_(),
    ):
        for y in (torch.zeros(len(low), dtype=torch.long), torch.arange(len(low))):
            loss = contextual_loss(low, y)
            (gradient,) = torch.autograd.grad(loss, low)
            assert loss.isfinite()
            assert gradient.isfinite().all()


def test_what_is_wrong_is_named() -> None:
    s, y = batch()
    for k in (1, 12):
        with pytest.raises(ValueError, match="lower k"):
            contextual_loss(s, y, k)
    with pytest.raises(ValueError, match="lower k"):
        contextual_similarity(torch.zeros(0, 0))
    with pytest.raises(ValueError, match="at most 1"):
        contextual_loss(s, y, context_weight=0.7, mean_weight=0.4)
    with pytest.raises(ValueError, match="slope"):
        contextual_loss(s, y, slope=0.0)
    with pytest.raises(ValueError, match="labels"):
        contextual_loss(s, y[:3])
    with pytest.raises(TypeError, match="floating"):
        contextual_similarity(s.long())
