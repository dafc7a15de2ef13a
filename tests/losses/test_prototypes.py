"""Prototypes and neighbours: hinges that close, a score between 0 and 1, plain loops."""

import pytest
import torch
from torch import Tensor

from steelyard.losses.prototypes import class_prototypes, icnn_loss, icnn_score, proto_triplet

Y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])


def batch(seed: int = 0, n: int = 9) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g, dtype=torch.float64)


def test_prototypes_are_means_and_each_class_needs_one() -> None:
    x = batch()
    got = class_prototypes(x, Y, 3)
    for c in range(3):
        torch.testing.assert_close(got[c], x[c == Y].mean(0))
    with pytest.raises(ValueError, match="Class 3"):
        class_prototypes(x, Y, 4)
    with pytest.raises(ValueError, match="0 to 1"):
        class_prototypes(x, Y, 2)


def test_the_triplet_loss_equals_a_plain_loop() -> None:
    x, c = batch(), batch(1, 3)
    got = proto_triplet(x, Y, c, margin=0.7, reduction="none")
    for i in range(9):
        d = [float((x[i] - p).norm()) for p in c]
        other = min(v for k, v in enumerate(d) if k != Y[i])
        assert float(got[i]) == pytest.approx(max(d[Y[i]] - other + 0.7, 0), abs=1e-12)


def test_it_is_zero_just_where_prototypes_part_by_the_margin() -> None:
    c = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    q = torch.tensor([[0.5, 0.0], [1.0, 0.0], [1.25, 0.0], [1.5, 0.0]])  # gaps 2, 1, 0.5 and 0
    y = torch.zeros(4, dtype=torch.long)
    assert proto_triplet(q, y, c, margin=1.0, reduction="none").tolist() == pytest.approx([0, 0, 0.5, 1.0])


def test_one_shot_is_the_triplet_loss_with_the_hardest_negative() -> None:
    query, shots = batch(), batch(1, 3)
    got = proto_triplet(query, Y, class_prototypes(shots, torch.arange(3), 3), margin=0.5)
    losses = []
    for i in range(9):
        others = [shots[c] for c in range(3) if c != Y[i]]
        each = [
            torch.nn.functional.triplet_margin_loss(query[i], shots[Y[i]], o, margin=0.5, eps=0)
            for o in others
        ]
        losses.append(torch.stack(each).max())
    torch.testing.assert_close(got, torch.stack(losses).mean())


def plain_score(x: Tensor, y: Tensor, k: int) -> float:
    n = len(x)
    d = [[float((a - b).norm()) for b in x] for a in x]
    hood = [sorted((j for j in range(n) if j != i), key=lambda j, i=i: d[i][j])[:k] for i in range(n)]
    widest = max((d[i][j] for i in range(n) for j in hood[i] if y[i] != y[j]), default=0.0)
    near, far, share = [], [], []
    for i in range(n):
        own = [j for j in hood[i] if y[i] == y[j]]
        others = [j for j in hood[i] if y[i] != y[j]]
        nearest = min((d[i][j] for j in range(n) if y[i] != y[j]), default=float("inf"))
        bound = max(nearest, *(d[i][j] for j in hood[i]))
        if own:
            near.append(sum(d[i][j] / bound for j in own) / len(own))
        if others:
            far.append(sum(d[i][j] / widest for j in others) / len(others))
        share.append(len(own) / k)
    compact = 1 - sum(near) / len(near) if near else 0.0
    apart = sum(far) / len(far) if far else 1.0
    return ((compact + apart) / 2 + sum(share) / n) / 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_score_equals_plain_loops(seed: int, k: int) -> None:
    x = batch(seed)
    for y in (Y, torch.arange(9), torch.zeros(9, dtype=torch.long)):
        got = float(icnn_score(x, y, k))
        assert got == pytest.approx(plain_score(x, y, k), abs=1e-10)
        assert 0 <= got <= 1


def test_the_score_grows_with_the_separation_of_classes_to_one() -> None:
    centre = torch.eye(3, 4, dtype=torch.float64)[Y]
    scores = [
        sum(float(icnn_score(batch(seed) + apart * centre, Y, 2)) for seed in range(20)) / 20
        for apart in (0.0, 2.0, 4.0, 8.0, 1e6)
    ]
    assert scores == sorted(scores)
    assert scores[-1] == pytest.approx(1, abs=1e-5)
    assert float(icnn_loss(10 * centre, Y, 2)) == 0


def test_descent_on_each_separates_classes() -> None:
    for loss in (
        lambda x: icnn_loss(x, Y, 4),
        lambda x: proto_triplet(x, Y, class_prototypes(x, Y, 3), margin=2.0),
    ):
        x = batch(5).requires_grad_()
        optimiser = torch.optim.Adam([x], lr=0.05)
        first = float(icnn_score(x, Y, 2).detach())
        for _ in range(80):
            optimiser.zero_grad()
            loss(x).backward()
            optimiser.step()
        assert float(icnn_score(x, Y, 2).detach()) > first + 0.1


def test_gradients_agree_with_finite_differences() -> None:
    x, c = batch().requires_grad_(), batch(1, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: proto_triplet(a, Y, b, reduction="none"), (x, c))
    assert torch.autograd.gradcheck(lambda a: icnn_loss(a, Y, 3), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_collapse_one_class_and_low_precision_stay_finite(dtype: torch.dtype) -> None:
    low = batch().to(dtype).requires_grad_()
    flat = torch.ones(9, 4, dtype=dtype, requires_grad=True)
    one = torch.zeros(9, dtype=torch.long)
    for x in (low, flat):
        for y in (Y, one):
            for loss in (icnn_loss(x, y, 4), proto_triplet(x, y, x[:3])):
                assert loss.isfinite()
                assert torch.autograd.grad(loss, x)[0].isfinite().all()
    alone = proto_triplet(low, one, low[:1])
    assert float(alone.detach()) == 0
    assert not torch.autograd.grad(alone, low)[0].any()
    assert float(icnn_score(low, Y).detach()) == pytest.approx(
        float(icnn_score(low.detach().double(), Y)), rel=1e-4
    )


def test_what_is_wrong_is_named() -> None:
    x, c = batch(), batch(1, 3)
    with pytest.raises(ValueError, match="coincide"):
        icnn_loss(torch.ones(3, 2), torch.arange(3), 1)
    for k in (0, 9):
        with pytest.raises(ValueError, match="B - 1"):
            icnn_score(x, Y, k)
    with pytest.raises(ValueError, match="0 to 2"):
        proto_triplet(x, Y + 1, c)
    with pytest.raises(ValueError, match="margin"):
        proto_triplet(x, Y, c, margin=-1.0)
    with pytest.raises(ValueError, match="prototypes"):
        proto_triplet(x, Y, c[:, :3])
    with pytest.raises(ValueError, match="no query"):
        proto_triplet(x[:0], Y[:0], c)
    with pytest.raises(TypeError, match="integers"):
        icnn_score(x, Y.float())
