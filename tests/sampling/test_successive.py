"""Successive sampling: its law, the two thresholds, and the short cuts that must not change a draw."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.successive import (
    _bounds,
    among,
    draw_seeds,
    hash_id,
    key_of,
    log_inclusion,
    without_replacement,
)
from tests.sampling.drawing import seeded
from tests.statistical import assert_unbiased

INF = math.inf
LOG_P = torch.tensor([0.3, 1.2, -0.6, 2.0, 0.0, 0.7], dtype=torch.float64)
VALUES = torch.tensor([1.0, -2.0, 3.0, 0.5, 4.0, 2.0], dtype=torch.float64)
R = 40_000


def law_of_sets(k: int) -> dict[tuple[int, ...], float]:
    """Probability of each set, one draw after the other in every order."""
    p, law = LOG_P.softmax(-1).tolist(), dict.fromkeys(itertools.combinations(range(6), k), 0.0)
    for order in itertools.permutations(range(6), k):
        chance, left = 1.0, 1.0
        for i in order:
            chance *= p[i] / left
            left -= p[i]
        law[tuple(sorted(order))] += chance
    return law


def included(draws: Draws, n: int) -> Tensor:
    return torch.zeros(*draws.ids.shape[:-1], n, dtype=torch.float64).scatter_(-1, draws.ids, 1.0)


def totals(draws: Draws, log_expected: Tensor) -> Tensor:
    return (VALUES[draws.ids] * (-log_expected).exp()).sum(-1)


def outer_threshold(draws: Draws, log_p: Tensor) -> Tensor:
    """The (k+1)-th largest key, read off the probability of the first of the drawn."""
    return log_p[draws.ids[:, :1]] - torch.log(-torch.log1p(-draws.log_expected[:, :1].exp()))


def plain_keys(log_p: Tensor, words: np.ndarray) -> list[float]:
    """Keys by Python's big integers: splitmix64's finaliser, then MurmurHash3's."""
    keys, m = [], 2**64 - 1
    s0, s1 = int(words[0]), int(words[1])
    for i, value in enumerate(log_p.tolist()):
        x = (i * 0x9E3779B97F4A7C15 + s0) & m
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & m
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & m
        x = ((x ^ (x >> 31)) + s1) & m
        x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & m
        x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & m
        x ^= x >> 33
        keys.append(value - math.log(-math.log1p(-x / 2**64)))
    return keys


def test_sets_come_as_often_as_drawing_one_after_the_other_says() -> None:
    law = law_of_sets(3)
    draws = without_replacement(LOG_P.expand(R, 6), 3, generator=seeded(0))
    code = (2**draws.ids).sum(-1)
    seen = torch.stack([code == sum(2**i for i in s) for s in law], -1)
    assert_unbiased(seen.double(), list(law.values()))


def test_frequencies_equal_the_design_which_asks_each_candidate_against_the_others() -> None:
    draws = without_replacement(LOG_P.expand(R, 6), 3, generator=seeded(1))
    seen, every = included(draws, 6), torch.arange(6)
    design = draws.log_expected_of(every).exp()
    assert_unbiased(seen - design, 0.0)
    first_order = [sum(chance for s, chance in law_of_sets(3).items() if i in s) for i in range(6)]
    assert_unbiased(design, first_order)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_unbiased(seen - log_inclusion(LOG_P, outer_threshold(draws, LOG_P)).exp(), 0.0)


def test_totals_are_unbiased_alone_and_merged_and_one_threshold_for_all_is_not() -> None:
    a = without_replacement(LOG_P.expand(R, 6), 3, generator=seeded(2))
    b = without_replacement(-LOG_P.expand(R, 6), 2, generator=seeded(3))
    assert_unbiased(totals(a, a.log_expected), float(VALUES.sum()))
    merged = Draws.merge([a, b])
    assert_unbiased(totals(merged, merged.log_expected), float(VALUES.sum()))

    def outer_only(draws: Draws, log_p: Tensor) -> Draws:
        limit = outer_threshold(draws, log_p)
        return Draws(draws.ids, draws.log_expected, lambda ids: log_inclusion(log_p[ids], limit))

    wrong = Draws.merge([outer_only(a, LOG_P), outer_only(b, -LOG_P)])
    with pytest.raises(AssertionError, match="standard errors"):
        assert_unbiased(totals(wrong, wrong.log_expected), float(VALUES.sum()))


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_a_draw_is_the_k_largest_keys_and_its_thresholds_are_the_next_key_and_the_last(k: int) -> None:
    keys = plain_keys(LOG_P, draw_seeds(seeded(4), 1)[0])
    order = sorted(range(6), key=lambda i: -keys[i])
    draws = without_replacement(LOG_P, k, generator=seeded(4))
    assert draws.ids.tolist() == sorted(order[:k])
    want = []
    for i in range(6):
        others = sorted((keys[j] for j in range(6) if j != i), reverse=True)
        want.append(1 - math.exp(-math.exp(float(LOG_P[i]) - others[k - 1])) if k else 0.0)
    assert draws.log_expected_of(torch.arange(6)).exp().tolist() == pytest.approx(want, rel=1e-12)
    torch.testing.assert_close(draws.log_expected_of(draws.ids), draws.log_expected)


@pytest.mark.parametrize("k", [3, 1000])
def test_the_pilot_that_guesses_a_limit_never_changes_the_draw(k: int) -> None:
    """Also where it misleads: it looks at every tenth candidate, and only those are heavy."""
    n = 10 * 2**14
    for heavy in (0.0, 30.0):
        log_p = torch.randn(n, generator=seeded(5), dtype=torch.float64)
        log_p[::10] += heavy
        keys = plain_keys(log_p, draw_seeds(seeded(6), 1)[0])
        draws = without_replacement(log_p, k, generator=seeded(6))
        assert draws.ids.tolist() == sorted(np.argsort(keys)[-k:].tolist())


def test_the_bound_that_spares_a_row_its_logarithm_is_never_below_the_key() -> None:
    n, words = 512, draw_seeds(seeded(5), 1)[0]
    for start in range(0, 50 * n, n):
        uniform, bound = np.empty(n), np.empty(n)
        none, log_p = np.empty(0, np.int64), np.linspace(-5, 5, n)
        _bounds(none, start, log_p, *words, uniform, uniform.view(np.int64), bound)
        noise = [np.uint64(hash_id(np.uint64(start + j), *words)) for j in range(n)]
        keys = np.array([key_of(log_p[j], noise[j]) for j in range(n)])
        assert (bound >= keys).all()
        assert ((bound - keys)[uniform < 0.01] < 0.07).all()


def test_taking_everything_is_certain() -> None:
    draws = without_replacement(LOG_P, 6)
    assert draws.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert draws.log_expected.tolist() == [0.0] * 6
    assert draws.log_expected_of(torch.tensor([2, 6, -1])).tolist() == [0.0, -INF, -INF]
    one = without_replacement(torch.tensor([-3.0]), 1)
    assert (one.ids.tolist(), one.log_expected.tolist()) == ([0], [0.0])


def test_a_row_with_too_few_candidates_gives_all_of_them_and_leaves_slots_empty() -> None:
    log_p = torch.tensor([[0.0, -INF, 1.0, -INF], [0.0, 1.0, 2.0, 3.0], [-INF] * 4])
    draws = without_replacement(log_p, 3, generator=seeded(7))
    assert draws.ids[0].tolist() == [0, 2, 0]
    assert draws.log_expected[0].tolist() == [0.0, 0.0, INF]
    assert draws.log_expected[2].tolist() == [INF] * 3
    assert bool(draws.log_expected[1].isfinite().all())
    assert draws.log_expected_of(torch.arange(4))[[0, 2]].tolist() == [[0, -INF, 0, -INF], [-INF] * 4]


def test_ties_and_weights_a_thousand_apart_stay_finite_and_right() -> None:
    equal = without_replacement(torch.zeros(R, 5), 2, generator=seeded(8))
    assert_unbiased(included(equal, 5), 0.4)
    far = torch.tensor([0.0, -1000.0, 1000.0, -INF, -1000.0], dtype=torch.float64)
    draws = without_replacement(far.expand(R, 5), 3, generator=seeded(9))
    assert_unbiased(included(draws, 5), [1, 0.5, 1, 0, 0.5])
    answer = draws.log_expected_of(torch.arange(5))
    assert not bool(answer.isnan().any())
    assert bool((answer[:, 3] == -INF).all())
    assert bool((answer <= 0).all())


def test_a_common_factor_cancels_and_inputs_are_not_changed() -> None:
    log_p = LOG_P.clone()
    a = without_replacement(log_p, 3, generator=seeded(10))
    b = without_replacement(log_p + 100, 3, generator=seeded(10))
    assert a.ids.tolist() == b.ids.tolist()
    torch.testing.assert_close(a.log_expected, b.log_expected)
    assert log_p.tolist() == LOG_P.tolist()


def test_dtypes_lists_and_shapes() -> None:
    for dtype, answer in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        assert without_replacement(LOG_P.to(dtype), 2, generator=seeded(11)).log_expected.dtype == answer
    a = without_replacement(LOG_P.float(), 2, generator=seeded(11))
    assert a.ids.tolist() == without_replacement(LOG_P, 2, generator=seeded(11)).ids.tolist()
    assert without_replacement([0.0, 1.0], 1).ids.shape == (1,)  # type: ignore[arg-type]
    draws = without_replacement(torch.randn(2, 3, 7), 4)
    assert draws.ids.shape == draws.log_expected.shape == (2, 3, 4)
    assert draws.log_expected_of(torch.zeros(3, 5, dtype=torch.int64)).shape == (2, 3, 5)
    assert without_replacement(LOG_P, 2).log_expected_of(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5)
    assert without_replacement(torch.zeros(0, 4), 2).ids.shape == (0, 2)


def test_bad_input_is_refused() -> None:
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match=r"has (nan|inf) in row 1, column 2"):
            without_replacement(torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, bad]]), 1)
    for k in (-1, 7):
        with pytest.raises(ValueError, match="between 0 and the 6"):
            without_replacement(LOG_P, k)
    with pytest.raises(TypeError, match="integer"):
        without_replacement(LOG_P, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating"):
        without_replacement(torch.tensor([1, 2]), 1)
    with pytest.raises(ValueError, match="single number"):
        without_replacement(torch.tensor(1.0), 1)


def test_log_inclusion_keeps_its_digits_at_both_ends() -> None:
    gaps = torch.tensor([-1000.0, -31.0, -29.0, -1.0, 0.0, 3.0, 1000.0], dtype=torch.float64)
    want = [-1000.0, -31.0, *(math.log(-math.expm1(-math.exp(g))) for g in (-29, -1, 0, 3)), 0.0]
    assert log_inclusion(gaps, torch.tensor(0.0)).tolist() == pytest.approx(want, rel=1e-13)


def test_membership() -> None:
    asked = torch.tensor([[0, 4, 9], [4, 1, -1]])
    assert among(asked, torch.tensor([1, 4])).tolist() == [[False, True, False], [True, True, False]]
    rows = torch.tensor([[0, 9], [4, 5]])
    assert among(asked, rows).tolist() == [[True, False, True], [True, False, False]]
    assert among(asked, torch.zeros(0, dtype=torch.int64)).tolist() == [[False] * 3] * 2


def test_the_hash_is_uniform_and_every_bit_of_the_input_flips_half_of_its_bits() -> None:
    """z-tests over 4,096 row numbers in a row, significance 1e-4."""

    def word(i: int, seed: int) -> int:
        return int(hash_id(np.uint64(i), np.uint64(seed), np.uint64(7)))

    words = np.array([[word(i, seed)] for i in range(4096) for seed in (0, 1)], np.uint64)
    bits = (words >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert_unbiased(bits, 0.5)
    assert_unbiased(bits[::2] ^ bits[1::2], 0.5)
    for flip in (0, 1, 31, 63):
        other = np.array([word(i ^ (1 << flip), 0) for i in range(4096)], np.uint64)
        changed = ((words[::2, 0] ^ other)[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
        assert_unbiased(changed, 0.5)
    assert len(np.unique(words)) == len(words)
