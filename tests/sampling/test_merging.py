"""Any two designs live in one estimate: their expected counts add up, thresholds and all."""

import math
from collections.abc import Callable
from itertools import combinations_with_replacement

import pytest
import torch

from steelyard import Draws
from steelyard.sampling import (
    AliasTable,
    Reservoir,
    conditional_poisson,
    pivotal,
    poisson,
    proportional_inclusion,
    resample,
    systematic,
    without_replacement,
)
from tests.statistical import assert_unbiased

RUNS, N = 4000, 9
LOG_P = torch.tensor([2.0, -1.0, 0.3, 1.1, -2.5, 0.0, 3.0, -0.7, 0.6], dtype=torch.float64)
SCORE = torch.tensor([1.5, 3.0, -1.0, 0.2, 2.5, -3.0, 0.1, 1.0, -0.4], dtype=torch.float64)
INCLUSION = proportional_inclusion(LOG_P, 3.4).exp()  # a sum between two whole numbers


def certain(g: torch.Generator) -> Draws:  # noqa: ARG001
    taken = torch.tensor([6, 1]).expand(RUNS, 2)
    zero, never = torch.zeros((), dtype=torch.float64), torch.tensor(-math.inf, dtype=torch.float64)
    return Draws(taken, zero, lambda ids: torch.where((ids == 6) | (ids == 1), zero, never))


def reservoirs(g: torch.Generator) -> Draws:
    seeds = torch.randint(2**60, (RUNS,), generator=g).tolist()
    draws = []
    for seed in seeds:
        reservoir = Reservoir(3, seed)
        reservoir.add(torch.arange(N), LOG_P)
        draws.append(reservoir.draws(lambda ids: LOG_P[ids]))
    ids = torch.stack([d.ids for d in draws])
    log_expected = torch.stack([d.log_expected for d in draws])

    def design(asked: torch.Tensor) -> torch.Tensor:
        rows = asked.expand(RUNS, asked.shape[-1])
        return torch.stack([d.log_expected_of(row) for d, row in zip(draws, rows, strict=True)])

    return Draws(ids, log_expected, design)


DESIGNS: dict[str, Callable[[torch.Generator], Draws]] = {
    "certain": certain,
    "alias": lambda g: AliasTable(LOG_P.exp()).draws((RUNS, 3), generator=g),
    "multinomial": lambda g: resample(LOG_P.expand(RUNS, N), 3, scheme="multinomial", generator=g),
    "resampled": lambda g: resample(LOG_P.expand(RUNS, N), 4, scheme="systematic", generator=g),
    "ssp": lambda g: resample(LOG_P.expand(RUNS, N), 4, scheme="ssp", generator=g),
    "successive": lambda g: without_replacement(LOG_P.expand(RUNS, N), 3, generator=g),
    "poisson": lambda g: poisson(LOG_P.expand(RUNS, N), 3.4, generator=g),
    "conditional poisson": lambda g: conditional_poisson(LOG_P.expand(RUNS, N), 3, generator=g),
    "pivotal": lambda g: pivotal(INCLUSION.expand(RUNS, N), generator=g),
    "systematic": lambda g: systematic(INCLUSION.expand(RUNS, N), order="random", generator=g),
    "reservoir": reservoirs,
}


@pytest.mark.parametrize(("one", "other"), list(combinations_with_replacement(DESIGNS, 2)))
def test_a_merge_of_any_two_designs_is_unbiased(one: str, other: str) -> None:
    g = torch.Generator().manual_seed(list(DESIGNS).index(one) * 10 + list(DESIGNS).index(other))
    merged = Draws.merge([DESIGNS[one](g), DESIGNS[other](g)])
    estimate = merged.weigh(SCORE[merged.ids]).log_normalizer
    total = float(SCORE.exp().sum())
    if one == other == "certain":  # the two that are always taken, and nothing else
        total = float(SCORE[[6, 1]].exp().sum())
    assert_unbiased(estimate.exp(), total)


def test_one_threshold_for_all_would_be_biased_in_a_merge() -> None:
    g = torch.Generator().manual_seed(5)
    draws = DESIGNS["successive"](g)
    right = draws.design
    # The mistake: ask every candidate against the (k+1)-th key, under which the drawn ones were kept.
    threshold = LOG_P[draws.ids] - torch.log(-torch.log1p(-draws.log_expected.exp()))

    def wrong(asked: torch.Tensor) -> torch.Tensor:
        rows = asked.expand(RUNS, asked.shape[-1])
        return torch.log(-torch.expm1(-torch.exp(LOG_P[rows] - threshold[:, :1])))

    everything = torch.arange(N).expand(RUNS, N)
    inside = (everything.unsqueeze(-1) == draws.ids.unsqueeze(1)).any(-1)
    torch.testing.assert_close(wrong(everything)[inside], right(everything)[inside], rtol=1e-6, atol=1e-9)
    for design in (right, wrong):
        merged = Draws.merge([Draws(draws.ids, draws.log_expected, design), certain(g)])
        held = torch.where((merged.ids == 1) | (merged.ids == 6), SCORE[merged.ids], -math.inf)
        estimate, total = torch.exp(held - merged.log_expected).sum(-1), float(SCORE[[1, 6]].exp().sum())
        if design is right:
            assert_unbiased(estimate, total)
        else:
            with pytest.raises(AssertionError, match="standard errors"):
                assert_unbiased(estimate, total)
