"""Distillation losses: zero where student and teacher agree, and unbiased from a few draws."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from steelyard.losses.distillation import (
    kl_distillation,
    sample_teacher,
    sampled_distillation,
    sinkhorn_distillation,
    top_kd,
)
from tests.statistical import assert_unbiased


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    score, teacher = torch.randn(2, 4, 6, generator=g, dtype=torch.float64) * 2
    mask = torch.rand(4, 6, generator=g) < 0.25
    mask[3] = True
    return score, teacher, mask


def softmax(values: list[float]) -> list[float]:
    z = sum(map(math.exp, values))
    return [math.exp(v) / z for v in values]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_the_divergence_equals_the_plainest_loop_with_expected_counts() -> None:
    score, teacher, mask = case()
    log_expected = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = kl_distillation(score, teacher, log_expected, mask, temperature=1.5, reduction="none")
    for b in range(4):
        kept = [j for j in range(6) if not mask[b, j]]
        p, q = (
            softmax([float(x[b, j]) / 1.5 - float(log_expected[j]) for j in kept]) for x in (teacher, score)
        )
        assert float(got[b]) == pytest.approx(1.5**2 * kl(p, q), abs=1e-11)


def test_a_sure_teacher_gives_the_softmax_loss_and_an_equal_student_none() -> None:
    score, teacher, _ = case()
    sure = torch.full_like(score, -math.inf)
    sure[:, 2] = 0.0
    want = torch.nn.functional.cross_entropy(score, torch.full((4,), 2))
    torch.testing.assert_close(kl_distillation(score, sure), want)
    assert float(kl_distillation(teacher + 3, teacher)) == pytest.approx(0, abs=1e-12)
    assert float(kl_distillation(score, teacher)) > 0.1


def test_top_kd_equals_the_plainest_loop() -> None:
    score, teacher, mask = case()
    settings = {"k": 2, "scale": 1.4, "top_weight": 0.7, "rest_weight": 0.3, "temperature": 1.5}
    got = top_kd(score, teacher, mask, reduction="none", **settings)  # type: ignore[arg-type]
    for b in range(4):
        kept = [j for j in range(6) if not mask[b, j]]
        t = {j: float(teacher[b, j]) for j in kept}
        top = sorted(kept, key=lambda j, t=t: -t[j])[:2]  # type: ignore[misc]
        mean = sum(t.values()) / max(1, len(t))
        t = {j: mean + 1.4 * (t[j] - mean) if j in top else t[j] for j in kept}
        want = 0.0
        for weight, group in ((1.0, kept), (0.7, top), (0.3, [j for j in kept if j not in top])):
            p, q = softmax([t[j] / 1.5 for j in group]), softmax([float(score[b, j]) / 1.5 for j in group])
            want += weight * 1.5**2 * kl(p, q)
        assert float(got[b]) == pytest.approx(want, abs=1e-11)


def test_top_kd_without_its_parts_is_plain_distillation_and_the_parts_are_those_of_the_chain_rule() -> None:
    score, teacher, _ = case()
    whole = kl_distillation(score, teacher, reduction="none")
    torch.testing.assert_close(
        top_kd(score, teacher, k=2, top_weight=0.0, rest_weight=0.0, reduction="none"), whole
    )
    p, q = teacher.softmax(-1), score.softmax(-1)
    best = teacher.topk(2, -1).indices
    mass_p, mass_q = p.gather(-1, best).sum(-1), q.gather(-1, best).sum(-1)
    between = mass_p * (mass_p / mass_q).log() + (1 - mass_p) * ((1 - mass_p) / (1 - mass_q)).log()
    top = top_kd(score, teacher, k=2, top_weight=1.0, rest_weight=0.0, reduction="none") - whole
    rest = top_kd(score, teacher, k=2, top_weight=0.0, rest_weight=1.0, reduction="none") - whole
    torch.testing.assert_close(between + mass_p * top + (1 - mass_p) * rest, whole)


def test_top_kd_is_zero_only_where_scores_match_up_to_a_shift() -> None:
    score, teacher, _ = case()
    assert float(top_kd(teacher - 5, teacher, k=3)) == pytest.approx(0, abs=1e-12)
    assert float(top_kd(teacher - 5, teacher + 2, k=3, scale=1.5)) == pytest.approx(
        float(top_kd(teacher, teacher, k=3, scale=1.5)), abs=1e-12
    )
    assert float(top_kd(score, teacher, k=3)) > float(kl_distillation(score, teacher))


def plain_sinkhorn(score: Tensor, teacher: Tensor, t: float, epsilon: float, steps: int) -> float:
    p = [softmax((row / t).tolist()) for row in score]
    q = [softmax((row / t).tolist()) for row in teacher]
    n = len(p)
    cost = [[sum(abs(a - b) for a, b in zip(p[i], q[j], strict=True)) for j in range(n)] for i in range(n)]
    plan = [[math.exp(-c / epsilon) for c in row] for row in cost]
    for _ in range(steps):
        plan = [[x / sum(row) for x in row] for row in plan]
        columns = [sum(row[j] for row in plan) for j in range(n)]
        plan = [[row[j] / columns[j] for j in range(n)] for row in plan]
    return sum(plan[i][j] * cost[i][j] for i in range(n) for j in range(n)) / n


def test_the_sinkhorn_distance_equals_the_plainest_loop_and_near_the_best_matching_for_a_small_epsilon() -> (
    None
):
    score, teacher, _ = case()
    got = sinkhorn_distillation(score, teacher, epsilon=0.1, steps=7)
    assert float(got) == pytest.approx(plain_sinkhorn(score, teacher, 2.0, 0.1, 7), abs=1e-12)
    cost = torch.cdist((score / 2).softmax(-1), (teacher / 2).softmax(-1), p=1)
    best = cost[linear_sum_assignment(cost.numpy())].mean()
    near = sinkhorn_distillation(score, teacher, epsilon=0.005, steps=500)
    torch.testing.assert_close(near, best, rtol=1e-3, atol=0)
    assert float(got) > float(best)


def test_equal_batches_are_near_and_the_order_of_samples_does_not_matter() -> None:
    score, teacher, _ = case()
    assert float(sinkhorn_distillation(teacher, teacher, epsilon=0.02)) < 0.01
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        sinkhorn_distillation(score[order], teacher, steps=500),
        sinkhorn_distillation(score, teacher, steps=500),
    )


def test_draws_of_a_teacher_give_an_unbiased_target_and_the_gradient_of_full_distillation() -> None:
    g = torch.Generator().manual_seed(2)
    p = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64)
    score = torch.randn(4, generator=g, dtype=torch.float64).requires_grad_()
    full = -(p * score.log_softmax(-1)).sum()
    (want,) = torch.autograd.grad(full, score)
    for power in (1.0, 0.5):
        q = (p.log() * power).softmax(-1)
        value, gradient = 0.0, torch.zeros(4, dtype=torch.float64)
        for pair in itertools.product(range(4), repeat=2):  # every outcome of two draws
            ids = torch.tensor(pair)
            loss = sampled_distillation(score, ids, p.log()[ids], (2 * q[ids]).log())
            chance = q[ids].prod()
            value += float((chance * loss).detach())
            gradient += chance * torch.autograd.grad(loss, score)[0]
        assert value == pytest.approx(float(full.detach()), abs=1e-12)
        torch.testing.assert_close(gradient, want)
    best = p.topk(2).indices  # the two largest, renormalised
    top = -(p[best] / p[best].sum() * score.log_softmax(-1)[best]).sum()
    assert float((torch.autograd.grad(top, score)[0] - want).abs().max()) > 0.1


@pytest.mark.parametrize("power", [1.0, 1.4, 0.5, 0.0])
def test_the_sampler_draws_from_the_power_of_the_teacher_and_says_so(power: float) -> None:
    g = torch.Generator().manual_seed(3)
    log_prob = torch.randn(2, 5, generator=g).log_softmax(-1)
    draws = sample_teacher(log_prob.expand(4000, 2, 5), 6, power=power, generator=g)
    weight = (log_prob.expand(4000, 2, 5).gather(-1, draws.ids) - draws.log_expected).exp()
    target = torch.zeros(4000, 2, 5, dtype=torch.float64).scatter_add_(-1, draws.ids, weight.double())
    assert_unbiased(target, log_prob.exp())
    with pytest.raises(AssertionError):
        assert_unbiased(target * 0.95, log_prob.exp())
    if power == 1:
        torch.testing.assert_close(weight, torch.full_like(weight, 1 / 6))
    asked = torch.tensor([0, 4, 5, -1]).expand(4000, 2, 4)
    known = draws.log_expected_of(asked)
    want = (log_prob * power).log_softmax(-1)[:, [0, 4]] + math.log(6)
    torch.testing.assert_close(known[0, :, :2].float(), want)
    assert bool((known[..., 2:] == -math.inf).all())
    torch.testing.assert_close(draws.log_expected_of(asked[0, 0]), known)


def fit(w: Tensor, loss: Callable[[Tensor], Tensor], steps: int, lr: float) -> Tensor:
    w = w.clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(w).backward()
        optimizer.step()
    return w.detach()


def gain_by_self_training(seed: int) -> float:
    """What a student of soft labels on noised queries adds to the reciprocal rank of a teacher with 60 labels."""
    g = torch.Generator().manual_seed(seed)
    item, true = torch.randn(40, 16, generator=g) / 4, torch.randn(16, 16, generator=g)
    queries = torch.randn(2060, 16, generator=g)
    answer = torch.multinomial((0.75 * queries @ true @ item.T).softmax(1), 1, generator=g)
    labelled, synthetic, test = queries.split([60, 1000, 1000])

    def supervised(w: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(labelled @ w @ item.T, answer[:60, 0])

    def distilled(w: Tensor) -> Tensor:
        noised = synthetic + 0.7 * torch.randn(synthetic.shape, generator=g)
        return kl_distillation(noised @ w @ item.T, synthetic @ teacher @ item.T)

    def reciprocal_rank(w: Tensor) -> float:
        score = test @ w @ item.T
        return float((1 / (1 + (score > score.gather(1, answer[1060:])).sum(1))).mean())

    teacher = fit(torch.zeros(16, 16), supervised, 60, 0.05)
    student = fit(fit(torch.zeros(16, 16), distilled, 60, 0.05), supervised, 5, 0.01)
    return reciprocal_rank(student) - reciprocal_rank(teacher)


def test_a_noised_student_of_a_teacher_with_few_labels_ranks_better_than_the_teacher() -> None:
    assert min(gain_by_self_training(seed) for seed in range(3)) > 0


def test_the_variance_of_the_sampled_loss_falls_with_the_number_of_draws() -> None:
    g = torch.Generator().manual_seed(4)
    log_prob = torch.randn(30, generator=g).log_softmax(-1)
    score = torch.randn(30, generator=g)
    variance = []
    for n in (4, 64):
        draws = sample_teacher(log_prob.expand(3000, 30), n, generator=g)
        losses = sampled_distillation(
            score.expand(3000, 30), draws.ids, log_prob[draws.ids], draws.log_expected, reduction="none"
        )
        variance.append(float(losses.var()))
    assert variance[0] / variance[1] == pytest.approx(16, rel=0.25)


def test_gradients_agree_with_finite_differences() -> None:
    score, teacher, mask = case()
    s = score.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_distillation(x, teacher, None, mask, temperature=1.5), (s,))
    assert torch.autograd.gradcheck(lambda x: top_kd(x, teacher, mask, k=2, scale=1.2), (s,))
    assert torch.autograd.gradcheck(lambda x: sinkhorn_distillation(x, teacher, steps=3), (s,))
    ids = torch.tensor([[0, 2, 2]]).expand(4, 3)
    logs = torch.zeros(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: sampled_distillation(x, ids, logs, logs), (s,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    score = torch.tensor([[1e4, -1e4, 0], [0, 0, 0]], dtype=dtype, requires_grad=True)
    teacher = torch.tensor([[-1e4, 1e4, 0], [1e4, 1e4, -1e4]], dtype=dtype)
    draws = sample_teacher(teacher.float().log_softmax(-1), 2, generator=torch.Generator().manual_seed(0))
    for value in (
        kl_distillation(score, teacher),
        top_kd(score, teacher, k=1, scale=2.0),
        sinkhorn_distillation(score, teacher),
        sampled_distillation(
            score, draws.ids, teacher.float().log_softmax(-1).gather(-1, draws.ids), draws.log_expected
        ),
    ):
        assert value.isfinite()
        assert torch.autograd.grad(value, score)[0].isfinite().all()


def test_queries_without_candidates_and_empty_slots_cost_nothing_and_may_hold_anything() -> None:
    score = torch.tensor([[0.5, math.nan], [1.0, math.inf]], requires_grad=True)
    teacher = torch.tensor([[0.1, math.inf], [math.nan, 0.0]])
    mask = torch.tensor([[False, True], [True, True]])
    for value in (
        kl_distillation(score, teacher, None, mask, reduction="none"),
        top_kd(score, teacher, mask, k=1, reduction="none"),
    ):
        assert value.tolist() == [0, 0]
        assert torch.autograd.grad(value.sum(), score)[0].abs().sum() == 0
    slots = torch.tensor([[0.0, math.inf]])
    one = torch.randn(1, 4)
    ids, logs = torch.tensor([[2, 0]]), torch.zeros(1, 2)
    torch.testing.assert_close(sampled_distillation(one, ids, logs, slots), -one.log_softmax(-1)[0, 2])
    ruled_out = torch.tensor([[0.0, -math.inf]], requires_grad=True)
    assert kl_distillation(ruled_out, torch.tensor([[0.0, -math.inf]])).item() == 0
    assert kl_distillation(ruled_out, torch.zeros(1, 2)).item() == math.inf


def test_what_does_not_fit_is_refused() -> None:
    score, teacher, _ = case()
    with pytest.raises(ValueError, match="both be"):
        kl_distillation(score, teacher[:, :3])
    with pytest.raises(ValueError, match="temperature"):
        kl_distillation(score, teacher, temperature=0.0)
    with pytest.raises(ValueError, match="log_expected"):
        kl_distillation(score, teacher, torch.zeros(5))
    with pytest.raises(ValueError, match="mask"):
        kl_distillation(score, teacher, None, torch.zeros(5, dtype=torch.bool))
    with pytest.raises(TypeError, match="floating point"):
        kl_distillation(score, teacher.long())
    with pytest.raises(ValueError, match="k must"):
        top_kd(score, teacher, k=0)
    with pytest.raises(ValueError, match="scale"):
        top_kd(score, teacher, k=1, scale=-1.0)
    with pytest.raises(ValueError, match="epsilon"):
        sinkhorn_distillation(score, teacher, epsilon=0.0)
    with pytest.raises(ValueError, match="steps"):
        sinkhorn_distillation(score, teacher, steps=0)
    with pytest.raises(ValueError, match=r"\(B, V\)"):
        sinkhorn_distillation(score[0], teacher[0])
    with pytest.raises(ValueError, match="n must"):
        sample_teacher(teacher, 0)
    with pytest.raises(ValueError, match="power"):
        sample_teacher(teacher, 1, power=-1.0)
    with pytest.raises(ValueError, match="row of -inf"):
        sample_teacher(torch.full((1, 2), -math.inf), 1)
    with pytest.raises(ValueError, match="Wanted scores"):
        sampled_distillation(
            score, torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 3), torch.zeros(4, 3)
        )


def test_what_the_teacher_rules_out_is_no_part_of_the_mean_that_top_kd_scales_by() -> None:
    score = torch.tensor([[0.3, -0.2, 0.1, 0.7]], requires_grad=True)
    teacher = torch.tensor([[1.0, 2.0, -math.inf, 0.5]])
    mask = teacher == -math.inf
    # ruled out by the teacher, the student's chance of it is still part of the first and the last term
    loss = top_kd(score, teacher, k=2, scale=2.0, rest_weight=0.0)
    mean = 3.5 / 3
    scaled = torch.tensor([[mean + 2 * (1 - mean), mean + 2 * (2 - mean), -math.inf, 0.5]])
    expected = kl_distillation(score, scaled) + kl_distillation(score[:, :2], scaled[:, :2])
    assert float(loss) == pytest.approx(float(expected))
    loss.backward()
    assert bool(score.grad.isfinite().all())
    assert bool(top_kd(score, teacher, k=4, scale=2.0).isfinite())
    assert bool(top_kd(score, teacher, mask, k=3, scale=0.0).isfinite())


def test_ids_outside_the_students_classes_are_refused() -> None:
    score, chances = torch.zeros(2, 5), torch.full((2, 3), -1.0)
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match="ids must lie in 0 to 4"):
            sampled_distillation(score, torch.tensor([[0, 1, wrong]] * 2), chances, chances)
    with pytest.raises(TypeError, match="ids must be integers"):
        sampled_distillation(score, torch.zeros(2, 3), chances, chances)
    with pytest.raises(ValueError, match="V above 0"):
        sample_teacher(torch.zeros(2, 0), 3)
