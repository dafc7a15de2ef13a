"""STAR's pairs and ADORE's weighed pairs equal plain loops; ADORE lifts what static negatives leave behind."""

import math

import pytest
import torch

from steelyard.negatives.context import Context
from steelyard.negatives.schedules.star_adore import adore_candidates, adore_loss, star_loss
from steelyard.ragged import Ragged

SCORE = torch.tensor([[0.5, 2.0, 1.0, -1.0, 0.7], [1.0, 3.0, 1.5, 1.0, 0.0]], dtype=torch.float64)
RELEVANT = torch.tensor([[False, False, True, True, False], [True, False, False, False, True]])
EMPTY = torch.tensor([[False, False, False, False, True], [False] * 5])


def plain(b: int, metric: str, cutoff: int) -> float:
    slots = [j for j in range(5) if not EMPTY[b, j]]
    ordered = sorted(slots, key=lambda j: -float(SCORE[b, j]))

    def gain(rank: int) -> float:
        if rank > cutoff:
            return 0.0
        return 1 / rank if metric == "mrr" else 1 / math.log2(1 + rank)

    good = [j for j in slots if RELEVANT[b, j]]
    bad = [j for j in slots if not RELEVANT[b, j]]
    ideal = sum(gain(r + 1) for r in range(len(good))) if metric == "ndcg" else 1.0
    total = 0.0
    for i in good:
        for j in bad:
            weight = abs(gain(ordered.index(i) + 1) - gain(ordered.index(j) + 1)) / ideal
            total += weight * math.log(1 + math.exp(SCORE[b, j] - SCORE[b, i]))
    return total / (len(good) * len(bad))


@pytest.mark.parametrize("metric", ["mrr", "ndcg"])
@pytest.mark.parametrize("cutoff", [1, 3, 99])
def test_adore_s_loss_equals_plain_loops(metric: str, cutoff: int) -> None:
    got = adore_loss(SCORE, RELEVANT, EMPTY, metric=metric, cutoff=cutoff, reduction="none")  # type: ignore[arg-type]
    assert got.tolist() == pytest.approx([plain(b, metric, cutoff) for b in range(2)])


def test_every_pair_pulls_the_relevant_up_and_the_other_down() -> None:
    s = SCORE.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(adore_loss(s, RELEVANT, EMPTY), s)
    assert bool((gradient[RELEVANT & ~EMPTY] < 0).all())
    assert bool((gradient[~RELEVANT & ~EMPTY] >= 0).all())
    assert gradient[0, 4] == 0
    torch.testing.assert_close(gradient.sum(1), torch.zeros(2, dtype=torch.float64))


def test_without_pairs_the_loss_is_zero_and_garbage_in_empty_slots_is_not_seen() -> None:
    relevant = torch.tensor([[True] * 5, [False] * 5])
    assert adore_loss(SCORE, relevant, reduction="none").tolist() == [0, 0]
    garbage = SCORE.masked_fill(EMPTY, math.nan).requires_grad_()
    loss = adore_loss(garbage, RELEVANT, EMPTY)
    assert loss.item() == pytest.approx((plain(0, "mrr", 99) + plain(1, "mrr", 99)) / 2)
    assert bool(torch.autograd.grad(loss, garbage)[0].isfinite().all())
    assert adore_loss(SCORE[:0], RELEVANT[:0], reduction="sum").item() == 0


def test_star_s_loss_equals_plain_loops() -> None:
    positive, hard, others = SCORE[:, 0], SCORE[:, 1:3], SCORE[:, 2:]
    mask = torch.tensor([[True, False, False], [False, False, True]])
    got = star_loss(positive, hard, others, None, mask, alpha=0.3, reduction="none")
    for b in range(2):
        pairs = [
            [math.log(1 + math.exp(s - positive[b])) for s in part] for part in (hard[b], others[b][~mask[b]])
        ]
        want = sum(pairs[0]) / len(pairs[0]) + 0.3 * sum(pairs[1]) / len(pairs[1])
        assert got[b].item() == pytest.approx(want)
    alone = star_loss(positive, hard, others[:, :0], reduction="none")
    assert alone.tolist() == pytest.approx(
        star_loss(positive, hard, others, alpha=0, reduction="none").tolist()
    )
    weighed = star_loss(positive, hard, others, None, None, torch.tensor([0.0, math.log(0.5), 0.0]).double())
    twice = star_loss(positive, hard, others[:, [0, 1, 1, 2]])
    assert weighed.item() == pytest.approx(twice.item())


def test_candidates_equal_brute_force_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    query, documents = (torch.randn(n, 4, generator=generator) for n in (3, 50))
    order = [sorted(range(50), key=lambda j: -float(query[b] @ documents[j])) for b in range(3)]
    # The first finds its positive, the second has two beyond the top, the third one.
    rows, known = torch.tensor([0, 1, 2]), torch.tensor([order[0][9], order[1][40], order[2][30]])
    context = Context(
        torch.tensor([order[0][2], order[1][30], order[2][30]]), Ragged.from_pairs(rows, known, 3)
    )
    for chunk in (1, 21, 10**6):
        monkeypatch.setattr("steelyard.negatives.schedules.star_adore.CHUNK", chunk)
        ids, relevant = adore_candidates(query, documents, context, 6)
        assert ids[:, :6].tolist() == [row[:6] for row in order]
        assert [sorted(row) for row in ids[:, 6:].tolist()] == [
            [-1, -1],
            sorted([order[1][30], order[1][40]]),
            [-1, order[2][30]],
        ]
        assert relevant.nonzero().tolist() == [[0, 2], [1, 6], [1, 7], [2, 6]]


def test_adore_lifts_mrr_above_static_hard_negatives_and_leaves_documents_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    documents = torch.nn.functional.normalize(torch.randn(400, 8, generator=generator), dim=1) * 3
    frozen = documents.clone()
    truth = torch.randn(8, 8, generator=generator)
    positives = torch.arange(100)
    features = documents[:100] @ torch.linalg.inv(truth) + 0.1 * torch.randn(100, 8, generator=generator)
    context = Context(positives)

    def mrr(weight: torch.Tensor) -> float:
        score = features @ weight @ documents.T
        return float((1 / (score >= score.gather(1, positives.unsqueeze(1))).sum(1)).mean())

    start = torch.eye(8)
    static, _ = adore_candidates(features @ start, documents, context, 20)
    trained = {}
    for name in ("static", "adore"):
        weight, leaf = start.clone(), documents.clone().requires_grad_()
        for _ in range(60):
            w = weight.clone().requires_grad_()
            query = features @ w
            if name == "static":
                score = (query.unsqueeze(1) * documents[static.clamp(min=0)]).sum(-1)
                own = (query * documents[positives]).sum(1)
                loss = star_loss(own, score, score[:, :0], (static < 0) | context.mask(static.clamp(min=0)))
            else:
                ids, relevant = adore_candidates(query, leaf, context, 20)
                now = torch.topk(query @ documents.T, 20, 1).indices
                assert torch.equal(ids[:, :20], now)
                score = (query.unsqueeze(1) * leaf.detach()[ids.clamp(min=0)]).sum(-1)
                loss = adore_loss(score, relevant, ids < 0)
            (gradient,) = torch.autograd.grad(loss, w)
            weight = weight - 0.3 * gradient / gradient.norm()
        trained[name] = mrr(weight)
        assert leaf.grad is None
    assert torch.equal(documents, frozen)
    assert trained["adore"] > trained["static"] + 0.1 > mrr(start) + 0.1


def test_wrong_input_is_refused() -> None:
    x, context = torch.ones(2, 3), Context(torch.tensor([0, 1]))
    for bad, kind, said in (
        (lambda: adore_candidates(x, x, context, 3), ValueError, "2 documents"),
        (lambda: adore_candidates(x, torch.ones(4, 2), context, 1), ValueError, "Wanted queries"),
        (lambda: adore_candidates(x * math.nan, x, context, 1), ValueError, "NaN"),
        (lambda: adore_candidates(x, x, Context(torch.tensor([0, 2])), 1), ValueError, r"\[0, 2\)"),
        (lambda: adore_loss(SCORE, RELEVANT.long()), TypeError, "bool"),
        (lambda: adore_loss(SCORE, RELEVANT[:1]), ValueError, r"\(B, n\)"),
        (lambda: adore_loss(SCORE * math.nan, RELEVANT), ValueError, "NaN"),
        (lambda: adore_loss(SCORE, RELEVANT, cutoff=0), ValueError, "cutoff"),
        (lambda: adore_loss(SCORE, RELEVANT, metric="map"), ValueError, "metric"),  # type: ignore[arg-type]
        (lambda: star_loss(SCORE[:, 0], SCORE[0], SCORE), ValueError, "negatives must be"),
        (lambda: star_loss(SCORE[:, 0], SCORE, SCORE, alpha=-1), ValueError, "alpha"),
    ):
        with pytest.raises(kind, match=said):
            bad()


def test_half_precision_keeps_the_ranks_of_long_lists() -> None:
    score = torch.linspace(3, -3, 600, dtype=torch.float64).unsqueeze(0)
    relevant = torch.zeros(1, 600, dtype=torch.bool)
    relevant[0, 500] = True
    want = adore_loss(score.bfloat16().double(), relevant)
    assert adore_loss(score.bfloat16(), relevant).item() == pytest.approx(want.item(), rel=0.02)


def test_candidates_without_a_finite_score_are_refused() -> None:
    relevant = torch.tensor([[True, False, False]])
    for wrong in (math.inf, -math.inf, math.nan):
        score = torch.tensor([[0.1, 0.2, wrong]])
        with pytest.raises(ValueError, match="NaN or infinite"):
            adore_loss(score, relevant)
        assert bool(adore_loss(score, relevant, ~score.isfinite()).isfinite())
    with pytest.raises(TypeError, match="score must be floating"):
        adore_loss(torch.tensor([[1, 2, 3]]), relevant)
    with pytest.raises(TypeError, match="floating point"):
        star_loss(torch.zeros(1), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2))
