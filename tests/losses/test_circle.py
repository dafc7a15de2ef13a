"""Circle loss: its boundary, its paces, its plain limit, and a peer's values."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from steelyard.losses.circle import circle, unified_similarity


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(12, 5, generator=g, dtype=torch.float64), dim=1)
    return x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4])


def test_it_equals_a_plain_double_loop() -> None:
    s, y = batch()
    m, g = 0.3, 6.0
    got = circle(s, y, margin=m, scale=g, reduction="none")
    plain = unified_similarity(s, y, margin=m, scale=g, reduction="none")
    for i in range(12):
        total = simple = 0.0
        for p in (j for j in range(12) if j != i and y[i] == y[j]):
            for n in (j for j in range(12) if y[i] != y[j]):
                sp, sn = float(s[i, p]), float(s[i, n])
                ap, an = max(1 + m - sp, 0), max(sn + m, 0)
                total += math.exp(g * (an * (sn - m) - ap * (sp - 1 + m)))
                simple += math.exp(g * (sn - sp + m))
        assert float(got[i]) == pytest.approx(math.log1p(total), abs=1e-12)
        assert float(plain[i]) == pytest.approx(math.log1p(simple), abs=1e-12)


def test_it_equals_pytorch_metric_learning() -> None:
    s, y = batch()  # CircleLoss of version 2.9.0, whose mean is over anchors with a loss
    want = [193.662830648190, 135.283554532296, 199.587722846112, 166.758082319974, 175.844242893605]
    want += [89.247997038608, 207.507764327919, 46.226371693810, 6.080053548829, 26.664474946433]
    got = circle(s, y, reduction="none")
    torch.testing.assert_close(got, torch.tensor([*want, 1.693190750434, 0.0], dtype=torch.float64))
    got = circle(s, y, margin=0.25, scale=16.0, reduction="none")
    assert float(got[got != 0].mean()) == pytest.approx(26.030168686037772, abs=1e-10)


def test_pairs_on_the_circle_have_loss_log_two() -> None:
    m = 0.3
    for angle in torch.linspace(0.1, 1.4, 5, dtype=torch.float64):
        sn = math.sqrt(2) * m * math.cos(angle)
        sp = 1 - math.sqrt(2) * m * math.sin(angle)
        s = torch.tensor([[sp, sn]], dtype=torch.float64)
        got = circle(s, torch.tensor([0]), torch.tensor([0, 1]), margin=m, scale=50.0)
        assert float(got) == pytest.approx(math.log(2), abs=1e-10)


def test_the_worse_of_two_similarities_moves_more_and_with_equal_paces_they_move_alike() -> None:
    s = torch.tensor([[0.8, 0.6]], dtype=torch.float64, requires_grad=True)  # a good positive, a bad negative
    args = (s, torch.tensor([0]), torch.tensor([0, 1]))
    (paced,) = torch.autograd.grad(circle(*args, margin=0.25, scale=4.0), s)
    assert float(paced[0, 1]) > 1.5 * float(-paced[0, 0]) > 0
    (plain,) = torch.autograd.grad(unified_similarity(*args), s)
    assert float(plain[0, 1]) == pytest.approx(float(-plain[0, 0]))


def test_against_proxies_the_plain_form_is_the_softmax_with_an_additive_margin() -> None:
    g = torch.Generator().manual_seed(2)
    s = torch.rand(7, 4, generator=g, dtype=torch.float64) * 2 - 1
    y = torch.randint(4, (7,), generator=g)
    got = unified_similarity(s, y, torch.arange(4), margin=0.35, scale=10.0)
    want = cross_entropy(10.0 * (s - 0.35 * torch.nn.functional.one_hot(y, 4)), y)
    torch.testing.assert_close(got, want)


def test_a_large_scale_gives_the_hinge_of_the_hardest_positive_and_negative() -> None:
    s, y = batch()
    got = unified_similarity(s, y, margin=0.1, scale=1e6, reduction="none") / 1e6
    same = y[:, None] == y
    hardest_p = s.masked_fill(~same | torch.eye(12, dtype=torch.bool), math.inf).amin(1)
    hardest_n = s.masked_fill(same, -math.inf).amax(1)
    torch.testing.assert_close(got, (hardest_n - hardest_p + 0.1).relu(), atol=1e-5, rtol=0)


def test_gradients_agree_with_finite_differences() -> None:
    s, y = batch()
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: unified_similarity(x, y, scale=4.0, reduction="none"), (s,))
    (got,) = torch.autograd.grad(circle(s, y, margin=0.3, scale=5.0, reduction="sum"), s)
    fixed = s.detach()  # the paces have no gradient: hold them while the similarity moves
    same = y[:, None] == y
    positive = same & ~torch.eye(12, dtype=torch.bool)

    def held(x: Tensor) -> Tensor:
        p = (-5.0 * (1.3 - fixed).relu() * (x - 0.7)).masked_fill(~positive, -math.inf)
        n = (5.0 * (fixed + 0.3).relu() * (x - 0.3)).masked_fill(same, -math.inf)
        return torch.nn.functional.softplus(p[:11].logsumexp(1) + n[:11].logsumexp(1)).sum()

    step = 1e-6
    for i, j in ((0, 1), (0, 5), (7, 2), (9, 10)):
        up, down = fixed.clone(), fixed.clone()
        up[i, j] += step
        down[i, j] -= step
        assert float(got[i, j]) == pytest.approx(float((held(up) - held(down)) / (2 * step)), abs=1e-5)


@pytest.mark.parametrize("loss", [circle, unified_similarity])
def test_anchors_without_one_side_cost_nothing_and_have_no_gradient(loss) -> None:  # type: ignore[no-untyped-def]
    s, _ = batch()
    s.requires_grad_()
    for labels in (torch.zeros(12, dtype=torch.long), torch.arange(12)):
        value = loss(s, labels)
        (gradient,) = torch.autograd.grad(value, s)
        assert float(value.detach()) == 0
        assert not gradient.any()
    with pytest.raises(ValueError, match="no query"):
        loss(torch.zeros(0, 0), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_keeps_the_digits_of_its_inputs(dtype: torch.dtype) -> None:
    s, y = batch()
    low = s.to(dtype).requires_grad_()
    loss = circle(low, y, margin=0.25, scale=256.0)
    loss.backward()
    assert low.grad.isfinite().all()
    assert float(loss.detach()) == pytest.approx(
        float(circle(low.detach().double(), y, margin=0.25, scale=256.0)), rel=1e-5
    )


def test_parameters_out_of_range_are_refused() -> None:
    s, y = batch()
    with pytest.raises(ValueError, match="scale"):
        circle(s, y, scale=0.0)
    with pytest.raises(ValueError, match="margin"):
        unified_similarity(s, y, margin=math.inf)
