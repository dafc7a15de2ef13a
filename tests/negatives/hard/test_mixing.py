"""Synthetic negatives lie where their formulas put them: between hard ones, or nearer to the query."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from steelyard.losses import sampled_softmax
from steelyard.negatives.hard.mixgcf import Pool, mixgcf, pool_layers
from steelyard.negatives.hard.mochi import mochi
from tests.statistical import assert_unbiased


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERY, QUEUE = normalize(random(3, 5, seed=1), dim=1), normalize(random(12, 5, seed=2), dim=1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_synthetic_negatives_are_unit_vectors_and_those_with_the_query_are_nearer_than_their_source() -> None:
    made = mochi(QUERY, QUEUE, 1, 4, 50, generator=seeded())
    torch.testing.assert_close(made.norm(dim=2), torch.ones(3, 54, dtype=torch.float64))
    nearest = (QUERY @ QUEUE.T).amax(1, keepdim=True)
    to_query = (made * QUERY.unsqueeze(1)).sum(2)
    torch.testing.assert_close(to_query[:, :4], nearest.expand(-1, 4))  # of one entry: itself
    assert bool((to_query[:, 4:] > nearest).all())
    # b below 1/2: never nearer to the query than the midpoint.
    middle = (normalize(QUERY + QUEUE[(QUERY @ QUEUE.T).argmax(1)], dim=1) * QUERY).sum(1, keepdim=True)
    assert bool((to_query[:, 4:] <= middle).all())


def test_pairs_are_between_two_different_ones_of_the_hardest() -> None:
    made = mochi(QUERY, QUEUE, 3, 200, 0, generator=seeded(1))
    hard = QUEUE[(QUERY @ QUEUE.T).topk(3, 1).indices]
    # The coefficients of the three hardest: two are positive, the third nought, and all pairs come up.
    for b in range(3):
        parts = torch.linalg.lstsq(hard[b].T, made[b].T).solution.T
        assert bool((parts > -1e-9).all())
        used = parts > 1e-9
        assert used.sum(1).tolist() == [2] * 200
        assert len({tuple(row) for row in used.tolist()}) == 3


def test_shares_are_uniform() -> None:
    """In two dimensions at right angles the share is read off the mixture's two coordinates."""
    axes = torch.eye(2, dtype=torch.float64)
    query = normalize(torch.tensor([[1.0, 1.0]], dtype=torch.float64), dim=1)
    made = mochi(query, axes, 2, 8000, 0, generator=seeded(2))[0]
    share = made[:, 0] / made.sum(1)
    assert_unbiased(torch.stack([share, share**2, share**3], 1), [1 / 2, 1 / 3, 1 / 4])
    other = mochi(axes[:1], axes[1:], 1, 0, 8000, generator=seeded(3))[0]
    share = other[:, 0] / other.sum(1)
    assert_unbiased(torch.stack([share, share**2], 1), [1 / 4, 1 / 12])


def test_added_negatives_only_raise_the_loss_and_none_leave_it() -> None:
    positive = torch.ones(3, dtype=torch.float64)

    def loss(made: torch.Tensor) -> torch.Tensor:
        extra = (QUERY.unsqueeze(1) * made).sum(2)
        score = torch.cat([QUERY @ QUEUE.T, extra], 1)
        return sampled_softmax(positive, score, torch.zeros(1), reduction="none")

    plain = sampled_softmax(positive, QUERY @ QUEUE.T, torch.zeros(1), reduction="none")
    torch.testing.assert_close(loss(mochi(QUERY, QUEUE, 4, 0, 0)), plain)
    assert bool((loss(mochi(QUERY, QUEUE, 4, 3, 2)) > plain).all())


def test_mixing_keeps_dtype_and_has_no_gradient_and_refuses_what_does_not_fit() -> None:
    query = QUERY.float().requires_grad_()
    made = mochi(query, QUEUE.float(), 99, 2, 1)
    assert made.dtype == torch.float32
    assert not made.requires_grad
    with pytest.raises(ValueError, match=r"Q > 0"):
        mochi(QUERY, QUEUE[:0], 1, 1, 1)
    with pytest.raises(ValueError, match=r"\(Q, D\)"):
        mochi(QUERY, QUEUE[:, :2], 1, 1, 1)
    with pytest.raises(ValueError, match="finite"):
        mochi(QUERY * math.inf, QUEUE, 1, 1, 1)
    with pytest.raises(ValueError, match="n_hardest"):
        mochi(QUERY, QUEUE, 0, 1, 1)
    with pytest.raises(ValueError, match="n_pairs"):
        mochi(QUERY, QUEUE, 1, -1, 1)


USER, ITEM, OTHERS = random(4, 3, 5, seed=4), random(4, 3, 5, seed=5), random(4, 6, 3, 5, seed=6)


@pytest.mark.parametrize("pool", ["mean", "sum", "last", "concat"])
def test_each_layer_is_the_hardest_mixture_of_the_plain_loop(pool: Pool) -> None:
    got, choice = mixgcf(USER, ITEM, OTHERS, pool, generator=seeded(7))
    share = torch.rand(4, 1, 3, 1, generator=seeded(7), dtype=torch.float64)
    for b in range(4):
        asking = {"mean": USER[b].mean(0), "sum": USER[b].sum(0), "last": USER[b, 2]}.get(pool)
        layers = []
        for layer in range(3):
            a = float(share[b, 0, layer, 0])
            mixed = [a * ITEM[b, layer] + (1 - a) * OTHERS[b, m, layer] for m in range(6)]
            u = USER[b, layer] if asking is None else asking
            best = max(range(6), key=lambda m, u=u, mixed=mixed: float(u @ mixed[m]))
            assert int(choice[b, layer]) == best
            layers.append(mixed[best])
        torch.testing.assert_close(got[b], pool_layers(torch.stack(layers), pool))


def test_the_negative_is_at_least_as_hard_as_any_candidate_mixed_whole() -> None:
    got, _ = mixgcf(USER, ITEM, OTHERS, "sum", generator=seeded(8))
    share = torch.rand(4, 1, 3, 1, generator=seeded(8), dtype=torch.float64)
    whole = (share * ITEM.unsqueeze(1) + (1 - share) * OTHERS).sum(2)
    asking = USER.sum(1)
    assert bool(((asking * got).sum(1) + 1e-12 >= (asking.unsqueeze(1) * whole).sum(2).amax(1)).all())


def test_one_candidate_and_one_layer_is_plain_mixup_with_gradients_to_both() -> None:
    item, other = ITEM[:, :1].clone().requires_grad_(), OTHERS[:, :1, :1].clone().requires_grad_()
    got, choice = mixgcf(USER[:, :1], item, other, generator=seeded(9))
    share = torch.rand(4, 1, 1, 1, generator=seeded(9), dtype=torch.float64).view(4, 1)
    torch.testing.assert_close(got, share * item[:, 0] + (1 - share) * other[:, 0, 0])
    got.sum().backward()
    torch.testing.assert_close(item.grad[:, 0], share.expand(4, 5))
    assert choice.tolist() == [[0]] * 4


def test_layers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(B, M, L, D\)"):
        mixgcf(USER, ITEM, OTHERS[:, :, :2])
    with pytest.raises(ValueError, match="no candidates"):
        mixgcf(USER, ITEM, OTHERS[:, :0])
    with pytest.raises(ValueError, match="pool must"):
        mixgcf(USER, ITEM, OTHERS, "max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        mixgcf(USER, ITEM * math.nan, OTHERS)


def test_a_queue_of_another_precision_is_mixed_in_the_wider_one() -> None:
    made = mochi(QUERY, QUEUE.float(), 2, 3, 3, generator=seeded())
    torch.testing.assert_close(made, mochi(QUERY, QUEUE, 2, 3, 3, generator=seeded()), atol=1e-6, rtol=1e-5)
