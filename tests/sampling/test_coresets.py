"""Coresets: probabilities as in plain loops, costs and losses without bias and within their bounds."""

import math

import numpy as np
import pytest
import torch

from steelyard.sampling.coresets import clustered_sensitivity, sensitivity_coreset
from steelyard.sampling.kmeans_plus_plus import kmeans_plus_plus
from tests.statistical import assert_unbiased


def clusters(n: int = 400, seed: int = 0) -> torch.Tensor:
    """Groups of very different size and width, and a stray far out."""
    g = torch.Generator().manual_seed(seed)
    sizes = [n - 100, 60, 39, 1]
    places, widths = [(0.0, 0.0), (9.0, 1.0), (-4.0, 8.0), (60.0, 60.0)], [1.0, 0.3, 2.0, 0.0]
    groups = [
        torch.tensor(p) + w * torch.randn(s, 2, generator=g)
        for s, p, w in zip(sizes, places, widths, strict=True)
    ]
    return torch.cat(groups).double()


def plain(x: torch.Tensor, centers: torch.Tensor, z: float, rule: str) -> list[float]:
    rows, c = x.tolist(), centers.tolist()
    label = [min(range(len(c)), key=lambda j: math.dist(r, c[j])) for r in rows]
    cost = [math.dist(r, c[j]) ** z for r, j in zip(rows, label, strict=True)]
    size, of = [label.count(j) for j in range(len(c))], [0.0] * len(c)
    for v, j in zip(cost, label, strict=True):
        of[j] += v
    k, total = sum(s > 0 for s in size), sum(cost)
    p = []
    for v, j in zip(cost, label, strict=True):
        even = 1 / (k * size[j])
        if rule == "classic":
            p.append((v / total + even) / 2)
        else:
            p.append((even + (v / (k * of[j]) if of[j] else even) + v / total + of[j] / size[j] / total) / 4)
    return p


@pytest.mark.parametrize("rule", ["stable", "classic"])
@pytest.mark.parametrize("z", [1.0, 2.0])
def test_probabilities_equal_a_plain_loop_and_sum_to_one(rule: str, z: float) -> None:
    x = clusters(130)
    centers = torch.cat([x[[0, 50, 110, 129]], torch.tensor([[500.0, 500.0]]).double()])  # one owns no row
    draws = sensitivity_coreset(x, centers, 7, z=z, rule=rule)  # type: ignore[arg-type]
    p = draws.log_expected_of(torch.arange(130)).exp() / 7
    torch.testing.assert_close(p, torch.tensor(plain(x, centers, z, rule), dtype=torch.float64))
    assert float(p.sum()) == pytest.approx(1)
    torch.testing.assert_close(draws.log_expected_of(draws.ids), draws.log_expected)
    assert draws.log_expected_of(torch.tensor([-1, 130])).tolist() == [-math.inf] * 2


@pytest.mark.parametrize("rule", ["stable", "classic"])
def test_the_cost_of_any_centres_is_unbiased_and_ever_closer(rule: str) -> None:
    x, g = clusters(), torch.Generator().manual_seed(1)
    centers = x[kmeans_plus_plus(x, 6, generator=g)]
    others = 12 * torch.randn(8, 5, 2, generator=g, dtype=torch.float64)  # sets of other centres
    cost = torch.stack([torch.cdist(x, c).square().amin(1) for c in others], 1)
    inclusion = sensitivity_coreset(x, centers, 1, rule=rule).log_expected_of(torch.arange(400)).exp()  # type: ignore[arg-type]
    assert bool((inclusion > 0).all())  # so that sum p (cost / p) is the cost: unbiased whatever the centres

    def errors(m: int, repeats: int) -> tuple[torch.Tensor, torch.Tensor]:
        ratios, sizes = [], []
        for _ in range(repeats):
            draws = sensitivity_coreset(x, centers, m, rule=rule, generator=g)  # type: ignore[arg-type]
            weight = (-draws.log_expected).exp()
            ratios.append(weight @ cost[draws.ids] / cost.sum(0))
            sizes.append(weight.sum() / 400)
        return torch.stack(ratios), torch.stack(sizes)

    few, sizes = errors(40, 600)
    assert_unbiased(few, 1.0)
    assert_unbiased(sizes, 1.0)
    assert float((sizes - 1).abs().mean()) < 0.25
    many, _ = errors(4000, 30)
    distortion = [float((r - 1).abs().amax(1).mean()) for r in (few, many)]
    assert distortion[1] < 0.2 * distortion[0]  # a hundred times the draws: a tenth
    uniform = torch.stack(
        [cost[torch.randint(400, (40,), generator=g)].mean(0) * 400 / cost.sum(0) for _ in range(600)]
    )
    assert distortion[0] < 0.6 * float((uniform - 1).abs().amax(1).mean())


def test_rows_on_their_centres_are_spread_over_clusters() -> None:
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    for rule in ("stable", "classic"):
        draws = sensitivity_coreset(x, torch.tensor([[0.0], [5.0]]), 1, rule=rule)  # type: ignore[arg-type]
        assert draws.log_expected_of(torch.arange(4)).exp().tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])


def holder(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Rows, their loss, centres, and the constant of the loss on these centres."""
    x = clusters(seed=seed)
    loss = 0.3 + (x[:, 0] / 3).sin().square() + (x[:, 1] - 8).clamp(min=0) / 5
    centers = kmeans_plus_plus(x, 12, generator=torch.Generator().manual_seed(3))
    far, label = torch.cdist(x, x[centers]).min(1)
    difference = (loss - loss[centers][label]).abs()
    return x, loss, centers, float((difference[far > 0] / far[far > 0] ** 2).max())


def test_losses_of_centres_choose_rows_whose_weighted_loss_is_right() -> None:
    x, loss, centers, lam = holder()
    g = torch.Generator().manual_seed(0)
    far, label = torch.cdist(x, x[centers]).min(1)
    score = [float(loss[centers][j]) + lam * float(f) ** 2 for j, f in zip(label, far, strict=True)]
    draws = clustered_sensitivity(x, x[centers], loss[centers], 50, lam=lam, generator=g)
    expected = torch.tensor(score, dtype=torch.float64) * 50 / sum(score)
    torch.testing.assert_close(draws.log_expected_of(torch.arange(400)).exp(), expected)
    for m in (25, 400):
        totals = []
        for _ in range(600):
            draws = clustered_sensitivity(x, x[centers], loss[centers], m, lam=lam, generator=g)
            totals.append(float((loss[draws.ids] / draws.log_expected.exp()).sum()))
        assert_unbiased(totals, float(loss.sum()))
        bound = (float(loss.sum()) + lam * float(far.square().sum())) / math.sqrt(m)
        assert np.std(totals) < bound


def test_choosing_by_clusters_beats_uniform_rows_on_clustered_data() -> None:
    x = clusters()
    loss = 0.01 + 100.0 * (x[:, 0] > 40) + 5.0 * ((x[:, 0] > 6) & (x[:, 0] < 12))  # small groups carry it
    g = torch.Generator().manual_seed(0)
    centers = kmeans_plus_plus(x, 12, generator=g)
    error: dict[str, list[float]] = {"clustered": [], "uniform": []}
    for _ in range(200):
        draws = clustered_sensitivity(x, x[centers], loss[centers], 30, lam=1e-3, generator=g)
        error["clustered"].append(float((loss[draws.ids] / draws.log_expected.exp()).sum() - loss.sum()))
        error["uniform"].append(float(loss[torch.randint(400, (30,), generator=g)].mean() * 400 - loss.sum()))
    assert np.std(error["clustered"]) < 0.3 * np.std(error["uniform"])


def test_types_far_origins_seeds_and_input() -> None:
    x = clusters(130)
    centers = x[[0, 50, 110, 129]]
    kept = x.clone()
    ids = torch.arange(130)
    wanted = sensitivity_coreset(x, centers, 9).log_expected_of(ids)
    for rows, c in ((x.float(), centers.float()), (x.numpy(), centers.numpy()), (x + 1e6, centers + 1e6)):
        torch.testing.assert_close(
            sensitivity_coreset(rows, c, 9).log_expected_of(ids), wanted, rtol=1e-4, atol=1e-4
        )
    answers = [
        sensitivity_coreset(x, centers, 9, generator=torch.Generator().manual_seed(1)).ids for _ in range(2)
    ]
    assert torch.equal(*answers)
    assert torch.equal(x, kept)
    one = clustered_sensitivity(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1), 3, lam=1.0)
    assert one.ids.tolist() == [0, 0, 0]
    never = clustered_sensitivity(
        torch.tensor([[0.0], [9.0]]), torch.tensor([[0.0], [9.0]]), [0.0, 2.0], 50, lam=0
    )
    assert set(never.ids.tolist()) == {1}


def test_bad_input_is_refused() -> None:
    x, c = torch.ones(4, 2), torch.zeros(2, 2)
    for rows, centers in (
        (torch.ones(4), c),
        (x, torch.zeros(2, 3)),
        (x, torch.zeros(0, 2)),
        (torch.ones(0, 2), c),
    ):
        with pytest.raises(ValueError, match="share d"):
            sensitivity_coreset(rows, centers, 3)
    with pytest.raises(ValueError, match="finite"):
        sensitivity_coreset(torch.full((4, 2), math.nan), c, 3)
    with pytest.raises(ValueError, match="m must be at least 1"):
        sensitivity_coreset(x, c, 0)
    with pytest.raises(ValueError, match="z must be positive"):
        sensitivity_coreset(x, c, 3, z=0)
    with pytest.raises(ValueError, match="'stable' or 'classic'"):
        sensitivity_coreset(x, c, 3, rule="old")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one for each centre"):
        clustered_sensitivity(x, c, torch.ones(3), 3, lam=1.0)
    for loss, lam in (
        (torch.tensor([1.0, -1.0]), 1.0),
        (torch.tensor([1.0, math.nan]), 1.0),
        (torch.ones(2), -1.0),
    ):
        with pytest.raises(ValueError, match="finite and not negative"):
            clustered_sensitivity(x, c, loss, 3, lam=lam)
    with pytest.raises(ValueError, match="Every score is 0"):
        clustered_sensitivity(x, c, torch.zeros(2), 3, lam=0.0)
