"""Alignment and uniformity: collapse, the simplex, and the limit of InfoNCE."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.alignment_uniformity import alignment, uniformity
from steelyard.losses.softmax import sampled_softmax


def batch(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64) + 0.5


def test_they_equal_plain_loops() -> None:
    x, y = batch(6, 3), batch(6, 3, seed=1)
    u, v = normalize(x, dim=1), normalize(y, dim=1)
    for power in (2.0, 1.0, 3.0):
        want = [float((a - b).norm()) ** power for a, b in zip(u, v, strict=True)]
        assert alignment(x, y, power=power, reduction="none").tolist() == pytest.approx(want, abs=1e-12)
    pairs = [math.exp(-2 * float((u[i] - u[j]).square().sum())) for i in range(6) for j in range(i)]
    assert float(uniformity(x)) == pytest.approx(math.log(sum(pairs) / 15), abs=1e-12)
    pairs = [math.exp(-3 * float((a - b).square().sum())) for a in u for b in v[:4]]
    assert float(uniformity(x, y[:4], scale=3.0)) == pytest.approx(math.log(sum(pairs) / 24), abs=1e-12)


def test_collapse_is_perfectly_aligned_and_least_uniform() -> None:
    x = torch.ones(5, 3, dtype=torch.float64)
    assert float(alignment(x, 2 * x)) == pytest.approx(0, abs=1e-30)
    assert float(uniformity(x)) == pytest.approx(0, abs=1e-12)
    assert float(uniformity(batch(5, 3))) < 0


def test_a_simplex_is_the_most_uniform_and_descent_finds_it() -> None:
    simplex = normalize(torch.eye(4, dtype=torch.float64) - 0.25, dim=1)
    best = float(uniformity(simplex))
    assert best == pytest.approx(-2 * 2 * 4 / 3, abs=1e-12)
    for seed in range(20):
        assert float(uniformity(batch(4, 4, seed=seed))) > best
    x = batch(4, 3, seed=3).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        uniformity(x).backward()
        optimiser.step()
    assert float(uniformity(x).detach()) == pytest.approx(best, abs=1e-3)


def test_info_nce_less_log_m_tends_to_alignment_plus_a_log_mean_exponential() -> None:
    t = 0.5
    g = torch.Generator().manual_seed(5)
    u = normalize(batch(40, 4, seed=6), dim=1)
    v = normalize(u + 0.3 * torch.randn(40, 4, generator=g, dtype=torch.float64), dim=1)
    positive = (u * v).sum(1) / t
    everything = u @ u.T / t
    limit = (everything.logsumexp(1) - math.log(40)).mean() - positive.mean()
    aligned = alignment(u, v) / (2 * t) - 1 / t  # cos = 1 - |u - v|^2 / 2
    torch.testing.assert_close(limit, aligned + (everything.logsumexp(1) - math.log(40)).mean())
    errors = []
    for m in (10, 1000, 100_000):
        drawn = torch.randint(40, (40, m), generator=g)
        loss = sampled_softmax(positive, everything.gather(1, drawn), torch.zeros(()))
        errors.append(abs(float(loss - math.log(m) - limit)))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 1e-3


def test_gradients_agree_with_finite_differences() -> None:
    x, y = batch(5, 3).requires_grad_(), batch(5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: alignment(a, b, power=1.5), (x, y))
    assert torch.autograd.gradcheck(uniformity, (x,))
    assert torch.autograd.gradcheck(uniformity, (x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_points_and_low_precision_have_finite_gradients(dtype: torch.dtype) -> None:
    x = torch.ones(4, 3, dtype=dtype, requires_grad=True)
    for loss in (alignment(x, x.detach(), power=1.0), uniformity(x, scale=100.0)):
        assert torch.autograd.grad(loss, x)[0].isfinite().all()
    low = batch(6, 3).to(dtype)
    assert float(uniformity(low)) == pytest.approx(float(uniformity(low.double())), rel=1e-4)


def test_what_is_wrong_is_named() -> None:
    x = batch(4, 3)
    with pytest.raises(ValueError, match="two views"):
        alignment(x, x[:3])
    with pytest.raises(ValueError, match="power"):
        alignment(x, x, power=0.0)
    with pytest.raises(ValueError, match="no query"):
        alignment(x[:0], x[:0])
    for few in ((x[:1],), (x[:0],), (x, x[:0])):
        with pytest.raises(ValueError, match="pairs"):
            uniformity(*few)
    with pytest.raises(ValueError, match="scale"):
        uniformity(x, scale=-1.0)
    with pytest.raises(ValueError, match=r"\(B, d\)"):
        uniformity(x, x[:, :2])
    with pytest.raises(TypeError, match="floating"):
        uniformity(x.long())
