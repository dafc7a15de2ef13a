"""Batches of anchors and neighbours: each row once, no place twice, and more similar than a shuffle."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.negatives.batches.neighbours import (
    great_circle_neighbours,
    neighbour_batches,
    similar_neighbours,
)
from tests.negatives.batches.clustered import hard_share, is_epoch, planted, random_batches
from tests.statistical import assert_unbiased


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=80)
@given(st.data())
def test_no_row_is_lost_and_no_place_comes_twice_in_a_batch(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    width = data.draw(st.integers(0, 5))
    size = data.draw(st.integers(1, 7))
    seed = data.draw(st.integers(0, 99))
    places = data.draw(st.integers(1, 12))
    table = torch.randint(-1, n, (n, width), generator=generator(seed))
    place = torch.randint(places, (n,), generator=generator(seed + 1)) * 7 - 3
    select = data.draw(st.integers(0, width))
    batches = neighbour_batches(table, size, select, location=place, generator=generator(seed + 2))
    assert is_epoch(batches, n)
    assert int(batches.counts.min()) >= 1
    assert int(batches.counts.max()) <= size
    for b in range(len(batches)):
        assert len(place[batches.row(b)].unique()) == len(batches.row(b))
    # With places of one row each, no batch but the last is short.
    batches = neighbour_batches(table, size, select, generator=generator(seed + 2))
    assert is_epoch(batches, n)
    assert bool((batches.counts[:-1] == size).all())


def test_an_anchor_brings_its_nearest_and_as_many_of_the_others_at_random() -> None:
    table = (torch.arange(40).unsqueeze(1) + torch.arange(1, 19)) % 40
    source, drawn = generator(), []
    for _ in range(2000):
        first = neighbour_batches(table, 9, 8, generator=source).row(0)
        rank = (first[1:] - first[0]) % 40 - 1
        assert rank[:4].tolist() == [0, 1, 2, 3]
        drawn.append([float(i in rank[4:]) for i in range(18)])
    assert_unbiased(drawn, [0.0] * 4 + [4 / 14] * 14)


def test_batches_hold_more_hard_negatives_than_a_shuffle_and_are_more_similar() -> None:
    x, _ = planted(1500, 30)
    view = torch.nn.functional.normalize(x + 0.05 * torch.randn(x.shape, generator=generator(5)), dim=1)
    batches = neighbour_batches(similar_neighbours(x, view, 24), 48, 12, generator=generator())
    chance = random_batches(1500, 48)
    assert hard_share(batches, x) > 5 * hard_share(chance, x)
    means = [
        torch.stack([(x[b.row(i)] @ view[b.row(i)].T).mean() for i in range(len(b) - 1)]).mean()
        for b in (batches, chance)
    ]
    assert means[0] > means[1] + 0.1


def test_great_circle_neighbours_equal_brute_force_across_poles_and_the_date_line() -> None:
    lat = torch.asin(2 * torch.rand(300, generator=generator(1), dtype=torch.float64) - 1).rad2deg()
    lon = 360 * torch.rand(300, generator=generator(2), dtype=torch.float64) - 180
    lat[:6] = torch.tensor([90, 89.9999999, 0, 0, 0, -90])
    lon[:6] = torch.tensor([10, -170, 179.9999999, -179.9999999, 180, 3])
    ids, angle = great_circle_neighbours(lat, lon, 5)
    f, g = lat.deg2rad(), lon.deg2rad()
    haversine = ((f[:, None] - f) / 2).sin() ** 2 + f.cos()[:, None] * f.cos() * (
        (g[:, None] - g) / 2
    ).sin() ** 2
    full = 2 * haversine.clamp(0, 1).sqrt().asin()
    want = full.clone().fill_diagonal_(math.inf).topk(5, 1, largest=False)
    torch.testing.assert_close(angle, want.values, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(full.gather(1, ids), want.values, atol=1e-12, rtol=1e-9)
    assert ids[2, 0] == 4
    assert ids[0, 0] == 1


def test_one_place_for_many_is_no_neighbour_of_itself() -> None:
    ids, angle = great_circle_neighbours([48.0] * 9, [11.0] * 9, 4)
    assert bool((ids != torch.arange(9).unsqueeze(1)).all())
    assert all(len(row.unique()) == 4 for row in ids)
    assert bool((angle == 0).all())


def test_similar_neighbours_equal_brute_force_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.randn(50, 4, generator=generator(s)) for s in (0, 1))
    monkeypatch.setattr("steelyard.negatives.batches.neighbours.CHUNK", 333)
    want = [
        sorted((j for j in range(50) if j != i), key=lambda j: -float(x[i] @ y[j]))[:6] for i in range(50)
    ]
    assert similar_neighbours(x, y, 6).tolist() == want


def test_a_seed_repeats_and_wrong_input_is_refused() -> None:
    table = torch.randint(30, (30, 4), generator=generator())
    one, same = (neighbour_batches(table, 8, 4, generator=generator(1)) for _ in range(2))
    assert torch.equal(one.values, same.values)
    assert len(neighbour_batches(torch.zeros(0, 3).long(), 8, 2)) == 0
    for bad, kind, said in (
        (lambda: neighbour_batches(table, 8, 5), ValueError, "at most the 4"),
        (lambda: neighbour_batches(table + 9, 8, 2), ValueError, "lie in -1 .. 29"),
        (lambda: neighbour_batches(table.float(), 8, 2), TypeError, "integers"),
        (lambda: neighbour_batches(table[0], 8, 2), ValueError, r"\(n, K\)"),
        (lambda: neighbour_batches(table, 8, 2, location=[1]), ValueError, "each of the 30"),
        (lambda: great_circle_neighbours([91.0, 0], [0.0, 0], 1), ValueError, "exchanged"),
        (lambda: great_circle_neighbours([1.0, 0], [0.0, 0], 2), ValueError, "at most the 1"),
        (lambda: similar_neighbours(torch.ones(3, 2), torch.ones(3, 1), 1), ValueError, "one shape"),
        (lambda: similar_neighbours(torch.ones(3, 2), torch.ones(3, 2), 3), ValueError, "at most the 2"),
    ):
        with pytest.raises(kind, match=said):
            bad()
