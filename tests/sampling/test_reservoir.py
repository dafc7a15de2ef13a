"""The reservoir: one seed, one draw, whatever the order, the shards and the interruptions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.reservoir import Reservoir
from steelyard.sampling.successive import _draw_rows, key_of, mix
from tests.statistical import assert_unbiased

INF = math.inf
IDS = torch.tensor([7, -3, 0, 2**62, 41, 5])
LOG_W = torch.tensor([0.3, 1.2, -0.6, 2.0, 0.0, 0.7], dtype=torch.float64)


def filled(k: int, seed: int, ids: Tensor = IDS, log_w: Tensor = LOG_W) -> Reservoir:
    reservoir = Reservoir(k, seed)
    reservoir.add(ids, log_w)
    return reservoir


def look_up(ids: Tensor) -> Tensor:
    found = (ids.unsqueeze(-1) == IDS).double()
    return torch.where(found.any(-1), found @ LOG_W, -INF)


@settings(max_examples=30)
@given(
    st.integers(0, 400),
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(1, 300), min_size=1, max_size=6),
    st.booleans(),
)
def test_order_batches_shards_and_restarts_do_not_change_the_draw(
    k: int, seed: int, sizes: list[int], restart: bool
) -> None:
    n = sum(sizes)
    g = torch.Generator().manual_seed(n)
    ids, log_w = torch.randperm(10 * n, generator=g)[:n], torch.randn(n, generator=g) * 3
    whole = filled(k, seed, ids, log_w).draws()
    shuffle = torch.randperm(n, generator=g)
    shards = []
    for rows in shuffle.split(sizes):
        shard = Reservoir(k, seed)
        for part in rows.split(17):
            shard.add(ids[part], log_w[part])
        shards.append(Reservoir.from_state(shard.state()) if restart else shard)
    merged, late = shards[-1], shards[0]
    for shard in shards[1:-1]:
        merged.merge(shard)
    if late is not merged:  # what comes after a merge competes as well
        for part in shuffle[: sizes[0]].split(13):
            merged.add(ids[part], log_w[part])
    draws = merged.draws()
    assert merged.seen == n
    assert draws.ids.tolist() == whole.ids.tolist()
    assert draws.log_expected.tolist() == whole.log_expected.tolist()


def test_a_reservoir_draws_what_successive_sampling_draws_from_the_same_words() -> None:
    n, k = 50_000, 300
    log_w = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    reservoir = Reservoir(k, 5)
    for part in torch.randperm(n).split(999):
        reservoir.add(part, log_w[part])
    ids, found = np.zeros((1, k), np.int64), np.zeros(1, np.int64)
    limits = np.zeros((1, 2))
    bad = _draw_rows(log_w[None].numpy(), np.array([reservoir._words]), ids, np.zeros((1, k)), found, limits)
    assert (bad, int(found[0])) == (-1, k)
    draws = reservoir.draws(lambda asked: log_w[asked])
    assert draws.ids.tolist() == ids[0].tolist()
    p = 1 - (-(log_w[draws.ids] - limits[0, 0]).exp()).exp()
    torch.testing.assert_close(draws.log_expected.exp(), p)
    others = torch.tensor([j for j in range(1000) if j not in set(ids[0].tolist())])
    p = 1 - (-(log_w[others] - limits[0, 1]).exp()).exp()
    torch.testing.assert_close(draws.log_expected_of(others).exp(), p)


def test_frequencies_over_seeds_equal_the_design_and_merged_totals_are_unbiased() -> None:
    values = torch.tensor([1.0, -2.0, 3.0, 0.5, 4.0, 2.0], dtype=torch.float64)
    gaps, alone, merged = [], [], []
    for seed in range(1500):
        draws = filled(3, seed).draws(look_up)
        seen = (IDS.unsqueeze(-1) == draws.ids).any(-1).double()
        gaps.append(seen - draws.log_expected_of(IDS).exp())
        alone.append(float((seen * values * (-draws.log_expected_of(IDS)).exp()).sum()))
        other = filled(2, seed + 2**40, log_w=-LOG_W).draws(lambda ids: -look_up(ids))
        both = Draws.merge([draws, other])
        at = (both.ids.unsqueeze(-1) == IDS).double() @ values
        merged.append(float((at * (-both.log_expected).exp()).sum()))
    assert_unbiased(torch.stack(gaps), 0.0)
    assert_unbiased(alone, 8.5)
    assert_unbiased(merged, 8.5)


def test_everything_fits_or_nothing_is_wanted() -> None:
    draws = filled(10, 1).draws()
    assert draws.ids.tolist() == sorted(IDS.tolist())
    assert draws.log_expected.tolist() == [0.0] * 6
    assert filled(6, 1).draws(look_up).log_expected_of(torch.tensor([7, 8])).tolist() == [0.0, -INF]
    assert filled(0, 1).draws().ids.shape == (0,)
    assert filled(0, 1).draws(look_up).log_expected_of(IDS).tolist() == [-INF] * 6
    assert Reservoir(3).draws().ids.shape == (0,)
    with_zero = filled(5, 1, log_w=LOG_W.masked_fill(IDS == 0, -INF))
    assert with_zero.draws().ids.tolist() == [-3, 5, 7, 41, 2**62]
    assert with_zero.seen == 6


def test_weights_far_apart_and_equal_beyond_their_digits_stay_random() -> None:
    """At 1e30 no digit is left for the noise: ties go by the hash, and every row has its chance."""
    first = [
        int(filled(1, seed, torch.arange(4), torch.full((4,), 1e30)).draws().ids) for seed in range(2000)
    ]
    assert_unbiased(torch.nn.functional.one_hot(torch.tensor(first), 4).double(), 0.25)
    draws = filled(2, 0, torch.arange(3), torch.tensor([0.0, -1e4, 1e4])).draws()
    assert draws.ids.tolist() == [0, 2]
    assert draws.log_expected.exp().tolist() == pytest.approx([1, 1])


def test_a_state_is_small_and_holds_only_tensors() -> None:
    reservoir = filled(4, 3, torch.arange(1000), torch.randn(1000))
    state = reservoir.state()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "k": (), "seed": (), "seen": (), "ids": (5,), "log_w": (5,)
    }  # fmt: skip
    again = Reservoir.from_state(state)
    assert (again.k, again.seed, again.seen) == (4, 3, 1000)
    for r in (reservoir, again):
        r.add(torch.arange(1000, 2000), torch.linspace(0, 3, 1000))
    assert again.draws().ids.tolist() == reservoir.draws().ids.tolist()
    with pytest.raises(ValueError, match="lacks k"):
        Reservoir.from_state({name: value for name, value in state.items() if name != "k"})


def test_the_design_says_what_it_cannot_know() -> None:
    draws = filled(2, 0).draws()
    assert draws.log_expected_of(draws.ids).tolist() == draws.log_expected.tolist()
    with pytest.raises(ValueError, match=r"draws\(log_w="):
        draws.log_expected_of(IDS)


def test_a_row_that_came_twice_is_found_out() -> None:
    reservoir = filled(4, 0)
    reservoir.merge(filled(4, 0))
    with pytest.raises(ValueError, match="added twice"):
        reservoir.draws()


def test_bad_input_is_refused_and_adds_nothing() -> None:
    reservoir = Reservoir(3)
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match="log_w of row 9 is"):
            reservoir.add(torch.tensor([4, 9]), torch.tensor([0.0, bad]))
    assert (reservoir.seen, len(reservoir.draws().ids)) == (0, 0)
    with pytest.raises(TypeError, match="integers"):
        reservoir.add(torch.zeros(1), torch.zeros(1))
    with pytest.raises(TypeError, match="floating"):
        reservoir.add(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="one length"):
        reservoir.add(torch.arange(3), torch.zeros(2))
    for other in (Reservoir(4), Reservoir(3, 1)):
        with pytest.raises(ValueError, match="agree"):
            reservoir.merge(other)
    for k, seed in ((-1, 0), (1, -1), (1, 2**63)):
        with pytest.raises(ValueError, match=r"cannot hold|between 0 and"):
            Reservoir(k, seed)
    with pytest.raises(TypeError, match="integer"):
        Reservoir(2.5)  # type: ignore[arg-type]


def test_narrow_dtypes_are_taken() -> None:
    a = filled(2, 0, torch.arange(6, dtype=torch.int32), LOG_W.bfloat16())
    b = filled(2, 0, torch.arange(6), LOG_W.bfloat16().double())
    assert a.draws().ids.tolist() == b.draws().ids.tolist()


def test_noise_at_both_ends_of_its_range_gives_finite_keys() -> None:
    low, high = key_of(0.0, np.uint64(0)), key_of(0.0, np.uint64(2**64 - 1))
    assert low == pytest.approx(65 * math.log(2))
    assert high == pytest.approx(-math.log(53 * math.log(2)))
    assert mix(np.uint64(0)) == 0
