"""The policy draws by its law, learns a better bin, and learns nothing from a constant reward."""

import math

import pytest
import torch

from steelyard.negatives.hard.distance_policy import DistancePolicy
from tests.statistical import assert_unbiased

EDGES = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
THETA = torch.tensor([0.3, -0.5, 1.0, 0.2], dtype=torch.float64)
D = torch.tensor([[0.1, 0.2, 0.7, 1.2, 1.3, 1.4, 1.9], [0.5, 0.6, 0.6, 1.7, 0.9, 1.8, 9.0]])
OUT = torch.tensor([[False] * 6 + [True], [False] * 7])
POLICY = DistancePolicy(EDGES, THETA)


def plain() -> torch.Tensor:
    law = torch.zeros(2, 7, dtype=torch.float64)
    for b in range(2):
        bins = {j: sum(float(D[b, j]) >= float(e) for e in EDGES) for j in range(7) if not OUT[b, j]}
        total = sum(math.exp(float(THETA[k])) for k in set(bins.values()))
        for j, k in bins.items():
            law[b, j] = math.exp(float(THETA[k])) / total / list(bins.values()).count(k)
    return law


def test_draws_follow_the_law_written_out_and_weigh_back_to_the_sum() -> None:
    law = plain()
    torch.testing.assert_close(POLICY.log_probability(D, OUT).exp(), law)
    draws = POLICY.sample(D, 6000, OUT, generator=torch.Generator().manual_seed(1))
    hits = torch.nn.functional.one_hot(draws.ids, 7).double().transpose(0, 1)
    assert_unbiased(hits, law)
    torch.testing.assert_close(draws.log_expected, draws.log_expected_of(draws.ids))
    torch.testing.assert_close(draws.log_expected_of(torch.arange(7)).exp(), law * 6000)
    value = (-D).exp().double()
    weighed = value.gather(1, draws.ids) / draws.log_expected.exp() * 6000
    assert_unbiased(weighed.T, (value * (law > 0)).sum(1))


def test_the_score_gradient_is_the_gradient_of_the_enumerated_expected_reward() -> None:
    """One draw an anchor, a reward for each candidate: E[R score] over all draws equals d E[R] / d theta."""
    reward = torch.tensor(
        [[1.0, -2.0, 3.0, 0.5, 0.1, 2.0, 9.0], [0.3, 1.0, -1.0, 2.0, 0.0, 4.0, -3.0]]
    ).double()
    theta = THETA.clone().requires_grad_()
    law = torch.zeros(2, 7, dtype=torch.float64)
    total = []
    for b in range(2):
        bins = torch.bucketize(D[b].double(), EDGES, right=True)
        here = bins[~OUT[b]]
        full = torch.zeros(4, dtype=torch.bool).index_fill_(0, here, True)
        log_bin = theta.masked_fill(~full, -math.inf).log_softmax(0)
        count = torch.bincount(here, minlength=4).clamp(min=1)
        p = (log_bin.exp() / count)[bins] * ~OUT[b]
        law[b] = p.detach()
        total.append((p * reward[b]).sum())
    (want,) = torch.autograd.grad(sum(total), theta)  # type: ignore[arg-type]
    got = torch.zeros(4, dtype=torch.float64)
    for b in range(2):
        for j in range(7):
            if not OUT[b, j]:
                score = POLICY.score_gradient(D[b : b + 1], torch.tensor([[j]]), OUT[b : b + 1])
                got += law[b, j] * reward[b, j] * score
    torch.testing.assert_close(got, want)


def test_a_constant_reward_moves_nothing_on_average_nor_with_the_baseline_at_all() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.stack(
        [POLICY.score_gradient(D, POLICY.sample(D, 1, OUT, generator=generator).ids, OUT) for _ in range(600)]
    )
    assert_unbiased(scores, [0.0] * 4)
    policy = POLICY
    for _ in range(5):
        policy = policy.updated(D, policy.sample(D, 3, OUT, generator=generator).ids, 0.7, OUT)
    assert policy.theta is not None
    torch.testing.assert_close(policy.theta, THETA)
    assert policy.baseline == pytest.approx(0.7)


def test_mass_gathers_in_the_better_bin_of_a_bandit() -> None:
    generator = torch.Generator().manual_seed(3)
    policy = DistancePolicy(EDGES, rate=0.5)
    distance = torch.tensor([[0.2, 0.7, 1.2, 1.7]]).expand(8, 4)
    for _ in range(300):
        ids = policy.sample(distance, 1, generator=generator).ids
        noise = float(torch.randn(1, generator=generator)) * 0.1
        policy = policy.updated(distance, ids, float((ids == 2).double().mean()) + noise)
    assert float(policy.log_probability(distance)[0, 2].exp()) > 0.8


def test_the_state_comes_back() -> None:
    policy = POLICY.updated(D, torch.tensor([[0], [1]]), 0.4, OUT).updated(
        D, torch.tensor([[0], [1]]), 0.9, OUT
    )
    for one in (policy, POLICY):
        again = DistancePolicy.from_state_dict(one.state_dict())
        assert again.theta is not None
        assert one.theta is not None
        assert torch.equal(again.theta, one.theta)
        assert (again.rate, again.baseline, again.decay) == (one.rate, one.baseline, one.decay)


def test_anchors_without_candidates_have_empty_slots() -> None:
    nothing = torch.ones(2, 7, dtype=torch.bool)
    draws = POLICY.sample(D * math.nan, 2, nothing)
    assert draws.ids.tolist() == [[0, 0], [0, 0]]
    assert bool((draws.log_expected == math.inf).all())
    assert bool((draws.log_expected_of(torch.arange(8)) == -math.inf).all())
    assert POLICY.score_gradient(D, draws.ids, nothing).tolist() == [0, 0, 0, 0]
    assert POLICY.sample(D[:, :0], 2).ids.shape == (2, 2)
    assert POLICY.sample(D, 0).ids.shape == (2, 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="rising"):
        DistancePolicy(EDGES.flip(0))
    with pytest.raises(ValueError, match="theta"):
        DistancePolicy(EDGES, THETA[:3])
    with pytest.raises(ValueError, match="rate"):
        DistancePolicy(EDGES, rate=0.0)
    with pytest.raises(ValueError, match="finite"):
        POLICY.sample(D * math.nan)
    with pytest.raises(TypeError, match="bool"):
        POLICY.sample(D, 1, OUT.long())
    with pytest.raises(ValueError, match="distance and mask"):
        POLICY.sample(D, 1, OUT[:1])
    with pytest.raises(ValueError, match="reward"):
        POLICY.updated(D, torch.zeros(2, 1).long(), math.nan)
    with pytest.raises(ValueError, match="never draws"):
        POLICY.score_gradient(D, torch.tensor([[6], [0]]), OUT)
