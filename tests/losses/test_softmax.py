"""Sampled softmax: consistent with the full softmax, as its five usual recipes are not."""

import math

import pytest
import torch

from steelyard.losses import sampled_softmax

I = 1000  # noqa: E741


def catalogue(positive_probability: float, popular: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Random scores over Zipf-popular items, the positive's set so that it has the wanted probability."""
    g = torch.Generator().manual_seed(7)
    score = torch.randn(I, generator=g, dtype=torch.float64)
    q = 1 / torch.arange(1, I + 1, dtype=torch.float64)
    q /= q.sum()
    p = 3 if popular else 900
    others = torch.cat([score[:p], score[p + 1 :]]).logsumexp(0)
    score[p] = others + math.log(positive_probability / (1 - positive_probability))
    return score, q, p


def mean_gradient(
    recipe: str, score: torch.Tensor, q: torch.Tensor, p: int, k: int, runs: int
) -> torch.Tensor:
    """Mean over `runs` draws of the gradient with respect to all scores."""
    g = torch.Generator().manual_seed(11)
    ids = torch.multinomial(q, runs * k, replacement=True, generator=g).view(runs, k)
    s = score.clone().requires_grad_()
    log_q, positive = q.log(), s[p].expand(runs)
    hit = ids == p
    if recipe == "uncorrected":
        loss = sampled_softmax(positive, s[ids], torch.zeros(()), hit, reduction="none")
    elif recipe == "positive corrected too, no K":
        loss = sampled_softmax(positive - log_q[p], s[ids], log_q[ids], hit, reduction="none")
    elif recipe == "no log K":
        loss = sampled_softmax(positive, s[ids], log_q[ids], hit, reduction="none")
    elif recipe == "hits kept":
        loss = sampled_softmax(positive, s[ids], log_q[ids] + math.log(k), reduction="none")
    else:
        loss = sampled_softmax(positive, s[ids], log_q[ids] + math.log(k), hit, reduction="none")
    return torch.autograd.grad(loss.mean(), s)[0]


def relative_error(recipe: str, popular: bool, k: int) -> float:
    score, q, p = catalogue(0.5, popular)
    full = score.softmax(0)
    full[p] -= 1
    got = mean_gradient(recipe, score, q, p, k, runs=20_000)
    return float((got - full).norm() / full.norm())


@pytest.mark.slow
@pytest.mark.parametrize("popular", [True, False])
def test_the_gradient_is_that_of_the_full_softmax_and_the_usual_recipes_are_not(popular: bool) -> None:
    assert relative_error("right", popular, 128) < 0.03
    assert relative_error("uncorrected", popular, 128) > 0.5
    assert relative_error("positive corrected too, no K", popular, 128) > 0.5
    assert relative_error("no log K", popular, 128) > 0.9
    if popular:  # a rare positive is hardly ever hit
        assert relative_error("hits kept", popular, 128) > 0.25


@pytest.mark.slow
def test_the_error_falls_with_the_number_of_draws_only_in_the_right_form() -> None:
    assert relative_error("right", True, 128) < relative_error("right", True, 16) / 3
    assert relative_error("no log K", True, 128) > relative_error("no log K", True, 16)


def test_it_equals_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(0)
    positive = torch.randn(3, generator=g, dtype=torch.float64)
    negative = torch.randn(3, 4, generator=g, dtype=torch.float64) * 3
    log_expected = torch.randn(4, generator=g, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    for b in range(3):
        z = math.exp(positive[b])
        for k in range(4):
            if not mask[b, k]:
                z += math.exp(negative[b, k]) / math.exp(log_expected[k])
        want = -positive[b] + math.log(z)
        got = sampled_softmax(positive, negative, log_expected, mask, reduction="none")[b]
        assert float(got) == pytest.approx(float(want), abs=1e-12)


def test_every_item_drawn_once_gives_the_full_softmax() -> None:
    g = torch.Generator().manual_seed(1)
    score = torch.randn(5, 9, generator=g)
    target = torch.tensor([0, 8, 3, 3, 1])
    mask = torch.nn.functional.one_hot(target, 9).bool()
    got = sampled_softmax(score.gather(1, target[:, None])[:, 0], score, torch.zeros(9), mask)
    torch.testing.assert_close(got, torch.nn.functional.cross_entropy(score, target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
    loss = sampled_softmax(positive, negative, torch.zeros(3, dtype=dtype))
    loss.backward()
    assert loss.isfinite()
    assert positive.grad.isfinite().all()


def test_a_query_whose_draws_are_all_masked_has_loss_zero_and_no_gradient() -> None:
    positive = torch.tensor([1.5], requires_grad=True)
    loss = sampled_softmax(positive, torch.randn(1, 3), torch.zeros(3), torch.ones(1, 3, dtype=torch.bool))
    loss.backward()
    assert float(loss) == 0
    assert float(positive.grad) == 0


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        sampled_softmax(torch.zeros(3), torch.zeros(2, 4), torch.zeros(4))
    with pytest.raises(ValueError, match="reduction"):
        sampled_softmax(torch.zeros(3), torch.zeros(3, 4), torch.zeros(4), reduction="avg")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broadcast"):
        sampled_softmax(torch.zeros(3), torch.zeros(3, 1), torch.zeros(4))


def test_the_mean_over_no_queries_is_refused_and_their_sum_is_zero() -> None:
    nobody = (torch.zeros(0), torch.zeros(0, 4), torch.zeros(4))
    with pytest.raises(ValueError, match="no query"):
        sampled_softmax(*nobody)
    assert float(sampled_softmax(*nobody, reduction="sum")) == 0
    assert sampled_softmax(*nobody, reduction="none").shape == (0,)
