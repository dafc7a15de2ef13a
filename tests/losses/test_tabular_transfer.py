"""A table learned from a teacher: the rates at which each kind of label brings the error down."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steelyard.losses.tabular_transfer import (
    hard_label_table,
    sampled_label_table,
    soft_label_table,
    squared_logit,
)
from tests.losses.minimising import minimise

SIZES = [64, 128, 256, 512, 1024, 2048]


def geometric(ratio: float, size: int) -> Tensor:
    """Of such a distribution the mass not seen in n draws is near 1 / (n log(1 / ratio)), n by n."""
    p = ratio ** torch.arange(size, dtype=torch.float64)
    return p / p.sum()


def teacher(n_states: int, n_labels: int, generator: torch.Generator, ratio: float = 0.6) -> Tensor:
    order = torch.rand(n_states, n_labels, generator=generator).argsort(1)
    return geometric(ratio, n_labels)[order]


def draw(q: Tensor, rho: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    states = torch.multinomial(rho, n, replacement=True, generator=generator)
    return states, torch.multinomial(q[states], 1, generator=generator)[:, 0]


def error(p: Tensor, q: Tensor, rho: Tensor) -> float:
    """Total variation, on average over states."""
    return float((rho * (p - q).abs().sum(1) / 2).sum())


def learned(kind: str, q: Tensor, states: Tensor, labels: Tensor) -> Tensor:
    size = {"n_states": q.shape[0], "n_labels": q.shape[1]}
    if kind == "hard":
        return hard_label_table(states, labels, **size)
    if kind == "sampled":
        return sampled_label_table(states, labels, q[states, labels].log(), **size)
    return soft_label_table(states, q[states].log(), n_states=len(q))


def slope(kind: str, q: Tensor, rho: Tensor, runs: int, generator: torch.Generator) -> float:
    """Of the log of the mean error against log n."""
    errors = [
        np.mean([error(learned(kind, q, *draw(q, rho, n, generator)), q, rho) for _ in range(runs)])
        for n in SIZES
    ]
    return float(np.polyfit(np.log(SIZES), np.log(errors), 1)[0])


def test_each_table_equals_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(0)
    q = torch.rand(4, 5, generator=g, dtype=torch.float64).softmax(1)
    states, labels = draw(q, torch.tensor([0.6, 0.3, 0.1, 0.0], dtype=torch.float64), 9, g)
    for kind in ("hard", "sampled", "soft"):
        got = learned(kind, q, states, labels)
        for s in range(4):
            drawn = [int(a) for t, a in zip(states, labels, strict=True) if t == s]
            rest = (1 - sum(float(q[s, a]) for a in set(drawn))) / (5 - len(set(drawn)))
            for a in range(5):
                if not drawn:
                    want = 1 / 5
                elif kind == "hard":
                    want = drawn.count(a) / len(drawn)
                elif kind == "sampled":
                    want = float(q[s, a]) if a in drawn else rest
                else:
                    want = float(q[s, a])
                assert float(got[s, a]) == pytest.approx(want, abs=1e-12)


def test_hard_labels_learn_at_the_rate_of_one_over_root_n() -> None:
    g = torch.Generator().manual_seed(1)
    rho = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert slope("hard", teacher(3, 40, g), rho, 40, g) == pytest.approx(-0.5, abs=0.08)


def test_probabilities_of_sampled_labels_learn_at_the_rate_of_one_over_n() -> None:
    g = torch.Generator().manual_seed(2)
    rho = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert slope("sampled", teacher(3, 40, g), rho, 80, g) == pytest.approx(-1, abs=0.12)


def test_soft_labels_learn_at_the_rate_of_one_over_n_of_the_states() -> None:
    g = torch.Generator().manual_seed(3)
    assert slope("soft", teacher(40, 6, g), geometric(0.6, 40), 80, g) == pytest.approx(-1, abs=0.12)


def test_the_error_of_sampled_labels_is_the_teachers_mass_not_seen_at_most_and_none_once_all_was_seen() -> (
    None
):
    g = torch.Generator().manual_seed(4)
    rho = torch.full((3,), 1 / 3, dtype=torch.float64)
    q = teacher(3, 12, g)
    for n in (10, 100, 1000):
        states, labels = draw(q, rho, n, g)
        seen = torch.zeros(3, 12, dtype=torch.bool)
        seen[states, labels] = True
        missed = float((rho * q.masked_fill(seen, 0).sum(1)).sum())
        assert 0 < error(learned("sampled", q, states, labels), q, rho) <= missed + 1e-12
    states, labels = (t.reshape(-1) for t in torch.meshgrid(torch.arange(3), torch.arange(12), indexing="ij"))
    assert error(learned("sampled", q, states, labels), q, rho) < 1e-12
    assert error(learned("hard", q, states, labels), q, rho) > 0.3


def test_the_error_of_soft_labels_is_free_of_the_number_of_labels_and_the_others_are_not() -> None:
    rho = geometric(0.8, 16)
    errors: dict[str, list[float]] = {"hard": [], "sampled": [], "soft": []}
    for n_labels in (8, 512):
        g = torch.Generator().manual_seed(5)
        half = torch.cat([torch.full((n_labels // 2,), 1.5), torch.full((n_labels // 2,), 0.5)]).double()
        q = (half / n_labels).expand(16, -1).contiguous()  # as far from uniform for any number of labels
        states = torch.multinomial(rho, 40, replacement=True, generator=g)
        labels = torch.multinomial(q[states], 1, generator=g)[:, 0]
        for kind, found in errors.items():
            found.append(error(learned(kind, q, states, labels), q, rho))
    assert errors["soft"][0] == pytest.approx(errors["soft"][1], abs=1e-12)
    assert errors["soft"][0] > 0
    assert errors["hard"][1] > 1.5 * errors["hard"][0]
    assert errors["sampled"][1] > 1.5 * errors["sampled"][0]


def test_cross_entropy_weighed_by_the_probabilities_stays_biased() -> None:
    g = torch.Generator().manual_seed(6)
    rho = torch.full((2,), 0.5, dtype=torch.float64)
    q = teacher(2, 6, g)
    states, labels = draw(q, rho, 100, g)
    p = q[states, labels]
    found = minimise(lambda z: -(p * z.log_softmax(1)[states, labels]).mean(), (2, 6)).softmax(-1)
    count = 100 * torch.stack(
        [
            hard_label_table(states[states == s], labels[states == s], n_states=2, n_labels=6)[s]
            for s in (0, 1)
        ]
    )
    torch.testing.assert_close(found, count * q / (count * q).sum(1, keepdim=True), atol=1e-5, rtol=0)

    bias = error(q.square() / q.square().sum(1, keepdim=True), q, rho)
    assert bias > 0.2
    states, labels = draw(q, rho, 100_000, g)
    weighed = learned("hard", q, states, labels) * q
    weighed /= weighed.sum(1, keepdim=True)
    assert error(weighed, q, rho) == pytest.approx(bias, rel=0.02)  # no nearer with all these draws
    assert error(learned("sampled", q, states, labels), q, rho) < 1e-12
    assert error(learned("hard", q, states, labels), q, rho) < 0.01


def test_the_table_of_sampled_labels_has_no_squared_error_and_descent_on_it_finds_what_was_seen() -> None:
    g = torch.Generator().manual_seed(7)
    q = teacher(3, 8, g)
    states, labels = draw(q, torch.ones(3, dtype=torch.float64), 20, g)
    log_prob = q[states, labels].log()
    table = learned("sampled", q, states, labels)
    assert float(squared_logit(table.log()[states], labels, log_prob)) < 1e-20
    found = minimise(lambda z: squared_logit(z[states], labels, log_prob), (3, 8)).softmax(-1)
    torch.testing.assert_close(found[states, labels], q[states, labels], atol=1e-5, rtol=1e-4)


def test_the_soft_table_is_the_mean_of_what_a_noisy_teacher_says_and_has_the_least_divergence() -> None:
    g = torch.Generator().manual_seed(8)
    said = torch.randn(7, 4, generator=g, dtype=torch.float64)
    states = torch.tensor([0, 1, 1, 0, 1, 1, 1])
    q = said.softmax(1)
    got = soft_label_table(states, said, n_states=2)
    found = minimise(lambda z: (q * (q.log() - z.log_softmax(1)[states])).sum(), (2, 4)).softmax(-1)
    torch.testing.assert_close(got, found, atol=1e-5, rtol=0)


def test_the_squared_error_equals_a_plain_loop_and_its_gradient_finite_differences() -> None:
    g = torch.Generator().manual_seed(9)
    score = torch.randn(2, 3, 5, generator=g, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (2, 3), generator=g)
    log_prob = -torch.rand(2, 3, generator=g, dtype=torch.float64)
    got = squared_logit(score, labels, log_prob, reduction="none")
    for i in range(2):
        for j in range(3):
            z = [float(v) for v in score[i, j].detach()]
            log_p = z[int(labels[i, j])] - math.log(sum(map(math.exp, z)))
            assert float(got[i, j].detach()) == pytest.approx((log_p - float(log_prob[i, j])) ** 2 / 2)
    assert torch.autograd.gradcheck(lambda s: squared_logit(s, labels, log_prob), (score,))
    low = squared_logit(score.detach().bfloat16(), labels, log_prob.float())
    assert low.dtype == torch.float32
    assert float(low) == pytest.approx(float(got.detach().mean()), rel=0.05)


def test_rounded_probabilities_nothing_drawn_and_one_label_give_distributions() -> None:
    every = torch.arange(3)
    rounded = torch.tensor([0.2, 0.3, 0.5]).half().log()
    rows = sampled_label_table(every * 0, every, rounded.float() + 2e-4, n_states=1, n_labels=3)
    assert float(rows.sum()) == pytest.approx(1, abs=1e-12)
    none = torch.zeros(0, dtype=torch.int64)
    for got in (
        hard_label_table(none, none, n_states=2, n_labels=4),
        sampled_label_table(none, none, torch.zeros(0), n_states=2, n_labels=4),
        soft_label_table(none, torch.zeros(0, 4), n_states=2),
    ):
        assert got.tolist() == [[0.25] * 4] * 2
    one = torch.zeros(1, dtype=torch.int32)
    assert float(sampled_label_table(one, one, torch.zeros(1), n_states=1, n_labels=1)) == 1
    certain = torch.tensor([[0.0, -math.inf]])
    assert soft_label_table(one, certain, n_states=1).tolist() == [[1.0, 0.0]]


def test_what_is_wrong_is_named() -> None:
    s, a, log_p = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([-0.5, -0.7])
    size = {"n_states": 2, "n_labels": 2}
    with pytest.raises(ValueError, match="states must lie in 0 to 1"):
        hard_label_table(s + 1, a, **size)
    with pytest.raises(ValueError, match="labels must lie in 0 to 1"):
        hard_label_table(s, a - 1, **size)
    with pytest.raises(ValueError, match="labels must be"):
        hard_label_table(s, a[:1], **size)
    with pytest.raises(ValueError, match="n_labels"):
        hard_label_table(s, a, n_states=2, n_labels=0)
    with pytest.raises(TypeError, match="integers"):
        hard_label_table(s.float(), a, **size)
    with pytest.raises(ValueError, match="log-probability for each"):
        sampled_label_table(s, a, log_p[:1], **size)
    with pytest.raises(TypeError, match="log_prob"):
        sampled_label_table(s, a, a, **size)
    for wrong in (math.nan, math.inf, -0.5):
        with pytest.raises(ValueError, match="finite and at most 0"):
            sampled_label_table(s, a, log_p * wrong, **size)
    both = torch.tensor([0, 0])
    for chance in (0.6, 0.3):
        with pytest.raises(ValueError, match="state 0 add to"):
            sampled_label_table(both, a, torch.full((2,), chance).log(), **size)
    with pytest.raises(ValueError, match="row of -inf"):
        soft_label_table(s, torch.full((2, 2), -math.inf), n_states=2)
    with pytest.raises(ValueError, match=r"\(n, A\)"):
        soft_label_table(s, log_p, n_states=2)
    score = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="Wanted scores"):
        squared_logit(score, a[:1], log_p)
    with pytest.raises(ValueError, match="labels must lie"):
        squared_logit(score, a + 2, log_p)
    with pytest.raises(ValueError, match="finite"):
        squared_logit(score, a, log_p * math.inf)
    with pytest.raises(ValueError, match="at most 0"):
        squared_logit(score, a, -log_p)
    with pytest.raises(TypeError, match="floating"):
        squared_logit(score.long(), a, log_p)
