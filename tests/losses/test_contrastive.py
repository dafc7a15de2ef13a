"""NT-Xent, supervised contrast and the sigmoid loss: plain loops, each other's limits, a peer's values."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from steelyard.losses.contrastive import nt_xent, sigmoid_contrastive, supervised_contrastive

Y = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4])


def batch() -> Tensor:
    g = torch.Generator().manual_seed(0)
    return normalize(torch.randn(12, 5, generator=g, dtype=torch.float64), dim=1)


def test_they_equal_pytorch_metric_learning() -> None:
    x = batch()  # version 2.9.0, whose SupConLoss is a mean over the 11 anchors with a positive
    s = x @ x.T
    assert float(nt_xent(x[:6], x[6:])) == pytest.approx(2.3510027867664296, abs=1e-12)
    assert float(supervised_contrastive(s, Y, reduction="sum")) / 11 == pytest.approx(
        5.556280716224884, abs=1e-10
    )
    got = supervised_contrastive(s, Y, temperature=0.5, reduction="sum")
    assert float(got) / 11 == pytest.approx(2.424627542120014, abs=1e-10)


def test_they_equal_plain_loops() -> None:
    x = batch()
    s = x @ x.T
    mask = torch.zeros(12, 12, dtype=torch.bool)
    mask[0, 1] = mask[3, 8] = True
    got = supervised_contrastive(s, Y, mask=mask, temperature=0.3, reduction="none")
    for i in range(12):
        kept = [k for k in range(12) if k != i and not mask[i, k]]
        pos = [k for k in kept if Y[k] == Y[i]]
        total = math.log(sum(math.exp(float(s[i, k]) / 0.3) for k in kept))
        want = sum(total - float(s[i, p]) / 0.3 for p in pos) / max(len(pos), 1)
        assert float(got[i]) == pytest.approx(want, abs=1e-10)


def test_classes_of_two_views_give_nt_xent_for_both() -> None:
    x = batch()
    s = x @ x.T
    want = supervised_contrastive(s, torch.arange(6).repeat(2), temperature=0.5, reduction="none")
    torch.testing.assert_close(nt_xent(3 * x[:6], x[6:], reduction="none"), want)


def test_masked_examples_are_no_negatives_of_each_other_in_any_view() -> None:
    x = batch()
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[0, 2] = True
    mask.fill_diagonal_(True)
    got = nt_xent(x[:6], x[6:], mask, temperature=0.5, reduction="none")
    s = x @ x.T / 0.5
    for i, other in ((0, 6), (6, 0)):
        kept = [k for k in range(12) if k != i and k % 6 != 2]
        want = math.log(sum(math.exp(float(s[i, k])) for k in kept)) - float(s[i, other])
        assert float(got[i]) == pytest.approx(want, abs=1e-10)
    torch.testing.assert_close(got[1], nt_xent(x[:6], x[6:], reduction="none")[1])


def test_the_sigmoid_loss_is_a_binary_cross_entropy_and_its_pairs_do_not_meet() -> None:
    x = batch()
    s = (x[:6] @ x[6:].T).requires_grad_()
    scale, bias = torch.tensor(4.0, requires_grad=True), torch.tensor(-3.0, requires_grad=True)
    loss = sigmoid_contrastive(s, scale=scale, bias=bias)
    target = torch.eye(6, dtype=torch.float64)
    want = binary_cross_entropy_with_logits(4 * s - 3, target, reduction="sum") / 6
    torch.testing.assert_close(loss, want)
    for got, of_bce in zip(
        torch.autograd.grad(loss, (s, scale, bias)),
        torch.autograd.grad(
            binary_cross_entropy_with_logits(scale * s + bias, target, reduction="sum") / 6, (s, scale, bias)
        ),
        strict=True,
    ):
        torch.testing.assert_close(got, of_bce)
    moved = s.detach().clone()
    moved[0, 3] = 1.0
    before, after = (
        torch.autograd.grad(sigmoid_contrastive(v.requires_grad_(), scale=4.0, bias=-3.0), v)[0]
        for v in (s.detach().clone(), moved)
    )
    assert int((before != after).sum()) == 1
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[0, 3] = True
    (g,) = torch.autograd.grad(sigmoid_contrastive(s, mask), s)
    assert float(g[0, 3]) == 0


def test_gradients_agree_with_finite_differences() -> None:
    x = batch().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: nt_xent(v[:6], v[6:], reduction="none"), (x,))
    assert torch.autograd.gradcheck(lambda v: supervised_contrastive(v @ v.T, Y, temperature=0.3), (x,))
    assert torch.autograd.gradcheck(
        lambda v: sigmoid_contrastive(v[:6] @ v[6:].T, scale=3.0, bias=-1.0), (x,)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_class_no_class_in_common_cold_temperatures_and_nothing(dtype: torch.dtype) -> None:
    x = batch().to(dtype).requires_grad_()
    s = x @ x.T
    for labels in (torch.zeros(12, dtype=torch.long), torch.arange(12)):
        loss = supervised_contrastive(s, labels, temperature=1e-4)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, x, retain_graph=True)[0].isfinite().all()
    assert float(supervised_contrastive(s, torch.arange(12)).detach()) == 0
    alone = nt_xent(x[:1], x[1:2], temperature=1e-3)
    assert float(alone.detach()) == pytest.approx(0, abs=1e-4)
    assert torch.autograd.grad(alone, x)[0].isfinite().all()
    none = torch.zeros(0, 4, dtype=dtype)
    assert float(nt_xent(none, none, reduction="sum")) == 0
    assert float(sigmoid_contrastive(torch.zeros(0, 0), reduction="sum")) == 0
    with pytest.raises(ValueError, match="no query"):
        nt_xent(none, none)


def test_what_is_wrong_is_named() -> None:
    x = batch()
    with pytest.raises(ValueError, match="two views"):
        nt_xent(x[:6], x[:5])
    with pytest.raises(ValueError, match="temperature"):
        nt_xent(x[:6], x[6:], temperature=0.0)
    with pytest.raises(ValueError, match="broadcast"):
        nt_xent(x[:6], x[6:], torch.zeros(5, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="bool"):
        nt_xent(x[:6], x[6:], torch.zeros(6, 6))
    with pytest.raises(TypeError, match="floating"):
        nt_xent(x[:6].long(), x[6:])
    with pytest.raises(ValueError, match="diagonal"):
        sigmoid_contrastive(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one number"):
        sigmoid_contrastive(torch.zeros(2, 2), scale=torch.ones(2))
    with pytest.raises(ValueError, match="bias"):
        sigmoid_contrastive(torch.zeros(2, 2), bias=math.nan)
