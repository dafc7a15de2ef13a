"""Numbers as tokens, ratings as levels, labels of bags: distances, means and expectations."""

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from steelyard.losses.regression import easy_llp, number_token, soft_levels, thurstone_fidelity

NAN = math.nan
VALUES = torch.tensor([NAN, 0.0, 1.0, 4.0, 8.0, NAN, 9.0])
LABELS = torch.tensor([3, 0, 4, 1])


def logits() -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(4, 7, generator=g, dtype=torch.float64)


def test_the_distance_is_scipys_wasserstein_on_number_tokens_alone() -> None:
    z = logits()
    got = number_token(z, LABELS, VALUES, reduction="none")
    squared = number_token(z, LABELS, VALUES, variant="squared", reduction="none")
    number = ~VALUES.isnan()
    assert float(got[1]) == 0  # no number
    for i in (0, 2, 3):
        p = z[i, number].softmax(0).numpy()
        v, y = VALUES[number].numpy(), float(VALUES[LABELS[i]])
        assert float(got[i]) == pytest.approx(stats.wasserstein_distance(v, [y], p), abs=1e-9)
        assert float(squared[i]) == pytest.approx((y - float(p @ v)) ** 2, abs=1e-9)
    assert float(number_token(z, LABELS, VALUES)) == pytest.approx(float(got.sum()) / 3)


def test_a_certain_digit_costs_nothing_and_only_the_squared_form_has_a_false_zero() -> None:
    z = torch.full((1, 7), -1e4)
    z[0, 3] = 0.0
    right = torch.tensor([3])
    assert float(number_token(z, right, VALUES)) == 0
    half = torch.full((1, 7), -1e4)
    half[0, 1] = half[0, 4] = 0.0  # 0 and 8 where 4 is right
    assert float(number_token(half, right, VALUES, variant="squared")) == pytest.approx(0)
    assert float(number_token(half, right, VALUES)) == pytest.approx(4)


def test_soft_levels_keep_the_mean_and_lie_on_the_levels_for_small_variances() -> None:
    levels = torch.arange(1, 6, dtype=torch.float64)
    mean = torch.linspace(1, 5, 41, dtype=torch.float64)
    for variance in (1e-6, 0.04, 0.3, 1.0, 4.0):
        q = soft_levels(mean, torch.full_like(mean, variance), levels)
        torch.testing.assert_close(q.sum(1), torch.ones(41, dtype=torch.float64))
        torch.testing.assert_close((q * levels).sum(1), mean)
        assert float(q.min()) >= 0
    sharp = soft_levels(levels, torch.full((5,), 1e-8, dtype=torch.float64), levels)
    torch.testing.assert_close(sharp, torch.eye(5, dtype=torch.float64))


def test_soft_levels_are_gaussian_masses_tilted_by_the_level() -> None:
    levels = torch.arange(1, 6, dtype=torch.float64)
    for mean, spread in ((3.4, 0.5), (1.3, 0.8), (4.9, 1.5)):
        given = torch.tensor([[mean], [spread**2]], dtype=torch.float64)
        q = soft_levels(*given, levels)[0]
        edges = stats.norm.cdf([k + 0.5 for k in range(6)], mean, spread)
        log_ratio = [math.log(float(q[k]) / (edges[k + 1] - edges[k])) for k in range(5)]
        steps = [b - a for a, b in itertools.pairwise(log_ratio)]
        assert steps == pytest.approx([steps[0]] * 4, abs=1e-6)
        assert mean != 3.4 or abs(steps[0]) < 0.05  # in the middle there is little to correct


def test_soft_levels_say_more_of_the_rating_than_the_nearest_level() -> None:
    levels = torch.arange(1, 6, dtype=torch.float64)
    mean = 1 + 4 * torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = soft_levels(mean, torch.full_like(mean, 0.2), levels)
    nearest = mean.round()
    assert float(((q * levels).sum(1) - mean).abs().max()) < 1e-6 < float((nearest - mean).abs().max())


def test_fidelity_equals_a_plain_loop_and_is_zero_just_where_preferences_agree() -> None:
    g = torch.Generator().manual_seed(2)
    m, t = torch.randn(2, 5, generator=g, dtype=torch.float64)
    s, u = torch.rand(2, 5, generator=g, dtype=torch.float64) + 0.1
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[0, 2] = mask[2, 0] = True
    got = thurstone_fidelity(m, s, t, u, mask, reduction="none")
    for a in range(5):
        terms = []
        for b in range(5):
            if a == b or mask[a, b]:
                continue
            p = stats.norm.cdf(float((m[a] - m[b]) / (s[a] + s[b]).sqrt()))
            q = stats.norm.cdf(float((t[a] - t[b]) / (u[a] + u[b]).sqrt()))
            terms.append(1 - math.sqrt(p * q) - math.sqrt((1 - p) * (1 - q)))
        assert float(got[a]) == pytest.approx(sum(terms) / len(terms), abs=1e-10)
    assert float(thurstone_fidelity(m, s, m + 3, s)) == pytest.approx(0, abs=1e-12)
    assert float(thurstone_fidelity(2 * m, 4 * s, m, s)) == pytest.approx(0, abs=1e-12)
    opposite = thurstone_fidelity(100 * m, s, -100 * m, s)
    assert float(opposite) == pytest.approx(1, abs=1e-3)


def test_bag_fractions_give_the_risk_without_bias_by_enumeration() -> None:
    eta = [0.1, 0.7, 0.4]  # P(y = 1 | x) for three kinds of examples, equally likely
    prior = sum(eta) / 3
    for k in (1, 2, 3):
        for first in range(3):
            mean = second = 0.0
            for others in itertools.product(range(3), repeat=k - 1):
                kinds = (first, *others)
                for y in itertools.product((0, 1), repeat=k):
                    chance = (1 / 3) ** (k - 1)
                    for kind, label in zip(kinds, y, strict=True):
                        chance *= eta[kind] if label else 1 - eta[kind]
                    fraction = torch.tensor([sum(y) / k], dtype=torch.float64)
                    one, zero = (
                        torch.tensor([2.0], dtype=torch.float64),
                        torch.tensor([0.5], dtype=torch.float64),
                    )
                    loss = float(easy_llp(one, zero, fraction, torch.tensor(k), prior=prior))
                    mean, second = mean + chance * loss, second + chance * loss**2
            assert mean == pytest.approx(eta[first] * 2.0 + (1 - eta[first]) * 0.5, abs=1e-12)
            spread = eta[first] * (1 - eta[first]) + (k - 1) * prior * (1 - prior)
            assert second - mean**2 == pytest.approx(1.5**2 * spread, abs=1e-12)


def test_bags_of_one_are_supervised_learning() -> None:
    z = logits()[:, 0]
    y = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    one = binary_cross_entropy_with_logits(z, torch.ones_like(z), reduction="none")
    zero = binary_cross_entropy_with_logits(z, torch.zeros_like(z), reduction="none")
    got = easy_llp(one, zero, y, torch.ones(4, dtype=torch.long), prior=0.3)
    torch.testing.assert_close(got, binary_cross_entropy_with_logits(z, y))


def test_gradients_agree_with_finite_differences() -> None:
    z = logits().requires_grad_()
    for variant in ("wasserstein", "squared"):
        assert torch.autograd.gradcheck(
            lambda v, kind=variant: number_token(v, LABELS, VALUES, variant=kind, reduction="none"), (z,)
        )
    m = logits()[:, 0].requires_grad_()
    s = (logits()[:, 1].abs() + 0.2).detach().requires_grad_()
    target = logits()[:, 2], torch.ones(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: thurstone_fidelity(a, b, *target, reduction="none"), (m, s))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremes_low_precision_and_nothing(dtype: torch.dtype) -> None:
    z = (300 * logits()).to(dtype).requires_grad_()
    for variant in ("wasserstein", "squared"):
        loss = number_token(z, LABELS, VALUES, variant=variant)  # type: ignore[arg-type]
        assert torch.autograd.grad(loss, z)[0].isfinite().all()
    words = torch.zeros(4, dtype=torch.long)
    silent = number_token(z, words, VALUES, reduction="none")
    assert silent.tolist() == [0] * 4
    with pytest.raises(ValueError, match="no query"):
        number_token(z, words, VALUES)
    m = torch.tensor([50.0, -50.0, 0.0], dtype=dtype, requires_grad=True)
    s = torch.full((3,), 0.01, dtype=dtype)
    loss = thurstone_fidelity(m, s, -m.detach(), s)
    assert torch.autograd.grad(loss, m)[0].isfinite().all()
    assert float(thurstone_fidelity(m[:1], s[:1], m[:1], s[:1]).detach()) == 0
    assert soft_levels(torch.zeros(0), torch.zeros(0), torch.arange(1.0, 6.0)).shape == (0, 5)


def test_what_is_wrong_is_named() -> None:
    z = logits()
    with pytest.raises(ValueError, match="0 to 6"):
        number_token(z, LABELS + 4, VALUES)
    with pytest.raises(ValueError, match="infinite"):
        number_token(z, LABELS, VALUES / 0)
    with pytest.raises(ValueError, match="variant"):
        number_token(z, LABELS, VALUES, variant="l1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(V,\)"):
        number_token(z, LABELS, VALUES[:3])
    levels = torch.arange(1.0, 6.0)
    with pytest.raises(ValueError, match="within the levels"):
        soft_levels(torch.tensor([5.5]), torch.ones(1), levels)
    with pytest.raises(ValueError, match="variance"):
        soft_levels(torch.tensor([3.0]), torch.zeros(1), levels)
    with pytest.raises(ValueError, match="equal steps"):
        soft_levels(torch.tensor([3.0]), torch.ones(1), torch.tensor([1.0, 2.0, 4.0]))
    with pytest.raises(ValueError, match="variance"):
        thurstone_fidelity(*torch.ones(3, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="four tensors"):
        thurstone_fidelity(*torch.ones(3, 2), torch.ones(3))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        easy_llp(torch.ones(2), torch.ones(2), torch.tensor(1.5), torch.tensor(2), prior=0.5)
    with pytest.raises(ValueError, match="prior"):
        easy_llp(torch.ones(2), torch.ones(2), torch.tensor(0.5), torch.tensor(2), prior=1.5)
    with pytest.raises(ValueError, match="broadcast"):
        easy_llp(torch.ones(2), torch.ones(2), torch.ones(3), torch.tensor(2), prior=0.5)


def test_bags_and_levels_of_other_shapes_are_refused_in_words() -> None:
    losses = torch.zeros(3), torch.zeros(3)
    for fraction, size in ((torch.zeros(2), torch.ones(3)), (torch.zeros(3), torch.ones(2))):
        with pytest.raises(ValueError, match="does not broadcast"):
            easy_llp(*losses, fraction, size, prior=0.5)
    with pytest.raises(ValueError, match="two levels or more"):
        soft_levels(torch.zeros(2), torch.ones(2), torch.tensor(1.0))
