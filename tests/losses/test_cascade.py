"""LCRON: chances to survive a stage, their product as a bound, and training several stages at once."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.cascade import lcron, log_survival

KEEP = (5, 2)


def case(seed: int = 0) -> tuple[list[Tensor], Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    scores = [torch.randn(4, 8, generator=g, dtype=torch.float64) for _ in KEEP]
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[0, 2] = mask[1, 5] = mask[1, 6] = True
    return scores, torch.rand(4, 8, generator=g) < 0.4, mask


def survivors(scores: list[Tensor], keep: tuple[int, ...]) -> set[int]:
    """What a cascade keeps, each stage sorting only what the one before it kept."""
    left = list(range(len(scores[0])))
    for score, n in zip(scores, keep, strict=True):
        left = sorted(left, key=lambda j: -float(score[j]))[:n]
    return set(left)


def test_the_chances_of_a_stage_sum_to_what_it_keeps_and_become_hard_as_the_temperature_falls() -> None:
    (score, _), _, mask = case()
    soft = log_survival(score, mask, keep=3, temperature=2.0).exp()
    torch.testing.assert_close(soft.sum(-1), torch.full((4,), 3.0, dtype=torch.float64))
    assert float(soft.max()) <= 1 + 1e-5
    hard = log_survival(score, mask, keep=3, temperature=1e-4).exp()
    want = torch.zeros(4, 8, dtype=torch.float64)
    want.scatter_(1, score.masked_fill(mask, -math.inf).topk(3).indices, 1.0)
    torch.testing.assert_close(hard, want)


def test_the_hard_product_is_a_lower_bound_of_what_survives_and_not_all_of_it() -> None:
    g = torch.Generator().manual_seed(1)
    more = 0
    for _ in range(100):
        scores = [torch.randn(8, generator=g, dtype=torch.float64) for _ in KEEP]
        product = sum(
            log_survival(s, keep=n, temperature=1e-5) for s, n in zip(scores, KEEP, strict=True)
        ).exp()  # type: ignore[union-attr]
        kept = survivors(scores, KEEP)
        sure = {j for j in range(8) if float(product[j]) > 0.5}
        assert sure <= kept
        more += len(kept - sure)
    assert more > 20


def test_it_equals_the_cross_entropies_of_each_stage_and_of_their_product() -> None:
    scores, relevant, mask = case()
    relevant[:, 0], relevant[:, 1] = True, False
    scale = torch.tensor([0.5, 2.0], dtype=torch.float64)
    settings = {"temperature": 1.5, "sinkhorn_steps": 500}
    got = lcron(scores, relevant, mask, keep=KEEP, stage_scale=scale, reduction="none", **settings)  # type: ignore[arg-type]
    for b in range(4):
        kept = [j for j in range(8) if not mask[b, j]]
        stages = [
            log_survival(s, mask, keep=n, **settings).exp()[b] for s, n in zip(scores, KEEP, strict=True)
        ]  # type: ignore[arg-type]

        def entropy(chance: Tensor, kept: list[int] = kept, b: int = b) -> float:
            right = [float(chance[j]) if relevant[b, j] else 1 - float(chance[j]) for j in kept]
            return -sum(map(math.log, right)) / len(kept)

        want = entropy(stages[0] * stages[1])
        for s, w in zip(stages, scale.tolist(), strict=True):
            want += entropy(s) / (2 * w**2) + math.log(w)
        assert float(got[b]) == pytest.approx(want, abs=1e-4)


def test_a_candidate_that_one_stage_drops_for_sure_is_no_longer_the_business_of_the_other() -> None:
    sure = torch.tensor([[9.0, 8.0, 7.0, -9.0]], dtype=torch.float64)
    other = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    relevant = torch.tensor([[True, True, False, False]])
    alone = torch.tensor([1e9, 1e9], dtype=torch.float64)  # no single-stage parts
    loss = lcron([sure, other], relevant, keep=(3, 2), temperature=0.5, stage_scale=alone)
    (grad,) = torch.autograd.grad(loss, other)
    assert float(grad[0, 2]) > 3 * abs(float(grad[0, 3]))  # both must go, the last has gone already


def test_one_stage_is_a_soft_recall_loss_whose_value_at_a_low_temperature_is_zero_where_recall_is_one() -> (
    None
):
    score = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    found = torch.tensor([[True, True, False, False]])
    missed = torch.tensor([[True, False, False, True]])
    assert float(lcron([score], found, keep=[2], temperature=0.02)) == pytest.approx(0, abs=1e-6)
    assert float(lcron([score], missed, keep=[2], temperature=0.02)) > 10


def test_training_two_stages_together_lets_all_relevant_candidates_through() -> None:
    g = torch.Generator().manual_seed(2)
    scores = [torch.randn(1, 12, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2)]
    relevant = torch.zeros(1, 12, dtype=torch.bool)
    relevant[0, [1, 5, 9]] = True
    optimizer = torch.optim.Adam(scores, lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        lcron(scores, relevant, keep=(6, 3), temperature=3.0).backward()
        optimizer.step()
    assert survivors([s.detach()[0] for s in scores], (6, 3)) == {1, 5, 9}


def test_gradients_agree_with_finite_differences_also_for_the_stage_scale() -> None:
    scores, relevant, mask = case()
    scale = torch.tensor([0.7, 1.4], dtype=torch.float64, requires_grad=True)

    def loss(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return lcron([a, b], relevant, mask, keep=KEEP, temperature=2.0, stage_scale=w, sinkhorn_steps=3)

    assert torch.autograd.gradcheck(loss, (scores[0].requires_grad_(), scores[1].requires_grad_(), scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    score = torch.tensor([[1e4, -1e4, 0, 1e4]], dtype=dtype, requires_grad=True)
    value = lcron([score, score], torch.tensor([[False, True, True, False]]), keep=(3, 1), temperature=1.0)
    value.backward()
    assert value.isfinite()
    assert score.grad.isfinite().all()


def test_lists_without_or_with_only_relevant_candidates_cost_nothing() -> None:
    score = torch.randn(3, 4, generator=torch.Generator().manual_seed(3)).requires_grad_()
    relevant = torch.tensor([[False] * 4, [True] * 4, [True, False, True, False]])
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[2] = torch.tensor([False, True, False, True])
    whole = torch.tensor([[True, False, True, False]])
    for keep in ([4], [4, 9], [9, 4, 5]):  # every stage keeps all
        free = lcron([score[2:]] * len(keep), whole, keep=keep, temperature=1.0)
        assert free.item() == 0
        assert torch.autograd.grad(free, score)[0].abs().sum() == 0
    value = lcron([score], relevant, mask, keep=[2], temperature=1.0, reduction="none")
    assert value.tolist() == [0, 0, 0]
    (grad,) = torch.autograd.grad(value.sum(), score)
    assert grad.abs().sum() == 0


def test_what_does_not_fit_is_refused() -> None:
    score, relevant = torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="Each stage"):
        lcron([score], relevant, keep=(1, 2), temperature=1.0)
    with pytest.raises(ValueError, match="keep must"):
        lcron([score], relevant, keep=(0,), temperature=1.0)
    with pytest.raises(ValueError, match="stage_scale"):
        lcron([score], relevant, keep=(1,), temperature=1.0, stage_scale=torch.zeros(1))
    with pytest.raises(ValueError, match="temperature"):
        lcron([score], relevant, keep=(1,), temperature=0.0)
    with pytest.raises(ValueError, match=r"\(\.\.\., N\)"):
        lcron([torch.zeros(1, 4)], relevant, keep=(1,), temperature=1.0)
