"""Adaptive relevance margins: targets from likeness, in all three arrangements."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.adaptive_margin import adaptive_relevance_margin

TARGETS = ["own", "in-batch", "distributed"]


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, p, n = torch.randn(3, 4, 5, generator=g, dtype=torch.float64)
    return q, p, n


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("error", ["squared", "absolute", "logistic"])
def test_it_equals_the_plainest_loop(target: str, error: str) -> None:
    q, p, n = case()
    e = {"squared": lambda x: x * x, "absolute": abs, "logistic": lambda x: math.log(1 + math.exp(-x))}[error]
    got = adaptive_relevance_margin(q, p, n, target=target, error=error, reduction="none")  # type: ignore[arg-type]
    for i in range(4):
        terms = []
        for j in range(4):
            if target == "own" and i != j:
                continue
            rival = n[j] if target == "in-batch" else n[i]
            margin = cosine(q[i], p[i]) - cosine(q[i], rival)
            likeness = cosine(p[j], n[i]) if target == "distributed" else cosine(p[i], n[j])
            terms.append(e(margin - (1 + likeness) / 2))
        assert float(got[i]) == pytest.approx(sum(terms) / len(terms), abs=1e-12)


def test_a_negative_that_is_like_the_positive_gets_a_wide_margin_and_an_opposite_one_none() -> None:
    q = torch.tensor([[1.0, 0.0, 0.0]])
    p = torch.tensor([[0.0, 1.0, 0.0]])
    for n, want in ((p, 1.0), (torch.tensor([[0.0, 0.0, 1.0]]), 0.5), (-p, 0.0)):
        loss = adaptive_relevance_margin(q, p, n, target="own", error="absolute")  # the margin itself is 0
        assert float(loss) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_the_length_of_embeddings_does_not_matter(target: str) -> None:
    q, p, n = case()
    torch.testing.assert_close(
        adaptive_relevance_margin(3 * q, 0.1 * p, 1e3 * n, target=target),  # type: ignore[arg-type]
        adaptive_relevance_margin(q, p, n, target=target),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("target", TARGETS)
def test_gradients_flow_through_the_targets_and_agree_with_finite_differences(target: str) -> None:
    inputs = [x.requires_grad_() for x in case()]
    assert torch.autograd.gradcheck(lambda q, p, n: adaptive_relevance_margin(q, p, n, target=target), inputs)  # type: ignore[arg-type]


def test_training_moves_queries_to_their_own_documents() -> None:
    g = torch.Generator().manual_seed(1)
    p, n = torch.randn(2, 6, 8, generator=g)
    q = torch.randn(6, 8, generator=g).requires_grad_()
    optimizer = torch.optim.Adam([q], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        adaptive_relevance_margin(q, p, n).backward()
        optimizer.step()
    near, far = (torch.nn.functional.cosine_similarity(q.detach(), d) for d in (p, n))
    assert bool((near > far + 0.3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", TARGETS)
def test_long_and_zero_embeddings_give_finite_losses_and_gradients(dtype: torch.dtype, target: str) -> None:
    q, p, n = (x.to(dtype).mul(1e4).detach() for x in case())
    q[0] = p[1] = n[2] = 0
    inputs = [x.requires_grad_() for x in (q, p, n)]
    value = adaptive_relevance_margin(*inputs, target=target)  # type: ignore[arg-type]
    assert value.isfinite()
    assert value.dtype == torch.float32
    for grad in torch.autograd.grad(value, inputs):
        assert grad.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    q, p, n = case()
    with pytest.raises(ValueError, match=r"\(B, D\)"):
        adaptive_relevance_margin(q, p[:2], n)
    with pytest.raises(ValueError, match="target"):
        adaptive_relevance_margin(q, p, n, target="hinge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="error"):
        adaptive_relevance_margin(q, p, n, error="hinge")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating point"):
        adaptive_relevance_margin(q.long(), p, n)
    with pytest.raises(ValueError, match="no query"):
        adaptive_relevance_margin(q[:0], p[:0], n[:0])
