"""Margin softmaxes: what each margin asks for, the ends of the half circle, and a peer's values."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from steelyard.losses.margin_softmax import AdaFace, adaface_margins, margin_logits, margin_softmax
from tests.losses.labelled import Y, batch, cosines


def test_it_equals_pytorch_metric_learning() -> None:
    c = cosines()  # version 2.9.0, whose ArcFace margin is in degrees
    got = {
        47.97124834406918: margin_softmax(c, Y, angle=math.radians(28.6)),
        9.634048808736138: margin_softmax(c, Y, angle=math.radians(57.3), scale=8.0),
        42.38320685239602: margin_softmax(c, Y, additive=0.35),
        4.564016571658867: margin_softmax(c, Y, additive=0.2, scale=8.0),
        7.476967039811822: margin_softmax(c, Y, scale=20.0),
        4.207284054776619: margin_softmax(c.view(12, 3, 2).amax(2), Y % 3, angle=math.radians(20), scale=8.0),
    }
    for want, loss in got.items():
        assert float(loss) == pytest.approx(want, abs=1e-10)


def test_only_the_own_logit_changes_and_by_the_formula() -> None:
    c = cosines()
    got = margin_logits(c, Y, angle=0.3, additive=0.1, scale=10.0)
    for i in range(12):
        for k in range(6):
            t = math.acos(c[i, k])
            want = math.cos(t)
            if k == Y[i]:
                want = (math.cos(t + 0.3) if t + 0.3 <= math.pi else want - 0.3 * math.sin(0.3)) - 0.1
            assert float(got[i, k]) == pytest.approx(10 * want, abs=1e-10)
    torch.testing.assert_close(margin_logits(c, Y, scale=3.0), 3 * c, rtol=0, atol=0)


def test_the_own_logit_falls_all_the_way_past_pi_and_its_slope_is_finite() -> None:
    c = torch.linspace(-1, 1, 201, dtype=torch.float64).requires_grad_()
    zero = torch.zeros(201, dtype=torch.long)
    logits = margin_logits(c[:, None], zero, angle=0.5, scale=1.0)[:, 0]
    assert bool((logits.diff() > 0).all())
    (slope,) = torch.autograd.grad(logits.sum(), c)
    assert slope.isfinite().all()
    assert bool((slope > 0).all())
    clipped = margin_logits(c[:, None], zero, angle=0.5, scale=1.0, beyond="clip")[:, 0]
    assert float(clipped.detach().min()) == -1
    assert bool((clipped.diff() >= -1e-12).all())


def test_adaface_has_arcface_and_cosface_at_its_ends_and_softmax_without_margin() -> None:
    c = cosines()
    for length, want in (
        (0.0, margin_logits(c, Y, angle=0.4, beyond="clip")),  # n = -1: additive is then 0
        (20.0, margin_logits(c, Y, additive=0.4)),  # n = 0
    ):
        norm = torch.full((12,), length, dtype=torch.float64)
        angle, additive = adaface_margins(norm, 20.0, 2.0, margin=0.4)
        torch.testing.assert_close(margin_logits(c, Y, angle=angle, additive=additive, beyond="clip"), want)
    angle, additive = adaface_margins(torch.rand(12), 0.5, 0.1, margin=0.0)
    torch.testing.assert_close(margin_logits(c, Y, angle=angle, additive=additive), 64 * c)


def test_adaface_equals_its_formula_with_arc_cosines() -> None:
    x, w = batch()
    head = AdaFace(6, 5, scale=8.0)
    head.weight.data = w.float()
    norm = x.norm(dim=1)
    got = head(x.float(), Y, reduction="none")
    n = ((norm - norm.mean()) / (norm.std() + 1e-3) * 0.333).clamp(-1, 1)
    want = []
    for i in range(12):
        z = cosines()[i].tolist()
        t = min(max(math.acos(z[Y[i]]) - 0.4 * float(n[i]), 0), math.pi)
        z[Y[i]] = math.cos(t) - 0.4 * float(n[i]) - 0.4
        want.append(float(torch.tensor(z, dtype=torch.float64).mul(8).logsumexp(0)) - 8 * z[Y[i]])
    assert got.tolist() == pytest.approx(want, rel=1e-5)


def test_the_running_statistics_follow_in_training_alone() -> None:
    g = torch.Generator().manual_seed(3)
    head = AdaFace(6, 5, momentum=0.25, generator=g)
    first, second = torch.randn(8, 5, generator=g), torch.randn(4, 5, generator=g) * 5
    y = torch.zeros(8, dtype=torch.long)
    with pytest.raises(ValueError, match="no deviation"):
        head(first[:1], y[:1])
    head = AdaFace(6, 5, momentum=0.25, generator=g)
    head(first, y)
    a, b = first.norm(dim=1), second.norm(dim=1)
    assert float(head.mean) == pytest.approx(float(a.mean()))
    head(second, y[:4])
    assert float(head.mean) == pytest.approx(float(0.75 * a.mean() + 0.25 * b.mean()))
    assert float(head.std) == pytest.approx(float(0.75 * a.std() + 0.25 * b.std()))
    before = float(head.std), float(head.mean)
    head(second[:1], y[:1]).backward()
    assert (float(head.std), float(head.mean) != before[1]) == (before[0], True)
    head.eval()
    before = float(head.mean), float(head.std)
    head(second, y[:4])
    assert (float(head.mean), float(head.std)) == before
    assert head.weight.grad.isfinite().all()


def test_no_gradient_flows_through_the_length() -> None:
    x, w = batch()
    head = AdaFace(6, 5)
    head.weight.data = w.float()
    x = x.float().requires_grad_()
    (gradient,) = torch.autograd.grad(head(x, Y), x)
    radial = (gradient * x).sum(1)
    torch.testing.assert_close(radial, torch.zeros(12), atol=1e-4, rtol=0)


def test_gradients_agree_with_finite_differences() -> None:
    c = cosines().requires_grad_()
    per_example = torch.linspace(-0.3, 0.5, 12, dtype=torch.float64)
    for loss in (
        lambda v: margin_softmax(v, Y, angle=0.5, scale=5.0, reduction="none"),
        lambda v: margin_softmax(v, Y, angle=per_example, additive=0.2, scale=5.0, beyond="clip"),
    ):
        assert torch.autograd.gradcheck(loss, (c,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosines_at_and_beyond_one_have_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    c = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.01, 0.2], [0.3, -1.01]], dtype=dtype, requires_grad=True)
    for y in (torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)):
        for angle in (0.5, -0.5):
            loss = margin_softmax(c, y, angle=angle, additive=0.35)
            (gradient,) = torch.autograd.grad(loss, c)
            assert loss.isfinite()
            assert gradient.isfinite().all()


def test_one_class_costs_nothing_and_no_example_is_refused_in_the_mean() -> None:
    c = torch.tensor([[0.3], [0.9]], requires_grad=True)
    assert float(margin_softmax(c, torch.zeros(2, dtype=torch.long), angle=0.5).detach()) == 0
    nobody = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert float(margin_softmax(*nobody, reduction="sum")) == 0
    with pytest.raises(ValueError, match="no query"):
        margin_softmax(*nobody)
    assert float(AdaFace(3, 5)(torch.zeros(0, 5), nobody[1], reduction="sum").detach()) == 0


def test_what_is_wrong_is_named() -> None:
    c = cosines()
    with pytest.raises(ValueError, match="0 to 5"):
        margin_softmax(c, Y + 2)
    with pytest.raises(ValueError, match="0 to 5"):
        margin_softmax(c, Y - 1)
    with pytest.raises(ValueError, match="radians"):
        margin_softmax(c, Y, angle=28.6)
    with pytest.raises(ValueError, match="finite number"):
        margin_softmax(c, Y, additive=torch.zeros(3))
    with pytest.raises(ValueError, match="beyond"):
        margin_softmax(c, Y, beyond="stop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale"):
        margin_softmax(c, Y, scale=0.0)
    with pytest.raises(ValueError, match="std"):
        adaface_margins(torch.ones(2), 1.0, 0.0)
    with pytest.raises(ValueError, match="momentum"):
        AdaFace(3, 2, momentum=0.0)
    with pytest.raises(ValueError, match="embeddings"):
        AdaFace(3, 2)(torch.zeros(2, 3), Y[:2])


def test_drawn_classes_can_be_weighed_as_in_any_sampled_softmax() -> None:
    c = cosines()
    logits = margin_logits(c, Y, angle=0.5, scale=8.0)
    torch.testing.assert_close(cross_entropy(logits, Y), margin_softmax(c, Y, angle=0.5, scale=8.0))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_an_embedding_that_is_not_finite_leaves_the_running_mean_alone(wrong: float) -> None:
    head = AdaFace(3, 2, generator=torch.Generator().manual_seed(0))
    embedding, labels = torch.tensor([[1.0, 2.0], [0.5, 0.1], [2.0, 2.0]]), torch.arange(3)
    head(embedding, labels)
    mean, std = float(head.mean), float(head.std)
    with pytest.raises(ValueError, match="not finite"):
        head(embedding.index_fill(0, torch.tensor([1]), wrong), labels)
    assert (float(head.mean), float(head.std)) == (mean, std)
