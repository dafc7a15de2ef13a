"""What every proposal that draws per query must keep: its draws follow its design, which sums to their number."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats

from steelyard.draws import Proposal
from steelyard.negatives.context import Context
from steelyard.negatives.mixture import Mixture
from steelyard.negatives.uniform import Uniform
from tests.statistical import assert_unbiased


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def again(context: Context, replications: int) -> Context:
    """The batch many times over: draws per query are independent, so each copy is a replication."""
    rows = torch.arange(len(context)).repeat(replications)
    return Context(context.positives[rows], None if context.known is None else context.known.take(rows))


def plain_law(made: Proposal, context: Context, n_items: int) -> torch.Tensor:
    """Expected counts of one draw of all items, (B, I), float64."""
    draws = made.sample(context, 1, generator=generator())
    return draws.log_expected_of(torch.arange(n_items)).double().exp()


def assert_design_is_kept(made: Proposal, context: Context, n_items: int, n: int = 20_000) -> None:
    """Frequencies equal expected counts, by chi-square at significance 1e-5 each query; draws say what their
    design answers; the design sums to the number of draws and gives nothing outside the catalogue.
    """
    draws = made.sample(context, n, generator=generator(1))
    assert draws.ids.shape == (len(context), n)
    expected = draws.log_expected_of(torch.arange(n_items)).double().exp()
    np.testing.assert_allclose(expected.sum(1), n, rtol=1e-5)
    for row, answer in zip(draws.ids, expected, strict=True):
        counts = torch.bincount(row, minlength=n_items)
        common = answer >= 5
        seen = torch.cat([counts[common], counts[~common].sum().view(1)]).double()
        wanted = torch.cat([answer[common], answer[~common].sum().view(1)])
        assert float(seen[wanted == 0].sum()) == 0
        seen, wanted = seen[wanted > 0], wanted[wanted > 0]
        if len(wanted) > 1:
            assert stats.chisquare(seen.numpy(), (wanted * n / wanted.sum()).numpy()).pvalue > 1e-5
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    outside = draws.log_expected_of(torch.tensor([-1, n_items, 2**40, -(2**40)]))
    assert bool((outside == -math.inf).all())
    twice = [made.sample(context, 7, generator=generator(5)).ids for _ in range(2)]
    assert torch.equal(*twice)
    nothing = made.sample(context, 0)
    assert nothing.ids.shape == (len(context), 0)
    assert bool((nothing.log_expected_of(torch.arange(n_items)) == -math.inf).all())
    assert made.sample(Context(torch.zeros(0, dtype=torch.int64)), 3).ids.shape == (0, 3)


def assert_sums_are_unbiased(made: Proposal, context: Context, score: torch.Tensor, n: int = 6) -> None:
    """Horvitz-Thompson sums over everything that a query is not known to want, alone and in a mixture with
    uniform draws, whose expected counts are the sum of both.
    """
    n_items = score.shape[1]
    truth = score.double().exp().masked_fill(context.mask(torch.arange(n_items)), 0).sum(1)
    many = again(context, 4000)
    for proposal in (made, Mixture([made, Uniform(n_items, per_query=True)], [2, 1])):
        draws = proposal.sample(many, n, generator=generator(2))
        log_weight = score.repeat(4000, 1).gather(1, draws.ids) - draws.log_expected
        weight = log_weight.double().exp().masked_fill(many.mask(draws.ids), 0)
        assert_unbiased(weight.sum(1).view(4000, -1), truth)
    merged = Mixture([made, Uniform(n_items)], [2, 1]).sample(context, 3 * n, generator=generator(2))
    both = merged.log_expected_of(torch.arange(n_items)).double().exp()
    np.testing.assert_allclose(both, plain_law(made, context, n_items) * 2 * n + n / n_items, rtol=1e-4)


def log_normalizer_variance(made: Proposal, context: Context, score: torch.Tensor, n: int) -> torch.Tensor:
    """Variance of logsumexp(score - log_expected), over 500 replications, (B,)."""
    draws = made.sample(again(context, 500), n, generator=generator(3))
    log_weight = score.repeat(500, 1).gather(1, draws.ids) - draws.log_expected
    return torch.logsumexp(log_weight, 1).view(500, -1).var(0)
