"""Imputation by draws from the nearest complete cases, and Rubin's rules."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steelyard.draws import Estimate
from steelyard.sampling.imputation import knn_sampler, pool_imputations
from tests.statistical import assert_coverage, assert_unbiased


def cases(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, missing = (torch.rand(n, 2, generator=g, dtype=torch.float64) for n in (30, 4))
    return x, (4 * x[:, 0]).exp(), missing


def neighbours(x: Tensor, q: Tensor, k: int) -> list[int]:
    return sorted(range(len(x)), key=lambda j: math.dist(x[j].tolist(), q.tolist()))[:k]


def test_the_mean_over_draws_is_the_mean_of_the_nearest_and_every_one_of_them_is_drawn() -> None:
    x, y, missing = cases()
    drawn = knn_sampler(x, y, missing, 5, imputations=4000, generator=torch.Generator().manual_seed(0))
    near = [neighbours(x, q, 5) for q in missing]
    assert_unbiased(drawn, [float(y[ids].mean()) for ids in near])
    for column, ids in zip(drawn.T, near, strict=True):
        assert set(column.tolist()) == set(y[ids].tolist())


def test_all_cases_as_neighbours_resample_the_responses() -> None:
    x, _, missing = cases()
    labels = torch.arange(30)
    drawn = knn_sampler(x, labels, missing, 30, imputations=3000, generator=torch.Generator().manual_seed(1))
    assert drawn.dtype == torch.int64
    assert_unbiased((drawn.unsqueeze(-1) == labels).double(), 1 / 30)


def test_cases_and_imputations_are_drawn_independently() -> None:
    x, y, _ = cases()
    same = torch.zeros(2, 2, dtype=torch.float64)
    drawn = knn_sampler(x, y, same, 2, imputations=4000, generator=torch.Generator().manual_seed(2))
    assert_unbiased((drawn[:, 0] == drawn[:, 1]).double(), 0.5)
    assert_unbiased((drawn[::2] == drawn[1::2]).double(), 0.5)


def energy_distance(a: Tensor, b: Tensor) -> float:
    def apart(u: Tensor, v: Tensor) -> float:
        return float((u.unsqueeze(1) - v).abs().mean())

    return 2 * apart(a, b) - apart(a, a) - apart(b, b)


def test_a_bimodal_response_is_recovered_where_the_mean_of_neighbours_fails() -> None:
    g = torch.Generator().manual_seed(3)

    def response(x: Tensor) -> Tensor:
        side = (torch.rand(len(x), generator=g) < 0.3).double() * 2 - 1
        return x[:, 0] + 3 * side + 0.2 * torch.randn(len(x), generator=g, dtype=torch.float64)

    x, missing = (torch.rand(800, 1, generator=g, dtype=torch.float64) for _ in range(2))
    y, truth = response(x), response(missing)
    filled = knn_sampler(x, y, missing, 20, generator=g)[0]
    mean = torch.cat([y[neighbours(x, q, 20)].mean().view(1) for q in missing[:200]])
    assert energy_distance(filled, truth) < 0.05
    assert energy_distance(mean, truth) > 0.5


def test_pooling_equals_rubins_rules_and_its_limits() -> None:
    values, variances = [2.0, 3.0, 7.0], [0.5, 1.0, 0.3]
    w, b = 0.6, (4 + 1 + 9) / 2
    est = pool_imputations(values, variances)
    assert est.value == pytest.approx(4.0)
    assert est.stderr == pytest.approx(math.sqrt(w + 4 / 3 * b))
    assert est.ess == pytest.approx(1 + 2 * (1 + w / (4 / 3 * b)) ** 2)
    nothing_else = pool_imputations(values, [0.0] * 3)
    assert nothing_else.ess == pytest.approx(3.0)
    assert nothing_else.stderr == pytest.approx(Estimate.from_replicates(torch.tensor(values)).stderr * 2.0)
    nothing_missing = pool_imputations([[1.0, 5.0]] * 4, [[0.2, 0.0]] * 4)
    assert torch.equal(torch.as_tensor(nothing_missing.ess), torch.full((2,), math.inf, dtype=torch.float64))
    assert torch.allclose(torch.as_tensor(nothing_missing.stderr) ** 2, torch.tensor([0.2, 0.0]).double())


def test_pooled_intervals_cover_where_complete_cases_are_biased() -> None:
    g, hits, naive = torch.Generator().manual_seed(4), [], []
    for _ in range(400):
        x = torch.rand(300, 1, generator=g, dtype=torch.float64)
        y = 2 * x[:, 0] + torch.randn(300, generator=g, dtype=torch.float64)
        gone = torch.rand(300, generator=g) < 0.5 * x[:, 0]  # the larger x, the likelier: a quarter in all
        filled = knn_sampler(x[~gone], y[~gone], x[gone], 10, imputations=10, generator=g)
        whole = torch.cat([y[~gone].expand(10, -1), filled], 1)
        low, high = pool_imputations(whole.mean(1), whole.var(1) / 300).interval()
        hits.append(bool(low <= 1.0 <= high))
        naive.append(float(y[~gone].mean()))
    assert_coverage(hits, 0.95, band=0.03)
    assert np.mean(naive) < 0.92


def test_rows_of_responses_stay_together_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, missing = cases()
    rows = torch.arange(60).view(30, 2)
    whole = knn_sampler(x.float(), rows, missing.float(), 4, imputations=3, generator=torch.Generator())
    assert whole.shape == (3, 4, 2)
    assert torch.equal(whole[..., 0] + 1, whole[..., 1])
    monkeypatch.setattr("steelyard.sampling.imputation._BLOCK", 3)
    assert torch.equal(knn_sampler(x, rows, missing, 4, imputations=3, generator=torch.Generator()), whole)
    assert knn_sampler(x.numpy(), rows.numpy(), missing[:0].numpy(), 4).shape == (1, 0, 2)


def test_bad_input_is_refused() -> None:
    x, y, missing = cases()
    for k, imputations in ((0, 1), (31, 1), (2, 0)):
        with pytest.raises(ValueError, match="k from 1 to the 30"):
            knn_sampler(x, y, missing, k, imputations=imputations)
    with pytest.raises(ValueError, match="must be finite"):
        knn_sampler(x, y, missing * math.nan, 2)
    with pytest.raises(ValueError, match=r"\(n, d\) and \(m, d\)"):
        knn_sampler(x, y, missing[:, :1], 2)
    with pytest.raises(ValueError, match="one response a case"):
        knn_sampler(x, y[:3], missing, 2)
    with pytest.raises(ValueError, match="at least two"):
        pool_imputations([1.0], [1.0])
    with pytest.raises(ValueError, match="as many variances"):
        pool_imputations([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="negative or NaN"):
        pool_imputations([1.0, 2.0], [1.0, -1.0])
