"""Proxy losses: plain loops, limits, and a peer's values."""

import math
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from steelyard.losses.margin_softmax import margin_softmax
from steelyard.losses.proxies import Proxies, merge_penalty, proxy_anchor, proxy_nca, soft_triple
from tests.losses.labelled import Y, batch, cosines


def test_they_equal_pytorch_metric_learning() -> None:
    c = cosines()  # version 2.9.0
    assert float(proxy_anchor(c, Y)) == pytest.approx(30.084445602624115, abs=1e-10)
    got = proxy_nca(c, Y, scale=3.0, with_positive=True)
    assert float(got) == pytest.approx(2.690720649778744, abs=1e-12)
    got = soft_triple(c.view(12, 3, 2), Y % 3)
    assert float(got) == pytest.approx(4.707999619213219, abs=1e-12)


def test_proxy_nca_equals_distances_in_a_plain_loop_and_leaves_out_the_own_class() -> None:
    x, w = batch()
    x, w = normalize(x, dim=1), normalize(w, dim=1)
    got = proxy_nca(cosines(), Y, scale=2.0, reduction="none")
    for i in range(12):
        d = [float((x[i] - w[c]).square().sum()) for c in range(6)]
        far = sum(math.exp(-2 * d[c]) for c in range(6) if c != Y[i])
        assert float(got[i]) == pytest.approx(2 * d[Y[i]] + math.log(far), abs=1e-10)


def test_proxy_anchor_equals_a_plain_loop_and_pulls_the_harder_positive_more() -> None:
    c = cosines().requires_grad_()
    loss = proxy_anchor(c, Y, margin=0.2, scale=5.0)
    pull = push = 0.0
    for p in range(6):
        pull += math.log1p(
            sum(math.exp(-5 * (float(c[i, p].detach()) - 0.2)) for i in range(12) if Y[i] == p)
        )
        push += math.log1p(sum(math.exp(5 * (float(c[i, p].detach()) + 0.2)) for i in range(12) if Y[i] != p))
    assert float(loss.detach()) == pytest.approx(pull / 5 + push / 6, abs=1e-10)
    (g,) = torch.autograd.grad(loss, c)
    own, weight = c.detach()[3:7, 1], -g[3:7, 1]
    assert bool((weight > 0).all())
    assert weight.argsort().tolist() == own.argsort(descending=True).tolist()


def test_soft_triple_equals_a_plain_loop_and_its_limits() -> None:
    c = cosines().view(12, 3, 2)
    y = Y % 3
    got = soft_triple(c, y, scale=4.0, temperature=0.3, margin=0.05, reduction="none")
    for i in range(12):
        s = []
        for k in range(3):
            e = [math.exp(float(v) / 0.3) for v in c[i, k]]
            s.append(
                sum(a * float(v) for a, v in zip(e, c[i, k], strict=True)) / sum(e) - 0.05 * (k == int(y[i]))
            )
        want = math.log(sum(math.exp(4 * v) for v in s)) - 4 * s[y[i]]
        assert float(got[i]) == pytest.approx(want, abs=1e-10)
    one = cosines()[:, :, None]
    torch.testing.assert_close(
        soft_triple(one, Y, scale=9.0, margin=0.1), margin_softmax(one[..., 0], Y, additive=0.1, scale=9.0)
    )
    nearest = margin_softmax(c.amax(2), y, additive=0.1, scale=9.0)
    torch.testing.assert_close(soft_triple(c, y, scale=9.0, margin=0.1, temperature=1e-4), nearest)


def test_the_penalty_merges_proxies_and_counts_each_pair_once() -> None:
    g = torch.Generator().manual_seed(2)
    w = torch.randn(4, 3, 5, generator=g, dtype=torch.float64).requires_grad_()
    u = normalize(w.detach(), dim=2)
    want = sum(float((u[c, s] - u[c, t]).norm()) for c in range(4) for s in range(3) for t in range(s))
    assert float(merge_penalty(w).detach()) == pytest.approx(want / (4 * 3 * 2), abs=1e-12)
    assert torch.autograd.gradcheck(merge_penalty, (w,))
    merged = torch.ones(2, 3, 4, requires_grad=True)
    penalty = merge_penalty(merged)
    assert float(penalty.detach()) == 0
    assert torch.autograd.grad(penalty, merged)[0].isfinite().all()
    assert float(merge_penalty(torch.ones(2, 1, 4))) == 0
    with pytest.raises(ValueError, match=r"\(C, K, d\)"):
        merge_penalty(torch.ones(2, 4))


def test_proxies_learn_where_their_classes_are() -> None:
    g = torch.Generator().manual_seed(7)
    centre = normalize(torch.randn(4, 6, generator=g), dim=1)
    y = torch.arange(4).repeat(20)
    x = centre[y] + 0.2 * torch.randn(80, 6, generator=g)
    for loss in (proxy_nca, partial(proxy_nca, with_positive=True), proxy_anchor):
        proxies = Proxies(4, 6, generator=g)
        optimiser = torch.optim.Adam(proxies.parameters(), lr=0.05)
        for _ in range(80):
            optimiser.zero_grad()
            loss(proxies(x), y).backward()
            optimiser.step()
        assert bool((proxies(centre).argmax(1) == torch.arange(4)).all())
    several = Proxies(4, 6, per_class=3, generator=g)
    assert several(x).shape == (80, 4, 3)
    with pytest.raises(ValueError, match="embeddings"):
        several(x[:, :5])
    with pytest.raises(ValueError, match="at least 1"):
        Proxies(0, 6)


def test_gradients_agree_with_finite_differences() -> None:
    c = cosines().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: proxy_nca(v, Y, reduction="none"), (c,))
    assert torch.autograd.gradcheck(lambda v: proxy_anchor(v, Y, scale=6.0), (c,))
    assert torch.autograd.gradcheck(lambda v: soft_triple(v.view(12, 3, 2), Y % 3, scale=5.0), (c,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_class_no_example_and_low_precision(dtype: torch.dtype) -> None:
    low = cosines().to(dtype).requires_grad_()
    for loss in (proxy_nca, proxy_anchor):
        value = loss(low, Y, scale=500.0)
        assert torch.autograd.grad(value, low)[0].isfinite().all()
        assert float(value.detach()) == pytest.approx(
            float(loss(low.detach().double(), Y, scale=500.0)), rel=1e-5
        )
    single = torch.tensor([[0.5], [0.25]], dtype=dtype, requires_grad=True)
    zero = torch.zeros(2, dtype=torch.long)
    value = proxy_nca(single, zero, scale=3.0)
    assert float(value.detach()) == pytest.approx((3 + 4.5) / 2)
    assert torch.autograd.grad(value, single)[0].isfinite().all()
    assert float(proxy_nca(single, zero, with_positive=True).detach()) == 0
    assert float(proxy_anchor(torch.zeros(0, 3), zero[:0])) == 0
    with pytest.raises(ValueError, match="no query"):
        proxy_nca(torch.zeros(0, 3), zero[:0])


def test_what_is_wrong_is_named() -> None:
    c = cosines()
    for loss in (proxy_nca, proxy_anchor):
        with pytest.raises(ValueError, match="0 to 5"):
            loss(c, Y + 2)
        with pytest.raises(ValueError, match="scale"):
            loss(c, Y, scale=0.0)
        with pytest.raises(ValueError, match="take the largest"):
            loss(c.view(12, 3, 2), Y)
        with pytest.raises(TypeError, match="floating"):
            loss(c.long(), Y)
    with pytest.raises(ValueError, match=r"\(B, C, K\)"):
        soft_triple(c, Y)
    with pytest.raises(ValueError, match="temperature"):
        soft_triple(c.view(12, 3, 2), Y % 3, temperature=0.0)
    with pytest.raises(ValueError, match="0 to 2"):
        soft_triple(c.view(12, 3, 2), Y)
