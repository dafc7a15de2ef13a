"""Lloyd's iterations lower the cost, end at a fixed point, and leave no cluster empty."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.negatives import lloyd as module
from steelyard.negatives.lloyd import lloyd
from tests.negatives.laws import generator


def blobs(n: int, k: int, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(3)
    label = torch.randint(k, (n,), generator=g)
    return torch.randn(k, 4, generator=g)[label] * 5 + torch.randn(n, 4, generator=g) * spread, label


def cost(x: torch.Tensor, centroids: torch.Tensor, assignment: torch.Tensor) -> float:
    return float((x.double() - centroids.double()[assignment]).square().sum())


def test_planted_groups_are_found() -> None:
    x, label = blobs(400, 6)
    centroids, assignment = lloyd(x, 6, generator=generator())
    assert len(set(zip(label.tolist(), assignment.tolist(), strict=True))) == 6
    for c in range(6):
        np.testing.assert_allclose(centroids[c], x[assignment == c].mean(0), atol=1e-4)


def test_it_ends_at_a_fixed_point_of_the_plain_iteration() -> None:
    x = torch.randn(200, 3, generator=generator(1), dtype=torch.float64)
    costs = [cost(x, *lloyd(x, 7, iterations=i, generator=generator(2))) for i in (0, 1, 3, 100)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]
    centroids, assignment = lloyd(x, 7, iterations=100, generator=generator(2))
    nearest = torch.cdist(x, centroids).argmin(1)
    assert torch.equal(nearest, assignment)
    for c in range(7):
        np.testing.assert_allclose(centroids[c], x[assignment == c].mean(0), atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_no_cluster_is_empty_where_there_are_rows_for_all(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    value = st.sampled_from([0.0, 1.0, 1e-3, 50.0])
    x = torch.tensor(data.draw(st.lists(st.lists(value, min_size=2, max_size=2), min_size=n, max_size=n)))
    k = data.draw(st.integers(1, n))
    centroids, assignment = lloyd(
        x, k, iterations=data.draw(st.integers(0, 4)), generator=generator(data.draw(st.integers(0, 9)))
    )
    distinct = len(torch.unique(x, dim=0))
    assert centroids.shape == (k, 2)
    assert len(assignment.unique()) == min(k, distinct)
    # Nearest up to the rounding of float32 norms.
    mine = (x - centroids[assignment]).square().sum(1)
    best = (x.unsqueeze(1) - centroids).square().sum(2).amin(1)
    assert bool((mine <= best + 1e-6 * x.square().sum(1).max()).all())


def test_an_emptied_cluster_takes_the_farthest_row() -> None:
    x = torch.tensor([[0.0], [0.1], [10.0], [10.2], [30.0]])
    assignment, distance = torch.tensor([0, 0, 0, 0, 0]), x.square().sum(1)
    got, moved = module._fill(x, assignment, distance, torch.zeros(3, 1))
    assert got.tolist() == [0, 0, 0, 2, 1]
    assert moved.tolist() == [4, 3]


def test_a_cluster_without_rows_at_the_end_is_moved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kmeans_plus_plus", lambda *_, **__: torch.tensor([1, 1, 1]))
    centroids, assignment = lloyd([[0.0], [1.0], [10.0], [10.0], [40.0]], 3, iterations=0)
    assert assignment.tolist() == [0, 0, 2, 2, 1]
    np.testing.assert_allclose(centroids.flatten(), [1, 40, 10])


def test_a_common_offset_does_not_cost_the_distances_their_digits() -> None:
    x, _ = blobs(300, 5)
    plain = lloyd(x.double(), 5, generator=generator())[1]
    far = lloyd((x.double() + 1e5).float(), 5, generator=generator())[1]
    assert len(set(zip(plain.tolist(), far.tolist(), strict=True))) == 5


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = blobs(101, 4, 2.0)
    whole = lloyd(x, 5, generator=generator())
    monkeypatch.setattr(module, "CHUNK", 35)
    part = lloyd(x, 5, generator=generator())
    assert torch.equal(whole[1], part[1])
    torch.testing.assert_close(whole[0], part[0])


def test_one_row_each_type_and_bad_input() -> None:
    centroids, assignment = lloyd([[2.0, 3.0]], 1)
    assert centroids.tolist() == [[2, 3]]
    assert assignment.tolist() == [0]
    assert lloyd(np.eye(3), 2)[0].dtype == torch.float64
    assert lloyd(torch.eye(3, dtype=torch.bfloat16), 2)[0].dtype == torch.float32
    assert lloyd(torch.eye(3, dtype=torch.int64), 3)[0].sum() == 3
    for k in (0, 4):
        with pytest.raises(ValueError, match="between 1 and the 3 rows"):
            lloyd(torch.eye(3), k)
    with pytest.raises(ValueError, match="row 1 is not"):
        lloyd([[0.0], [math.nan]], 1)
    with pytest.raises(ValueError, match="one vector a row"):
        lloyd(torch.zeros(3), 1)
    with pytest.raises(ValueError, match="negative"):
        lloyd(torch.eye(3), 2, iterations=-1)
    with pytest.raises(TypeError, match="real"):
        lloyd(torch.eye(3) * 1j, 2)
    with pytest.raises(TypeError):
        lloyd(torch.eye(3), 2.0)  # type: ignore[arg-type]
