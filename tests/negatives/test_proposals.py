"""Proposals draw what they say, as often as they say."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils._python_dispatch import TorchDispatchMode

from steelyard.draws import Proposal
from steelyard.negatives import (
    Catalogue,
    Context,
    Everything,
    InBatch,
    Mixture,
    Popularity,
    Uniform,
    proposal,
)
from steelyard.ragged import Ragged
from tests.statistical import assert_unbiased

COUNTS = torch.tensor([1, 10, 0, 2, 5, 9])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=5), st.integers(0, 99)
)
def test_complement_draws_never_hit_and_reach_everything_else(known: list[set[int]], seed: int) -> None:
    pairs = torch.tensor([(r, v) for r, items in enumerate(known) for v in items])
    context = Context(
        torch.tensor([min(k) for k in known]), Ragged.from_pairs(pairs[:, 0], pairs[:, 1], len(known))
    )
    draws = Uniform(10, per_query=True).sample(context, 300, generator=generator(seed))
    for r, items in enumerate(known):
        assert set(draws.ids[r].tolist()) == set(range(10)) - items
        assert draws.log_expected[r].exp().tolist() == pytest.approx([300 / (10 - len(items))] * 300)
    everything = draws.log_expected_of(torch.arange(10).expand(len(known), 10)).exp()
    assert everything.sum(1).tolist() == pytest.approx([300] * len(known), rel=1e-5)


def test_complement_draws_are_uniform() -> None:
    """Chi-square at significance 1e-5."""
    context = Context(
        torch.tensor([2]), Ragged.from_pairs(torch.tensor([0, 0, 0]), torch.tensor([0, 2, 9]), 1)
    )
    draws = Uniform(10, per_query=True).sample(context, 70_000, generator=generator())
    counts = torch.bincount(draws.ids[0], minlength=10)[[1, 3, 4, 5, 6, 7, 8]]
    assert chisquare(counts.numpy()).pvalue > 1e-5


@pytest.mark.parametrize(
    "made",
    [
        Uniform(6),
        Popularity(COUNTS),
        Popularity(COUNTS, 0.5),
        Mixture([Popularity(COUNTS), Uniform(6)], [1, 4]),
    ],
)
def test_frequencies_equal_expected_counts(made: Uniform | Popularity | Mixture) -> None:
    """Chi-square at significance 1e-5 on 100,000 draws; expected counts add up to the number of draws."""
    draws = made.sample(Context(torch.tensor([0])), 100_000, generator=generator(1))
    expected = draws.log_expected_of(torch.arange(6)).exp().double()
    assert float(expected.sum()) == pytest.approx(100_000, rel=1e-5)
    counts = torch.bincount(draws.ids, minlength=6)
    assert int(counts[expected == 0].sum()) == 0
    live = expected > 0
    assert chisquare(counts[live].numpy(), (expected * 1e5 / expected.sum())[live].numpy()).pvalue > 1e-5
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))


def test_popularity_takes_the_power_of_the_counts() -> None:
    q = Popularity(COUNTS, 0.75).sample(None, 1, generator=generator()).log_expected_of(torch.arange(6)).exp()
    powers = [c**0.75 if c else 0.0 for c in COUNTS.tolist()]
    assert q.tolist() == pytest.approx([p / sum(powers) for p in powers])


def test_in_batch_takes_the_batch_and_counts_the_others() -> None:
    draws = InBatch(COUNTS).sample(Context(torch.tensor([1, 5, 1])), 3)
    assert draws.ids.tolist() == [1, 5, 1]
    assert draws.log_expected_of(torch.arange(6)).exp().tolist() == pytest.approx(
        [2 * c / 26 for c in COUNTS.tolist()]
    )


def test_a_batch_of_one_has_no_others() -> None:
    alone = Context(torch.tensor([1]))
    assert InBatch(COUNTS).sample(alone, 5).ids.tolist() == []
    mixed = Mixture([InBatch(COUNTS), Uniform(6)]).sample(alone, 6, generator=generator())
    assert mixed.log_expected.exp().tolist() == pytest.approx([0.5] * 3)


def test_a_mixture_splits_its_draws_by_share() -> None:
    assert Mixture([Uniform(3)] * 3).split(10) == [4, 3, 3]
    assert Mixture([Uniform(3)] * 2, [9, 1]).split(11) == [10, 1]
    assert sum(Mixture([Uniform(3)] * 3, [0.2, 0.5, 0.3]).split(101)) == 101


def test_everything_is_taken_once() -> None:
    draws = Everything(4).sample(None, 2)
    assert draws.ids.tolist() == [0, 1, 2, 3]
    assert draws.log_expected.tolist() == [0] * 4


def test_names_make_proposals() -> None:
    assert isinstance(proposal("uniform", COUNTS), Uniform)
    mixed = proposal("in-batch+popularity:0.75", COUNTS)
    assert isinstance(mixed, Mixture)
    assert [type(p) for p in mixed.parts] == [InBatch, Popularity]
    for spec, said in (
        ("unifrom", "there are uniform"),
        ("uniform:2", "takes no number"),
        ("popularity:x", "popularity:x"),
        ("top:inf", "whole number"),
        ("best-of:2.5", "whole number"),
        ("top:0", "whole number"),
    ):
        with pytest.raises(ValueError, match=said):
            proposal(spec, COUNTS)


def test_an_index_of_far_more_cells_than_items_is_refused() -> None:
    catalogue = Catalogue(torch.ones(100), items=torch.randn(100, 4, generator=generator()))
    with pytest.raises(ValueError, match="at most 40"):
        proposal("midx:99999999", catalogue)
    with pytest.raises(ValueError, match="item vectors"):
        proposal("clusters", Catalogue(torch.ones(100)))


def test_bad_input_is_refused() -> None:
    full = Context(
        torch.tensor([0]), Ragged.from_pairs(torch.zeros(3, dtype=torch.int64), torch.arange(3), 1)
    )
    with pytest.raises(ValueError, match="nothing to draw"):
        Uniform(3, per_query=True).sample(full, 2)
    with pytest.raises(ValueError, match="at least one item"):
        Uniform(0)
    with pytest.raises(ValueError, match="positive"):
        Popularity(torch.zeros(3))
    with pytest.raises(ValueError, match="finite"):
        Popularity(COUNTS, math.nan)
    with pytest.raises(ValueError, match="not be negative"):
        Uniform(3).sample(full, -1)
    with pytest.raises(ValueError, match="share"):
        Mixture([Uniform(3)], [1, 2])


def test_no_draws_are_no_draws() -> None:
    two = Context(torch.tensor([0, 1]))
    for made in (
        Uniform(6),
        Uniform(6, per_query=True),
        Popularity(COUNTS),
        InBatch(COUNTS),
        Mixture([InBatch(COUNTS), Uniform(6)]),
    ):
        draws = made.sample(two, 0)
        assert draws.ids.shape[-1] == 0
        assert draws.log_expected_of(torch.tensor([1, 5])).flatten()[:2].tolist() == [-math.inf] * 2
    assert InBatch(COUNTS).sample(Context(torch.zeros(0, dtype=torch.int64)), 3).ids.tolist() == []


@pytest.mark.parametrize(
    "made",
    [
        Uniform(6),
        Uniform(6, per_query=True),
        Everything(6),
        Popularity(COUNTS),
        InBatch(COUNTS),
        Mixture([InBatch(COUNTS), Everything(6), Uniform(6)]),
    ],
    ids=lambda p: type(p).__name__,
)
def test_an_id_outside_the_catalogue_is_never_drawn(made: Proposal) -> None:
    draws = made.sample(Context(torch.tensor([1, 3])), 4, generator=generator())
    asked = torch.tensor([[-1, 5, 6, 2**40, -(2**40)], [0, -6, 4, 7, -1]])
    live = torch.tensor([[0, 1, 0, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.bool)
    got = draws.log_expected_of(asked)
    assert bool((got[~live] == -math.inf).all())
    assert bool(got[live].isfinite().all())


class LargestResult(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return result


@pytest.mark.parametrize("name", ["uniform", "popularity:0.75", "in-batch", "in-batch+popularity+uniform"])
def test_the_cost_of_a_sample_does_not_grow_with_the_catalogue(name: str) -> None:
    made = proposal(name, torch.arange(1, 50_001))
    context = Context(torch.arange(8))
    with LargestResult() as largest:
        draws = made.sample(context, 6, generator=generator())
        draws.log_expected_of(torch.arange(10))
    assert 0 < largest.size <= 20


def test_a_steep_exponent_leaves_the_items_it_prefers() -> None:
    counts = torch.tensor([5, 0, 2, 90, 2])
    for alpha, want in (
        (-3000.0, [0, 0, 0.5, 0, 0.5]),
        (3000.0, [0, 0, 0, 1, 0]),
        (0.0, [0.25, 0, *[0.25] * 3]),
    ):
        q = Popularity(counts, alpha).table.log_probability.exp()
        assert q.tolist() == pytest.approx(want, abs=1e-15)
    for alpha in (1e308, -1e308):
        assert not Popularity(counts, alpha).table.log_probability.isnan().any()


def test_counts_that_are_none_are_named() -> None:
    for bad in (-1.0, math.nan, math.inf):
        for alpha in (1.0, -0.5):
            with pytest.raises(ValueError, match=f"weight 1 is {bad}"):
                Popularity(torch.tensor([2.0, bad]), alpha)


def test_a_batch_from_another_catalogue_is_refused() -> None:
    for outside in (-1, 6):
        with pytest.raises(ValueError, match=r"positives must lie in \[0, 6\)"):
            InBatch(COUNTS).sample(Context(torch.tensor([0, outside])), 2)


@pytest.mark.parametrize("made", [Uniform(6), Popularity(COUNTS), InBatch(COUNTS), Mixture([Uniform(6)])])
def test_a_number_of_draws_is_a_whole_number_from_zero(made: Proposal) -> None:
    context = Context(torch.tensor([1, 3]))
    for n in (2.0, True, "3", None):
        with pytest.raises(TypeError, match="must be an integer"):
            made.sample(context, n)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be negative, got -2"):
        made.sample(context, -2)
    assert len(made.sample(context, np.int64(2), generator=generator()).ids) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [3, 100])
def test_in_batch_counts_are_exact_where_queries_have_many_positives(n: int) -> None:
    rows = torch.tensor([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4])
    items = torch.tensor([0, 1, 2, 0, 0, 3, 4, 1, 2, 3, 5])
    pairs = Ragged.from_pairs(rows, items, 5)
    made = InBatch(torch.bincount(items), n_queries=5)
    g, score, wanted = generator(7), torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0, -0.5]), 0
    seen = []
    for _ in range(4000):  # a batch of query 0 and two others; the sum over what query 0 does not have
        batch = torch.cat([torch.tensor([wanted]), 1 + torch.randperm(4, generator=g)[:2]])
        taken = pairs.take(batch)
        context = Context(taken.values, taken, taken.row_index())
        draws = made.sample(context, n, generator=g)
        weight = torch.exp(score[draws.ids] - draws.log_expected).masked_fill(context.mask(draws.ids)[0], 0)
        seen.append(float(weight.sum()))
    others = [j for j in range(6) if j not in pairs.row(wanted)]
    assert_unbiased(seen, float(score.exp()[others].sum()))


def test_in_batch_draws_say_what_their_own_design_answers() -> None:
    pairs = Ragged.from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), 2)
    draws = InBatch(torch.tensor([1, 1, 1, 0]), n_queries=2).sample(
        Context(pairs.values, pairs, pairs.row_index()), 10
    )
    assert draws.ids.tolist() == [0, 1, 2]
    assert draws.log_expected.tolist() == draws.log_expected_of(draws.ids).tolist() == [0, 0, 0]
    assert draws.log_expected_of(torch.tensor([3, 4])).tolist() == [-math.inf, -math.inf]
