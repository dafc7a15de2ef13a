"""Projection DPPs and volume-rescaled sampling: laws by enumeration, and a fit without bias."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from steelyard.sampling.leverage import leverage_scores, orthonormal_basis, weighted_least_squares
from steelyard.sampling.volume import projection_dpp, volume_sampling
from tests.statistical import assert_unbiased


def skewed(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64) ** 3


def dpp_law(a: torch.Tensor) -> dict[tuple[int, ...], float]:
    """det(A_S)^2 / det(A^T A) for every set of as many rows as columns."""
    n, d = a.shape
    whole = float(torch.linalg.det(a.T @ a))
    sets = itertools.combinations(range(n), d)
    return {s: float(torch.linalg.det(a[list(s)])) ** 2 / whole for s in sets}


def volume_law(a: torch.Tensor, m: int) -> dict[tuple[int, ...], float]:
    """det(sum w v v^T) prod |v|^2 for every sequence of m rows, w = 1 / |v|^2, up to its sum."""
    v = orthonormal_basis(a)
    lev = leverage_scores(a)
    law = {}
    for ids in itertools.product(range(len(a)), repeat=m):
        rows = v[list(ids)] / lev[list(ids)].sqrt()[:, None]
        law[ids] = float(torch.linalg.det(rows.T @ rows) * lev[list(ids)].prod())
    total = sum(law.values())
    return {ids: p / total for ids, p in law.items()}


def p_value(found: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square with rare outcomes taken together."""
    expected = {s: p * len(found) for s, p in law.items()}
    common = [s for s, e in expected.items() if e >= 5]
    counts = [found.count(s) for s in common]
    means = [expected[s] for s in common]
    if len(found) - sum(means) > 1e-9:
        counts.append(len(found) - sum(counts))
        means.append(len(found) - sum(means))
    if len(counts) == 1:
        return float(counts[0] == len(found))
    return float(stats.chisquare(counts, np.array(means) * len(found) / sum(means)).pvalue)


def test_sets_come_with_their_squared_volume() -> None:
    g = torch.Generator().manual_seed(0)
    for n, d in ((6, 3), (5, 2), (4, 4), (3, 1)):
        a = skewed(n, d)
        law = dpp_law(a)
        assert sum(law.values()) == pytest.approx(1)
        inclusion = [sum(p for s, p in law.items() if i in s) for i in range(n)]
        found = [projection_dpp(a, generator=g) for _ in range(1000)]
        assert p_value([tuple(draws.ids.tolist()) for draws in found], law) > 1e-4
        asked = found[0].log_expected_of(torch.arange(n)).exp()
        torch.testing.assert_close(asked, torch.tensor(inclusion, dtype=torch.float64))


def test_sequences_follow_the_volume_rescaled_law_and_its_expected_counts() -> None:
    a, m = skewed(4, 2), 3
    law = volume_law(a, m)
    g = torch.Generator().manual_seed(0)
    found = [volume_sampling(a, m, generator=g) for _ in range(2500)]
    assert p_value([tuple(draws.ids.tolist()) for draws in found], law) > 1e-4
    counts = [sum(p * ids.count(i) for ids, p in law.items()) for i in range(4)]
    torch.testing.assert_close(
        found[0].log_expected_of(torch.arange(4)).exp(), torch.tensor(counts, dtype=torch.float64)
    )
    independent = {ids: math.prod(counts[i] / m for i in ids) for ids in law}
    assert p_value([tuple(draws.ids.tolist()) for draws in found], independent) < 1e-4


def test_the_weighted_fit_has_the_exact_projection_as_its_mean() -> None:
    a = skewed(5, 2)
    y = torch.tensor([1.0, -2.0, 5.0, 0.5, 3.0]).double()
    exact = torch.linalg.lstsq(a, y[:, None]).solution[:, 0]
    for m in (2, 3, 4):
        log_expected = (leverage_scores(a) * m / 2).log()
        law = volume_law(a, m)
        fits = {
            ids: weighted_least_squares(a[list(ids)], y[list(ids)], log_expected[list(ids)]) for ids in law
        }
        mean = sum(p * fits[ids] for ids, p in law.items())
        torch.testing.assert_close(mean, exact)
        independent = [math.prod(float(leverage_scores(a)[i]) / 2 for i in ids) for ids in law]
        biased = sum(p * fits[ids] for p, ids in zip(independent, law, strict=True))
        assert float((biased - exact).abs().max()) > 1e-2


def test_drawn_fits_are_unbiased_and_targets_in_the_span_come_back_exactly() -> None:
    a = torch.cat([skewed(200, 4), torch.zeros(1, 4)])
    a = torch.cat([a, a[:, :1] + a[:, 1:2]], 1)  # rank 4
    y = a[:, 0].abs() + 1
    g = torch.Generator().manual_seed(0)
    exact = a @ torch.linalg.lstsq(a, y[:, None], driver="gelsd").solution[:, 0]
    truth = a @ torch.tensor([1.0, -2, 3, 4, 0]).double()
    fits = []
    for _ in range(400):
        draws = volume_sampling(a, 12, generator=g)
        rows = a[draws.ids]
        fits.append((a @ weighted_least_squares(rows, y[draws.ids], draws.log_expected))[:5])
        assert 200 not in draws.ids
        again = a @ weighted_least_squares(rows, truth[draws.ids], draws.log_expected)
        torch.testing.assert_close(again, truth, rtol=1e-6, atol=1e-6)
    assert_unbiased(torch.stack(fits), exact[:5])
    assert draws.log_expected_of(torch.tensor([-1, 200, 201])).tolist() == [-math.inf] * 3


def test_as_many_draws_as_the_rank_are_a_determinantal_process_in_random_order() -> None:
    a, g = skewed(5, 2), torch.Generator().manual_seed(0)
    found = [tuple(volume_sampling(a, 2, generator=g).ids.tolist()) for _ in range(1500)]
    law = {order: p / 2 for s, p in dpp_law(a).items() for order in (s, s[::-1])}
    assert p_value(found, law) > 1e-4


def test_many_columns_one_row_types_and_seeds() -> None:
    wide = skewed(300, 60)
    for draws in (projection_dpp(wide), volume_sampling(wide.float(), 60)):
        assert len(set(draws.ids.tolist())) == 60
        assert np.linalg.matrix_rank(wide[draws.ids].numpy()) == 60
    assert projection_dpp(torch.ones(1, 3)).ids.tolist() == [0]
    assert volume_sampling(torch.ones(1, 3), 4).ids.tolist() == [0] * 4
    for function in (projection_dpp, lambda a, generator: volume_sampling(a, 70, generator=generator)):
        answers = [function(wide.numpy(), generator=torch.Generator().manual_seed(2)).ids for _ in range(2)]
        assert torch.equal(*answers)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least the rank of a, 3"):
        volume_sampling(skewed(9, 3), 2)
    for function in (projection_dpp, lambda a: volume_sampling(a, 3)):
        with pytest.raises(ValueError, match="rank 0"):
            function(torch.zeros(4, 2))
        with pytest.raises(ValueError, match=r"\(n, d\)"):
            function(torch.zeros(4))
        with pytest.raises(ValueError, match="finite"):
            function(torch.tensor([[1.0], [math.inf]]))
