"""Noise negatives climb the loss; suspected false negatives have neither weight nor gradient."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from steelyard.negatives.hard.noise import dclr_loss, noise_negatives, suspects
from tests.statistical import assert_unbiased


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERY, POSITIVE, NOISE = random(5, 4, seed=1), random(5, 4, seed=2), random(3, 4, seed=3)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def plain_loss(t: float, left_out: torch.Tensor, noise: torch.Tensor) -> list[float]:
    losses = []
    for i in range(5):
        own = math.exp(cosine(QUERY[i], POSITIVE[i]) / t)
        total = own + sum(math.exp(cosine(QUERY[i], h) / t) for h in noise)
        for j in range(5):
            if j != i and not left_out[i, j]:
                total += math.exp(cosine(QUERY[i], POSITIVE[j]) / t)
        losses.append(math.log(total / own))
    return losses


def test_the_loss_is_the_formula_and_without_suspects_and_noise_that_of_simcse() -> None:
    out = suspects(random(5, 5, seed=4), 0.6)
    assert 0 < int(out.sum()) < 20
    got = dclr_loss(QUERY, POSITIVE, out, NOISE, 0.3, reduction="none")
    assert got.tolist() == pytest.approx(plain_loss(0.3, out, NOISE))
    plain = dclr_loss(QUERY, POSITIVE, suspects(random(5, 5, seed=4), math.inf), None, 0.3)
    logits = normalize(QUERY, dim=1) @ normalize(POSITIVE, dim=1).T / 0.3
    torch.testing.assert_close(plain, torch.nn.functional.cross_entropy(logits, torch.arange(5)))


@pytest.mark.parametrize("seed", range(5))
def test_small_steps_of_ascent_never_lower_the_loss(seed: int) -> None:
    losses = []
    for steps in range(6):
        noise = noise_negatives(
            QUERY, POSITIVE, 3, steps, 1e-3, temperature=0.3, generator=torch.Generator().manual_seed(seed)
        )
        score = normalize(QUERY, dim=1) @ normalize(noise, dim=1).T / 0.3
        own = torch.nn.functional.cosine_similarity(QUERY, POSITIVE) / 0.3
        losses.append(float((torch.logsumexp(torch.cat([own.unsqueeze(1), score], 1), 1) - own).mean()))
    assert losses == sorted(losses)
    assert losses[-1] > losses[0]


def test_each_step_has_the_length_asked_for_and_the_direction_of_finite_differences() -> None:
    start = noise_negatives(QUERY, POSITIVE, 2, 0, generator=torch.Generator().manual_seed(5))
    moved = noise_negatives(
        QUERY, POSITIVE, 2, 1, 0.25, temperature=0.3, generator=torch.Generator().manual_seed(5)
    )
    step = moved - start
    assert step.norm(dim=1).tolist() == pytest.approx([0.25, 0.25])

    def loss(noise: torch.Tensor) -> float:
        total = 0.0
        for q, p in zip(QUERY, POSITIVE, strict=True):
            own = math.exp(cosine(q, p) / 0.3)
            total += math.log(1 + sum(math.exp(cosine(q, h) / 0.3) for h in noise) / own) / 5
        return total

    for k in range(2):
        slope = torch.zeros(4, dtype=torch.float64)
        for d in range(4):
            up, down = start.clone(), start.clone()
            up[k, d] += 1e-6
            down[k, d] -= 1e-6
            slope[d] = (loss(up) - loss(down)) / 2e-6
        torch.testing.assert_close(step[k] / 0.25, normalize(slope, dim=0), atol=1e-6, rtol=1e-6)


def test_without_steps_it_is_gaussian_of_the_width_asked_for() -> None:
    noise = noise_negatives(QUERY, POSITIVE, 4000, 0, std=0.3, generator=torch.Generator().manual_seed(6))
    assert_unbiased(torch.cat([noise, noise**2, noise**4], 1), [0] * 4 + [0.09] * 4 + [3 * 0.09**2] * 4)


def test_planted_duplicates_have_no_weight_and_no_gradient() -> None:
    positive = POSITIVE.clone()
    positive[3] = positive[1]  # one sentence twice: each is a false negative of the other's query
    p = positive.clone().requires_grad_()
    auxiliary = torch.nn.functional.cosine_similarity(positive.unsqueeze(1), positive, dim=2)
    out = suspects(auxiliary, 0.999)
    assert out.nonzero().tolist() == [[0, 0], [1, 1], [1, 3], [2, 2], [3, 1], [3, 3], [4, 4]]
    dclr_loss(QUERY[1:2].expand(5, 4), p, out, temperature=0.3, reduction="none")[1].backward()
    assert bool((p.grad[3] == 0).all())
    assert bool((p.grad[[0, 1, 2, 4]] != 0).any(1).all())
    kept = dclr_loss(QUERY, positive, None, temperature=0.3, reduction="none")
    assert bool((dclr_loss(QUERY, positive, out, temperature=0.3, reduction="none") <= kept).all())


def test_noise_has_no_gradient_and_works_without_grad_mode_and_in_single_precision() -> None:
    query = QUERY.float().requires_grad_()
    with torch.no_grad():
        noise = noise_negatives(query, POSITIVE.float(), 2, 2)
    assert noise.dtype == torch.float32
    assert not noise.requires_grad
    assert noise_negatives(QUERY, POSITIVE, 0).shape == (0, 4)
    # On one line there is nowhere to go, and no division by the length of nothing.
    one = noise_negatives(torch.ones(2, 1), torch.ones(2, 1), 3, 3)
    assert bool(one.isfinite().all())
    assert float(dclr_loss(QUERY[:1], POSITIVE[:1])) == 0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(B, D\)"):
        dclr_loss(QUERY, POSITIVE[:2])
    with pytest.raises(ValueError, match="noise must"):
        dclr_loss(QUERY, POSITIVE, noise=NOISE[:, :2])
    with pytest.raises(TypeError, match="bool"):
        dclr_loss(QUERY, POSITIVE, torch.zeros(5, 5))
    with pytest.raises(ValueError, match="suspect must"):
        dclr_loss(QUERY, POSITIVE, torch.zeros(4, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="temperature"):
        dclr_loss(QUERY, POSITIVE, temperature=0.0)
    with pytest.raises(ValueError, match="empty batch"):
        noise_negatives(QUERY[:0], POSITIVE[:0], 1)
    with pytest.raises(ValueError, match="std"):
        noise_negatives(QUERY, POSITIVE, 1, std=0.0)
    with pytest.raises(ValueError, match="NaN"):
        suspects(torch.tensor([[math.nan]]), 0.5)


def test_vectors_of_two_precisions_meet_in_the_wider_one() -> None:
    g = torch.Generator().manual_seed(0)
    query, positive, noise = (torch.randn(n, 4, generator=g) for n in (3, 3, 5))
    expected = float(dclr_loss(query, positive, noise=noise))
    for mixed in ((query.double(), positive, noise), (query, positive, noise.double())):
        assert float(dclr_loss(*mixed[:2], noise=mixed[2])) == pytest.approx(expected, rel=1e-5)
