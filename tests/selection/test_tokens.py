"""Token selection: exact shares, single criteria at the ends, and no gradient through what is masked."""

from __future__ import annotations

import pytest
import torch

from steelyard.selection.tokens import select_tokens


def losses(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(3, 10, generator=generator) for _ in range(3))  # type: ignore[return-value]


def test_exactly_the_share_is_kept_and_all_of_it_at_one() -> None:
    before, now, attention = losses()
    for keep in (0.01, 0.25, 0.5, 1.0):
        kept = select_tokens(before, now, attention, keep=keep)
        assert kept.sum(1).tolist() == [max(1, int(keep * 10))] * 3
    assert select_tokens(before, now, attention, keep=1.0).all()


def test_either_end_is_the_order_of_one_criterion_within_a_sequence() -> None:
    before, now, attention = (x[:1] for x in losses(1))
    by_loss = select_tokens(before, now, attention, keep=0.4, balance=1.0)
    assert set(by_loss[0].nonzero().flatten().tolist()) == set((before - now)[0].topk(4).indices.tolist())
    by_attention = select_tokens(before, now, attention, keep=0.4, balance=0.0)
    assert set(by_attention[0].nonzero().flatten().tolist()) == set(attention[0].topk(4).indices.tolist())
    assert torch.equal(select_tokens(before, now, keep=0.4), by_loss)


def test_scores_are_those_of_plain_loops() -> None:
    before, now, attention = losses(2)
    mask = torch.rand(3, 10, generator=torch.Generator().manual_seed(5)) < 0.7
    scores = {}
    for s in range(3):
        inside = [t for t in range(10) if mask[s, t]]
        rel = {t: float(before[s, t] - now[s, t]) for t in inside}
        att = {t: float(attention[s, t]) for t in inside}
        for t in inside:
            parts = [(x[t] - min(x.values())) / (max(x.values()) - min(x.values())) for x in (rel, att)]
            scores[s, t] = 0.3 * parts[0] + 0.7 * parts[1]
    best = []
    for s in range(3):
        row = sorted((place for place in scores if place[0] == s), key=lambda place: -scores[place])
        best += row[: max(1, len(row) // 2)]
    kept = select_tokens(before, now, attention, keep=0.5, balance=0.3, mask=mask)
    assert {tuple(place) for place in kept.nonzero().tolist()} == set(best)


def test_masked_tokens_have_no_gradient_and_prompts_are_never_kept() -> None:
    before, _, attention = losses(3)
    now = losses(4)[0].requires_grad_()
    mask = torch.arange(10).expand(3, 10) >= 4
    kept = select_tokens(before, now, attention, keep=0.5, mask=mask)
    assert not (kept & ~mask).any()
    (now * kept).sum().backward()
    assert ((now.grad != 0) == kept).all()
    assert not select_tokens(before, now, keep=0.5, mask=torch.zeros(3, 10, dtype=torch.bool)).any()


def test_equal_scores_keep_the_earliest_and_bad_input_is_refused() -> None:
    same = torch.ones(1, 4)
    assert select_tokens(same, same, keep=0.5).tolist() == [[True, True, False, False]]
    bad = same.clone()
    bad[0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        select_tokens(bad, same)
    assert select_tokens(bad, same, mask=torch.tensor([[False, True, True, True]])).sum() == 1
    for settings in ({"keep": 0.0}, {"keep": 1.1}, {"balance": -0.1}):
        with pytest.raises(ValueError, match="keep must lie"):
            select_tokens(same, same, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one shape"):
        select_tokens(same, torch.ones(1, 5))
    with pytest.raises(ValueError, match="mask must be bool"):
        select_tokens(same, same, mask=torch.ones(1, 4))
