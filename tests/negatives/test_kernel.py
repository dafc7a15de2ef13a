"""Kernel proposals draw by the law of their tree, whatever its shape, and adapt to the query."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from steelyard.draws import Proposal
from steelyard.negatives import feature_tree
from steelyard.negatives.context import Context
from steelyard.negatives.kernel import QuadraticKernel, RandomFourier
from steelyard.negatives.uniform import Uniform
from steelyard.ragged import Ragged
from tests.negatives.laws import (
    assert_design_is_kept,
    assert_sums_are_unbiased,
    generator,
    log_normalizer_variance,
    plain_law,
)

QUERY = torch.tensor([[1.0, -0.5, 0.3], [0.0, 1.0, -1.0]])
BATCH = Context(torch.tensor([0, 3]), Ragged.from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 4, 3]), 2))
ITEMS = torch.randn(11, 3, generator=generator(7)) * torch.tensor([1.0, 2.0, 0.5])
SCORE = torch.randn(2, 11, generator=generator(9))


def asks(vectors: torch.Tensor) -> Any:
    """The query vectors of a batch, or of that batch many times over."""
    return lambda context: vectors.repeat(-(-len(context) // len(vectors)), 1)[: len(context)]


def quadratic(leaf: int | None = 2, **more: Any) -> QuadraticKernel:
    return QuadraticKernel(ITEMS, asks(QUERY), leaf=leaf, **{"alpha": 3.0, **more})


def fourier(leaf: int = 2, **more: Any) -> RandomFourier:
    given = {
        "temperature": 0.4,
        "feature_temperature": 0.5,
        "n_features": 8,
        "generator": generator(2),
        **more,
    }
    return RandomFourier(ITEMS, asks(QUERY), leaf=leaf, **given)


def squares(items: torch.Tensor, alpha: float = 3.0) -> torch.Tensor:
    kernel = alpha * (QUERY.double() @ items.double().T) ** 2 + 1
    return kernel / kernel.sum(1, keepdim=True)


def walked(made: RandomFourier, items: torch.Tensor, leaf: int) -> torch.Tensor:
    """The stated law by plain recursion over the nodes."""
    v, h = (torch.nn.functional.normalize(x.double(), dim=1) for x in (items, QUERY))
    blocks = -(-len(v) // leaf)
    of_block = [range(c * leaf, min(c * leaf + leaf, len(v))) for c in range(blocks)]
    law = torch.zeros(len(h), len(v), dtype=torch.float64)

    def members(node: int) -> list[int]:
        return list(of_block[node - blocks]) if node >= blocks else members(2 * node) + members(2 * node + 1)

    def weight(b: int, node: int) -> float:
        total = 0.0
        for j in members(node):
            for w in made.frequencies:
                total += math.cos(float(w @ (h[b] - v[j]))) / len(made.frequencies)
        return max(total, made.floor * len(members(node)))

    def descend(b: int, node: int, p: float) -> None:
        if node >= blocks:
            mine = members(node)
            law[b, mine] = p * torch.softmax(v[mine] @ h[b] / made.temperature, 0)
            return
        left, right = weight(b, 2 * node), weight(b, 2 * node + 1)
        descend(b, 2 * node, p * left / (left + right))
        descend(b, 2 * node + 1, p * right / (left + right))

    for b in range(len(h)):
        descend(b, 1, 1.0)
    return law


@pytest.mark.parametrize("leaf", [1, 2, 3, 5, 11, 64, None])
def test_the_quadratic_law_is_that_of_the_kernel_whatever_the_tree(leaf: int | None) -> None:
    np.testing.assert_allclose(plain_law(quadratic(leaf), BATCH, 11), squares(ITEMS), rtol=1e-5)
    np.testing.assert_allclose(plain_law(quadratic(leaf, alpha=0.0), BATCH, 11), 1 / 11, rtol=1e-5)


@pytest.mark.parametrize("leaf", [1, 2, 3, 5, 11, 64])
def test_the_fourier_law_is_that_of_its_walk(leaf: int) -> None:
    made = fourier(leaf)
    np.testing.assert_allclose(plain_law(made, BATCH, 11), walked(made, ITEMS, leaf), rtol=1e-5)


def test_some_sums_of_features_are_negative_here_and_their_nodes_are_still_drawn() -> None:
    made = fourier(1, feature_temperature=0.1, n_features=4, floor=0.01)
    unit = torch.nn.functional.normalize(ITEMS.double(), dim=1)
    kernel = made.features(torch.nn.functional.normalize(QUERY.double(), dim=1)) @ made.features(unit).T
    assert bool((kernel < 0).any(1).all())
    law = plain_law(made, BATCH, 11)
    assert bool((law > 0).all())
    assert_design_is_kept(made, BATCH, 11)


def test_features_estimate_the_gaussian_kernel() -> None:
    made = fourier(n_features=20_000)
    x = torch.nn.functional.normalize(ITEMS.double(), dim=1)
    want = torch.exp(x @ x.T / 0.5 - 1 / 0.5)
    got = made.features(x) @ made.features(x).T
    np.testing.assert_allclose(got, want, atol=0.03)  # six standard errors at most
    plain = RandomFourier(ITEMS, asks(QUERY), temperature=0.25, n_features=8, generator=generator(2))
    torch.testing.assert_close(plain.frequencies, fourier().frequencies)  # twice the temperature by default


@pytest.mark.parametrize("leaf", [1, 3, 64])
@pytest.mark.parametrize("make", [quadratic, fourier])
def test_draws_follow_the_design(make: Any, leaf: int) -> None:
    made = make(leaf)
    assert isinstance(made, Proposal)
    assert_design_is_kept(made, BATCH, 11)


@pytest.mark.parametrize("made", [quadratic(), fourier()])
def test_sums_over_everything_are_unbiased(made: Proposal) -> None:
    assert_sums_are_unbiased(made, BATCH, SCORE)


def test_on_clustered_vectors_the_log_normaliser_varies_less_than_with_uniform_draws() -> None:
    g = generator(11)
    middle = torch.nn.functional.normalize(torch.randn(12, 8, generator=g), dim=1)
    x = middle[torch.randint(12, (600,), generator=g)] + 0.1 * torch.randn(600, 8, generator=g)
    x = torch.nn.functional.normalize(x, dim=1)
    q = torch.nn.functional.normalize(torch.randn(5, 8, generator=g), dim=1)
    score, context = q @ x.T / 0.1, Context(torch.arange(5))
    even = log_normalizer_variance(Uniform(600, per_query=True), context, score, 20)
    made = RandomFourier(x, asks(q), temperature=0.1, leaf=32, generator=generator(1))
    assert bool((log_normalizer_variance(made, context, score, 20) < even / 10).all())
    # The quadratic kernel likes scores far below zero as well as those far above.
    varied = log_normalizer_variance(QuadraticKernel(x, asks(q)), context, score, 20)
    assert bool((varied < even).all())
    assert float(varied.mean()) < float(even.mean()) / 3


@pytest.mark.parametrize("make", [quadratic, fourier])
@pytest.mark.parametrize("leaf", [1, 2, 5, 64])
def test_an_updated_tree_is_that_of_the_new_vectors(make: Any, leaf: int) -> None:
    made = make(leaf)
    before = made.sample(BATCH, 3)
    ids = torch.tensor([10, 0, 3])
    new = torch.tensor([[5.0, 1.0, -2.0], [0.1, 0.2, 0.3], [-1.0, 4.0, 0.0]])
    made.update(ids, new)
    items = ITEMS.clone()
    items[ids] = new
    want = squares(items) if make is quadratic else walked(made, items, leaf)
    np.testing.assert_allclose(plain_law(made, BATCH, 11), want, rtol=1e-5)
    with pytest.raises(RuntimeError, match="ask their design before"):
        before.log_expected_of(ids)
    draws = made.sample(BATCH, 3)
    made.update(ids[:0], new[:0])
    assert bool(draws.log_expected_of(ids).isfinite().all())


def test_an_update_sums_only_what_lies_above_the_changed_items(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4000, 4, generator=generator(4))
    made = QuadraticKernel(x, asks(torch.ones(1, 4)), leaf=4)
    tree, seen = made._tree, []
    before, plain = tree.nodes.clone(), tree._of_blocks
    monkeypatch.setattr(tree, "_of_blocks", lambda blocks: seen.append(len(blocks)) or plain(blocks))
    made.update(torch.tensor([5, 6, 3999]), torch.ones(3, 4))
    assert seen == [2]
    assert 1 < int((tree.nodes != before).any(1).sum()) <= 2 * 11


def test_many_updates_leave_no_rounding_behind() -> None:
    made, g = quadratic(), generator(6)
    for scale in [1e6, 1e-3] * 20:
        made.update(torch.arange(11), torch.randn(11, 3, generator=g) * scale)
    made.update(torch.arange(11), ITEMS)
    assert torch.equal(made._tree.nodes, quadratic()._tree.nodes)


@pytest.mark.parametrize("scale", [1e-30, 1e6, 1e30])
def test_large_and_small_vectors_do_not_overflow(scale: float) -> None:
    for made in (
        QuadraticKernel(ITEMS * scale, asks(QUERY * scale), leaf=2),
        QuadraticKernel(ITEMS * scale, asks(QUERY), leaf=2),
        RandomFourier(ITEMS * scale, asks(QUERY * scale), leaf=2, temperature=1e-4),
        RandomFourier(ITEMS.double() * scale, asks(QUERY / scale), leaf=64, temperature=1e-4),
    ):
        assert_design_is_kept(made, BATCH, 11, n=2000)


def test_zero_vectors_have_the_least_weight_and_no_direction() -> None:
    items = ITEMS.clone()
    items[2] = 0
    law = plain_law(QuadraticKernel(items, asks(QUERY), leaf=2, alpha=3.0), BATCH, 11)
    np.testing.assert_allclose(law, squares(items), rtol=1e-5)
    with pytest.raises(ValueError, match="vectors of length 0 have no direction; row 2"):
        RandomFourier(items, asks(QUERY))
    with pytest.raises(ValueError, match="query vectors of length 0"):
        RandomFourier(ITEMS, asks(QUERY * 0)).sample(BATCH, 2)
    with pytest.raises(ValueError, match="vectors of length 0"):
        fourier().update(torch.tensor([1]), torch.zeros(1, 3))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [make().sample(BATCH, 20, generator=generator(4)) for make in (quadratic, fourier)]
    monkeypatch.setattr(feature_tree, "CHUNK", 1)
    for make, want in zip((quadratic, fourier), whole, strict=True):
        got = make().sample(BATCH, 20, generator=generator(4))
        assert torch.equal(got.ids, want.ids)
        torch.testing.assert_close(got.log_expected, want.log_expected)


def test_a_single_item_is_always_drawn_and_half_precision_queries_will_do() -> None:
    for make in (QuadraticKernel, RandomFourier):
        made = make([[1, 2]], asks(torch.ones(1, 2, dtype=torch.bfloat16)))
        made.update(torch.tensor([0]), [[2.0, 1.0]])
        draws = made.sample(Context(torch.tensor([0])), 3)
        assert draws.ids.tolist() == [[0, 0, 0]]
        assert draws.log_expected.exp().tolist() == [pytest.approx([3] * 3)]


def test_the_vectors_of_the_caller_stay_as_they_are() -> None:
    items = ITEMS.clone()
    for make in (QuadraticKernel, RandomFourier):
        made = make(items, asks(QUERY))
        made.update(torch.tensor([1]), torch.ones(1, 3))
        assert torch.equal(items, ITEMS)


def test_bad_input_is_refused() -> None:
    for bad, said in (({"alpha": -1.0}, "alpha"), ({"alpha": math.nan}, "alpha"), ({"leaf": 0}, "leaf")):
        with pytest.raises(ValueError, match=said):
            quadratic(**bad)
    for more in (
        {"temperature": 0.0},
        {"feature_temperature": 0.0},
        {"n_features": 0},
        {"floor": 0.0},
        {"floor": math.nan},
        {"leaf": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(more))):
            fourier(**more)
    with pytest.raises(TypeError):
        fourier(n_features=2.0)
    with pytest.raises(ValueError, match="squares of the vectors"):
        QuadraticKernel(ITEMS.double() * 1e200, asks(QUERY))
    with pytest.raises(ValueError, match="kernel of a query exceeds"):
        QuadraticKernel(ITEMS.double() * 1e100, asks(QUERY.double() * 1e100)).sample(BATCH, 2)
    for make in (QuadraticKernel, RandomFourier):
        with pytest.raises(ValueError, match="row 0 is not"):
            make(torch.full((2, 3), math.nan), asks(QUERY))
        with pytest.raises(ValueError, match="one vector a row"):
            make(torch.zeros(0, 3), asks(QUERY))
        made = make(ITEMS, asks(QUERY))
        for ids, x, error, said in (
            (torch.tensor([11]), torch.ones(1, 3), ValueError, r"ids must lie in \[0, 11\)"),
            (torch.tensor([-1]), torch.ones(1, 3), ValueError, "ids must lie"),
            (torch.tensor([1, 1]), torch.ones(2, 3), ValueError, "twice"),
            (torch.tensor([1]), torch.ones(1, 2), ValueError, r"\(m, 3\)"),
            (torch.tensor([1]), torch.full((1, 3), math.inf), ValueError, "finite"),
            (torch.tensor([1.0]), torch.ones(1, 3), TypeError, "int64"),
        ):
            with pytest.raises(error, match=said):
                made.update(ids, x)
        with pytest.raises(ValueError, match="negative"):
            made.sample(BATCH, -1)
        with pytest.raises(TypeError, match="integer"):
            made.sample(BATCH, 1.5)
        for wrong, error, said in (
            (QUERY[:, :2], ValueError, r"\(2, 3\), got \(2, 2\)"),
            (QUERY.long(), TypeError, "floating point"),
            (QUERY.masked_fill(QUERY == 1, math.nan), ValueError, "query 0 is not"),
        ):
            with pytest.raises(error, match=said):
                make(ITEMS, asks(wrong)).sample(BATCH, 2)


def test_a_refused_update_changes_nothing() -> None:
    made = QuadraticKernel(ITEMS.double(), asks(QUERY), leaf=2, alpha=3.0)
    with pytest.raises(ValueError, match="squares"):
        made.update(torch.tensor([4]), torch.full((1, 3), 1e200, dtype=torch.float64))
    np.testing.assert_allclose(plain_law(made, BATCH, 11), squares(ITEMS), rtol=1e-5)
