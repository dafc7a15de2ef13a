"""Classification losses: their limits in cross-entropy, what they hold back, and extremes."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from steelyard.losses.classification import asymmetric_bce, direct_coverage, label_encoding_risk, squentropy

Y = torch.tensor([0, 2, 1, 3, 3])


def logits(b: int = 5, c: int = 4) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return 2 * torch.randn(b, c, generator=g, dtype=torch.float64) + 0.3


def test_squentropy_equals_a_plain_loop_and_cross_entropy_where_wrong_logits_are_zero() -> None:
    z = logits()
    got = squentropy(z, Y, reduction="none")
    for i in range(5):
        want = math.log(sum(math.exp(v) for v in z[i])) - float(z[i, Y[i]])
        want += sum(float(z[i, j]) ** 2 for j in range(4) if j != Y[i]) / 3
        assert float(got[i]) == pytest.approx(want, abs=1e-10)
    alone = torch.zeros(5, 4, dtype=torch.float64).scatter(1, Y[:, None], 3.0)
    torch.testing.assert_close(squentropy(alone, Y), cross_entropy(alone, Y))


def test_minimised_squentropy_keeps_wrong_logits_small_where_cross_entropy_does_not() -> None:
    sizes = []
    for loss in (squentropy, cross_entropy):
        z = torch.zeros(1, 3, requires_grad=True)
        optimiser = torch.optim.SGD([z], lr=0.5)
        for _ in range(400):
            optimiser.zero_grad()
            loss(z, torch.tensor([0])).backward()
            optimiser.step()
        sizes.append(float(z.detach()[0, 1:].abs().max()))
    assert sizes[0] < 0.02 < 1.5 < sizes[1]


@pytest.mark.parametrize("n", [1, 2, 7])
def test_direct_coverage_is_the_chance_of_enumerated_draws_and_its_gradient_a_multiple_of_cross_entropys(
    n: int,
) -> None:
    z = logits().requires_grad_()
    got = direct_coverage(z, Y, n, reduction="none")
    if n <= 2:
        p = z.detach().softmax(1)
        for i in range(5):
            hit = sum(
                math.prod(float(p[i, d]) for d in draw)
                for draw in itertools.product(range(4), repeat=n)
                if int(Y[i]) in draw
            )
            assert float(got[i].detach()) == pytest.approx(-math.log(hit), abs=1e-12)
    (mine,) = torch.autograd.grad(got.sum(), z)
    (plain,) = torch.autograd.grad(cross_entropy(z, Y, reduction="sum"), z)
    p = z.detach().softmax(1).gather(1, Y[:, None])
    factor = n * p * (1 - p) ** (n - 1) / (1 - (1 - p) ** n)
    assert bool(((factor > 0) & (factor <= 1 + 1e-12)).all())
    torch.testing.assert_close(mine, factor * plain)


def test_direct_coverage_trades_confidence_for_more_examples_covered() -> None:
    weight = torch.tensor([0.7, 0.3])  # one question, two right answers that cannot be told apart

    def coverage(n: int) -> float:
        z = torch.zeros(1, 2, requires_grad=True)
        optimiser = torch.optim.SGD([z], lr=0.5)
        for _ in range(200):
            optimiser.zero_grad()
            both = direct_coverage(z.expand(2, 2), torch.tensor([0, 1]), n, reduction="none")
            (weight * both).sum().backward()
            optimiser.step()
        p = z.detach().softmax(1)[0]
        return float((weight * (1 - (1 - p) ** 4)).sum())

    assert coverage(4) > coverage(1) + 0.01


def test_chances_near_zero_and_one_keep_their_digits() -> None:
    z = torch.tensor([[-200.0, 0.0], [200.0, 0.0], [-40.0, 0.0], [-8.0, 0.0]], requires_grad=True)
    loss = direct_coverage(z, torch.zeros(4, dtype=torch.long), 16, reduction="none")
    want = [200 - math.log(16), 0.0, 40 - math.log(16)]
    assert loss[:3].tolist() == pytest.approx(want, rel=1e-6)
    exact = direct_coverage(z.detach().double(), torch.zeros(4, dtype=torch.long), 16, reduction="none")
    torch.testing.assert_close(loss.detach().double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.autograd.grad(loss.sum(), z)[0].isfinite().all()


def test_asymmetric_is_binary_cross_entropy_and_focal_loss_in_its_limits() -> None:
    z = logits()
    target = (torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.4).double()
    got = asymmetric_bce(z, target, negative_focus=0.0, margin=0.0, reduction="sum")
    torch.testing.assert_close(got, binary_cross_entropy_with_logits(z, target, reduction="sum"))
    got = asymmetric_bce(z, target, positive_focus=2.0, negative_focus=2.0, margin=0.0, reduction="sum")
    right = torch.where(target == 1, z.sigmoid(), 1 - z.sigmoid())
    torch.testing.assert_close(got, -((1 - right) ** 2 * right.log()).sum())


@pytest.mark.parametrize("focus", [0.0, 0.5, 4.0])
def test_asymmetric_equals_a_plain_loop(focus: float) -> None:
    z = logits()
    target = torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.4
    got = asymmetric_bce(z, target, positive_focus=1.0, negative_focus=focus, margin=0.1, reduction="none")
    for i in range(5):
        want = 0.0
        for j in range(4):
            p = 1 / (1 + math.exp(-float(z[i, j])))
            low = max(p - 0.1, 0)
            want -= (1 - p) * math.log(p) if target[i, j] else low**focus * math.log(1 - low)
        assert float(got[i]) == pytest.approx(want, abs=1e-10)


def test_easy_negatives_have_no_gradient_and_very_hard_ones_less_than_hard_ones() -> None:
    p = torch.tensor([0.01, 0.049, 0.06, 0.7, 0.999], dtype=torch.float64)
    z = p.logit()[:, None].requires_grad_()
    (g,) = torch.autograd.grad(asymmetric_bce(z, torch.zeros(5, 1), reduction="sum"), z)
    assert g[:2, 0].tolist() == [0, 0]
    assert 0 < float(g[2, 0]) < float(g[3, 0])
    assert float(g[4, 0]) < float(g[3, 0])


def test_the_encoding_risk_is_zero_for_confident_balanced_predictions_and_large_for_collapsed_ones() -> None:
    sure = 50 * torch.eye(3, dtype=torch.float64).repeat(4, 1)
    assert float(label_encoding_risk(sure)) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(label_encoding_risk(logits()), label_encoding_risk(logits().flip(0)))
    collapsed = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64).repeat(12, 1)
    entropy = -(collapsed.softmax(1) * collapsed.log_softmax(1)).sum(1).mean()
    assert float(entropy) < 0.1
    assert float(label_encoding_risk(collapsed)) > 2
    p = logits().softmax(1)
    want = 0.0
    for c in range(4):
        mean = sum(p[i, c] * p[i] for i in range(5)) / p[:, c].sum()
        want -= math.log(float(mean[c])) / 4
    assert float(label_encoding_risk(logits())) == pytest.approx(want, abs=1e-10)


def test_gradients_agree_with_finite_differences() -> None:
    z = logits().requires_grad_()
    target = torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.4
    for loss in (
        lambda v: squentropy(v, Y),
        lambda v: direct_coverage(v, Y, 5, reduction="none"),
        lambda v: asymmetric_bce(v, target, positive_focus=1.0, reduction="none"),
        label_encoding_risk,
    ):
        assert torch.autograd.gradcheck(loss, (z,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits_one_class_and_nothing(dtype: torch.dtype) -> None:
    z = torch.tensor([[300.0, -300.0], [-300.0, 300.0]], dtype=dtype, requires_grad=True)
    y = torch.tensor([0, 0])
    target = torch.tensor([[1, 0], [0, 1]])
    for loss in (
        squentropy(z, y),
        direct_coverage(z, y, 8),
        asymmetric_bce(z, target),
        asymmetric_bce(z, 1 - target, positive_focus=2.0, margin=0.0),
        label_encoding_risk(z),
    ):
        assert loss.isfinite()
        assert torch.autograd.grad(loss, z)[0].isfinite().all()
    one = torch.zeros(2, 1, requires_grad=True)
    for loss in (squentropy(one, y), direct_coverage(one, y, 3), label_encoding_risk(one)):
        assert float(loss.detach()) == 0
        assert torch.autograd.grad(loss, one)[0].isfinite().all()
    nobody = torch.zeros(0, 3)
    assert float(squentropy(nobody, y[:0], reduction="sum")) == 0
    assert float(direct_coverage(nobody, y[:0], 2, reduction="sum")) == 0
    assert float(asymmetric_bce(nobody, nobody, reduction="sum")) == 0


def test_what_is_wrong_is_named() -> None:
    z = logits()
    for wrong in (Y + 1, Y - 1):
        with pytest.raises(ValueError, match="0 to 3"):
            squentropy(z, wrong)
        with pytest.raises(ValueError, match="0 to 3"):
            direct_coverage(z, wrong, 2)
    with pytest.raises(ValueError, match="n must"):
        direct_coverage(z, Y, 0)
    with pytest.raises(ValueError, match="0 or 1"):
        asymmetric_bce(z, torch.full((5, 4), 0.5))
    with pytest.raises(ValueError, match="margin"):
        asymmetric_bce(z, torch.zeros(5, 4), margin=1.0)
    with pytest.raises(ValueError, match="negative_focus"):
        asymmetric_bce(z, torch.zeros(5, 4), negative_focus=-1.0)
    with pytest.raises(ValueError, match="above 0"):
        label_encoding_risk(z[:0])
    with pytest.raises(ValueError, match="no query"):
        squentropy(z[:0], Y[:0])
    with pytest.raises(TypeError, match="floating"):
        label_encoding_risk(Y[:, None])


@pytest.mark.parametrize("margin", [0.0, 0.05])
@pytest.mark.parametrize("wrong", [math.inf, -math.inf])
def test_an_infinite_logit_without_gradient_is_refused_by_the_asymmetric_loss(
    wrong: float, margin: float
) -> None:
    with pytest.raises(ValueError, match="infinite"):
        asymmetric_bce(torch.tensor([[0.5, wrong]]), torch.tensor([[1.0, 0.0]]), margin=margin)
