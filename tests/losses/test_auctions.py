"""The welfare-weighted rank loss: a bound on lost welfare, and better auctions than the log loss."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.losses.auctions import welfare_rank
from steelyard.losses.listwise import ranknet


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    make = lambda: torch.rand(4, 6, generator=g, dtype=torch.float64)  # noqa: E731
    return make(), make() * 5, make(), torch.rand(4, 6, generator=g) < 0.25


def test_it_equals_the_plainest_loop() -> None:
    ctr, bid, label, mask = case()
    got = welfare_rank(ctr, bid, label, mask, sigma=2.0, reduction="none")
    for b in range(4):
        kept = [j for j in range(6) if not mask[b, j]]
        total = 0.0
        for i in kept:
            for j in kept:
                gain = float(bid[b, i] * label[b, i] - bid[b, j] * label[b, j])
                if gain > 0:
                    gap = float(bid[b, i] * ctr[b, i] - bid[b, j] * ctr[b, j])
                    total += gain * math.log(1 + math.exp(-2 * gap))
        assert float(got[b]) == pytest.approx(total, abs=1e-12)


def test_over_log_two_it_bounds_the_welfare_lost_in_pairs_and_by_the_ad_shown() -> None:
    g = torch.Generator().manual_seed(1)
    for _ in range(200):
        ctr, label = torch.rand(2, 5, generator=g, dtype=torch.float64)
        bid = torch.rand(5, generator=g, dtype=torch.float64) * 3
        value, predicted = bid * label, bid * ctr
        pairs = sum(
            float((value[i] - value[j]).relu())
            for i in range(5)
            for j in range(5)
            if predicted[i] < predicted[j]
        )
        shown = float(value.max() - value[predicted.argmax()])
        bound = float(welfare_rank(ctr, bid, label)) / math.log(2)
        assert bound >= pairs >= shown - 1e-12


def test_with_equal_bids_and_clicks_it_is_the_loss_of_ranknet() -> None:
    ctr, _, label, _ = case()
    clicks = (label > 0.5).double()
    pairs = clicks.sum(-1) * (6 - clicks.sum(-1))
    want = ranknet(ctr, clicks, sigma=2.0, reduction="none") * pairs
    torch.testing.assert_close(
        welfare_rank(ctr, torch.ones_like(ctr), clicks, sigma=2.0, reduction="none"), want
    )


def test_a_misspecified_model_trained_on_it_gives_more_welfare_than_one_trained_on_the_log_loss() -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.rand(2000, 4, generator=g, dtype=torch.float64)
    x = torch.where(torch.rand(2000, 4, generator=g) < 0.75, -x, x)
    chance = (
        0.5 - 0.45 * x.abs()
    )  # rises among the many cheap ads and falls among the dear ones: no line fits
    bid = torch.where(x > 0, 5.0, 0.2).double()
    click = torch.bernoulli(chance, generator=g)

    def welfare(loss: str) -> float:
        theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([theta], lr=0.05)
        for _ in range(100):
            optimizer.zero_grad()
            logit = theta[0] * x + theta[1]
            if loss == "log":
                value = torch.nn.functional.binary_cross_entropy_with_logits(logit, click)
            else:
                value = welfare_rank(logit.sigmoid(), bid, chance if loss == "teacher" else click, sigma=1.0)
            value.backward()
            optimizer.step()
        shown = (bid * torch.sigmoid(theta[0] * x + theta[1]).detach()).argmax(-1, keepdim=True)
        return float((bid * chance).gather(1, shown).mean())

    best = float((bid * chance).amax(-1).mean())
    by_log = welfare("log")
    for labels in ("clicks", "teacher"):
        assert by_log + 0.2 < welfare(labels) <= best


def test_gradients_agree_with_finite_differences() -> None:
    ctr, bid, label, mask = case()
    assert torch.autograd.gradcheck(lambda p: welfare_rank(p, bid, label, mask), (ctr.requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_bids_and_padding_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    ctr = torch.tensor([[0.9, 0.1, math.nan], [0.5, 0.5, 0.5]], dtype=dtype, requires_grad=True)
    bid = torch.tensor([[1e4, 2e4, math.inf], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[False, False, True], [False, False, False]])
    value = welfare_rank(
        ctr, bid, torch.tensor([[0.0, 1.0, math.nan], [1.0, 0.0, 1.0]]), mask, reduction="none"
    )
    value.sum().backward()
    assert value.isfinite().all()
    assert value[1].item() == 0  # nothing is worth anything
    assert ctr.grad.isfinite().all()
    assert ctr.grad[0, 2] == 0
    assert welfare_rank(torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(2, 0)).item() == 0


def test_what_does_not_fit_is_refused() -> None:
    ctr, bid, label, _ = case()
    with pytest.raises(ValueError, match="Bids"):
        welfare_rank(ctr, -bid, label)
    with pytest.raises(ValueError, match="Labels"):
        welfare_rank(ctr, bid, label + 1)
    with pytest.raises(ValueError, match="sigma"):
        welfare_rank(ctr, bid, label, sigma=0.0)
    with pytest.raises(ValueError, match=r"\(\.\.\., N\)"):
        welfare_rank(ctr, bid[:, :2], label)
