"""The fused step: the plain loss and its autograd gradient, without the logits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.losses import fused_sampled_softmax, fused_softmax, sampled_softmax


def case(b: int, k: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=dtype)  # noqa: E731
    return {
        "positive": make(b).requires_grad_(),
        "queries": make(b, d).requires_grad_(),
        "candidates": make(k, d).requires_grad_(),
        "scale": torch.tensor(1.7, dtype=dtype, requires_grad=True),
        "log_expected": make(k),
        "weight": (torch.rand(b, generator=g, dtype=dtype) + 0.1).requires_grad_(),
        "mask": torch.rand(b, k, generator=g) < 0.2,
    }


@settings(max_examples=40)
@given(
    b=st.integers(1, 140),
    k=st.integers(0, 20),
    d=st.integers(1, 5),
    positives=st.integers(1, 150) | st.none(),
    seed=st.integers(0, 2**31),
)
def test_value_and_gradients_equal_the_plain_loss_through_autograd(
    b: int, k: int, d: int, positives: int | None, seed: int
) -> None:
    c = case(b, k, d, seed)
    owner, mine = None, torch.arange(b)
    if positives is not None:  # several positives for some queries, none for others
        owner = mine = torch.sort(torch.randint(b, (positives,))).values
        c |= {name: case(positives, 1, 1, seed + 1)[name] for name in ("positive", "weight")}
    inputs = (c["positive"], c["queries"], c["candidates"], c["scale"], c["weight"])
    negative = (c["scale"] * c["queries"] @ c["candidates"].T)[mine]
    plain = sampled_softmax(c["positive"], negative, c["log_expected"], c["mask"][mine], reduction="none")
    want = (plain * c["weight"]).sum() / c["weight"].sum()
    got = fused_sampled_softmax(
        c["positive"],
        c["queries"],
        c["candidates"],
        c["log_expected"],
        scale=c["scale"],
        owner=owner,
        hits=c["mask"].nonzero(as_tuple=True),
        weight=c["weight"],
        chunk_bytes=1,  # the smallest blocks: 64 queries
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    for g, w in zip(torch.autograd.grad(3 * got, inputs), torch.autograd.grad(3 * want, inputs), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    c = case(5, 4, 3, seed=3)

    def loss(p: torch.Tensor, q: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        hits = c["mask"].nonzero(as_tuple=True)
        return fused_sampled_softmax(p, q, v, c["log_expected"], scale=s, hits=hits)

    assert bool(c["mask"].any())
    assert torch.autograd.gradcheck(loss, (c["positive"], c["queries"], c["candidates"], c["scale"]))


def test_full_softmax_equals_cross_entropy_and_its_gradients() -> None:
    c = case(70, 11, 3, seed=5, dtype=torch.float32)
    target = torch.arange(70) % 11
    inputs = (c["queries"], c["candidates"])
    want = torch.nn.functional.cross_entropy(2 * c["queries"] @ c["candidates"].T, target)
    got = fused_softmax(*inputs, target, scale=2.0, chunk_bytes=1)
    torch.testing.assert_close(got, want)
    for g, w in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


def test_blocks_do_not_change_the_result() -> None:
    c = case(100, 50, 4, seed=6)
    args = (c["positive"], c["queries"], c["candidates"], c["log_expected"])
    inputs = (*args[:3], c["scale"])
    for hits in (None, c["mask"].nonzero(as_tuple=True)):
        small, large = (
            fused_sampled_softmax(*args, scale=c["scale"], hits=hits, chunk_bytes=size)
            for size in (1, 1 << 30)
        )
        torch.testing.assert_close(small, large, rtol=1e-12, atol=0)
        for s, w in zip(torch.autograd.grad(small, inputs), torch.autograd.grad(large, inputs), strict=True):
            torch.testing.assert_close(s, w, rtol=1e-10, atol=1e-14)


def test_extreme_scores_stay_finite_and_right() -> None:
    queries = torch.tensor([[1.0], [1.0]], requires_grad=True)
    candidates = torch.tensor([[900.0], [-900.0]], requires_grad=True)
    positive = torch.tensor([-900.0, 900.0], requires_grad=True)
    loss = fused_sampled_softmax(positive, queries, candidates)
    loss.backward()
    assert loss.item() == pytest.approx((1800 + math.log(2)) / 2, rel=1e-6)
    assert all(t.grad is not None and bool(t.grad.isfinite().all()) for t in (queries, candidates, positive))


def test_positives_of_one_query_may_lie_further_apart_than_floats_reach() -> None:
    positive = torch.tensor([900.0, -900.0, 0.0], requires_grad=True)
    queries = torch.ones(1, 1, requires_grad=True)
    candidates = torch.zeros(1, 1, requires_grad=True)
    owner = torch.zeros(3, dtype=torch.int64)
    loss = fused_sampled_softmax(positive, queries, candidates, owner=owner)
    loss.backward()
    assert loss.item() == pytest.approx((0 + 900 + math.log(2)) / 3, rel=1e-6)
    assert positive.grad.tolist() == pytest.approx([0, -1 / 3, -1 / 6], rel=1e-6)
    assert candidates.grad.item() == pytest.approx(1 / 3 + 1 / 6, rel=1e-6)


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (torch.tensor([1, 0]), "never fall"),
        (torch.tensor([0, 2]), r"\[0, 2\)"),
        (torch.tensor([0.0, 1.0]), "int64"),
        (torch.tensor([0, 0, 1]), "positive must be"),
        (torch.zeros(0, dtype=torch.int64), "no positive"),
    ],
)
def test_owners_that_do_not_fit_are_refused(owner: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fused_sampled_softmax(torch.zeros(2), torch.zeros(2, 3), torch.zeros(4, 3), owner=owner)


def test_masking_every_candidate_leaves_loss_zero() -> None:
    rows, columns = torch.ones(2, 3, dtype=torch.bool).nonzero(as_tuple=True)
    queries = torch.randn(2, 4, requires_grad=True)
    loss = fused_sampled_softmax(torch.zeros(2), queries, torch.randn(3, 4), hits=(rows, columns))
    loss.backward()
    assert loss.item() == 0
    assert float(queries.grad.abs().sum()) == 0


def test_no_candidates_give_loss_zero() -> None:
    assert float(fused_sampled_softmax(torch.zeros(2), torch.randn(2, 4), torch.zeros(0, 4))) == 0


def test_shapes_and_values_that_do_not_fit_are_refused() -> None:
    q, v, p = torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(2)
    with pytest.raises(ValueError, match="share d"):
        fused_sampled_softmax(p, q, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="log_expected"):
        fused_sampled_softmax(p, q, v, torch.zeros(3))
    with pytest.raises(ValueError, match="dtype"):
        fused_sampled_softmax(p, q.double(), v)
    with pytest.raises(ValueError, match="no query"):
        fused_sampled_softmax(p[:0], q[:0], v)
    with pytest.raises(ValueError, match="positive number"):
        fused_sampled_softmax(p, q, v, weight=torch.zeros(2))
    with pytest.raises(ValueError, match="lie in"):
        fused_softmax(q, v, torch.tensor([0, 4]))


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        ([1, 0], [0, 0], "never fall"),
        ([0, 2], [0, 0], r"rows of hits must lie in \[0, 2\), got 0 to 2"),
        ([-1, 0], [0, 0], "rows of hits must lie"),
        ([0, 1], [0, -1], "columns of hits must lie"),
        ([0, 1], [4, 0], r"columns of hits must lie in \[0, 4\), got 0 to 4"),
        ([0, 1], [0], "2 rows for 1 columns"),
        ([[0, 1]], [[0, 1]], "int64 rows"),
        ([0.0], [0.0], "int64 rows"),
    ],
)
def test_hits_that_would_mask_the_wrong_pairs_are_refused(
    rows: list[int], columns: list[int], said: str
) -> None:
    hits = (torch.tensor(rows), torch.tensor(columns))
    with pytest.raises(ValueError, match=said):
        fused_sampled_softmax(torch.zeros(2), torch.zeros(2, 3), torch.zeros(4, 3), hits=hits)


def test_a_mask_is_not_taken_for_hits() -> None:
    mask = torch.zeros(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="nonzero"):
        fused_sampled_softmax(torch.zeros(2), torch.zeros(2, 3), torch.zeros(4, 3), hits=mask)  # type: ignore[arg-type]


def test_what_gets_no_gradient_may_not_ask_for_one() -> None:
    args = torch.zeros(2), torch.zeros(2, 3), torch.zeros(4, 3)
    wanting = torch.zeros(4, requires_grad=True)
    with pytest.raises(ValueError, match="log_expected gets no gradient"):
        fused_sampled_softmax(*args, wanting)
    with torch.no_grad():
        assert float(fused_sampled_softmax(*args, wanting)) == pytest.approx(math.log(5))


def test_a_scale_for_each_query_is_refused() -> None:
    queries, items = torch.zeros(2, 3), torch.zeros(4, 3)
    for scale in (torch.ones(2), torch.ones(1), torch.ones(2, 1)):
        with pytest.raises(ValueError, match="one number"):
            fused_sampled_softmax(torch.zeros(2), queries, items, scale=scale)
        with pytest.raises(ValueError, match="one number"):
            fused_softmax(queries, items, torch.tensor([0, 1]), scale=scale)


def test_integers_are_refused() -> None:
    p, q, v = torch.zeros(2), torch.zeros(2, 3), torch.zeros(4, 3)
    for args, said in (
        ((p, q.long(), v.long()), "queries"),
        ((p, q, v.long()), "candidates"),
        ((p.long(), q, v), "positive"),
        ((p, q, v, torch.zeros(4, dtype=torch.int64)), "log_expected"),
    ):
        with pytest.raises(TypeError, match=f"{said} must be floating point"):
            fused_sampled_softmax(*args)
    with pytest.raises(TypeError, match="weight must be floating point"):
        fused_sampled_softmax(p, q, v, weight=torch.ones(2, dtype=torch.int64))
    with pytest.raises(TypeError, match="queries"):
        fused_softmax(q.long(), v.long(), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="targets must be int64"):
        fused_softmax(q, v, torch.zeros(2))


def test_a_frozen_bank_of_everything_is_the_full_softmax_and_gets_no_gradient() -> None:
    """The second stage of SPN4CIR: the query encoder alone is trained, against all target vectors."""
    g = torch.Generator().manual_seed(0)
    bank = torch.nn.functional.normalize(torch.randn(50, 6, generator=g, dtype=torch.float64), dim=1)
    queries = torch.randn(9, 6, generator=g, dtype=torch.float64).requires_grad_()
    target = torch.randint(50, (9,), generator=g)
    hits = (torch.arange(9), target)
    positive = (queries * bank[target]).sum(1) / 0.1
    got = fused_sampled_softmax(positive, queries, bank, scale=1 / 0.1, hits=hits)
    want = torch.nn.functional.cross_entropy(queries @ bank.T / 0.1, target)
    torch.testing.assert_close(got, want)
    (a,), (b,) = torch.autograd.grad(got, queries), torch.autograd.grad(want, queries)
    torch.testing.assert_close(a, b)
    assert not bank.requires_grad
