"""The factored output layer: plain SGD on all weights, without ever visiting them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from steelyard.losses.factored_output import FactoredOutput
from steelyard.losses.spherical import (
    LogitMoments,
    log_taylor_softmax,
    logit_moments,
    moments_of_logits,
    spherical_squared_error,
    z_loss,
)

C, D = 40, 5
LOSSES: dict[str, tuple[Callable[[LogitMoments], Tensor], float]] = {
    "z": (lambda m: z_loss(m, a=0.7, b=1.5), 3.0),
    "squared": (lambda m: spherical_squared_error(m), 0.02),
    "taylor": (lambda m: log_taylor_softmax(m), 0.3),
    "mixed": (lambda m: (m.own * m.variance - m.mean.square() + 0.3 * m.mean).sum(), 0.05),
}
Batches = list[tuple[Tensor, Tensor]]


def case(size: int, steps: int = 6) -> tuple[Tensor, Batches]:
    g = torch.Generator().manual_seed(size)
    weight = torch.randn(C, D, generator=g, dtype=torch.float64) + torch.tensor([2.0, 0, -1, 0, 0.5])
    batches = [
        (
            torch.randn(size, D, generator=g, dtype=torch.float64),
            torch.randint(C // 4, (size,), generator=g),  # few labels, so that a batch repeats some
        )
        for _ in range(steps)
    ]
    return weight, batches


def plain_sgd(weight: Tensor, batches: Batches, name: str) -> tuple[Tensor, list[Tensor]]:
    """SGD on the full matrix through the logits of all classes; gradients of the hidden states, too."""
    loss, rate = LOSSES[name]
    found = []
    for hidden, labels in batches:
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        of_h, of_w = torch.autograd.grad(loss(moments_of_logits(h @ w.T, labels)), (h, w))
        found.append(of_h)
        weight = weight - rate * of_w
    return weight, found


def factored(layer: FactoredOutput, batches: Batches, name: str) -> list[Tensor]:
    loss, rate = LOSSES[name]
    found = []
    for hidden, labels in batches:
        h = hidden.clone().requires_grad_()
        loss(layer.moments(h, labels)).backward()
        found.append(h.grad)
        layer.step(rate)
    return found


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [1, 3, 17])
@pytest.mark.parametrize("refresh_after", [None, 1, 10**9])
def test_steps_equal_plain_sgd_on_the_full_matrix(name: str, size: int, refresh_after: int | None) -> None:
    weight, batches = case(size)
    layer = FactoredOutput(weight, refresh_after=refresh_after)
    want, gradients = plain_sgd(weight, batches, name)
    for got, hidden in zip(factored(layer, batches, name), gradients, strict=True):
        torch.testing.assert_close(got, hidden, atol=1e-8, rtol=1e-8)
    assert float((want - weight).abs().max()) > 0.05
    torch.testing.assert_close(layer.weight(), want, atol=1e-8, rtol=1e-8)
    assert float((layer.weight() - want).abs().max()) < 1e-8
    exact = logit_moments(*batches[0][:1], layer.weight(), batches[0][1])
    for a, b in zip(layer.moments(*batches[0])[:3], exact[:3], strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_kept_mean_scatter_and_inverse_are_those_of_the_weights() -> None:
    weight, batches = case(3)
    layer = FactoredOutput(weight, refresh_after=10**9)
    factored(layer, batches, "squared")
    apart = layer.weight() - layer.weight().mean(0)
    torch.testing.assert_close(layer.mean, layer.weight().mean(0), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(layer.scatter, apart.T @ apart, atol=1e-9, rtol=1e-9)
    eye = torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(layer.mixing @ layer.inverse, eye, atol=1e-10, rtol=0)
    assert not torch.allclose(layer.mixing, eye, atol=1e-2)


def test_no_row_of_another_class_is_read_or_written() -> None:
    weight, batches = case(4, steps=3)
    layer = FactoredOutput(weight, refresh_after=10**9)
    named = torch.cat([labels for _, labels in batches]).unique()
    other = torch.ones(C, dtype=torch.bool).index_fill(0, named, False)
    layer.factor[other] = math.nan
    factored(layer, batches, "z")
    assert bool(layer.factor[other].isnan().all())
    assert int(other.sum()) > C / 2
    assert bool(layer.factor[~other].isfinite().all())
    assert all(bool(v.isfinite().all()) for v in (layer.mixing, layer.inverse, layer.mean, layer.scatter))


class Counted(TorchDispatchMode):
    """Numbers that operations take and make, the table of all classes apart, whose operations are named."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.numbers = 0
        self.on_table: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for v in (*args, out):
            if isinstance(v, Tensor) and v.ndim and len(v) == self.n_classes:
                self.on_table.add(func.__name__.split(".")[0])
            elif isinstance(v, Tensor):
                self.numbers += v.numel()
        return out


def test_the_work_of_a_step_does_not_grow_with_the_classes() -> None:
    found = []
    for n_classes in (200, 20_000):
        _, batches = case(4, steps=2)
        weight = torch.randn(n_classes, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        layer = FactoredOutput(weight, refresh_after=10**9)
        with Counted(n_classes) as counted:
            factored(layer, batches, "z")
        assert counted.on_table == {"index", "index_put_"}  # rows taken and rows put, no more
        found.append(counted.numbers)
    assert found[0] == found[1] > 0


def test_rounding_does_not_add_up_over_many_steps() -> None:
    g = torch.Generator().manual_seed(3)
    weight = torch.randn(C, D, generator=g)
    layers = [FactoredOutput(weight), FactoredOutput(weight.double(), refresh_after=10**9)]
    want = weight.double()
    for _ in range(600):
        h, y = torch.randn(4, D, generator=g), torch.randint(C, (4,), generator=g)
        for layer in layers:
            spherical_squared_error(layer.moments(h.to(layer.factor.dtype), y)).backward()
            layer.step(0.02)
        w = want.requires_grad_()
        (of_w,) = torch.autograd.grad(spherical_squared_error(logit_moments(h.double(), w, y)), w)
        want = (w - 0.02 * of_w).detach()
    single, double = layers
    torch.testing.assert_close(double.weight(), want, atol=1e-10, rtol=0)
    torch.testing.assert_close(single.weight().double(), want, atol=2e-6, rtol=0)
    kept = double.mean.clone(), double.scatter.clone()
    double.recompute()
    torch.testing.assert_close(kept, (double.mean, double.scatter), atol=1e-11, rtol=1e-10)


def test_a_refresh_leaves_the_weights_and_mends_the_condition() -> None:
    weight, batches = case(3)
    layer = FactoredOutput(weight, refresh_after=10**9)
    factored(layer, batches, "squared")
    before, condition = layer.weight(), layer.condition()
    layer.refresh()
    torch.testing.assert_close(layer.weight(), before, atol=1e-12, rtol=1e-12)
    assert condition > 1.01
    assert layer.condition() == pytest.approx(1)
    layer.scatter += 1
    layer.mean -= 1
    layer.recompute()
    fresh = FactoredOutput(layer.weight())
    torch.testing.assert_close(layer.scatter, fresh.scatter)
    torch.testing.assert_close(layer.mean, fresh.mean)


@pytest.mark.parametrize("size", [1, D])
def test_a_step_that_makes_the_factor_singular_is_exact_all_the_same(size: int) -> None:
    weight, _ = case(1)
    hidden, labels = torch.eye(D, dtype=torch.float64)[:size], torch.arange(size)
    rate = C / 2  # of the sum of variances: I - 2 rate / C h h^T has no rank along h
    layer = FactoredOutput(weight)
    moments = layer.moments(hidden, labels)
    (moments.variance + moments.own).sum().backward()
    layer.step(rate)
    w = weight.clone().requires_grad_()
    dense = moments_of_logits(hidden @ w.T, labels)
    (of_w,) = torch.autograd.grad((dense.variance + dense.own).sum(), w)
    torch.testing.assert_close(layer.weight(), weight - rate * of_w, atol=1e-10, rtol=1e-10)
    assert layer.condition() == pytest.approx(1)


def test_a_factor_that_shrinks_without_end_does_not_overflow_the_rows() -> None:
    g = torch.Generator().manual_seed(4)
    want = torch.randn(C, D, generator=g)
    layer, want = FactoredOutput(want, refresh_after=10**9), want.double()
    hidden, labels = torch.eye(D), torch.arange(D)  # each step takes nine tenths off in all directions
    for _ in range(60):
        spherical_squared_error(layer.moments(hidden, labels), reduction="sum").backward()
        layer.step(0.45)
        want = want - 0.9 * want
        want[labels] += 0.9 * hidden.double()
    torch.testing.assert_close(layer.weight().double(), want, atol=1e-6, rtol=0)


def test_a_factor_that_shrinks_along_one_direction_stays_well_conditioned() -> None:
    weight, batches = case(1, steps=1)
    hidden = batches[0][0][:1] / batches[0][0].norm()
    layer, want = FactoredOutput(weight.float(), refresh_after=10**9), weight
    for label in range(20):
        layer.moments(hidden.float(), torch.tensor([label])).variance.sum().backward()
        layer.step(0.45 * C)
        want = want - 0.9 * (want - want.mean(0)) @ hidden.T @ hidden
        assert layer.condition() <= 100
    torch.testing.assert_close(layer.weight().double(), want, atol=1e-6, rtol=0)


def test_backward_passes_before_a_step_add_up() -> None:
    weight, batches = case(6, steps=1)
    hidden, labels = batches[0]
    whole, parts = FactoredOutput(weight), FactoredOutput(weight)
    z_loss(whole.moments(hidden, labels), b=1.0, reduction="sum").backward()
    for half in (slice(0, 2), slice(2, 6)):
        z_loss(parts.moments(hidden[half], labels[half]), b=1.0, reduction="sum").backward()
    for layer in (whole, parts):
        layer.step(0.5)
    torch.testing.assert_close(whole.weight(), parts.weight())
    assert not torch.allclose(whole.weight(), weight)


def test_looking_without_a_backward_pass_leaves_nothing_behind() -> None:
    weight, batches = case(3, steps=1)
    layer = FactoredOutput(weight)
    layer.moments(*batches[0])
    with torch.no_grad():
        assert not layer.moments(*batches[0]).own.requires_grad
    with pytest.raises(ValueError, match="backward"):
        layer.step(0.1)
    z_loss(layer.moments(*batches[0]), b=1.0).backward()
    layer.zero_grad()
    with pytest.raises(ValueError, match="backward"):
        layer.step(0.1)
    torch.testing.assert_close(layer.weight(), weight)


def test_a_saved_layer_goes_on_where_it_was() -> None:
    weight, batches = case(3)
    layer = FactoredOutput(weight)
    factored(layer, batches[:3], "z")
    other = FactoredOutput(torch.zeros_like(weight))
    other.load_state_dict({name: v.clone() for name, v in layer.state_dict().items()})
    for one in (layer, other):
        factored(one, batches[3:], "z")
    assert torch.equal(layer.weight(), other.weight())
    z_loss(other.moments(*batches[0]), b=1.0).backward()
    other.load_state_dict(layer.state_dict())
    with pytest.raises(ValueError, match="backward"):
        other.step(0.1)


def test_a_large_common_mean_keeps_its_digits() -> None:
    weight, batches = case(6, steps=4)
    far = weight + 1e6
    layer = FactoredOutput(far)
    factored(layer, batches, "z")
    want, _ = plain_sgd(far, batches, "z")
    torch.testing.assert_close(layer.weight() - 1e6, want - 1e6, atol=1e-6, rtol=0)
    apart = layer.weight() - layer.weight().mean(0)
    torch.testing.assert_close(layer.scatter, apart.T @ apart, atol=1e-5, rtol=1e-7)


def test_gradients_of_hidden_states_agree_with_finite_differences() -> None:
    weight, batches = case(3)
    layer = FactoredOutput(weight)
    factored(layer, batches[:2], "squared")
    hidden, labels = batches[2]
    assert torch.autograd.gradcheck(
        lambda h: LOSSES["taylor"][0](layer.moments(h, labels)), hidden.requires_grad_()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_one_class_and_nothing(dtype: torch.dtype) -> None:
    weight, batches = case(3, steps=1)
    hidden, labels = batches[0][0].to(dtype).requires_grad_(), batches[0][1]
    layer = FactoredOutput(weight.to(dtype))
    exact = logit_moments(hidden.detach().double(), layer.factor.double(), labels)
    got = layer.moments(hidden, labels)
    for a, b in zip(got[:3], exact[:3], strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    z_loss(got, b=1.0).backward()
    assert hidden.grad.dtype == dtype
    layer.step(0.1)
    assert layer.weight().dtype == dtype
    assert bool(layer.weight().isfinite().all())
    one = FactoredOutput(weight[:1])
    alone = one.moments(batches[0][0], torch.zeros(3, dtype=torch.long))
    assert float(alone.variance.detach().max()) == 0
    with pytest.raises(ValueError, match="are equal"):
        z_loss(alone, b=1.0)
    spherical_squared_error(alone).backward()
    one.step(0.01)
    nobody = FactoredOutput(weight)
    z_loss(nobody.moments(batches[0][0][:0], labels[:0]), b=1.0, reduction="sum").backward()
    nobody.step(0.1)
    torch.testing.assert_close(nobody.weight(), weight)


def test_training_ranks_the_own_class_first() -> None:
    g = torch.Generator().manual_seed(1)
    h = torch.randn(60, 8, generator=g)
    y = (h @ torch.randn(8, 6, generator=g)).argmax(1)
    layer = FactoredOutput(0.1 * torch.randn(6, 8, generator=g))
    for _ in range(300):
        z_loss(layer.moments(h, y), b=1.5).backward()
        layer.step(0.5)
    assert float(((h @ layer.weight().T).argmax(1) == y).float().mean()) > 0.9


def test_what_is_wrong_is_named() -> None:
    weight, batches = case(3, steps=1)
    hidden, labels = batches[0]
    layer = FactoredOutput(weight)
    with pytest.raises(TypeError, match="floating"):
        FactoredOutput(torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="above 0"):
        FactoredOutput(weight[:0])
    with pytest.raises(ValueError, match="NaN"):
        FactoredOutput(weight * math.nan)
    with pytest.raises(ValueError, match="refresh_after"):
        FactoredOutput(weight, refresh_after=0)
    with pytest.raises(ValueError, match="max_condition"):
        FactoredOutput(weight, max_condition=1.0)
    with pytest.raises(ValueError, match=r"\(B, 5\)"):
        layer.moments(hidden[:, :2], labels)
    with pytest.raises(TypeError, match="floating"):
        layer.moments(hidden.long(), labels)
    with pytest.raises(ValueError, match="0 to 39"):
        layer.moments(hidden, labels + 40)
    with pytest.raises(ValueError, match="learning_rate"):
        layer.step(-1.0)
    (layer.moments(hidden, labels).own.sum() * math.nan).backward()
    with pytest.raises(ValueError, match="NaN"):
        layer.step(0.1)
    torch.testing.assert_close(layer.weight(), weight)
    layer.zero_grad()
    early, late = (z_loss(layer.moments(hidden, labels), b=1.0) for _ in range(2))
    early.backward()
    layer.step(0.1)
    with pytest.raises(ValueError, match="have changed"):
        late.backward()
