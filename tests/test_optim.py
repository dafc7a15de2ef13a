"""Row-sparse optimisers: right rows, right clocks."""

import pytest
import torch

from steelyard.optim import RowAdagrad, RowAdam, _gather_rows


def sparse(rows: list[int], values: torch.Tensor, n: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (n, values.shape[1]), check_invariants=True)


def test_entries_are_gathered_by_row_in_the_order_they_came() -> None:
    rows, starts, order = _gather_rows(sparse([4, 1, 4, 0], torch.randn(4, 2), 5))
    assert rows.tolist() == [0, 1, 4]
    assert starts.tolist() == [0, 1, 2, 4]
    assert order.tolist() == [3, 1, 0, 2]


def naive_adagrad(w: torch.Tensor, grads: list[torch.Tensor], lr: float, eps: float) -> torch.Tensor:
    w, total = w.clone(), torch.zeros(len(w), dtype=w.dtype)
    for g in grads:
        for r in range(len(w)):
            total[r] += sum(float(x) ** 2 for x in g[r]) / w.shape[1]
            if bool((g[r] != 0).any()):
                w[r] -= lr * g[r] / (total[r].sqrt() + eps)
    return w


def test_adagrad_equals_a_loop_over_all_rows() -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(6, 3, generator=g, dtype=torch.float64)
    p = torch.nn.Parameter(w.clone())
    optimizer = RowAdagrad([p], lr=0.3)
    grads = []
    for rows in ([0, 2, 2], [5], [2, 5, 1]):
        values = torch.randn(len(rows), 3, generator=g, dtype=torch.float64)
        p.grad = sparse(rows, values, 6)
        grads.append(p.grad.to_dense())
        optimizer.step()
    torch.testing.assert_close(p.data, naive_adagrad(w, grads, 0.3, 1e-8))


def test_adam_with_one_column_equals_dense_adam_without_momentum_however_rarely_a_row_is_touched() -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(4, 1, generator=g, dtype=torch.float64)
    ours, theirs = torch.nn.Parameter(w.clone()), torch.nn.Parameter(w.clone())
    a, b = RowAdam([ours], lr=0.1, beta2=0.9), torch.optim.Adam([theirs], lr=0.1, betas=(0.0, 0.9))
    for step in range(40):
        rows = [row for row in range(4) if step % (1 + 6 * row) == row]
        ours.grad = sparse(rows, torch.randn(len(rows), 1, generator=g, dtype=torch.float64), 4)
        theirs.grad = ours.grad.to_dense()
        a.step()
        b.step()
    assert not torch.equal(ours.data, w)
    torch.testing.assert_close(ours.data, theirs.data, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta2", [0.95, 0.0])
def test_adam_equals_a_loop_over_all_rows_with_the_mean_square_of_each(beta2: float) -> None:
    g = torch.Generator().manual_seed(3)
    lr, eps = 0.2, 1e-3
    w = torch.randn(5, 3, generator=g, dtype=torch.float64)
    p = torch.nn.Parameter(w.clone())
    optimizer = RowAdam([p], lr=lr, beta2=beta2, eps=eps)
    second = [0.0] * 5
    for t, rows in enumerate(([0, 2, 2], [4], [2, 4, 1], [0, 1]), start=1):
        values = torch.randn(len(rows), 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 5, 0.1])
        p.grad = sparse(rows, values, 5)
        grad = p.grad.to_dense()
        optimizer.step()
        for r in range(5):
            second[r] = beta2 * second[r] + (1 - beta2) * sum(float(x) ** 2 for x in grad[r]) / 3
            w[r] -= lr * grad[r] / ((second[r] / (1 - beta2**t)) ** 0.5 + eps)
    torch.testing.assert_close(p.data, w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [RowAdagrad, RowAdam])
def test_rows_without_gradient_do_not_move(kind: type) -> None:
    p = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = kind([p], lr=0.5)
    for row in (0, 0, 2):
        p.grad = sparse([row], torch.ones(1, 2), 3)
        optimizer.step()
    assert p[1].tolist() == [1, 1]
    assert not bool((p[0] == 1).any())


@pytest.mark.parametrize("kind", [RowAdagrad, RowAdam])
def test_state_goes_through_a_state_dict(kind: type) -> None:
    results = []
    for reload in (False, True):
        p = torch.nn.Parameter(torch.ones(3, 2))
        optimizer = kind([p], lr=0.5)
        for row in (0, 2, 0):
            p.grad = sparse([row], torch.full((1, 2), 3.0), 3)
            optimizer.step()
            if reload:
                state = optimizer.state_dict()
                optimizer = kind([p], lr=0.5)
                optimizer.load_state_dict(state)
        results.append(p.detach().clone())
    assert torch.equal(*results)


def test_dense_gradients_and_bad_settings_are_refused() -> None:
    p = torch.nn.Parameter(torch.ones(3, 2))
    p.grad = torch.ones(3, 2)
    with pytest.raises(TypeError, match="sparse=True"):
        RowAdagrad([p]).step()
    half = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))
    half.grad = sparse([1], torch.ones(1, 2, dtype=torch.bfloat16), 3)
    with pytest.raises(TypeError, match="float32 or float64"):
        RowAdam([half]).step()
    with pytest.raises(ValueError, match="lr"):
        RowAdagrad([p], lr=0)
    with pytest.raises(ValueError, match="beta2"):
        RowAdam([p], beta2=1.0)
