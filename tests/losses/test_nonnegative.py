"""Non-negative contrast: a factorisation of co-occurrence, read off by its dimensions."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, relu

from steelyard.losses.contrastive import nt_xent
from steelyard.losses.nonnegative import nonnegative, nonnegative_contrastive, spectral_contrastive
from tests.statistical import assert_unbiased


def joint(seed: int = 0, n: int = 6) -> Tensor:
    """A skewed symmetric distribution of pairs of views."""
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, n, generator=g, dtype=torch.float64) ** 3
    p = p + p.T
    return p / p.sum()


def test_it_equals_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(1)
    u, v = torch.randn(2, 5, 3, generator=g, dtype=torch.float64)
    want = -2 * sum(float(u[i] @ v[i]) for i in range(5)) / 5
    want += sum(float(u[i] @ v[j]) ** 2 for i, j in itertools.permutations(range(5), 2)) / 20
    assert float(spectral_contrastive(u, v)) == pytest.approx(want, abs=1e-12)


def test_batches_are_unbiased_for_the_factorisation_of_co_occurrence() -> None:
    p = joint()
    marginal = p.sum(1)
    g = torch.Generator().manual_seed(2)
    z = torch.rand(6, 3, generator=g, dtype=torch.float64)
    a = p / (marginal[:, None] * marginal).sqrt()
    f = marginal[:, None].sqrt() * z
    want = float((a - f @ f.T).square().sum() - a.square().sum())
    plain = -2 * float((p * (z @ z.T)).sum()) + float(
        (marginal[:, None] * marginal * (z @ z.T).square()).sum()
    )
    assert plain == pytest.approx(want, abs=1e-12)
    pairs = torch.multinomial(p.flatten(), 4000 * 4, replacement=True, generator=g).view(4000, 4)
    losses = [spectral_contrastive(z[row // 6], z[row % 6]) for row in pairs]
    assert_unbiased(torch.stack(losses).numpy(), want)


def test_blocks_of_co_occurrence_come_back_as_dimensions_up_to_their_order() -> None:
    p = torch.block_diag(*(torch.full((k, k), 1.0, dtype=torch.float64) / k**2 for k in (2, 3, 4))) / 3
    marginal = p.sum(1)
    weight = marginal[:, None] * marginal
    g = torch.Generator().manual_seed(3)
    x = torch.rand(9, 3, generator=g, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(500):
        z = nonnegative(x)
        s = z @ z.T
        optimiser.zero_grad()
        (-2 * (p * s).sum() + (weight * s.square()).sum()).backward()
        optimiser.step()
    z = nonnegative(x.detach())
    assert bool((z >= 0).all())
    torch.testing.assert_close((z @ z.T) * weight, p, atol=1e-3, rtol=0)
    blocks = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    own = [int(z[blocks == b].sum(0).argmax()) for b in range(3)]
    assert sorted(own) == [0, 1, 2]
    for b in range(3):
        assert float(z[blocks == b][:, [d for d in range(3) if d != own[b]]].max()) < 0.05


def test_the_gradient_below_zero_is_that_of_gelu_and_above_it_nothing_changes_in_value() -> None:
    x = torch.linspace(-3, 3, 13, dtype=torch.float64).requires_grad_()
    for smooth, other in ((True, gelu), (False, relu)):
        z = nonnegative(x, smooth_gradient=smooth)
        torch.testing.assert_close(z, relu(x))
        torch.testing.assert_close(
            torch.autograd.grad(z.sum(), x)[0], torch.autograd.grad(other(x).sum(), x)[0]
        )


def test_it_is_info_nce_of_cut_features() -> None:
    g = torch.Generator().manual_seed(4)
    u, v = torch.randn(2, 6, 4, generator=g, dtype=torch.float64)
    got = nonnegative_contrastive(u, v, temperature=0.3, reduction="none")
    torch.testing.assert_close(got, nt_xent(relu(u), relu(v), temperature=0.3, reduction="none"))


def test_gradients_agree_with_finite_differences() -> None:
    g = torch.Generator().manual_seed(5)
    u, v = torch.randn(2, 5, 4, generator=g, dtype=torch.float64)
    inputs = (u.requires_grad_(), v.requires_grad_())
    assert torch.autograd.gradcheck(spectral_contrastive, inputs)
    assert torch.autograd.gradcheck(lambda a, b: nonnegative_contrastive(a, b, smooth_gradient=False), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views_without_a_feature_and_low_precision_stay_finite(dtype: torch.dtype) -> None:
    x = torch.full((3, 4), -1.0, dtype=dtype, requires_grad=True)
    loss = nonnegative_contrastive(x, x)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, x)[0].isfinite().all()
    low = torch.rand(6, 4, generator=torch.Generator().manual_seed(6)).to(dtype)
    got = float(spectral_contrastive(low, low.flip(0)))
    assert got == pytest.approx(float(spectral_contrastive(low.double(), low.double().flip(0))), rel=1e-4)


def test_what_is_wrong_is_named() -> None:
    x = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="two examples"):
        spectral_contrastive(x, x)
    with pytest.raises(ValueError, match="two views"):
        nonnegative_contrastive(x, torch.zeros(2, 3))
    with pytest.raises(TypeError, match="floating"):
        nonnegative(torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="no query"):
        nonnegative_contrastive(x[:0], x[:0])
