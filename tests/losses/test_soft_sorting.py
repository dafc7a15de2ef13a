"""Soft permutation matrices: exact in the limit, doubly stochastic, and blind to padding."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.soft_sorting import _sinkhorn, log_soft_permutation


def case(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(4, 6, generator=g) < 0.3
    mask[3] = True
    return torch.randn(4, 6, generator=g, dtype=torch.float64) * 2, mask


def plain(score: list[float], temperature: float, sort: str, steps: int) -> list[list[float]]:
    n = len(score)
    rows = []
    for i in range(1, n + 1):
        if sort == "neural":
            logits = [((n + 1 - 2 * i) * s - sum(abs(s - o) for o in score)) / temperature for s in score]
        else:
            logits = [-abs(sorted(score, reverse=True)[i - 1] - s) / temperature for s in score]
        top = max(logits)
        weights = [math.exp(x - top) for x in logits]
        rows.append([w / sum(weights) for w in weights])
    for _ in range(steps):
        columns = [sum(rows[i][j] for i in range(n)) for j in range(n)]
        rows = [[rows[i][j] / columns[j] for j in range(n)] for i in range(n)]
        rows = [[x / sum(row) for x in row] for row in rows]
    return rows


@pytest.mark.parametrize("sort", ["neural", "soft"])
@pytest.mark.parametrize("steps", [0, 7])
def test_it_equals_the_plainest_loop_over_the_candidates_that_are_left(sort: str, steps: int) -> None:
    score, mask = case()
    got = log_soft_permutation(
        score, mask, temperature=1.7, sort=sort, sinkhorn_steps=steps, tolerance=0.0
    ).exp()  # type: ignore[arg-type]
    for b in range(4):
        kept = [j for j in range(6) if not mask[b, j]]
        want = torch.zeros(6, 6, dtype=torch.float64)
        for i, row in enumerate(plain(score[b, kept].tolist(), 1.7, sort, steps)):
            want[i, kept] = torch.tensor(row, dtype=torch.float64)
        torch.testing.assert_close(got[b], want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("sort", ["neural", "soft"])
def test_at_a_low_temperature_it_is_the_permutation_that_sorts(sort: str) -> None:
    score, _ = case()
    got = log_soft_permutation(score, temperature=1e-4, sort=sort).exp()  # type: ignore[arg-type]
    want = torch.nn.functional.one_hot(score.argsort(-1, descending=True), 6).double()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("sort", ["neural", "soft"])
def test_rows_sum_to_one_and_with_scaling_so_do_columns(sort: str) -> None:
    score, mask = case()
    rows_only = log_soft_permutation(score, temperature=2.0, sort=sort, sinkhorn_steps=0).exp()  # type: ignore[arg-type]
    torch.testing.assert_close(rows_only.sum(-1), torch.ones_like(score))
    assert float((rows_only.sum(-2) - 1).abs().max()) > 0.05
    both = log_soft_permutation(score, mask, temperature=2.0, sort=sort, sinkhorn_steps=500).exp()  # type: ignore[arg-type]
    n = (~mask).sum(-1, keepdim=True)
    torch.testing.assert_close(both.sum(-1), (torch.arange(6) < n).double())
    torch.testing.assert_close(both.sum(-2), (~mask).double(), atol=2e-6, rtol=0)


def test_tied_candidates_share_their_places() -> None:
    got = log_soft_permutation(torch.tensor([1.0, 3.0, 1.0]), temperature=1e-3).exp()
    torch.testing.assert_close(got, torch.tensor([[0, 1.0, 0], [0.5, 0, 0.5], [0.5, 0, 0.5]]))


@pytest.mark.parametrize("sort", ["neural", "soft"])
def test_gradients_agree_with_finite_differences(sort: str) -> None:
    score, mask = case()
    weight = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)

    def loss(s: Tensor) -> Tensor:
        p = log_soft_permutation(s, mask, temperature=2.0, sort=sort, sinkhorn_steps=3, tolerance=0.0)  # type: ignore[arg-type]
        return (weight * p.exp()).sum()

    assert torch.autograd.gradcheck(loss, (score.requires_grad_(),))


def test_a_large_common_score_and_bfloat16_lose_nothing() -> None:
    base = torch.tensor([0.0, 1.0, 2.0, 3.0])
    want = log_soft_permutation(base, temperature=1.0)
    fine = torch.randint(0, 512, (40,), generator=torch.Generator().manual_seed(4)) / 1024
    near = log_soft_permutation(fine, temperature=0.3, sinkhorn_steps=0)
    far = log_soft_permutation(fine + 8192, temperature=0.3, sinkhorn_steps=0)  # exact in float32
    torch.testing.assert_close(far.exp(), near.exp(), atol=1e-5, rtol=0)
    torch.testing.assert_close(log_soft_permutation(base.bfloat16(), temperature=1.0), want)
    many = torch.randn(300, generator=torch.Generator().manual_seed(5)) * 1e4
    got = log_soft_permutation(many, temperature=1e-3).exp().argmax(-1)
    torch.testing.assert_close(got, many.argsort(descending=True))
    huge = torch.tensor([1e4, -1e4, 0.0, 1e4], requires_grad=True)
    log_soft_permutation(huge, temperature=1.0).exp()[0, 0].backward()
    assert huge.grad.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        log_soft_permutation(torch.zeros(3), temperature=0.0)
    with pytest.raises(ValueError, match="sort must"):
        log_soft_permutation(torch.zeros(3), temperature=1.0, sort="quick")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sinkhorn_steps"):
        log_soft_permutation(torch.zeros(3), temperature=1.0, sinkhorn_steps=-1)
    with pytest.raises(ValueError, match="not finite"):
        log_soft_permutation(torch.tensor([0.0, -math.inf]), temperature=1.0)
    with pytest.raises(ValueError, match="too small"):
        _sinkhorn(torch.tensor([[0.0, -math.inf], [0.0, -math.inf]]), 5, 0.0)
    with pytest.raises(ValueError, match="broadcast"):
        log_soft_permutation(torch.zeros(3), torch.zeros(2, dtype=torch.bool), temperature=1.0)
    with pytest.raises(TypeError, match="floating point"):
        log_soft_permutation(torch.zeros(3, dtype=torch.int64), temperature=1.0)
    assert log_soft_permutation(torch.zeros(2, 0), temperature=1.0).shape == (2, 0, 0)
