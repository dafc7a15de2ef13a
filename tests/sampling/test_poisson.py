"""Poisson sampling: independent coins whose probabilities have the wanted sum."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.sampling.poisson import look_up, pack, poisson, proportional_inclusion
from tests.sampling.drawing import included, seeded
from tests.statistical import assert_unbiased

INF = math.inf
LOG_P = torch.tensor([0.3, 2.0, -1.0, 3.5, 0.0, -INF], dtype=torch.float64)
R = 20_000


def capped(p: list[float], expected: float) -> list[float]:
    """Cap the largest, one at a time, until nobody is above 1."""
    sure: set[int] = set()
    while True:
        rest = sum(p[i] for i in range(len(p)) if i not in sure)
        c = (expected - len(sure)) / rest if rest else 0.0
        over = [i for i in range(len(p)) if i not in sure and c * p[i] > 1]
        if not over:
            return [1.0 if i in sure else c * p[i] for i in range(len(p))]
        sure.add(max(over, key=lambda i: p[i]))


@given(st.lists(st.floats(-6, 6), min_size=1, max_size=12), st.floats(0.01, 1))
def test_probabilities_are_proportional_and_capped_and_have_the_wanted_sum(
    log_p: list[float], share: float
) -> None:
    expected = share * len(log_p)
    pi = proportional_inclusion(torch.tensor(log_p, dtype=torch.float64), expected).exp()
    assert float(pi.sum()) == pytest.approx(expected, rel=1e-12)
    assert pi.tolist() == pytest.approx(capped([math.exp(x) for x in log_p], expected), rel=1e-9)


def test_a_head_that_outweighs_the_rest_by_any_factor_is_capped_exactly() -> None:
    log_p = torch.tensor([[0.0, -1000.0, 700.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    got = proportional_inclusion(log_p, 2)
    assert got[0].tolist() == pytest.approx([math.log(0.5), math.log(0.5) - 1000, 0, math.log(0.5)])
    assert got[1].exp().tolist() == pytest.approx([0.5] * 4)
    assert proportional_inclusion(LOG_P, 5).tolist() == [0, 0, 0, 0, 0, -INF]
    assert proportional_inclusion(LOG_P, 0).tolist() == [-INF] * 6
    pi = proportional_inclusion(2.0 * torch.arange(1000, dtype=torch.float64), 300.5)
    assert float(pi.exp().sum()) == pytest.approx(300.5)
    assert float(pi.max()) == 0


def test_frequencies_equal_the_design_and_candidates_are_independent() -> None:
    draws = poisson(LOG_P.expand(R, 6), 2.5, generator=seeded(0))
    seen, pi = included(draws, 6), proportional_inclusion(LOG_P, 2.5).exp()
    assert_unbiased(seen, pi)
    assert_unbiased(seen.sum(-1), 2.5)
    centred = seen - pi
    pairs = torch.triu_indices(6, 6, 1)
    assert_unbiased(centred[:, pairs[0]] * centred[:, pairs[1]], 0.0)
    torch.testing.assert_close(draws.log_expected_of(torch.arange(6)).exp(), pi.expand(R, 6))


def test_sizes_vary_and_short_rows_end_in_empty_slots() -> None:
    draws = poisson(torch.zeros(50, 8), 3.0, generator=seeded(1))
    drawn = draws.log_expected < INF
    sizes = drawn.sum(-1)
    assert sizes.max() == draws.ids.shape[-1] > sizes.min()
    assert bool((drawn == (torch.arange(drawn.shape[1]) < sizes.unsqueeze(-1))).all())
    assert bool((draws.ids[~drawn] == 0).all())
    one = poisson(torch.zeros(8), 3.0, generator=seeded(1))
    assert bool(one.log_expected.isfinite().all())
    assert poisson(torch.zeros(8), 0).ids.shape == (0,)


def test_the_certain_are_always_drawn_and_the_impossible_never() -> None:
    draws = poisson(torch.tensor([[50.0, 0.0, -INF, 0.0]]).expand(500, 4), 2.0, generator=seeded(2))
    seen = included(draws, 4)
    assert bool((seen[:, 0] == 1).all())
    assert bool((seen[:, 2] == 0).all())


def test_totals_are_unbiased() -> None:
    values = torch.tensor([1.0, -2, 3, 0.5, 4, 0], dtype=torch.float64)
    draws = poisson(LOG_P.expand(R, 6), 2.5, generator=seeded(3))
    assert_unbiased((values[draws.ids] * (-draws.log_expected).exp()).sum(-1), 6.5)


def test_dtypes_shapes_and_the_unchanged_input() -> None:
    log_p = LOG_P.float()
    draws = poisson(log_p, 2.5, generator=seeded(4))
    assert draws.log_expected.dtype == torch.float32
    assert log_p.tolist() == LOG_P.float().tolist()
    assert proportional_inclusion(LOG_P.bfloat16(), 2).dtype == torch.float32
    assert poisson(torch.zeros(2, 3, 7), 2, generator=seeded(5)).ids.shape[:2] == (2, 3)
    assert poisson(torch.zeros(0, 7), 2).ids.shape == (0, 0)
    assert poisson([0.0, 0.0], 1).log_expected.dtype == torch.float32  # type: ignore[arg-type]


def test_bad_input_is_refused() -> None:
    for expected in (-0.1, 5.1, math.nan, INF):
        with pytest.raises(ValueError, match="between 0 and the number"):
            poisson(LOG_P, expected)
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match=r"NaN or \+inf"):
            poisson(torch.tensor([0.0, bad]), 1)
    with pytest.raises(TypeError, match="floating"):
        poisson(torch.tensor([1, 2]), 1)


def test_a_table_answers_for_any_ids_and_shapes() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    asked = torch.tensor([1, -1, 2, 0])
    assert look_up(table, asked, -INF).tolist() == [[2, -INF, -INF, 1], [4, -INF, -INF, 3]]
    assert look_up(table[0], asked.expand(3, 4), 0.0).tolist() == [[2, 0, 0, 1]] * 3
    assert look_up(table[0, :0], asked, -INF).tolist() == [-INF] * 4
    packed = pack(torch.tensor([[False, True], [True, True]]), table)
    assert packed.ids.tolist() == [[1, 0], [0, 1]]
    assert packed.log_expected.tolist() == [[2, INF], [3, 4]]
