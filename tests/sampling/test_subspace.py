"""Subspaces drawn by singular value, and Adam inside them."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from steelyard.sampling.subspace import SubspaceAdam, draw_subspace, subspace_overlap
from tests.statistical import assert_unbiased


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def directions(gradient: Tensor, basis: Tensor) -> list[int]:
    """Which singular vectors of the gradient the columns are."""
    u = torch.linalg.svd(gradient if gradient.shape[0] <= gradient.shape[1] else gradient.T)[0]
    return (u.T @ basis).abs().argmax(0).tolist()


def with_spectrum(sigma: list[float], columns: int, seed: int = 0) -> Tensor:
    u = torch.linalg.qr(normal(len(sigma), len(sigma), seed=seed))[0]
    v = torch.linalg.qr(normal(columns, len(sigma), seed=seed + 1))[0]
    return u @ torch.diag(torch.tensor(sigma, dtype=torch.float64)) @ v.T


def test_directions_are_included_as_often_as_in_enumerated_weighted_draws() -> None:
    sigma = [8.0, 3.0, 2.0, 0.5]
    wanted = [0.0] * 4
    for order in itertools.permutations(range(4), 2):
        chance, left = 1.0, sum(sigma)
        for i in order:
            chance *= sigma[i] / left
            left -= sigma[i]
        for i in order:
            wanted[i] += chance
    g = torch.Generator().manual_seed(0)
    for gradient in (with_spectrum(sigma, 6), with_spectrum(sigma, 6).T):
        drawn = torch.zeros(2000, 4)
        for row in drawn:
            ids = directions(gradient, draw_subspace(gradient, 2, generator=g))
            assert ids == sorted(ids)
            row[ids] = 1
        assert_unbiased(drawn, wanted)


def test_a_basis_is_orthonormal_and_the_top_choice_leads() -> None:
    gradient = normal(5, 9)
    basis = draw_subspace(gradient, 3, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(basis.T @ basis, torch.eye(3).double())
    assert directions(gradient, draw_subspace(gradient, 3, choice="top")) == [0, 1, 2]
    whole = draw_subspace(gradient, 5)
    assert torch.allclose(whole @ (whole.T @ gradient), gradient)
    assert draw_subspace(gradient.bfloat16(), 2).dtype == torch.float32
    nothing = draw_subspace(torch.zeros(4, 6), 2)
    assert torch.allclose(nothing.T @ nothing, torch.eye(2))
    flat = with_spectrum([1.0, 1.0, 0.0, 0.0], 6)
    assert torch.allclose((lambda p: p @ (p.T @ flat))(draw_subspace(flat, 3)), flat)


def run(optimizer: torch.optim.Optimizer, params: list[Tensor], steps: int, first: int = 0) -> None:
    for t in range(first, first + steps):
        for i, p in enumerate(params):
            p.grad = normal(*p.shape, seed=100 * t + i) + p.detach()
        optimizer.step()


def parameters() -> list[Tensor]:
    return [normal(4, 7).requires_grad_(), normal(6, 3, seed=1).requires_grad_(), normal(5).requires_grad_()]


def test_the_full_rank_reproduces_adam() -> None:
    a, b = parameters(), parameters()
    run(SubspaceAdam(a, 0.05, rank=4, every=2, weight_decay=0.1), a, 7)
    run(torch.optim.AdamW(b, 0.05, weight_decay=0.1), b, 7)
    for p, q in zip(a, b, strict=True):
        assert torch.allclose(p, q, atol=1e-12)


def test_steps_equal_the_plain_formula() -> None:
    for shape in ((4, 7), (7, 4)):
        p = normal(*shape).requires_grad_()
        w = p.detach().clone()
        optimizer = SubspaceAdam([p], 0.1, rank=2, every=3, scale=0.5, betas=(0.8, 0.9), choice="top")
        m: Any = 0.0
        v: Any = 0.0
        for t in range(7):
            p.grad = normal(*shape, seed=t + 5)
            g = p.grad if shape == (4, 7) else p.grad.T
            if t % 3 == 0:
                basis = torch.linalg.svd(g, full_matrices=False)[0][:, :2]
            r = basis.T @ g
            m, v = 0.8 * m + 0.2 * r, 0.9 * v + 0.1 * r**2
            move = basis @ ((m / (1 - 0.8 ** (t + 1))) / ((v / (1 - 0.9 ** (t + 1))).sqrt() + 1e-8))
            w = w - 0.1 * 0.5 * (move if shape == (4, 7) else move.T)
            optimizer.step()
        # The sign of a singular vector is free and cancels as long as it stays the same.
        assert torch.allclose(p, w, atol=1e-10)
        state = optimizer.state[p]
        assert state["exp_avg"].numel() == 14
        assert state["basis"].shape == (4, 2)


def test_a_run_that_is_saved_and_loaded_goes_on_as_if_nothing_had_been(tmp_path: Any) -> None:
    one = parameters()
    steady = SubspaceAdam(one, 0.05, rank=2, every=3, generator=torch.Generator().manual_seed(4))
    run(steady, one, 5)
    torch.save(steady.state_dict(), tmp_path / "state.pt")
    two = [p.detach().clone().requires_grad_() for p in one]
    loaded = SubspaceAdam(two, 0.9, rank=1)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt"))
    run(steady, one, 8, first=5)
    run(loaded, two, 8, first=5)
    for p, q in zip(one, two, strict=True):
        assert torch.equal(p, q)


def test_seeds_decide_the_directions_and_parameters_draw_their_own() -> None:
    def bases(seed: int) -> list[Tensor]:
        params = [normal(8, 9).requires_grad_() for _ in range(2)]
        optimizer = SubspaceAdam(params, rank=2, generator=torch.Generator().manual_seed(seed))
        for p in params:
            p.grad = normal(8, 9, seed=3)
        optimizer.step()
        return [optimizer.state[p]["basis"] for p in params]

    first, second = bases(0)
    assert torch.equal(first, bases(0)[0])
    assert float(subspace_overlap(first, second)) < 0.9
    assert float(subspace_overlap(first, bases(1)[0])) < 0.9


def test_successive_subspaces_overlap_less_than_leading_ones() -> None:
    overlaps = {}
    for choice in ("top", "sample"):
        p = torch.zeros(12, 20, dtype=torch.float64, requires_grad=True)
        optimizer = SubspaceAdam(
            [p], rank=4, every=1, choice=choice, generator=torch.Generator().manual_seed(5)
        )
        found, last = [], None
        steady = with_spectrum([2.0**-i * 10 for i in range(12)], 20)
        for t in range(40):
            p.grad = steady + 0.02 * normal(12, 20, seed=t)
            optimizer.step()
            if last is not None:
                found.append(float(subspace_overlap(last, optimizer.state[p]["basis"])))
            last = optimizer.state[p]["basis"]
        overlaps[choice] = sum(found) / len(found)
    assert overlaps["top"] > 0.99
    assert 4 / 12 < overlaps["sample"] < 0.85
    same = torch.linalg.qr(normal(6, 2))[0]
    assert float(subspace_overlap(same, same)) == pytest.approx(1.0)


def test_it_reaches_a_full_rank_target_that_one_frozen_subspace_misses() -> None:
    target = with_spectrum([3.0, 2.5, 2.0, 1.5, 1.0, 0.8], 8)
    left = {}
    for every in (5, 10_000):
        p = torch.zeros(6, 8, dtype=torch.float64, requires_grad=True)
        optimizer = SubspaceAdam([p], 0.05, rank=2, every=every, generator=torch.Generator().manual_seed(6))

        def closure(p: Tensor = p, optimizer: SubspaceAdam = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = (p - target).square().sum()
            loss.backward()
            return loss

        for _ in range(600):
            left[every] = float(optimizer.step(closure).detach())
    assert left[5] < 0.1
    assert left[10_000] > 1.0


def test_float32_models_train_and_are_copied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).bfloat16()
    optimizer = SubspaceAdam(model.parameters(), 1e-2, rank=2)
    model(torch.ones(4, 9).bfloat16()).square().sum().backward()
    optimizer.step()
    again = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(again)
    optimizer.step()
    assert all(bool(p.isfinite().all()) and p.dtype == torch.bfloat16 for p in model.parameters())


def test_bad_input_is_refused() -> None:
    for rank in (0, 4):
        with pytest.raises(ValueError, match="shorter side"):
            draw_subspace(normal(3, 5), rank)
    with pytest.raises(ValueError, match="finite"):
        draw_subspace(normal(3, 5) * math.nan, 2)
    with pytest.raises(ValueError, match="choice"):
        draw_subspace(normal(3, 5), 2, choice="best")  # type: ignore[arg-type]
    p = normal(3, 5).requires_grad_()
    for given, match in (
        ({"lr": 0.0}, "lr must be positive"),
        ({"rank": 0}, "at least 1"),
        ({"every": 0}, "at least 1"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"choice": "best"}, "choice"),
        ({"scale": math.nan}, "scale must be positive"),
    ):
        with pytest.raises(ValueError, match=match):
            SubspaceAdam([p], **given)  # type: ignore[arg-type]
    p.grad = torch.eye(3, 5).double().to_sparse()
    with pytest.raises(TypeError, match="dense gradients"):
        SubspaceAdam([p], rank=2).step()
