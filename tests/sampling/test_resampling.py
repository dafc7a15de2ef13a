"""Resampling: every scheme is unbiased, and keeps the property that it is chosen for."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from steelyard.sampling.resampling import Scheme, _ancestors, resample
from tests.sampling.drawing import seeded
from tests.statistical import assert_unbiased

INF = math.inf
SCHEMES = get_args(Scheme)
W = [0.23, 0.0, 0.31, 0.02, 0.16, 0.28]
LOG_W = torch.tensor(W, dtype=torch.float64).log() + 7
R = 20_000


def counts(ids: Tensor, m: int) -> Tensor:
    """How often each of m candidates was drawn, (..., m)."""
    zero = torch.zeros(*ids.shape[:-1], m, dtype=torch.float64)
    return zero.scatter_add_(-1, ids, torch.ones(ids.shape, dtype=torch.float64))


def many(scheme: Scheme, n: int, log_w: Tensor = LOG_W, seed: int = 0) -> Tensor:
    m = len(log_w)
    return counts(resample(log_w.expand(R, m), n, scheme=scheme, generator=seeded(seed)).ids, m)


def pairs(count: Tensor) -> Tensor:
    return count.unsqueeze(-1) * count.unsqueeze(-2)


@pytest.mark.parametrize("n", [1, 4, 6, 17])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_candidate_is_drawn_n_w_times_on_average(scheme: Scheme, n: int) -> None:
    count = many(scheme, n)
    assert bool((count.sum(-1) == n).all())
    assert_unbiased(count, n * np.array(W))


@pytest.mark.parametrize("scheme", ["systematic", "ssp"])
@pytest.mark.parametrize("n", [4, 6, 17])
def test_counts_of_systematic_and_ssp_are_the_floor_or_the_ceiling(scheme: Scheme, n: int) -> None:
    count, expected = many(scheme, n), n * torch.tensor(W, dtype=torch.float64)
    assert bool((count >= expected.floor()).all())
    assert bool((count <= expected.ceil()).all())


def test_systematic_pairs_come_together_as_one_start_puts_them() -> None:
    """A fine grid of starts in the plainest loop gives every second moment."""
    n, moment = 5, np.zeros((6, 6))
    for start in range(1000):
        points = [k + (start + 0.5) / 1000 for k in range(n)]
        low, count = 0.0, []
        for w in W:
            count.append(sum(low <= p < low + n * w for p in points))
            low += n * w
        moment += np.outer(count, count) / 1000
    assert_unbiased(pairs(many("systematic", n)), moment)


def test_stratified_points_are_independent_one_in_each_stratum_which_never_adds_variance() -> None:
    n, share = 5, np.zeros((5, 6))
    for k in range(n):
        low = 0.0
        for i, w in enumerate(W):
            share[k, i] = max(0.0, min(k + 1, low + n * w) - max(k, low))
            low += n * w
    moment = np.diag(share.sum(0))
    for k, other in itertools.permutations(range(n), 2):
        moment += np.outer(share[k], share[other])
    assert_unbiased(pairs(many("stratified", n)), moment)
    variance = np.diag(moment) - (n * np.array(W)) ** 2
    assert bool((variance <= n * np.array(W) * (1 - np.array(W)) + 1e-12).all())


def test_multinomial_draws_are_independent() -> None:
    n, w = 5, np.array(W)
    assert_unbiased(pairs(many("multinomial", n)), n * (n - 1) * np.outer(w, w) + n * np.diag(w))


def test_multinomial_counts_beyond_one_a_unit_interval_have_their_law() -> None:
    """With 3 candidates and 40 draws many unit intervals hold three points and more."""
    w, n = np.array([0.5, 0.013, 0.487]), 40
    found = many("multinomial", n, torch.tensor(w).log())
    assert_unbiased(pairs(found), n * (n - 1) * np.outer(w, w) + n * np.diag(w))
    assert_unbiased(found[:, 1] == 0, (1 - w[1]) ** n)


def test_residual_keeps_whole_copies_and_draws_the_rest_by_what_is_left() -> None:
    n = 17
    whole = np.floor(n * np.array(W))
    left = n * np.array(W) - whole
    rest, w = left.sum(), left / left.sum()
    count = many("residual", n) - torch.from_numpy(whole)
    assert bool((count >= 0).all())
    assert_unbiased(pairs(count), rest * (rest - 1) * np.outer(w, w) + rest * np.diag(w))


def srinivasan(fraction: tuple[float, ...], holder: int, j: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All outcomes of the process in the form of its authors' code: raise one, lower the other."""
    if j == len(fraction):
        yield 1.0, tuple(round(f) for f in fraction)
        return
    a, b = fraction[holder], fraction[j]
    up, down = min(b, 1 - a), min(a, 1 - b)
    if up + down == 0:
        yield from srinivasan(fraction, j if a in (0.0, 1.0) else holder, j + 1)
        return
    for chance, da, db in ((down / (up + down), up, -up), (up / (up + down), -down, down)):
        settled = list(fraction)
        settled[holder], settled[j] = a + da, b + db
        for i in (holder, j):
            settled[i] = round(settled[i]) if abs(settled[i] - round(settled[i])) < 1e-12 else settled[i]
        if chance > 0:
            stays = settled[holder] not in (0, 1)
            for p, outcome in srinivasan(tuple(settled), holder if stays else j, j + 1):
                yield chance * p, outcome


def law_of_ssp(n: int) -> dict[tuple[int, ...], float]:
    expected = [n * w for w in W]
    law: dict[tuple[int, ...], float] = {}
    for p, extra in srinivasan(tuple(e - math.floor(e) for e in expected), 0, 1):
        count = tuple(math.floor(e) + x for e, x in zip(expected, extra, strict=True))
        law[count] = law.get(count, 0.0) + p
    return law


@pytest.mark.parametrize("n", [4, 17])
def test_ssp_counts_have_the_law_of_the_process_and_are_negatively_associated(n: int) -> None:
    law = law_of_ssp(n)
    assert sum(law.values()) == pytest.approx(1)
    found = many("ssp", n)
    assert_unbiased(
        torch.stack([(found == torch.tensor(c)).all(-1) for c in law], -1).double(), list(law.values())
    )
    # E[f g] <= E[f] E[g] for increasing functions f, g of disjoint candidates.
    names = [i for i in range(6) if W[i] > 0]
    for left in itertools.chain.from_iterable(itertools.combinations(names, k) for k in (1, 2)):
        for right in itertools.combinations([i for i in names if i not in left], 2):
            f = {c: all(c[i] >= n * W[i] for i in left) for c in law}
            g = {c: any(c[i] >= n * W[i] for i in right) for c in law}
            both = sum(p for c, p in law.items() if f[c] and g[c])
            assert both <= sum(law[c] for c in law if f[c]) * sum(law[c] for c in law if g[c]) + 1e-12


def test_killing_spares_each_with_its_share_of_the_largest_weight() -> None:
    w, n = np.array(W), 6
    spared = w / w.max()
    moment, none_killed = np.zeros((6, 6)), 0.0
    for kept in itertools.product([False, True], repeat=6):
        k = np.array(kept)
        chance = np.prod(np.where(k, spared, 1 - spared))
        draws = n - k.sum()
        second = draws * (draws - 1) * np.outer(w, w) + draws * np.diag(w)
        cross = np.outer(k, draws * w)
        moment += chance * (np.outer(k, k) + cross + cross.T + second)
        none_killed += chance * (draws == 0)
    ids = resample(LOG_W.expand(R, 6), n, scheme="killing", generator=seeded(0)).ids
    assert_unbiased(pairs(counts(ids, 6)), moment)
    assert bool((ids[:, 2] == 2).all())  # the heaviest survives in its own slot


def test_killing_deals_slots_evenly_when_there_are_more_or_fewer_than_candidates() -> None:
    """With equal weights nobody is killed, so the slots are seen as dealt."""
    for n, m in ((3, 7), (7, 3), (8, 4), (5, 5)):
        ids = resample(torch.zeros(R, m), n, scheme="killing", generator=seeded(1)).ids
        count = counts(ids, m)
        assert_unbiased(count, n / m)
        assert float(count.min()) >= n // m
        assert float(count.max()) <= -(-n // m)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_draws_know_their_expected_counts_and_those_of_anyone(scheme: Scheme) -> None:
    n = 9
    draws = resample(LOG_W, n, scheme=scheme, generator=seeded(2))
    want = torch.tensor([math.log(n * w) if w else -INF for w in W], dtype=torch.float64)
    torch.testing.assert_close(draws.log_expected, want[draws.ids])
    asked = torch.tensor([5, -1, 0, 1, 6])
    found = draws.log_expected_of(asked)
    torch.testing.assert_close(found, torch.tensor([want[5], -INF, want[0], -INF, -INF], dtype=torch.float64))
    assert torch.equal(draws.log_expected_of(asked.expand(2, 3, 5)), found.expand(2, 3, 5))
    f = torch.tensor([3.0, 100, -1, 8, 0.5, 2], dtype=torch.float64)
    batch = resample(LOG_W.expand(R, 6), n, scheme=scheme, generator=seeded(3))
    total = (f[batch.ids] / batch.log_expected.exp()).sum(-1)
    assert_unbiased(total, float(f.sum() - f[1]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_leading_dimensions_are_drawn_one_by_one(scheme: Scheme) -> None:
    log_w = torch.randn(2, 3, 50, generator=seeded(4))
    log_w[0, 1, :49] = -INF
    draws = resample(log_w, 20, scheme=scheme, generator=seeded(5))
    assert draws.ids.shape == draws.log_expected.shape == (2, 3, 20)
    assert draws.ids[0, 1].tolist() == [49] * 20
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    want = log_w.log_softmax(-1) + math.log(20)
    torch.testing.assert_close(draws.log_expected_of(torch.arange(50)), want)
    torch.testing.assert_close(draws.log_expected_of(torch.arange(50).expand(4, 1, 1, 50))[3], want)
    torch.testing.assert_close(draws[1].log_expected_of(torch.arange(50)), want[1])
    assert draws.ids[1, 1].tolist() != draws.ids[1, 2].tolist()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_weight_of_zero_is_never_drawn_and_no_id_is_out_of_range(scheme: Scheme) -> None:
    """Blocks of zeros at both ends and within, and sums that rounding leaves below or above one."""
    for seed in range(40):
        g = seeded(seed)
        log_w = torch.rand(3000, generator=g, dtype=torch.float64).log()
        dead = torch.rand(3000, generator=g) < 0.5
        dead[: 700 * (seed % 3)] = True
        dead[3000 - 500 * (seed % 4) :] = True
        log_w[dead] = -INF
        n = [1, 2, 100, 3000, 20_000][seed % 5]
        ids = resample(log_w + math.log(0.9), n, scheme=scheme, generator=g).ids
        assert ids.shape == (n,)
        assert not bool(dead[ids].any())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("total", [0.9, 1 - 1e-9, 1 + 1e-9, 1.1])
def test_weights_whose_sum_is_wrong_lead_to_nobody_dead_or_out_of_range(scheme: Scheme, total: float) -> None:
    """What rounding does once in a billion draws, made large: the last one alive takes what is left."""
    w = np.exp(np.random.default_rng(0).normal(size=(3, 2000)))
    w[0, -100:] = w[1, :900] = w[2, ::2] = 0
    for n in (7, 2000, 9001):
        ids = _ancestors(w, total * n / w.sum(-1), n, scheme, seeded(n))
        assert ids.shape == (3, n)
        assert bool((np.take_along_axis(w, ids, -1) > 0).all())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_the_ratios_of_weights_count(scheme: Scheme) -> None:
    """Halves and quarters: shifting their logs by powers of two loses no digit."""
    log_w = -torch.arange(10, dtype=torch.float64) % 4
    want = resample(log_w, 30, scheme=scheme, generator=seeded(6)).ids
    for shift in (-1024, 2.0**20, 0.5):
        assert torch.equal(resample(log_w + shift, 30, scheme=scheme, generator=seeded(6)).ids, want)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ancestors_ascend_but_survivors_of_killing_keep_their_slots(scheme: Scheme) -> None:
    log_w = torch.randn(5000, generator=seeded(7))
    ids = resample(log_w, 5000, scheme=scheme, generator=seeded(8)).ids
    moved = ids != torch.arange(5000) if scheme == "killing" else torch.ones(5000, dtype=torch.bool)
    if scheme == "killing":
        assert 10 < int((~moved).sum()) < 4990
    assert bool((ids[moved].diff() >= 0).all())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_draws_of_many_have_the_variance_of_their_scheme(scheme: Scheme) -> None:
    m = 300_000
    log_w = torch.randn(m, generator=seeded(9), dtype=torch.float64)
    count = counts(resample(log_w, m, scheme=scheme, generator=seeded(10)).ids, m)
    expected = m * log_w.softmax(0)
    assert float(count.sum()) == m
    fraction = expected - expected.floor()
    if scheme in ("systematic", "ssp"):
        assert bool(((count - expected).abs() < 1).all())
        want = fraction * (1 - fraction)
    elif scheme == "residual":
        assert bool((count > expected - 1).all())
        want = fraction
    elif scheme == "stratified":
        want = fraction  # an upper bound
        assert float((count - expected).square().mean()) < float(want.mean())
        return
    elif scheme == "killing":
        spared = expected / expected.max()
        want = spared * (1 - spared) + (m - spared.sum()) / m * expected
    else:
        want = expected
    gaps = (count - expected).square()
    # Pairs of counts hardly depend on each other, so their mean square is nearly normal.
    assert abs(float((gaps - want).mean())) < 6 * float(gaps.std()) / math.sqrt(m)


@pytest.mark.parametrize("scheme", ["residual", "systematic", "ssp"])
def test_integer_expected_counts_are_met_exactly(scheme: Scheme) -> None:
    w = torch.randint(50, (200, 40), generator=seeded(20)).double()
    for i in range(200):
        ids = resample(w[i].log().expand(5, 40), int(w[i].sum()), scheme=scheme, generator=seeded(i)).ids
        assert torch.equal(counts(ids, 40), w[i].expand(5, 40))
    same = resample(torch.full((1001,), -3.7), 1001, scheme=scheme, generator=seeded(12)).ids
    assert torch.equal(same, torch.arange(1001))


def test_the_last_open_fraction_is_settled_though_rounding_leaves_it_below_one() -> None:
    """Ten times 0.3 make 2.9999999999999996."""
    assert sum([0.3] * 10) < 3
    assert_unbiased(many("ssp", 3, torch.zeros(10, dtype=torch.float64)), 0.3)


def test_order_decides_about_systematic_but_not_about_ssp() -> None:
    """Weights of 1/2 and 3/2 in turns: systematic gives all of one kind the same fate."""
    log_w = torch.tensor([0.5, 1.5] * 200, dtype=torch.float64).log().expand(2000, 400)
    kind = torch.arange(400) % 2
    variance = {}
    for scheme in SCHEMES:
        ids = resample(log_w, 400, scheme=scheme, generator=seeded(13)).ids
        variance[scheme] = float(kind[ids].double().mean(-1).var())
    assert variance["systematic"] > 20 * variance["ssp"]
    assert variance["systematic"] > 20 * variance["stratified"]


def test_one_candidate_one_draw_and_none() -> None:
    for scheme in SCHEMES:
        assert resample([0.0], 4, scheme=scheme).ids.tolist() == [0] * 4
        assert resample(np.array([-INF, -1e300]), 1, scheme=scheme).ids.tolist() == [1]
        assert resample(torch.zeros(3), 0, scheme=scheme).ids.shape == (0,)
        assert resample(torch.zeros(0, 3), 2, scheme=scheme).ids.shape == (0, 2)
        empty = resample(torch.zeros(2, 3), 0, scheme=scheme)
        assert empty.log_expected_of(torch.tensor([1])).tolist() == [[-INF], [-INF]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_short_floats_are_weighed_in_long_ones(dtype: torch.dtype) -> None:
    log_w = torch.tensor([-1e8, -1e8 + 64, 3.0], dtype=dtype)[:2]
    draws = resample(log_w, 1000, generator=seeded(14))
    assert draws.log_expected.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    want = 1000 * log_w.double().softmax(0)
    assert bool(((counts(draws.ids, 2) - want).abs() < 1).all())
    found = draws.log_expected_of(torch.tensor([0, 1])).double()
    torch.testing.assert_close(found, want.log(), rtol=1e-13 if dtype == torch.float64 else 1e-6, atol=0)


def test_the_same_generator_gives_the_same_draws_and_inputs_stay_as_they_were() -> None:
    for scheme in SCHEMES:
        log_w = torch.randn(100, generator=seeded(15), dtype=torch.float64)
        kept = log_w.clone()
        first = resample(log_w, 80, scheme=scheme, generator=seeded(16)).ids
        assert torch.equal(first, resample(log_w, 80, scheme=scheme, generator=seeded(16)).ids)
        assert not torch.equal(first, resample(log_w, 80, scheme=scheme, generator=seeded(17)).ids)
        assert torch.equal(log_w, kept)


CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: resample(torch.tensor([0.0, math.nan]), 2), ValueError, r"NaN or \+inf"),
    (lambda: resample(torch.tensor([0.0, INF]), 2), ValueError, r"NaN or \+inf"),
    (
        lambda: resample(torch.tensor([[0.0, 1], [-INF, -INF]]), 2),
        ValueError,
        "Row 1 of log_w is all -inf: leave",
    ),
    (lambda: resample(torch.zeros(2, 0), 2), ValueError, "no candidates"),
    (lambda: resample(torch.tensor(1.0), 2), ValueError, "single number"),
    (lambda: resample(torch.zeros(3), -1), ValueError, "n must lie"),
    (lambda: resample(torch.zeros(3), 2**32), ValueError, "n must lie"),
    (lambda: resample(torch.zeros(3), 2, scheme="fair"), ValueError, "scheme must be one of"),  # type: ignore[arg-type]
    (lambda: resample(torch.tensor([1, 2]), 2), TypeError, "floating"),
    (lambda: resample(torch.zeros(3), 2.0), TypeError, "integer"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "said"), CASES)
def test_bad_input_is_refused(call: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
