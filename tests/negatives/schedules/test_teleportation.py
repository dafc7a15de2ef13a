"""Negatives of this round, the last and the next: the mixture is as stated, and pools change more slowly."""

import itertools
import math

import pytest
import torch

from steelyard.negatives.context import Context
from steelyard.negatives.schedules.refreshed import pool_overlap
from steelyard.negatives.schedules.teleportation import TeleNegatives
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_without_carry_over_and_lookahead_it_is_uniform_over_the_query_s_neighbours() -> None:
    schedule = TeleNegatives(momentum=0, lookahead=0)
    context = Context(torch.full((6000,), 2), Ragged.from_pairs(torch.tensor([0]), torch.tensor([2]), 6000))
    top, other = torch.tensor([[0, 2, 5, 6]]).repeat(6000, 1), torch.tensor([[1, 7]]).repeat(6000, 1)
    for _ in range(2):  # the second round has something it could carry over
        draws = schedule.refresh(top, other, context, 2, generator=generator(len(top)))
        counts = torch.zeros(6000, 8).scatter_add(1, draws.ids, torch.ones(6000, 2))
        assert_unbiased(counts, [2 / 3, 0, 0, 0, 0, 2 / 3, 2 / 3, 0])


def test_the_first_draw_follows_the_mixture_of_the_three_sources() -> None:
    schedule = TeleNegatives(momentum=0.5, lookahead=0.25)
    n = 12000
    context = Context(torch.full((n,), 2))
    schedule.carried = torch.tensor([[5, 4, -1]]).repeat(n, 1)
    draws = schedule.refresh(
        torch.tensor([[0, 2, 5, 6]]).repeat(n, 1),
        torch.tensor([[6, 7]]).repeat(n, 1),
        context,
        1,
        generator=generator(),
    )
    third = 1 / 3
    want = (
        torch.tensor([third, 0, 0, 0, 0.25, third + 0.25, third + 0.125, 0.125], dtype=torch.float64) / 1.75
    )
    counts = torch.zeros(n, 8).scatter_add(1, draws.ids, torch.ones(n, 1))
    assert_unbiased(counts, want)


def test_sums_over_the_union_are_unbiased() -> None:
    value = torch.tensor([3.0, -1, 2, 0.5, 4, 1, -2, 5])
    schedule = TeleNegatives()
    n = 8000
    schedule.carried = torch.tensor([[5, 4]]).repeat(n, 1)
    draws = schedule.refresh(
        torch.tensor([[0, 2, 5, 6]]).repeat(n, 1),
        torch.tensor([[6, 7]]).repeat(n, 1),
        Context(torch.full((n,), 2)),
        3,
        generator=generator(),
    )
    weighed = (value[draws.ids] * (-draws.log_expected).exp()).sum(1)
    assert_unbiased(weighed, float(value[[0, 4, 5, 6, 7]].sum()))
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    assert schedule.carried is not None
    assert torch.equal(schedule.carried, draws.ids)


def rounds(momentum: float, lookahead: float) -> list[torch.Tensor]:
    """Pools of ten rounds whose neighbour lists swing between two groups of documents."""
    schedule, pools = TeleNegatives(momentum, lookahead), []
    source = generator(5)
    for t in range(10):
        top = torch.stack([torch.randperm(60, generator=source)[:30] + 60 * (t % 2) for _ in range(40)])
        of_positive = torch.stack([torch.randperm(120, generator=source)[:30] for _ in range(40)])
        schedule.refresh(top, of_positive, Context(torch.full((40,), 130)), 12, generator=source)
        assert schedule.carried is not None
        pools.append(schedule.carried)
    return pools


def test_overlap_of_consecutive_pools_grows_with_momentum() -> None:
    overlap = []
    for momentum in (0.0, 0.5, 2.0):
        pools = rounds(momentum, 0.0)
        overlap.append(float(torch.stack([pool_overlap(b, a) for a, b in itertools.pairwise(pools)]).mean()))
    assert overlap[0] == 0
    assert 0.1 < overlap[1] < overlap[2] - 0.1


def test_what_a_round_learns_is_forgotten_less() -> None:
    # A query forgets a document that leaves the pool and remembers one for as long as it stays.
    def forgotten(momentum: float, lookahead: float) -> float:
        margin, lost = torch.zeros(40, 120), 0.0
        for pool in rounds(momentum, lookahead):
            before = margin > 0.5
            margin = margin * 0.4
            margin = margin.scatter(1, pool, 1.0)
            lost += float((before & (margin <= 0.5)).sum() / before.sum().clamp(min=1))
        return lost / 9

    assert forgotten(0.5, 0.5) < 0.9 * forgotten(0.0, 0.0)


def test_few_candidates_state_and_wrong_input() -> None:
    schedule = TeleNegatives()
    context = Context(torch.tensor([0, 1]))
    top, other = torch.tensor([[0, -1], [0, 2]]), torch.tensor([[0], [1]])
    draws = schedule.refresh(top, other, context, 2, generator=generator())
    assert draws.log_expected[0].tolist() == [math.inf] * 2
    assert draws.ids[1].tolist() == [0, 2]
    assert schedule.carried.tolist() == [[-1, -1], [0, 2]]
    again = TeleNegatives()
    again.load_state_dict(schedule.state_dict())
    one, same = (s.refresh(top, other, context, 1, generator=generator(3)).ids for s in (schedule, again))
    assert torch.equal(one, same)
    for bad, kind, said in (
        (lambda: TeleNegatives(-0.1), ValueError, "momentum"),
        (lambda: TeleNegatives(lookahead=math.inf), ValueError, "lookahead"),
        (
            lambda: schedule.refresh(top[:1], other[:1], Context(torch.tensor([0])), 1),
            ValueError,
            "all training",
        ),
        (lambda: schedule.refresh(top.float(), other, context, 1), TypeError, "int64"),
    ):
        with pytest.raises(kind, match=said):
            bad()
