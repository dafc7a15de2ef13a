"""Error norms: equal to gradients taken row by row, and high where a label is wrong."""

import math

import pytest
import torch

from steelyard.selection.error_norms import el2n, grand


def rows(n: int = 7, classes: int = 4, width: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    h = torch.randn(n, width, generator=g, dtype=torch.float64) * 2
    w = torch.randn(classes, width, generator=g, dtype=torch.float64)
    return h, w, torch.randint(classes, (n,), generator=g)


@pytest.mark.parametrize("bias", [True, False])
def test_grand_is_the_norm_of_each_rows_gradient_by_autograd(bias: bool) -> None:
    h, w, y = rows()
    b = torch.tensor([0.3, -1.0, 0.2, 0.0], dtype=torch.float64) * bias
    expected = []
    for i in range(len(y)):
        weight, shift = w.clone().requires_grad_(), b.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy((weight @ h[i] + shift).unsqueeze(0), y[i : i + 1])
        parts = torch.autograd.grad(loss, [weight, shift] if bias else [weight])
        expected.append(torch.cat([p.flatten() for p in parts]).norm())
    got = grand(h @ w.T + b, y, h, bias=bias)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-12, atol=0)
    if not bias:
        torch.testing.assert_close(got, el2n(h @ w.T, y) * h.norm(dim=1), rtol=1e-12, atol=0)


def test_el2n_equals_the_plain_loop_averaged_over_seeds() -> None:
    g = torch.Generator().manual_seed(5)
    z = torch.randn(3, 6, 5, generator=g, dtype=torch.float64) * 3
    y = torch.tensor([0, 4, 2, 2, 1, 3])
    expected = torch.zeros(6, dtype=torch.float64)
    for s in range(3):
        for i in range(6):
            p = [math.exp(v) for v in z[s, i].tolist()]
            total = sum(p)
            expected[i] += math.sqrt(sum((p[c] / total - (c == int(y[i]))) ** 2 for c in range(5))) / 3
    torch.testing.assert_close(el2n(z, y), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(el2n(z.float(), y), expected.float(), rtol=1e-5, atol=1e-7)
    assert el2n(z.bfloat16(), y).dtype == torch.float32


def test_a_nearly_certain_row_keeps_its_digits() -> None:
    got = el2n(torch.tensor([[30.0, 0.0]]), [0])
    torch.testing.assert_close(got, torch.tensor([math.sqrt(2) * math.exp(-30)]), rtol=1e-5, atol=0)


def test_flipped_labels_get_the_highest_scores_of_a_model_trained_a_little() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.randn(300, 2, generator=g) * 0.5 + torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0]])[y]
    flipped = torch.arange(0, 300, 29)
    given = y.clone()
    given[flipped] = (y[flipped] + 1) % 3
    w = torch.zeros(3, 2, requires_grad=True)
    for _ in range(30):
        (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x @ w.T, given), w)
        w = (w - 0.5 * slope).detach().requires_grad_()
    for score in (el2n(x @ w.T, given), grand(x @ w.T, given, x)):
        assert set(score.topk(len(flipped)).indices.tolist()) == set(flipped.tolist())


def test_classes_ruled_out_no_rows_and_one_class_are_right() -> None:
    z = torch.tensor([[1.0, -math.inf, 2.0]])
    torch.testing.assert_close(el2n(z, [2]), el2n(z[:, [0, 2]], [1]))
    assert el2n(z, [1]) > 1  # the label's own class is ruled out: as wrong as can be
    assert el2n(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert el2n(torch.zeros(2, 1), [0, 0]).tolist() == [0, 0]


def test_wrong_input_is_refused_in_words() -> None:
    y = torch.tensor([0, 1])
    with pytest.raises(TypeError, match="floating point"):
        el2n(torch.zeros(2, 3, dtype=torch.int64), y)
    with pytest.raises(ValueError, match="NaN"):
        el2n(torch.tensor([[0.0, math.nan], [0.0, 1.0]]), y)
    with pytest.raises(ValueError, match="every class"):
        el2n(torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]]), y)
    with pytest.raises(ValueError, match="labels must lie"):
        el2n(torch.zeros(2, 1), y)
    with pytest.raises(ValueError, match="at least one"):
        el2n(torch.zeros(0, 2, 3), y)
    with pytest.raises(ValueError, match="beside logits"):
        grand(torch.zeros(2, 3), y, torch.zeros(3, 4))
    with pytest.raises(ValueError, match="finite"):
        grand(torch.zeros(2, 3), y, torch.full((2, 4), math.inf))
