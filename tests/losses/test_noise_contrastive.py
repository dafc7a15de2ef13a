"""Sampled criteria at their optimum: each holds the true posterior once its scores are read rightly."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.losses import sampled_softmax
from steelyard.losses.noise_contrastive import (
    log_posterior,
    nce,
    negative_sampling,
    phrase_score,
    ranking_nce,
    sampled_bce,
    sampled_mse,
    subsampling_keep_probability,
)
from tests.losses.minimising import minimise
from tests.statistical import assert_unbiased

POSTERIOR = torch.tensor([0.55, 0.25, 0.12, 0.06, 0.02], dtype=torch.float64)
NOISE = torch.tensor([0.1, 0.2, 0.4, 0.25, 0.05], dtype=torch.float64)
K = 2


# every target with every pair of draws of noise, and the probability of it
TARGET, DRAWS = (
    torch.tensor(x)
    for x in zip(*[(t, d) for t in range(5) for d in itertools.product(range(5), repeat=K)], strict=True)
)
CHANCE = POSTERIOR[TARGET] * NOISE[DRAWS].prod(-1)
HIT = TARGET[:, None] == DRAWS
LOG_EXPECTED = (K * NOISE).log()


def optimum(criterion: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Scores of the five classes at which the exact expectation of a criterion is least."""
    return minimise(lambda s: (CHANCE * criterion(s[TARGET], s[DRAWS])).sum(), (5,))


def none(loss: Callable[..., Tensor], *more: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda p, n: loss(p, n, *more, reduction="none")


E, E_TARGET = LOG_EXPECTED[DRAWS], LOG_EXPECTED[TARGET]
RAW = torch.zeros_like(E)
CASES = {
    "nce": (none(nce, E_TARGET, E), None, "binary"),
    "bce, hits kept": (none(sampled_bce), LOG_EXPECTED, "binary"),
    "bce, hits masked": (none(sampled_bce, None, HIT), LOG_EXPECTED, "binary masked"),
    "bce, weighed": (none(sampled_bce, E, HIT), None, "binary masked"),
    "bce, weighed, hits kept": (none(sampled_bce, E), None, "binary"),
    "mse, hits kept": (none(sampled_mse), LOG_EXPECTED, "binary"),
    "mse, hits masked": (none(sampled_mse, None, HIT), LOG_EXPECTED, "binary masked"),
    "mse, weighed": (none(sampled_mse, E, HIT), None, "binary masked"),
    "sgns": (none(negative_sampling), LOG_EXPECTED, "binary"),
    "ranking nce": (none(ranking_nce, E_TARGET, E), None, "ranking"),
    "ranking, not corrected": (none(sampled_softmax, RAW), LOG_EXPECTED, "ranking"),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_optimum_of_each_criterion_holds_the_true_posterior(name: str) -> None:
    criterion, log_expected, kind = CASES[name]
    score = optimum(criterion)
    got = log_posterior(score, log_expected, criterion=kind).exp()  # type: ignore[arg-type]
    torch.testing.assert_close(got, POSTERIOR, atol=2e-5, rtol=0)
    for wrong in {"binary", "binary masked", "ranking"} - {kind}:
        read = log_posterior(score, log_expected, criterion=wrong).exp()  # type: ignore[arg-type]
        if wrong != "ranking" and kind != "ranking":  # at an exact optimum binary ones sum to 1 as well
            assert float((read - POSTERIOR).abs().max()) > 0.05
    if log_expected is not None:  # scores taken for log-posteriors are wrong where noise was not corrected
        assert float((log_posterior(score, criterion=kind).exp() - POSTERIOR).abs().max()) > 0.05  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [sampled_bce, sampled_mse])
def test_compensated_partial_sums_learn_the_posterior(loss: Callable[..., Tensor]) -> None:
    parts = torch.tensor(list(itertools.combinations(range(5), 3)))  # any 3 of the 5 classes
    target = torch.arange(5).repeat_interleave(len(parts))
    part = parts.repeat(5, 1)
    scale = torch.tensor(3 / 5, dtype=torch.float64).log()
    score = minimise(
        lambda s: (
            POSTERIOR[target]
            * loss(s[target], s[part], scale, part == target[:, None], reduction="none")
            / len(parts)
        ).sum(),
        (5,),
    )
    got = log_posterior(score, criterion="binary masked").exp()
    torch.testing.assert_close(got, POSTERIOR, atol=2e-5, rtol=0)


def test_free_scores_of_skip_grams_become_pmi_less_log_k() -> None:
    g = torch.Generator().manual_seed(0)
    joint = torch.rand(4, 6, generator=g, dtype=torch.float64).square() + 0.02
    joint /= joint.sum()
    word, context = joint.sum(1), joint.sum(0)
    k = 3

    def loss(s: Tensor) -> Tensor:
        own = negative_sampling(s, s[..., None][..., :0], reduction="none")
        noise = negative_sampling(s, s[..., None], reduction="none") - own
        return (joint * own + k * word[:, None] * context * noise).sum()

    pmi = joint.log() - word.log()[:, None] - context.log()
    torch.testing.assert_close(minimise(loss, (4, 6)), pmi - math.log(k), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("loss", "other"),
    [(sampled_bce, lambda s: -logsigmoid(-s)), (sampled_mse, lambda s: s.sigmoid() ** 2)],
)
def test_weighed_draws_are_unbiased_for_the_sum_over_all_other_classes(
    loss: Callable[..., Tensor], other: Callable[[Tensor], Tensor]
) -> None:
    g = torch.Generator().manual_seed(1)
    score = torch.randn(40, generator=g, dtype=torch.float64) * 2
    q = (0.3 * score).softmax(0)
    runs, k = 20_000, 5
    ids = torch.multinomial(q, runs * k, replacement=True, generator=g).view(runs, k)
    got = loss(score[7].expand(runs), score[ids], (k * q[ids]).log(), ids == 7, reduction="none")
    full = loss(score[7], torch.cat([score[:7], score[8:]]))
    truth = other(score).sum() - other(score[7]) + other(-score[7])
    torch.testing.assert_close(full, truth)
    assert_unbiased(got, truth)


def test_each_equals_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(2)
    positive = torch.randn(2, generator=g, dtype=torch.float64)
    negative = torch.randn(2, 3, generator=g, dtype=torch.float64) * 2
    e_p, e_n = torch.randn(2, generator=g).double(), torch.randn(2, 3, generator=g).double()
    mask = torch.tensor([[True, False, False], [False, False, False]])

    def sigmoid(x: float | Tensor) -> float:
        return 1 / (1 + math.exp(-x))

    for b in range(2):
        want = -math.log(sigmoid(positive[b] - e_p[b]))
        bce, mse = -math.log(sigmoid(positive[b])), (1 - sigmoid(positive[b])) ** 2
        ranked, own = math.exp(positive[b] - e_p[b]), math.exp(positive[b] - e_p[b])
        for k in range(3):
            want -= math.log(1 - sigmoid(negative[b, k] - e_n[b, k]))
            ranked += math.exp(negative[b, k] - e_n[b, k])
            if not mask[b, k]:
                bce -= math.log(1 - sigmoid(negative[b, k])) * math.exp(-e_n[b, k])
                mse += sigmoid(negative[b, k]) ** 2 * math.exp(-e_n[b, k])
        for got, value in (
            (nce(positive, negative, e_p, e_n, reduction="none"), want),
            (sampled_bce(positive, negative, e_n, mask, reduction="none"), bce),
            (sampled_mse(positive, negative, e_n, mask, reduction="none"), mse),
            (ranking_nce(positive, negative, e_p, e_n, reduction="none"), -math.log(own / ranked)),
        ):
            assert float(got[b]) == pytest.approx(value, abs=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    g = torch.Generator().manual_seed(3)
    positive = torch.randn(2, generator=g, dtype=torch.float64, requires_grad=True)
    negative = torch.randn(2, 3, generator=g, dtype=torch.float64, requires_grad=True)
    e = torch.randn(3, generator=g, dtype=torch.float64)
    mask = torch.tensor([True, False, False])
    for loss in (
        lambda p, n: nce(p, n, e[0], e),
        lambda p, n: ranking_nce(p, n, e[0], e),
        lambda p, n: sampled_bce(p, n, e, mask),
        lambda p, n: sampled_mse(p, n, e, mask),
    ):
        assert torch.autograd.gradcheck(loss, (positive, negative))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
    zero = torch.zeros((), dtype=dtype)
    for loss in (
        nce(positive, negative, zero, zero),
        sampled_bce(positive, negative, zero),
        sampled_mse(positive, negative, zero),
    ):
        assert loss.isfinite()
        for gradient in torch.autograd.grad(loss, (positive, negative)):
            assert gradient.isfinite().all()


def test_empty_slots_and_no_draws_leave_the_positives_term() -> None:
    positive, slots = torch.zeros(1), torch.tensor([math.inf, math.inf])
    for loss in (sampled_bce, sampled_mse):
        full = loss(positive, torch.ones(1, 2), slots)
        torch.testing.assert_close(full, loss(positive, torch.ones(1, 0)))
    got = nce(positive, torch.ones(1, 2), torch.zeros(()), slots)
    assert float(got) == pytest.approx(math.log(2))


def test_frequent_words_are_kept_less_often() -> None:
    f = torch.tensor([0.0, 1e-6, 1e-5, 4e-5, 0.1], dtype=torch.float64)
    keep = subsampling_keep_probability(f)
    assert keep.tolist() == pytest.approx([1, 1, 1, 0.5, 0.01])
    with pytest.raises(ValueError, match="sum"):
        subsampling_keep_probability(torch.tensor([3.0]))
    with pytest.raises(ValueError, match="threshold"):
        subsampling_keep_probability(f, 0.0)


def test_planted_phrases_score_highest() -> None:
    g = torch.Generator().manual_seed(4)
    words = torch.randint(20, (20_000,), generator=g)
    at = torch.arange(0, 20_000, 50)
    words[at], words[at + 1] = 20, 21  # 400 times "new york"
    words[10], words[11] = 22, 23  # once: a pair that is not a phrase yet
    count = torch.bincount(words, minlength=24)
    pairs = torch.zeros(24, 24).index_put((words[:-1], words[1:]), torch.ones(()), accumulate=True)
    score = phrase_score(pairs, count[:, None], count)
    assert int(score.argmax()) == 20 * 24 + 21
    assert float(score[20, 21]) == pytest.approx((400 - 5) / 400**2)
    assert float(score[22, 23]) < 0
    assert int(phrase_score(pairs, count[:, None], count, discount=0.0).argmax()) == 22 * 24 + 23
    with pytest.raises(ValueError, match="positive"):
        phrase_score(pairs, torch.zeros(1), count)


def test_what_does_not_fit_is_refused() -> None:
    positive, negative = torch.zeros(3), torch.zeros(3, 4)
    for loss in (sampled_bce, sampled_mse):
        with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
            loss(positive, torch.zeros(2, 4))
        with pytest.raises(ValueError, match="log_expected"):
            loss(positive, negative, torch.zeros(2, 3, 4))
        with pytest.raises(ValueError, match="mask"):
            loss(positive, negative, None, torch.zeros(2, 3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="positive_log_expected"):
        nce(positive, negative, torch.zeros(2, 3), torch.zeros(4))
    with pytest.raises(ValueError, match="criterion"):
        log_posterior(negative, criterion="nce")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broadcast"):
        log_posterior(positive, negative.T, criterion="binary")
