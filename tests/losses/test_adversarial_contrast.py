"""Adversarial pairs for generation: a near state that is unlikely, a far one that says the same."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, normalize

from steelyard.losses.adversarial_contrast import (
    adversarial_contrast,
    adversarial_negative,
    adversarial_positive,
)


def decoder() -> tuple[Tensor, Tensor, Tensor]:
    """Three sequences of four states, the words of an output layer, and the target words."""
    g = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return make(3, 4, 6), make(9, 6), torch.randint(9, (3, 4), generator=g)


def log_likelihood(h: Tensor) -> Tensor:
    _, words, y = decoder()
    logits = (h.tanh() @ words.T).transpose(1, 2)
    return -cross_entropy(logits, y, reduction="none").sum(1)


def test_the_imposter_lowers_the_likelihood_by_the_step_times_the_gradient_and_no_direction_does_more() -> (
    None
):
    h, _, _ = decoder()
    h.requires_grad_()
    (g,) = torch.autograd.grad(log_likelihood(h).sum(), h)
    size = g.flatten(1).norm(dim=1)
    for epsilon in (1e-4, 1e-3):
        moved = adversarial_negative(h, log_likelihood, epsilon=epsilon)
        assert not moved.requires_grad
        torch.testing.assert_close(
            (moved - h.detach()).flatten(1).norm(dim=1), torch.full((3,), epsilon, dtype=torch.float64)
        )
        fall = log_likelihood(h.detach()) - log_likelihood(moved)
        torch.testing.assert_close(fall, epsilon * size, rtol=10 * epsilon, atol=0)
        for seed in range(20):
            other = torch.randn(3, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            step = epsilon * normalize(other, dim=1).view(3, 4, 6)
            assert bool((log_likelihood(h.detach()) - log_likelihood(h.detach() + step) < fall).all())


def test_the_distant_positive_is_farther_and_its_divergence_smaller_than_without_the_correction() -> None:
    h, words, _ = decoder()
    g = torch.Generator().manual_seed(1)
    source = normalize(torch.randn(3, 6, generator=g, dtype=torch.float64), dim=1)

    def similarity(states: Tensor) -> Tensor:
        return (normalize(states.mean(1), dim=1) * source).sum(1)

    def predictions(states: Tensor) -> Tensor:
        return (states.tanh() @ words.T).log_softmax(2)

    def divergence(states: Tensor) -> Tensor:
        return kl_div(predictions(states), predictions(h), log_target=True, reduction="none").sum((1, 2))

    away = adversarial_positive(h, similarity, divergence, step=1.0, correction=0.0)
    got = adversarial_positive(h, similarity, divergence, step=1.0, correction=0.4)
    assert bool((similarity(got) < similarity(h)).all())
    assert bool((divergence(got) < divergence(away)).all())


def test_steps_of_no_length_leave_plain_info_nce() -> None:
    h, _, _ = decoder()
    torch.testing.assert_close(adversarial_negative(h, log_likelihood, epsilon=0.0), h, rtol=0, atol=0)
    x, y = h[:, 0], h[:, 1]
    want = cross_entropy(normalize(x, dim=1) @ normalize(y, dim=1).T / 0.1, torch.arange(3))
    torch.testing.assert_close(adversarial_contrast(x, y), want)


def test_the_loss_equals_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(2)
    x, y, n, p = torch.randn(4, 5, 3, generator=g, dtype=torch.float64)
    got = adversarial_contrast(x, y, n, p, temperature=0.4, reduction="none")
    cos = lambda a, b: float(a @ b / (a.norm() * b.norm()))  # noqa: E731
    for i in range(5):
        negatives = [cos(x[i], y[j]) for j in range(5) if j != i] + [cos(x[i], n[i])]
        want = 0.0
        for u in (y[i], p[i]):
            e = math.exp(cos(x[i], u) / 0.4)
            want -= math.log(e / (e + sum(math.exp(v / 0.4) for v in negatives)))
        assert float(got[i]) == pytest.approx(want, abs=1e-10)


def test_gradients_agree_with_finite_differences() -> None:
    g = torch.Generator().manual_seed(3)
    inputs = [v.requires_grad_() for v in torch.randn(4, 4, 3, generator=g, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *v: adversarial_contrast(*v, reduction="none"), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flat_scores_single_sequences_and_low_precision(dtype: torch.dtype) -> None:
    h = torch.ones(2, 3, dtype=dtype)
    still = adversarial_negative(h, lambda s: 0 * s.sum(1))
    torch.testing.assert_close(still, h)
    with torch.no_grad():  # the step takes its own gradient
        moved = adversarial_negative(h, lambda s: s.sum(1), epsilon=1.0)
    assert moved.dtype == dtype
    assert float(moved.sum()) < float(h.sum())
    one = torch.tensor([[1.0, 2.0]], dtype=dtype, requires_grad=True)
    loss = adversarial_contrast(one, one, temperature=1e-3)
    assert float(loss.detach()) == 0
    assert torch.autograd.grad(loss, one)[0].isfinite().all()
    loss = adversarial_contrast(one, one, one.detach(), -one.detach(), temperature=1e-3)
    assert torch.autograd.grad(loss, one)[0].isfinite().all()
    none = torch.zeros(0, 2, dtype=dtype)
    assert float(adversarial_contrast(none, none, none, reduction="sum")) == 0
    with pytest.raises(ValueError, match="no query"):
        adversarial_contrast(none, none)


def test_what_is_wrong_is_named() -> None:
    h, _, _ = decoder()
    with pytest.raises(ValueError, match="epsilon"):
        adversarial_negative(h, log_likelihood, epsilon=-1.0)
    with pytest.raises(ValueError, match="correction"):
        adversarial_positive(h, log_likelihood, log_likelihood, correction=math.inf)
    with pytest.raises(ValueError, match="not finite"):
        adversarial_negative(torch.zeros(2, 2), lambda s: s.sqrt().sum(1))
    with pytest.raises(ValueError, match=r"\(B, \.\.\.\)"):
        adversarial_negative(torch.zeros(2), torch.sum)
    with pytest.raises(TypeError, match="floating"):
        adversarial_negative(torch.zeros(2, 2, dtype=torch.long), torch.sum)
    with pytest.raises(ValueError, match="two views"):
        adversarial_contrast(h[0], h[1], h[2, :2])
    with pytest.raises(ValueError, match="temperature"):
        adversarial_contrast(h[0], h[1], temperature=0.0)
