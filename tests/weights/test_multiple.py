"""Multiple importance sampling: shares that sum to one, and estimates without bias."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.negatives import Context, Everything, Popularity, Uniform
from steelyard.weights import (
    balance_heuristic,
    cutoff_heuristic,
    expectation,
    maximum_heuristic,
    merge_weighted,
    multiple_importance,
    partial_mixture,
    power_heuristic,
)
from steelyard.weights.multiple import Heuristic
from tests.statistical import assert_unbiased

INF = math.inf
Q = torch.tensor(  # three designs over five points; the second never draws the last point
    [[0.1, 0.2, 0.3, 0.2, 0.2], [0.5, 0.3, 0.15, 0.05, 0.0], [0.02, 0.03, 0.1, 0.25, 0.6]],
    dtype=torch.float64,
)
COUNTS = torch.tensor([4, 1, 2])
P = torch.tensor([0.7, 1.5, 0.3, 2.0, 1.1], dtype=torch.float64)
F = torch.tensor([1.0, -2.0, 5.0, 0.5, 3.0], dtype=torch.float64)

WHOLE: dict[str, Heuristic] = {
    "balance": balance_heuristic,
    "power": power_heuristic,
    "power 3.5": partial(power_heuristic, beta=3.5),
    "maximum": maximum_heuristic,
    "cut-off": cutoff_heuristic,
    "cut-off 0.6": partial(cutoff_heuristic, alpha=0.6),
    "one group": partial(partial_mixture, groups=torch.tensor([3, 3, 3])),
    "two groups": partial(partial_mixture, groups=torch.tensor([0, 1, 1])),
}
STANDARD = partial(partial_mixture, groups=torch.tensor([0, 1, 2]))


def plainly(name: str, q: list[float], n: list[int]) -> list[float]:
    """Shares of the designs in one point."""
    size = [a * b for a, b in zip(q, n, strict=True)]
    if name.startswith("power"):
        size = [v ** float(name[6:] or 2) for v in size]
    elif name == "maximum":
        size = [float(v == max(size)) for v in size]
    elif name.startswith("cut-off"):
        size = [v * (v >= float(name[8:] or 0.1) * max(size)) for v in size]
    elif name == "two groups":
        return [n[0] / sum(n)] + [(n[1] + n[2]) / sum(n) * v / (size[1] + size[2]) for v in size[1:]]
    return [v / sum(size) for v in size]


@pytest.mark.parametrize("name", WHOLE)
def test_shares_are_those_of_the_formula_and_sum_to_one(name: str) -> None:
    share = WHOLE[name](Q.log(), COUNTS).exp()
    for x in range(5):
        assert share[:, x].tolist() == pytest.approx(plainly(name, Q[:, x].tolist(), COUNTS.tolist()))
    assert share.sum(0).tolist() == pytest.approx([1] * 5)
    assert bool((share[Q == 0] == 0).all())


@pytest.mark.parametrize("name", WHOLE)
def test_the_expected_estimate_is_the_sum_by_enumeration(name: str) -> None:
    """E[estimate] = sum over designs and points of n_j q_j(x) (1/N) w_j(x) f(x), a draw of each at a time."""
    total = 0.0
    for x in range(5):
        for j in range(3):
            if Q[j, x] == 0:
                continue
            # a pool in which draw 0 is point x of design j; the others only fill up the counts
            origin = torch.tensor([0, 0, 0, 0, 1, 2, 2])
            origin = torch.cat([torch.tensor([j]), origin[origin != j], origin[origin == j][1:]])
            points = torch.cat([torch.tensor([x]), torch.zeros(6, dtype=torch.int64)])
            log_w = multiple_importance(P[points].log(), Q.log()[:, points], origin, heuristic=WHOLE[name])
            total += float(COUNTS[j] * Q[j, x] * log_w[0].exp() * F[x] / 7)
    assert total == pytest.approx(float((P * F).sum()))


@pytest.mark.parametrize("name", WHOLE)
def test_estimates_over_draws_are_unbiased(name: str) -> None:
    g = torch.Generator().manual_seed(7)
    points = torch.cat(
        [torch.multinomial(q, 3000 * int(n), True, generator=g).view(3000, -1) for q, n in zip(Q, COUNTS)],  # noqa: B905
        -1,
    )
    origin = torch.repeat_interleave(torch.arange(3), COUNTS)
    log_q = Q.log()[:, points].transpose(0, 1)
    log_w = multiple_importance(P.log()[points], log_q, origin, heuristic=WHOLE[name])
    found = expectation(F[points], log_w, self_normalized=False)
    assert_unbiased(found.value, float((P * F).sum()))


def test_standard_weights_use_the_own_design_and_miss_what_it_cannot_draw() -> None:
    share = STANDARD(Q.log(), COUNTS).exp()
    assert share[:, 0].tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])
    assert share[:, 4].tolist() == pytest.approx([4 / 7, 0, 2 / 7])
    points, origin = torch.tensor([3, 1, 4]), torch.tensor([0, 1, 2])
    log_w = multiple_importance(P[points].log(), Q.log()[:, points], origin, heuristic=STANDARD)
    own = [float(P[x] / Q[j, x]) for x, j in zip(points, origin, strict=True)]
    assert log_w.exp().tolist() == pytest.approx(own)
    masked = Q.log()[:, points].where(torch.eye(3).bool(), -INF)
    again = multiple_importance(P[points].log(), masked, origin, heuristic=STANDARD)
    assert again.tolist() == pytest.approx(log_w.tolist())


def test_the_variance_of_the_balance_heuristic_is_within_its_bound_of_every_other() -> None:
    """Var(balance) - Var(other) <= (1 / min n_j - 1 / N) mu^2, both by enumeration."""

    def variance(heuristic: Heuristic) -> float:
        share = heuristic(Q.log(), COUNTS).exp()
        value = torch.where(Q > 0, share * P * F / (COUNTS[:, None] * Q), 0.0)
        return float((COUNTS * ((Q * value.square()).sum(1) - (Q * value).sum(1).square())).sum())

    mu = float((P * F).sum())
    for heuristic in WHOLE.values():
        assert variance(balance_heuristic) - variance(heuristic) <= (1 - 1 / 7) * mu**2 + 1e-9


def test_limits_in_which_heuristics_meet() -> None:
    log_q = Q.log()
    torch.testing.assert_close(power_heuristic(log_q, COUNTS, beta=1.0), balance_heuristic(log_q, COUNTS))
    torch.testing.assert_close(cutoff_heuristic(log_q, COUNTS, alpha=0.0), balance_heuristic(log_q, COUNTS))
    best = maximum_heuristic(log_q, COUNTS)
    torch.testing.assert_close(cutoff_heuristic(log_q, COUNTS, alpha=1.0), best)
    torch.testing.assert_close(power_heuristic(log_q, COUNTS, beta=1e4).exp(), best.exp())
    expected = log_q + COUNTS.log()[:, None]
    torch.testing.assert_close(balance_heuristic(expected), balance_heuristic(log_q, COUNTS))


def test_ties_share_extremes_are_finite_and_points_nobody_draws_belong_to_nobody() -> None:
    tied = torch.tensor([[0.0, -1e8, -INF], [0.0, 1e8, -INF], [-1.0, -INF, -INF]])
    for heuristic in (balance_heuristic, power_heuristic, maximum_heuristic, cutoff_heuristic):
        share = heuristic(tied)
        assert share.dtype == torch.float32
        assert share[0, 0] == share[1, 0]
        assert share[:, 1].exp().tolist() == [0, 1, 0]
        assert share[:, 2].tolist() == [-INF] * 3
    assert maximum_heuristic(tied)[:, 0].exp().tolist() == pytest.approx([0.5, 0.5, 0])


def designs(g: torch.Generator) -> tuple[list[Draws], list[Tensor]]:
    counts = torch.tensor([1, 10, 3, 2, 5])
    context = Context(torch.tensor([3]))
    hard = torch.tensor([4, 1])
    certain = torch.tensor([-INF, 0.0, -INF, -INF, 0.0])
    draws = [
        Draws(hard, torch.zeros(2), lambda ids: certain[ids]),
        Popularity(counts).sample(context, 3, generator=g),
        Uniform(5).sample(context, 4, generator=g),
    ]
    return draws, [F[d.ids] for d in draws]


def test_draws_weighed_by_the_balance_heuristic_are_merged_draws() -> None:
    draws, scores = designs(torch.Generator().manual_seed(0))
    found = merge_weighted(draws, scores)
    merged = Draws.merge(draws).weigh(torch.cat(scores))
    assert torch.equal(found.values, merged.values)
    torch.testing.assert_close(found.log_weight, merged.log_weight)
    torch.testing.assert_close(found.log_normalizer, merged.log_normalizer)
    everything = Everything(5).sample(Context(torch.tensor([3])), 5)
    alone = merge_weighted([everything], [F])
    assert float(alone.log_normalizer) == pytest.approx(float(F.logsumexp(0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["power", "maximum", "cut-off"])
def test_draws_weighed_together_estimate_the_sum_over_everything(name: str) -> None:
    g = torch.Generator().manual_seed(5)
    sums = []
    for _ in range(1500):
        draws, scores = designs(g)
        sums.append(merge_weighted(draws, scores, heuristic=WHOLE[name]).log_weight.exp().sum())
    assert_unbiased(torch.stack(sums), float(F.exp().sum()))


def test_empty_slots_weigh_nothing_and_batches_broadcast() -> None:
    rows = torch.tensor([[0.5, 0.25, 0.25, 1e-9, 1e-9], [0.2, 0.2, 0.2, 0.2, 0.2]]).log()

    def design(ids: Tensor) -> Tensor:
        return rows.expand(*ids.shape[:-1], 5).gather(-1, ids)

    ids = torch.tensor([[1, 0], [3, 4]])
    log_expected = design(ids)
    log_expected[0, 1] = INF
    batch = Draws(ids, log_expected, design)
    shared = Draws(torch.tensor([2, 2, 0]), torch.zeros(3), lambda asked: 0.0 * asked)
    for heuristic in (balance_heuristic, power_heuristic):
        found = merge_weighted([batch, shared], [F[ids], F[shared.ids]], heuristic=heuristic)
        assert found.values.shape == (2, 5)
        assert found.log_weight[0, 1] == -INF
        assert int(found.dead.sum()) == 1
    torch.testing.assert_close(
        merge_weighted([batch, shared], [F[ids], F[shared.ids]]).log_weight,
        Draws.merge([batch, shared]).weigh(F[found.values]).log_weight,
    )


def test_bad_arguments_are_refused() -> None:
    log_q = Q.log()
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match="NaN"):
            balance_heuristic(torch.full((2, 3), bad))
    with pytest.raises(TypeError, match="floating"):
        balance_heuristic(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="designs, draws"):
        balance_heuristic(torch.zeros(3))
    with pytest.raises(ValueError, match="count for each"):
        balance_heuristic(log_q, torch.ones(2))
    with pytest.raises(ValueError, match="negative"):
        balance_heuristic(log_q, torch.tensor([1, -1, 2]))
    for beta in (0.0, INF, math.nan):
        with pytest.raises(ValueError, match="exponent"):
            power_heuristic(log_q, beta=beta)
    for alpha in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            cutoff_heuristic(log_q, alpha=alpha)
    with pytest.raises(ValueError, match="one group"):
        partial_mixture(log_q, groups=torch.tensor([0, 1]))
    draws = torch.tensor([0, 4])
    with pytest.raises(ValueError, match="density zero"):
        multiple_importance(P[draws].log(), log_q[:, draws], torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="0 to 2"):
        multiple_importance(P[draws].log(), log_q[:, draws], torch.tensor([0, 3]))
    with pytest.raises(TypeError, match="int64"):
        multiple_importance(P[draws].log(), log_q[:, draws], torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="origin of shape"):
        multiple_importance(P.log(), log_q[:, draws], torch.tensor([0, 1]))
    one = Draws(draws, torch.tensor([0.0, -INF]), lambda ids: 0.0 * ids)
    with pytest.raises(ValueError, match="never draws"):
        merge_weighted([one], [F[draws]])
    with pytest.raises(ValueError, match="scores for each"):
        merge_weighted([one], [])
    with pytest.raises(ValueError, match="at least one"):
        merge_weighted([], [])


def test_targets_without_a_log_density_no_draws_and_batches_that_do_not_match_are_refused() -> None:
    log_q, origin = Q.log(), torch.tensor([0, 1, 2, 0, 2])
    for bad in (math.nan, INF):
        log_p = P.log()
        log_p[1] = bad
        with pytest.raises(ValueError, match=r"NaN or \+inf"):
            multiple_importance(log_p, log_q, origin)
    with pytest.raises(ValueError, match="no draw"):
        multiple_importance(torch.zeros(0), torch.zeros(2, 0), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="Leading dimensions"):
        multiple_importance(P.log().expand(2, 5), log_q.expand(4, 3, 5), origin)
    with pytest.raises(ValueError, match="do not belong"):
        balance_heuristic(log_q.expand(4, 3, 5), torch.ones(2, 3))


@pytest.mark.parametrize("heuristic", [*WHOLE.values(), STANDARD])
def test_counts_that_are_infinite_or_all_zero_are_refused(heuristic: Heuristic) -> None:
    for bad, why in (([INF, 1.0, 1.0], "finite"), ([math.nan, 1.0, 1.0], "finite"), ([0.0] * 3, "all zero")):
        with pytest.raises(ValueError, match=why):
            heuristic(torch.zeros(3, 2), torch.tensor(bad))


def test_a_group_without_draws_has_no_share_and_the_others_share_it_all() -> None:
    share = STANDARD(torch.zeros(3, 2), torch.tensor([0, 1, 3])).exp()
    assert share.tolist() == [[0, 0], [pytest.approx(0.25)] * 2, [pytest.approx(0.75)] * 2]


def test_the_power_heuristic_takes_log_densities_near_the_end_of_float64() -> None:
    log_q = torch.tensor([[1e308, -1e308], [1e308, -INF]], dtype=torch.float64)
    share = power_heuristic(log_q, beta=4).exp()
    assert share.tolist() == [[pytest.approx(0.5), 1], [pytest.approx(0.5), 0]]
