"""Adapting a quality model without labels: both losses against loops, under a shift and without."""

import copy
import functools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from steelyard.losses.quality_adaptation import degradation_rank, group_contrast, normalization_parameters


def case(n: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=g, dtype=torch.float64), torch.randn(n, generator=g)


def plain(x: Tensor, score: Tensor, size: int, temperature: float) -> float:
    order = [int(i) for i in score.argsort()]
    groups = order[:size], order[-size:]

    def c(i: int, j: int) -> float:
        return float(x[i] @ x[j] / x[i].norm() / x[j].norm()) / temperature

    total = 0.0
    for own, other in (groups, groups[::-1]):
        for i in own:
            near = math.exp(sum(c(i, j) for j in own if j != i) / (size - 1))
            total += near / (near + sum(math.exp(c(i, j)) for j in other))
    return -math.log(total / (2 * size))


@pytest.mark.parametrize(("n", "fraction", "size"), [(9, 0.25, 2), (9, 0.4, 3), (10, 0.5, 5), (4, 0.1, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_the_group_contrast_equals_a_plain_loop(n: int, fraction: float, size: int, seed: int) -> None:
    x, score = case(n, seed)
    got = group_contrast(x, score, fraction=fraction, temperature=0.5)
    assert float(got) == pytest.approx(plain(x, score, size, 0.5), rel=1e-10)


def test_the_middle_and_the_scores_have_no_gradient_and_the_groups_agree_with_finite_differences() -> None:
    x, score = case()
    x.requires_grad_()
    score.requires_grad_()
    assert torch.autograd.gradcheck(lambda e: group_contrast(e, score, fraction=0.4, temperature=0.5), (x,))
    group_contrast(x, score, fraction=0.4).backward()
    order = score.argsort()
    assert not x.grad[order[3:6]].any()
    assert x.grad[order[:3]].all()
    assert score.grad is None


def test_the_contrast_is_least_for_groups_that_point_apart_and_greatest_for_mixed_ones() -> None:
    score = torch.arange(8.0)
    apart = torch.tensor([[1.0, 0.0]]) * (score - 3.5).sign()[:, None]
    assert float(group_contrast(apart, score, fraction=0.5)) < 1e-6
    same = group_contrast(torch.ones(8, 2), score, fraction=0.5)
    assert float(same) == pytest.approx(math.log(5))  # its group's mean against four of the other
    shuffled = apart[[0, 7, 1, 6, 2, 5, 3, 4]]
    assert float(group_contrast(shuffled, score, fraction=0.5)) > 5


def test_equal_scores_still_make_two_groups_that_share_no_image() -> None:
    x, score = case(8)
    x.requires_grad_()
    loss = group_contrast(x, torch.zeros_like(score), fraction=0.5)
    assert torch.autograd.grad(loss, x)[0].any(1).all()


def test_the_rank_loss_vanishes_for_large_gaps_in_the_right_order() -> None:
    less, more = torch.tensor([0.0, 3.0, 30.0, -2.0]), torch.tensor([0.0, 1.0, -30.0, 5.0])
    got = degradation_rank(less, more, reduction="none")
    for value, a, b in zip(got, less, more, strict=True):
        assert float(value) == pytest.approx(math.log1p(math.exp(float(b - a))), rel=1e-6)
    assert float(got[0]) == pytest.approx(math.log(2))
    assert float(got[2]) < 1e-25
    # of minus distances from the image it asks the copy degraded more to be farther
    near, far = torch.tensor([0.5]), torch.tensor([4.0])
    assert float(degradation_rank(-near, -far)) == pytest.approx(math.log1p(math.exp(-3.5)))
    less.requires_grad_()
    assert torch.autograd.grad(degradation_rank(less, more), less)[0].max() <= 0


class Model(nn.Module):
    """Features by a layer of units over normalised channels, and a score of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)[:, 0]


def channels(shifted: bool) -> tuple[Tensor, Tensor]:
    """What a channel answers to quality, and its noise: shifted, two thirds say nothing, at the same spread."""
    dead = torch.tensor([shifted] * 8 + [False] * 4)
    return (~dead).float(), torch.where(dead, 1.4, 0.8)


def images(n: int, shifted: bool, g: torch.Generator) -> tuple[Tensor, Tensor]:
    quality = 4 * torch.rand(n, generator=g)
    answer, noise = channels(shifted)
    return (quality[:, None] - 2) * answer + noise * torch.randn(n, 12, generator=g), quality


@functools.cache
def trained() -> Model:
    g = torch.Generator().manual_seed(0)
    model = Model()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3, generator=g)
    for layer in (model.body[1], model.head):
        nn.init.zeros_(layer.bias)
    x, quality = images(1000, False, g)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        (model(x)[1] - quality).square().mean().backward()
        optimizer.step()
    return model.eval()


def adapted(rank: float, group: float, shifted: bool, seed: int) -> tuple[float, float, float]:
    """Correlation of predictions on new images with quality before and after, and with each other.

    64 images without labels; a degraded copy has less quality, and the channels' noise once more. The
    statistics of the normalisation stay as trained, which leaves all of the change to the losses.
    """
    g = torch.Generator().manual_seed(100 + seed)
    source = trained()
    model = copy.deepcopy(source)
    x, _ = images(64, shifted, g)
    answer, noise = channels(shifted)
    less_degraded, more_degraded = (
        x - level * answer + noise * torch.randn(x.shape, generator=g) for level in (0.5, 2.0)
    )
    predicted = source(x)[1].detach()
    optimizer = torch.optim.Adam(normalization_parameters(model), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        features, score = model(torch.cat([x, less_degraded, more_degraded]))
        _, less, more = score.split(64)
        loss = rank * degradation_rank(less, more) + group * group_contrast(features[:64], predicted)
        loss.backward()
        optimizer.step()
    new, quality = images(1000, shifted, g)
    before, after = (m(new)[1].detach() for m in (source, model))
    return (
        float(stats.spearmanr(before, quality).statistic),
        float(stats.spearmanr(after, quality).statistic),
        float(stats.spearmanr(before, after).statistic),
    )


@pytest.mark.parametrize(("rank", "group"), [(1.0, 0.0), (0.0, 1.0), (1.0, 0.1)])
def test_adaptation_to_a_shift_ranks_new_images_better_by_each_loss_and_by_both(
    rank: float, group: float
) -> None:
    gains = []
    for seed in range(3):
        before, after, _ = adapted(rank, group, True, seed)
        assert before < 0.8
        gains.append(after - before)
    assert min(gains) > 0
    assert sum(gains) / 3 > 0.04


@pytest.mark.parametrize("seed", range(2))
def test_without_a_shift_predictions_stay_nearly_as_they_are(seed: int) -> None:
    before, after, agreement = adapted(1.0, 0.1, False, seed)
    assert before > 0.97
    assert agreement > 0.97
    assert after > before - 0.03


def test_only_scales_and_shifts_of_normalisation_are_given_each_once() -> None:
    norm, tied = nn.LayerNorm(4), nn.LayerNorm(4)
    tied.weight = norm.weight
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.BatchNorm2d(4, affine=False)),
        nn.Linear(4, 4),
        norm,
        tied,
        nn.RMSNorm(4),
    )
    got = list(normalization_parameters(model))
    want = [
        model[1].weight,
        model[1].bias,
        model[2][0].weight,
        model[2][0].bias,
        norm.weight,
        norm.bias,
        tied.bias,
    ]
    assert [id(p) for p in got] == [id(p) for p in [*want, model[6].weight]]
    assert list(normalization_parameters(nn.Linear(2, 2))) == []

    source = trained()
    model = copy.deepcopy(source)
    optimizer = torch.optim.SGD(normalization_parameters(model), lr=1.0)
    model(torch.randn(5, 12, generator=torch.Generator().manual_seed(0)))[1].sum().backward()
    optimizer.step()
    changed = {
        name
        for (name, p), q in zip(model.named_parameters(), source.parameters(), strict=True)
        if (p != q).any()
    }
    assert changed == {"body.0.weight", "body.0.bias"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_dead_features_and_small_temperatures_are_finite(dtype: torch.dtype) -> None:
    x, score = case()
    x = x.to(dtype)
    x[0] = 0
    x.requires_grad_()
    loss = group_contrast(x, score, fraction=0.5, temperature=1e-4)
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    gradient = torch.autograd.grad(loss, x)[0]
    assert gradient.isfinite().all()
    assert not gradient[0].any()
    big = torch.tensor([1e4], dtype=dtype)
    assert float(degradation_rank(-big, big)) == pytest.approx(2e4, rel=1e-2)


def test_what_is_wrong_is_named() -> None:
    x, score = case()
    with pytest.raises(ValueError, match=r"\(B, D\)"):
        group_contrast(x, score[:3])
    with pytest.raises(ValueError, match="at least 4"):
        group_contrast(x[:3], score[:3])
    with pytest.raises(ValueError, match="at most 0"):
        group_contrast(x, score, fraction=0.6)
    with pytest.raises(ValueError, match="fraction"):
        group_contrast(x, score, fraction=0.0)
    with pytest.raises(ValueError, match="temperature"):
        group_contrast(x, score, temperature=0.0)
    with pytest.raises(ValueError, match="NaN"):
        group_contrast(x, score * math.nan)
    with pytest.raises(TypeError, match="embeddings must"):
        group_contrast(x.long(), score)
    with pytest.raises(TypeError, match="score must"):
        group_contrast(x, score.long())
    with pytest.raises(ValueError, match="either copy"):
        degradation_rank(score, score[:3])
    with pytest.raises(TypeError, match="more_degraded"):
        degradation_rank(score, score.long())
    with pytest.raises(ValueError, match="mean over"):
        degradation_rank(score[:0], score[:0])
