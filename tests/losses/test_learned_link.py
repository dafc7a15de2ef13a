"""The learned link: monotone, invertible, proper, and logistic regression at its start."""

import pytest
import torch
from torch import Tensor

from steelyard.losses.learned_link import LegendreLink, legendre_loss
from tests.losses.minimising import minimise


def bent(n_classes: int = 4, n_blocks: int = 1) -> LegendreLink:
    """A link far from the identity, in double precision."""
    g = torch.Generator().manual_seed(0)
    link = LegendreLink(n_classes, n_blocks=n_blocks, n_units=6, generator=g).double()
    with torch.no_grad():
        link.raw_units += 4 + torch.rand(link.raw_units.shape, generator=g)
        link.raw_identity -= 1.5
        link.offsets += torch.randn(link.offsets.shape, generator=g)
        link.ridges *= 2
    return link


def scores(n: int = 5) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_link_is_the_gradient_of_its_potential() -> None:
    link, s = bent(), scores().requires_grad_()
    a0, a = link.raw_identity[0].exp().log1p(), link.raw_units[0].exp().log1p()
    for i in range(5):
        ridge = sum(a[k] * (link.ridges[0, k] @ s[i] + link.offsets[0, k]).exp().log1p() for k in range(6))
        (want,) = torch.autograd.grad(a0 * (s[i] @ s[i]) / 2 + ridge, s)
        torch.testing.assert_close(link.potential_gradient(s)[i], want[i])


def test_the_jacobian_is_symmetric_and_positive_definite() -> None:
    link = bent()
    for s in scores():
        jacobian = torch.autograd.functional.jacobian(link.potential_gradient, s)
        torch.testing.assert_close(jacobian, jacobian.T)
        least = float(torch.linalg.eigvalsh(jacobian).min())
        assert least >= float(torch.nn.functional.softplus(link.raw_identity[0].detach()))
        assert float((jacobian - jacobian.diag().diag()).abs().max()) > 0.1


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_the_expected_loss_is_least_at_the_true_probabilities(n_blocks: int) -> None:
    link = bent(n_blocks=n_blocks)
    eta = torch.tensor([0.5, 0.1, 0.15, 0.25], dtype=torch.float64)

    def expected(s: Tensor) -> Tensor:
        return (eta * legendre_loss(link, s.expand(4, 3), torch.arange(4), reduction="none")).sum()

    s = minimise(expected, (1, 3))
    torch.testing.assert_close(link(s).exp()[0], eta, atol=1e-5, rtol=0)
    assert float((s - (eta[:3] / eta[3]).log()).abs().max()) > 0.1  # at scores other than the logits
    assert float(expected(s).detach()) == pytest.approx(-float((eta * eta.log()).sum()))


def test_the_identity_potential_is_multinomial_logistic_regression() -> None:
    link = LegendreLink(4).double()
    s, y = scores(), torch.tensor([0, 3, 2, 1, 3])
    logits = torch.cat([s, torch.zeros(5, 1, dtype=torch.float64)], 1)
    want = torch.nn.functional.cross_entropy(logits, y)
    near = float(legendre_loss(link, s, y).detach())  # at its start
    assert near == pytest.approx(float(want), abs=0.02)
    with torch.no_grad():
        link.raw_units.fill_(-1000)
    torch.testing.assert_close(legendre_loss(link, s, y), want)


def test_training_learns_a_link_that_no_linear_model_has() -> None:
    g = torch.Generator().manual_seed(3)
    x = 6 * torch.rand(3000, 1, generator=g) - 3
    chance = torch.sigmoid(0.3 * x + 3 * torch.sigmoid(8 * (x - 0.5)) - 1.5)
    y = (torch.rand(3000, 1, generator=g) > chance).long()[:, 0]
    losses = []
    for learned in (False, True):
        link = LegendreLink(2, n_blocks=2, generator=g)
        linear = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
        wanted = [*linear.parameters(), *(link.parameters() if learned else [])]
        optimiser = torch.optim.Adam(wanted, lr=0.03)
        for _ in range(300):
            optimiser.zero_grad()
            loss = legendre_loss(link, linear(x), y)
            loss.backward()
            optimiser.step()
        losses.append(float(loss.detach()))
    best = float(-torch.where(y == 0, chance[:, 0], 1 - chance[:, 0]).log().mean())
    assert losses[1] < losses[0] - 0.01
    assert losses[1] < best + 0.01


def test_gradients_agree_with_finite_differences() -> None:
    link, y = bent(n_blocks=2), torch.tensor([0, 3, 2, 1, 3])
    assert torch.autograd.gradcheck(lambda s: legendre_loss(link, s, y), scores().requires_grad_())
    assert all(v.grad is None for v in link.parameters())
    legendre_loss(link, scores(), y).backward()
    assert all(v.grad is not None and bool((v.grad != 0).any()) for v in link.parameters())


def test_low_precision_extreme_scores_and_nothing() -> None:
    link = LegendreLink(4)
    log_p = link(torch.tensor([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]]))
    assert bool(log_p.isfinite().all())
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(2))
    assert link(scores().bfloat16()).dtype == torch.float32
    assert link(scores()).dtype == torch.float64
    assert (
        float(legendre_loss(link, scores(0), torch.zeros(0, dtype=torch.long), reduction="sum").detach()) == 0
    )
    with pytest.raises(ValueError, match="no query"):
        legendre_loss(link, scores(0), torch.zeros(0, dtype=torch.long))


def test_what_is_wrong_is_named() -> None:
    link = LegendreLink(4)
    for name in ("n_classes", "n_blocks", "n_units"):
        with pytest.raises(ValueError, match=name):
            LegendreLink(**{"n_classes": 4, name: 0})
    with pytest.raises(TypeError, match="floating"):
        link(scores().long())
    with pytest.raises(ValueError, match="but the last"):
        link(scores()[:, :2])
    with pytest.raises(ValueError, match="0 to 3"):
        legendre_loss(link, scores(), torch.full((5,), 4))
    with pytest.raises(ValueError, match="C - 1"):
        legendre_loss(link, scores()[0], torch.tensor([0]))
