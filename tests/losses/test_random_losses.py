"""Random losses: convex and calibrated in every draw, and as good as fixed ones on average."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.random_losses import ens_loss, random_slopes
from tests.statistical import assert_unbiased


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def margins(n: int = 40) -> Tensor:
    return 2 * torch.randn(n, generator=seeded(0), dtype=torch.float64)


@pytest.mark.parametrize("box_cox", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("cap", [1.0, math.inf])
def test_every_draw_is_the_slope_of_a_convex_calibrated_loss(box_cox: float, cap: float) -> None:
    z = torch.cat([margins(), torch.zeros(1, dtype=torch.float64)])
    for seed in range(50):
        g = random_slopes(z, box_cox=box_cox, cap=cap, generator=seeded(seed))
        assert bool((g[z.argsort()].diff() >= 0).all())  # slopes do not fall: convex
        assert float(g.max()) < 0  # calibrated: differentiable at 0 with a negative slope
        assert bool((g[z > 1] * z[z > 1] >= -(cap + 1e-5)).all())
        assert float(g.min()) >= -cap - 1e-5
    assert len(g.unique()) > 5


def test_slopes_are_the_drawn_sizes_in_the_order_of_the_margins() -> None:
    z = margins()
    g = random_slopes(z, cap=math.inf, generator=seeded(3))
    sizes = torch.randn(40, generator=seeded(3), dtype=torch.float64).exp()
    for i in range(40):
        smaller = int((z < z[i]).sum())
        want = -(float(sizes.sort(descending=True).values[smaller]) + 1e-6)
        assert float(g[i]) == pytest.approx(want / max(float(z[i]), 1.0))


def test_sizes_have_the_mean_of_the_lognormal() -> None:
    z = torch.zeros(50, dtype=torch.float64)
    means = [float(random_slopes(z, cap=math.inf, generator=seeded(s)).mean()) for s in range(4000)]
    assert_unbiased(means, -math.exp(0.5) - 1e-6)


def test_a_small_cap_is_the_hinge_with_a_logarithm_for_a_tail() -> None:
    logits = margins().requires_grad_()
    y = (torch.rand(40, generator=seeded(1)) < 0.5).long()
    (got,) = torch.autograd.grad(ens_loss(logits, y, cap=1e-4, generator=seeded(2), reduction="sum"), logits)
    sign = 2.0 * y - 1
    z = logits.detach() * sign
    hinge = torch.where(z > 1, -1 / z, -1.0) * sign
    torch.testing.assert_close(got / (1e-4 + 1e-6), hinge)


def test_the_gradient_is_the_slope_alone() -> None:
    logits = margins().requires_grad_()
    y = torch.arange(40) % 2
    loss = ens_loss(logits, y, box_cox=0.5, generator=seeded(2), reduction="none")
    sign = 2.0 * y - 1
    g = random_slopes(logits.detach() * sign, box_cox=0.5, generator=seeded(2))
    torch.testing.assert_close(loss.detach(), g * sign * logits.detach())
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logits)[0], g * sign)


def test_training_matches_logistic_regression_on_held_out_data() -> None:
    g = seeded(5)
    truth = torch.randn(10, generator=g)
    x = torch.randn(4000, 10, generator=g)
    y = (torch.rand(4000, generator=g) < torch.sigmoid(2 * x @ truth)).long()
    accuracy = {}
    for name in ("random", "logistic"):
        w = torch.zeros(10, requires_grad=True)
        for step in range(300):
            rows = torch.arange(64 * step, 64 * step + 64) % 2000
            scores, goal = x[rows] @ w, y[rows]
            if name == "random":
                loss = ens_loss(scores, goal, generator=g)
            else:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, goal.float())
            (of_w,) = torch.autograd.grad(loss, w)
            w = (w - 0.2 * of_w).detach().requires_grad_()
        accuracy[name] = float((((x @ w) > 0).long() == y)[2000:].float().mean())
    assert accuracy["random"] > accuracy["logistic"] - 0.01
    assert accuracy["random"] > 0.85


def test_low_precision_bool_targets_one_example_and_none() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = margins().to(dtype).requires_grad_()
        loss = ens_loss(logits, torch.arange(40) % 2 == 0, generator=seeded(1))
        assert loss.dtype == torch.float32
        assert bool(torch.autograd.grad(loss, logits)[0].isfinite().all())
    one = ens_loss(torch.tensor([0.5]), torch.tensor([1]), generator=seeded(1))
    assert float(one) < 0
    assert float(ens_loss(torch.zeros(0), torch.zeros(0), reduction="sum")) == 0
    with pytest.raises(ValueError, match="no query"):
        ens_loss(torch.zeros(0), torch.zeros(0))


def test_what_is_wrong_is_named() -> None:
    z, y = torch.zeros(3), torch.ones(3)
    with pytest.raises(TypeError, match="floating"):
        ens_loss(z.long(), y)
    with pytest.raises(ValueError, match=r"\(B,\)"):
        ens_loss(z, y[:2])
    with pytest.raises(ValueError, match="0 or 1"):
        ens_loss(z, -y)
    with pytest.raises(ValueError, match="NaN"):
        ens_loss(z * math.nan, y)
    with pytest.raises(ValueError, match="infinite"):
        ens_loss(z + math.inf, y)
    with pytest.raises(ValueError, match="box_cox"):
        ens_loss(z, y, box_cox=-1.0)
    with pytest.raises(ValueError, match="cap"):
        ens_loss(z, y, cap=0.0)


def test_slopes_want_a_row_of_float_margins() -> None:
    for wrong in (torch.zeros(()), torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"\(B,\) float margins"):
            random_slopes(wrong)
