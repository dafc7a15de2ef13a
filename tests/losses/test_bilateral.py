"""BSL: the formula, what it is with power 1, and the fused step that shares its gradient."""

import math

import pytest
import torch

from steelyard.losses import bilateral_softmax, fused_sampled_softmax, sampled_softmax


def case(seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return make(6).requires_grad_(), make(6, 5).requires_grad_(), make(5), torch.rand(6, 5, generator=g) < 0.3


def test_it_equals_the_plainest_loop() -> None:
    positive, negative, log_expected, mask = case()
    want = []
    scores, expected = negative.detach().tolist(), log_expected.tolist()
    for b in range(6):
        total = sum(math.exp(scores[b][n] - expected[n]) for n in range(5) if not mask[b, n])
        want.append(1.3 * math.log(total) - positive.tolist()[b])
    got = bilateral_softmax(positive, negative, log_expected, mask, power=1.3, reduction="none")
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_with_power_one_the_pull_does_not_fade_as_the_softmax_fits() -> None:
    _, negative, log_expected, mask = case()
    sure = torch.full((6,), 30.0, dtype=torch.float64, requires_grad=True)
    (decoupled,) = torch.autograd.grad(bilateral_softmax(sure, negative, log_expected, mask, power=1.0), sure)
    (softmax,) = torch.autograd.grad(sampled_softmax(sure, negative, log_expected, mask), sure)
    torch.testing.assert_close(decoupled, torch.full_like(sure, -1 / 6))
    assert softmax.abs().max() < 1e-10


@pytest.mark.parametrize("power", [1.0, 1.3])
def test_the_fused_step_has_the_same_value_and_gradients(power: float) -> None:
    g = torch.Generator().manual_seed(1)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    owner = torch.sort(torch.randint(40, (90,), generator=g)).values
    positive, queries, candidates = make(90), make(40, 3), make(7, 3)
    scale, log_expected = torch.tensor(1.4, dtype=torch.float64), make(7)
    mask = torch.rand(40, 7, generator=g) < 0.4
    mask[3] = True  # a query without a candidate
    inputs = [t.requires_grad_() for t in (positive, queries, candidates, scale)]
    negative = (scale * queries @ candidates.T)[owner]
    want = bilateral_softmax(positive, negative, log_expected, mask[owner], power=power)
    got = fused_sampled_softmax(
        positive, queries, candidates, log_expected, scale=scale, owner=owner,
        hits=mask.nonzero(as_tuple=True), decoupled=True, power=power, chunk_bytes=1,
    )  # fmt: skip
    assert bool((owner == 3).any())
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_the_fused_softmax_takes_a_power_too() -> None:
    positive, negative, _, _ = case()
    queries, candidates = torch.eye(6, dtype=torch.float64), negative.detach().T.contiguous()
    want = (1.5 * torch.logsumexp(torch.cat([positive.unsqueeze(1), negative], 1), 1) - positive).mean()
    got = fused_sampled_softmax(positive, queries, candidates, power=1.5)
    torch.testing.assert_close(got, want)
    (a,), (b,) = torch.autograd.grad(got, positive), torch.autograd.grad(want, positive)
    torch.testing.assert_close(a, b)


def test_nothing_to_push_against_costs_nothing() -> None:
    positive, negative, log_expected, _ = case()
    masked = torch.ones(6, 5, dtype=torch.bool)
    loss = bilateral_softmax(positive, negative, log_expected, masked)
    assert loss == 0
    assert all(bool((g == 0).all()) for g in torch.autograd.grad(loss, (positive, negative)))
    none = bilateral_softmax(positive, negative[:, :0], log_expected[:0])
    assert none == 0


def test_illegal_input_is_refused() -> None:
    positive, negative, log_expected, _ = case()
    with pytest.raises(ValueError, match="power must be positive"):
        bilateral_softmax(positive, negative, log_expected, power=0.0)
    with pytest.raises(ValueError, match="power must be positive"):
        fused_sampled_softmax(positive, negative, negative, power=math.nan)
    with pytest.raises(ValueError, match="must be"):
        bilateral_softmax(positive[:3], negative, log_expected)
    with pytest.raises(ValueError, match="broadcast"):
        bilateral_softmax(positive, negative, log_expected[:3])
