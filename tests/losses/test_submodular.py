"""Set functions of classes: their values, diminishing returns, and what their losses reward."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.submodular import set_value, submodular_loss

FUNCTIONS = ("graph cut", "facility location", "log det")


def batch(n: int = 7) -> tuple[Tensor, Tensor]:
    """Gaussian kernel of skewed points, and classes of sizes 3, 1 and the rest."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    x[:, 0] *= 2
    return torch.exp(-torch.cdist(x, x).square() / 3), torch.tensor([4, 4, 0, 4, 9, 9, 9])[:n]


def plain(s: Tensor, a: tuple[int, ...], function: str, trade_off: float) -> float:
    everyone = range(len(s))
    if function == "graph cut":
        total = sum(float(s[i, j]) for i in everyone for j in a)
        return total - trade_off * sum(float(s[i, j]) for i in a for j in a)
    if function == "facility location":
        return sum(max(float(s[i, j]) for j in a) for i in everyone) if a else 0.0
    if not a:
        return 0.0
    sub = s[list(a)][:, list(a)] + trade_off * torch.eye(len(a), dtype=torch.float64)
    return math.log(float(torch.linalg.det(sub)))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_set_values_equal_plain_loops_for_every_subset(function) -> None:  # type: ignore[no-untyped-def]
    s, _ = batch(5)
    for size in range(6):
        for a in itertools.combinations(range(5), size):
            members = torch.zeros(5, dtype=torch.bool)
            members[list(a)] = True
            got = set_value(s, members, function, trade_off=0.4)
            assert float(got) == pytest.approx(plain(s, a, function, 0.4), abs=1e-11)


@pytest.mark.parametrize(("function", "trade_off"), [*zip(FUNCTIONS, (0.5, 0.0, 1.0), strict=True)])
def test_returns_diminish_and_monotone_functions_grow(function, trade_off) -> None:  # type: ignore[no-untyped-def]
    s, _ = batch(5)
    value = {
        a: plain(s, a, function, trade_off)
        for size in range(6)
        for a in itertools.combinations(range(5), size)
    }
    for a, b in itertools.product(value, value):
        if not set(a) <= set(b):
            continue
        for extra in set(range(5)) - set(b):
            small = value[tuple(sorted({*a, extra}))] - value[a]
            large = value[tuple(sorted({*b, extra}))] - value[b]
            assert small >= large - 1e-12
            assert large >= -1e-12


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("form", ["information", "correlation"])
def test_the_losses_equal_sums_of_set_values(function, form) -> None:  # type: ignore[no-untyped-def]
    s, y = batch()
    want = 0.0
    for c in (4, 0, 9):
        want += plain(s, tuple(i for i in range(7) if y[i] == c), function, 0.5)
    if form == "correlation":
        want -= plain(s, tuple(range(7)), function, 0.5)
        assert want > 0
    got = submodular_loss(s, y, function, form=form, trade_off=0.5)
    assert float(got) == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_correlation_is_zero_for_one_class_and_falls_as_classes_part(function) -> None:  # type: ignore[no-untyped-def]
    g = torch.Generator().manual_seed(3)
    y = torch.arange(3).repeat_interleave(4)
    noise = torch.randn(12, 4, generator=g, dtype=torch.float64)
    values = []
    for apart in (0.0, 1.0, 2.0, 6.0):
        x = noise + apart * torch.eye(3, 4, dtype=torch.float64)[y]
        s = torch.exp(-torch.cdist(x, x).square() / 4)
        values.append(float(submodular_loss(s, y, function)))
        assert float(submodular_loss(s, torch.zeros_like(y), function)) == pytest.approx(0, abs=1e-9)
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0] / 100


@pytest.mark.parametrize("function", ["graph cut", "log det"])
def test_the_information_falls_as_members_come_together(function) -> None:  # type: ignore[no-untyped-def]
    g = torch.Generator().manual_seed(3)
    y = torch.arange(3).repeat_interleave(4)
    noise = torch.randn(12, 4, generator=g, dtype=torch.float64)
    centre = 3 * torch.eye(3, 4, dtype=torch.float64)[y]
    values = []
    for spread in (1.0, 0.5, 0.1):
        x = centre + spread * noise
        s = torch.exp(-torch.cdist(x, x).square() / 4)
        trade_off = 2.0 if function == "graph cut" else 0.5
        values.append(float(submodular_loss(s, y, function, form="information", trade_off=trade_off)))
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("form", ["information", "correlation"])
def test_gradients_agree_with_finite_differences(function, form) -> None:  # type: ignore[no-untyped-def]
    g = torch.Generator().manual_seed(5)
    x = torch.randn(7, 3, generator=g, dtype=torch.float64).requires_grad_()
    _, y = batch()

    def loss(points: Tensor) -> Tensor:
        z = normalize(points, dim=1)
        return submodular_loss(z @ z.T, y, function, form=form)

    assert torch.autograd.gradcheck(loss, (x,))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_low_precision_classes_of_one_and_nothing_at_all(function) -> None:  # type: ignore[no-untyped-def]
    s, y = batch()
    for dtype in (torch.float32, torch.bfloat16):
        low = s.to(dtype).requires_grad_()
        loss = submodular_loss(low, torch.arange(7), function, trade_off=1.0)
        assert torch.autograd.grad(loss, low)[0].isfinite().all()
        want = submodular_loss(low.detach().double(), torch.arange(7), function, trade_off=1.0)
        assert float(loss) == pytest.approx(float(want), rel=1e-4)
    assert float(submodular_loss(torch.zeros(0, 0), y[:0], function)) == 0


def test_what_is_wrong_is_named() -> None:
    s, y = batch()
    with pytest.raises(ValueError, match="positive definite"):
        submodular_loss(-s, y, "log det")
    with pytest.raises(ValueError, match="function"):
        submodular_loss(s, y, "cut")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="form"):
        submodular_loss(s, y, form="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trade_off"):
        submodular_loss(s, y, trade_off=-1.0)
    with pytest.raises(ValueError, match="one label"):
        submodular_loss(s, y[:3])
    with pytest.raises(TypeError, match="integers"):
        submodular_loss(s, y.float())
    with pytest.raises(TypeError, match="bool"):
        set_value(s, y, "log det")
