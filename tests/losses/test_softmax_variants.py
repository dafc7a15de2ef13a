"""PSL and SL@K: what they bound, what they are in the limit, and the threshold from weighed draws."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.bilateral import bilateral_softmax
from steelyard.losses.softmax import sampled_softmax
from steelyard.losses.softmax_variants import Activation, psl, sl_at_k, top_k_threshold

ACTIVATIONS = ["exp", "tanh", "relu", "atan"]


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64) - 0.5  # noqa: E731
    mask = torch.rand(5, 6, generator=g) < 0.3
    mask[4] = True
    return make(5), make(5, 6), 4 * make(6), mask


def activate(name: str, d: float) -> float:
    return {
        "exp": math.exp(d),
        "tanh": math.tanh(d) + 1,
        "relu": max(0.0, d + 1),
        "atan": max(0.0, math.atan(d) + 1),
    }[name]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_psl_equals_the_plainest_loop(activation: str) -> None:
    positive, negative, log_expected, mask = case()
    got = psl(
        positive, negative, log_expected, mask, temperature=0.2, activation=activation, reduction="none"
    )  # type: ignore[arg-type]
    for b in range(5):
        total = 0.0
        for k in range(6):
            if not mask[b, k]:
                d = float(negative[b, k] - positive[b])
                total += activate(activation, d) ** (1 / 0.2) / math.exp(log_expected[k])
        assert float(got[b]) == pytest.approx(math.log(total) if total else 0.0, abs=1e-11)


def test_the_activations_lie_between_the_step_and_the_exponential() -> None:
    for d in torch.linspace(-1, 1, 41).tolist():
        for name in ACTIVATIONS:
            value = activate(name, d)
            assert (d >= 0) <= value + 1e-12
            assert value <= math.exp(d) + 1e-12
            one = torch.tensor([d], dtype=torch.float64)
            got = psl(torch.zeros(1, dtype=torch.float64), one[None], temperature=1.0, activation=name)  # type: ignore[arg-type]
            if value > 0:
                assert float(got) == pytest.approx(math.log(value), abs=1e-12)


def test_with_the_exponential_psl_is_the_decoupled_softmax() -> None:
    positive, negative, log_expected, mask = case()
    want = bilateral_softmax(positive / 0.2, negative / 0.2, log_expected, mask, power=1.0)
    torch.testing.assert_close(
        psl(positive, negative, log_expected, mask, temperature=0.2, activation="exp"), want
    )


def test_a_high_scoring_false_negative_takes_less_of_the_gradient_than_under_the_exponential() -> None:
    negative = torch.tensor([[0.45, 0.0, -0.1]], dtype=torch.float64, requires_grad=True)
    positive = torch.tensor([-0.45], dtype=torch.float64)
    share = {}
    for activation in ACTIVATIONS:
        (grad,) = torch.autograd.grad(
            psl(positive, negative, temperature=0.3, activation=activation), negative
        )  # type: ignore[arg-type]
        share[activation] = float(grad[0, 0] / grad.sum())
    assert all(share[name] < share["exp"] - 0.1 for name in ("tanh", "relu", "atan"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_psl_gradients_agree_with_finite_differences(activation: str) -> None:
    positive, negative, log_expected, mask = case()
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda p, n: psl(p, n, log_expected, mask, temperature=0.3, activation=activation),  # type: ignore[arg-type]
        inputs,
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(activation: str, dtype: torch.dtype) -> None:
    positive = torch.tensor([1e4, -1e4, 0], dtype=dtype, requires_grad=True)
    negative = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4], [-1e4] * 3], dtype=dtype, requires_grad=True)
    for value in (
        psl(positive, negative, temperature=0.1, activation=activation),  # type: ignore[arg-type]
        sl_at_k(positive, negative, torch.zeros(3, dtype=dtype), temperature=0.1, weight_temperature=0.5),
    ):
        for grad in torch.autograd.grad(value, (positive, negative)):
            assert grad.isfinite().all()
        assert value.isfinite()


def test_where_every_negative_is_below_the_reach_of_the_activation_nothing_is_left_to_push() -> None:
    positive, negative = torch.tensor([1.0]), torch.tensor([[-0.5, -2.0]], requires_grad=True)
    value = psl(positive, negative, temperature=0.1, activation="relu")
    value.backward()
    assert value.item() == 0
    assert negative.grad.tolist() == [[0, 0]]


def dcg_at_k(score: Tensor, positives: list[int], k: int) -> float:
    order = score.argsort(descending=True).tolist()
    return sum(1 / math.log2(order.index(i) + 2) for i in positives if order.index(i) < k)


def test_twice_sl_at_k_bounds_minus_log_dcg_wherever_a_positive_stands_in_the_top() -> None:
    g = torch.Generator().manual_seed(5)
    tight, checked = math.inf, 0
    for _ in range(300):
        n, k = 12, int(torch.randint(1, 6, (), generator=g))
        score = torch.randn(n, generator=g, dtype=torch.float64)
        positives = torch.randperm(n, generator=g)[: int(torch.randint(1, 5, (), generator=g))].tolist()
        dcg = dcg_at_k(score, positives, k)
        if dcg == 0:
            continue
        mask = torch.zeros(len(positives), n, dtype=torch.bool)
        mask[torch.arange(len(positives)), positives] = True  # only itself: it has a term of its own
        loss = sl_at_k(score[positives], score.expand(len(positives), n), score.topk(k).values[-1], None, mask,
                       temperature=0.3, weight_temperature=0.2, reduction="sum")  # fmt: skip
        tight = min(tight, 2 * float(loss) + math.log(dcg))
        checked += 1
    assert checked > 150
    assert tight >= -1e-12
    assert tight < 0.3


def test_sl_at_k_is_half_the_softmax_loss_for_a_large_weight_temperature_and_the_hard_top_for_a_small_one() -> (
    None
):
    positive, negative, log_expected, mask = case()
    soft = sampled_softmax(positive / 0.2, negative / 0.2, log_expected, mask, reduction="none")
    threshold = torch.tensor(0.1, dtype=torch.float64)
    settings = {"temperature": 0.2, "reduction": "none"}
    got = sl_at_k(positive, negative, threshold, log_expected, mask, weight_temperature=1e9, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(got, soft / 2)
    got = sl_at_k(positive, negative, threshold, log_expected, mask, weight_temperature=1e-9, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(got, torch.where(positive > 0.1, soft, 0.0))
    got = sl_at_k(
        positive,
        negative,
        torch.tensor(-math.inf),
        log_expected,
        mask,
        weight_temperature=1.0,
        **settings,  # type: ignore[arg-type]
    )
    torch.testing.assert_close(got, soft)
    assert float(got[4]) == 0  # masked throughout
    got = sl_at_k(
        positive, negative, torch.tensor(-math.inf), log_expected, mask, weight_temperature=1.0, decoupled=True, **settings  # type: ignore[arg-type]
    )  # fmt: skip
    torch.testing.assert_close(
        got,
        bilateral_softmax(positive / 0.2, negative / 0.2, log_expected, mask, power=1.0, reduction="none"),
    )


def test_sl_at_k_gradients_flow_through_the_weight_and_agree_with_finite_differences() -> None:
    positive, negative, log_expected, mask = case()
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    threshold = torch.full((5,), 0.1, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda p, n: sl_at_k(p, n, threshold, log_expected, mask, temperature=0.3, weight_temperature=0.2),
        inputs,
    )


def test_the_threshold_of_everything_is_the_kth_largest_score() -> None:
    g = torch.Generator().manual_seed(2)
    score = torch.randn(4, 30, generator=g)
    for k in (1, 7, 30):
        torch.testing.assert_close(top_k_threshold(score, k=k), score.topk(k).values[:, -1])
    half, own = score[:, :18], score[:, 18:]
    torch.testing.assert_close(top_k_threshold(half, k=7, own=own), score.topk(7).values[:, -1])
    assert top_k_threshold(score, k=31).tolist() == [-math.inf] * 4
    assert top_k_threshold(score[:, :0], k=1).tolist() == [-math.inf] * 4
    mask = torch.zeros(4, 30, dtype=torch.bool).scatter_(1, score.argmax(1, keepdim=True), True)
    torch.testing.assert_close(top_k_threshold(score, mask=mask, k=6), score.topk(7).values[:, -1])


@pytest.mark.parametrize("popular", [False, True])
def test_the_threshold_from_weighed_draws_converges_and_the_kth_of_the_draws_lies_far_below(
    popular: bool,
) -> None:
    g = torch.Generator().manual_seed(4)
    items, k = 20_000, 200
    score = torch.randn(items, generator=g, dtype=torch.float64)
    q = 1 / torch.arange(1, items + 1, dtype=torch.float64) ** (0.5 if popular else 0.0)
    q /= q.sum()
    truth = float(score.topk(k).values[-1])
    errors = []
    for n in (500, 8000):
        ids = torch.multinomial(q, 200 * n, replacement=True, generator=g).view(200, n)
        got = top_k_threshold(score[ids], (n * q[ids]).log(), k=k)
        errors.append(float((got - truth).square().mean().sqrt()))
        if n == 500:
            assert float(score[ids].topk(k).values[:, -1].mean()) < truth - 1
    assert errors[1] < errors[0] / 2.5  # about 4 for sixteen times the draws
    assert errors[1] < 0.1


def test_draws_that_stand_for_less_than_one_item_are_summed_up_to_k() -> None:
    score = torch.tensor([3.0, 2.0, 1.0, 0.0])
    log_expected = torch.tensor([2.0, 2.0, 2.0, 2.0]).log()
    assert float(top_k_threshold(score, log_expected, k=1)) == 2
    assert float(top_k_threshold(score, log_expected, k=2)) == 0


def test_what_does_not_fit_is_refused() -> None:
    positive, negative = torch.zeros(3), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="temperature"):
        psl(positive, negative, temperature=0.0)
    with pytest.raises(ValueError, match="activation"):
        psl(positive, negative, temperature=1.0, activation="sin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broadcast"):
        psl(positive, negative, torch.zeros(5), temperature=1.0)
    with pytest.raises(ValueError, match="weight_temperature"):
        sl_at_k(positive, negative, positive, temperature=1.0, weight_temperature=0.0)
    with pytest.raises(ValueError, match="threshold"):
        sl_at_k(positive, negative, torch.zeros(2, 3), temperature=1.0, weight_temperature=1.0)
    with pytest.raises(ValueError, match="k must"):
        top_k_threshold(negative, k=0)
    with pytest.raises(ValueError, match="NaN"):
        top_k_threshold(torch.tensor([math.nan, 1.0]), k=1)
    with pytest.raises(ValueError, match="own"):
        top_k_threshold(negative, k=1, own=torch.zeros(2, 1))
    with pytest.raises(TypeError, match="floating-point"):
        psl(positive.long(), negative, temperature=1.0)


@pytest.mark.parametrize("activation", ["exp", "tanh", "relu", "atan"])
def test_a_score_that_is_nan_is_seen_in_psl(activation: Activation) -> None:
    negative = torch.tensor([[0.1, math.nan], [0.1, 0.2]])
    loss = psl(torch.zeros(2), negative, temperature=0.5, activation=activation, reduction="none")
    assert loss.isnan().tolist() == [True, False]
