"""The loss of a batch: what is fused equals what is gathered, and a loss at K knows where the K-th item stands."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.losses import Scored, retrieval_loss
from steelyard.retrieval import TrainConfig
from steelyard.retrieval.objective import batch_loss, thresholds


def batch(seed: int = 0) -> tuple[Tensor, ...]:
    """Two to four positives a query, of which some are among the draws too."""
    g = torch.Generator().manual_seed(seed)
    queries, items = (
        torch.nn.functional.normalize(torch.randn(n, 4, generator=g, dtype=torch.float64), dim=1)
        for n in (5, 12)
    )
    owner = torch.repeat_interleave(torch.arange(5), torch.tensor([2, 3, 4, 2, 3]))
    wanted = torch.cat([torch.randperm(12, generator=g)[:n] for n in (2, 3, 4, 2, 3)])
    known = torch.zeros(5, 12, dtype=torch.bool)
    known[owner, wanted] = True
    return queries, items, owner, wanted, known


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("shared", [True, False])
def test_with_everything_drawn_the_threshold_is_the_kth_largest_similarity(k: int, shared: bool) -> None:
    queries, items, owner, wanted, known = batch()
    score = queries @ items.T
    got = thresholds(
        score[owner, wanted],
        queries,
        items if shared else items.expand(5, -1, -1),
        torch.zeros(12, dtype=torch.float64),
        owner,
        known.nonzero(as_tuple=True),
        k,
    )
    torch.testing.assert_close(got, score.topk(k).values[:, -1])


def test_draws_count_for_what_they_stand_for_and_too_few_leave_the_list_open() -> None:
    queries, items, owner, wanted, known = batch()
    score = queries @ items.T
    draws = items[:3]
    hits = known[:, :3].nonzero(as_tuple=True)
    arguments = (score[owner, wanted], queries, draws)
    for expected, k in ((0.25, 6), (2.0, 4), (1.0, 8)):
        got = thresholds(
            *arguments, torch.full((3,), math.log(expected), dtype=torch.float64), owner, hits, k
        )
        for query in range(5):
            pairs = [(float(s), 1.0) for s in score[query, wanted[owner == query]]]
            pairs += [(float(score[query, j]), 1 / expected) for j in range(3) if not known[query, j]]
            reached, want = 0.0, -math.inf
            for s, count in sorted(pairs, reverse=True):
                reached += count
                if reached >= k:
                    want = s
                    break
            assert float(got[query]) == pytest.approx(want)


def test_the_fused_loss_at_k_is_the_gathered_one_with_its_gradients() -> None:
    queries, items, owner, wanted, known = batch(1)
    loss, scale = retrieval_loss("sl@3:0.5"), torch.tensor(5.0, dtype=torch.float64)
    log_expected = torch.linspace(-1, 0, 12, dtype=torch.float64)
    draws = Draws(torch.arange(12), log_expected, lambda ids: log_expected[ids])
    results = []
    for fused in (True, False):
        q, v = queries.clone().requires_grad_(), items.clone().requires_grad_()
        positive = (q[owner] * v[wanted]).sum(1) * scale
        hits = known.nonzero(as_tuple=True)
        if fused:
            value = batch_loss(loss, positive, q, v, draws, scale, owner, hits, 12)
        else:
            at = thresholds((positive / scale).detach(), q, v, log_expected, owner, hits, 3)[owner]
            negative = (scale * q @ v.T)[owner]
            value = loss(
                Scored(positive, negative, log_expected.expand_as(negative), known[owner], 5.0, 12, at)
            )
        results.append((value, *torch.autograd.grad(value, (q, v))))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("shared", [True, False])
def test_positives_far_below_their_lists_count_nothing(shared: bool) -> None:
    queries = torch.ones(2, 1, requires_grad=True)
    shape = (1,) if shared else (2, 1)
    draws = Draws(
        torch.zeros(shape, dtype=torch.int64), torch.zeros(shape), lambda ids: torch.zeros(ids.shape)
    )
    none = torch.zeros(0, dtype=torch.int64)
    value = batch_loss(
        retrieval_loss("sl@1:0.001"), -queries.squeeze(1), queries, torch.ones(*shape, 1), draws, torch.tensor(1.0),
        torch.arange(2), (none, none), 2,
    )  # fmt: skip
    assert float(value.detach()) == 0
    (grad,) = torch.autograd.grad(value, queries)
    assert torch.equal(grad, torch.zeros(2, 1))


def test_a_loss_at_k_is_named_with_its_k() -> None:
    loss = retrieval_loss("sl@20:2.25")
    assert (loss.k, loss.number) == (20, 2.25)
    assert retrieval_loss("sl@5").k == 5
    assert TrainConfig.of("mf", loss="sl@20").candidates == TrainConfig.of("mf").candidates  # it is fused
    for wrong in ("sl@k", "sl@0", "sl@", "sl@x", "sl@20:0", "sl@-1", "sl"):
        with pytest.raises(ValueError, match=r"sl@K|number of sl@k"):
            retrieval_loss(wrong)
    with pytest.raises(ValueError, match="wants cosines"):
        TrainConfig.of("sequence", loss="sl@20", similarity="dot")
