"""Spoilt targets are nearer the less they are blurred; the contrast is InfoNCE for one positive."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from steelyard.negatives.hard.degraded import degrade_targets, gaussian_blur, restoration_contrast
from tests.statistical import assert_unbiased


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


IMAGE = random(2, 3, 12, 10, seed=1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_negatives_are_nearer_to_the_target_the_less_they_are_blurred() -> None:
    flat = IMAGE.flatten(1) - IMAGE.flatten(1).mean(1, keepdim=True)
    before = torch.full((2,), -1.0, dtype=torch.float64)
    for sigma in (3.0, 1.5, 0.8, 0.4, 0.0):
        _, made = degrade_targets(IMAGE, 0, 1, (sigma, sigma), 0.0)
        spoilt = made[:, 0].flatten(1)
        near = cosine_similarity(flat, spoilt - spoilt.mean(1, keepdim=True))
        assert bool((near > before).all())
        before = near
    assert before.tolist() == pytest.approx([1.0, 1.0])


def test_the_blur_is_the_written_out_sum_with_edges_continued() -> None:
    sigma = torch.tensor([0.7, 1.1], dtype=torch.float64)
    got = gaussian_blur(IMAGE, sigma)
    for b, (y, x) in ((0, (0, 0)), (1, (11, 4)), (0, (5, 9)), (1, (6, 5))):
        weight = [math.exp(-(o**2) / (2 * float(sigma[b]) ** 2)) for o in range(-4, 5)]
        total = 0.0
        for i, wy in zip(range(-4, 5), weight, strict=True):
            for j, wx in zip(range(-4, 5), weight, strict=True):
                at = IMAGE[b, 2, min(max(y + i, 0), 11), min(max(x + j, 0), 9)]
                total += wy * wx * float(at) / sum(weight) ** 2
        assert float(got[b, 2, y, x]) == pytest.approx(total)


def test_positives_have_more_detail_and_the_same_flat_parts() -> None:
    positives, _ = degrade_targets(IMAGE, 3, 0, (1.0, 1.0), boost=(0.5, 0.5))
    detail = IMAGE - gaussian_blur(IMAGE, torch.ones(2))
    torch.testing.assert_close(positives, (IMAGE + 0.5 * detail).unsqueeze(1).expand(-1, 3, -1, -1, -1))
    flat, spoilt = degrade_targets(torch.full((1, 1, 5, 5), 0.3), 1, 1, noise=0.0)
    torch.testing.assert_close(flat, torch.full((1, 1, 1, 5, 5), 0.3))
    torch.testing.assert_close(spoilt, torch.full((1, 1, 1, 5, 5), 0.3))


def test_noise_and_shares_have_the_wanted_law() -> None:
    _, made = degrade_targets(torch.zeros(1, 1, 1, 1), 0, 6000, noise=0.2, generator=seeded(1))
    grain = made.flatten().double()
    assert_unbiased(torch.stack([grain, grain**2], 1), [0.0, 0.04])
    bump = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    bump[..., 4, 4] = 1
    positives, _ = degrade_targets(bump, 4000, 0, (1.0, 1.0), boost=(0.2, 1.0), generator=seeded(2))
    top = 1 - float(gaussian_blur(bump, torch.ones(1))[0, 0, 4, 4])
    share = (positives[0, :, 0, 4, 4] - 1) / top
    assert_unbiased(torch.stack([share, share**2], 1), [0.6, (0.04 + 0.2 + 1) / 3])


def test_one_positive_is_infonce_and_several_have_a_softmax_each() -> None:
    a, p, n = random(2, 4, 3, 3, seed=3), random(2, 3, 4, 3, 3, seed=4), random(2, 5, 4, 3, 3, seed=5)

    def score(x: torch.Tensor) -> torch.Tensor:
        return cosine_similarity(a, x, dim=1).mean((1, 2)) / 0.2

    far = torch.stack([score(n[:, j]) for j in range(5)], 1)
    each = torch.stack(
        [
            cross_entropy(
                torch.cat([score(p[:, i]).unsqueeze(1), far], 1), torch.zeros(2).long(), reduction="none"
            )
            for i in range(3)
        ],
        1,
    )
    got = restoration_contrast(a, p[:, :1], n, 0.2, reduction="none")
    torch.testing.assert_close(got, each[:, 0])
    torch.testing.assert_close(restoration_contrast(a, p, n, 0.2), each.mean())
    torch.testing.assert_close(restoration_contrast(a, p, n, 0.2, reduction="sum"), each.mean(1).sum())


def test_descending_the_contrast_brings_a_blurred_patch_nearer_to_its_target() -> None:
    positives, negatives = degrade_targets(IMAGE, 1, 3, (0.8, 1.5), 0.0, (0.0, 0.0), generator=seeded(3))
    restored = gaussian_blur(IMAGE, torch.ones(2)).requires_grad_()
    before = float((restored - IMAGE).square().mean().detach())
    for _ in range(30):
        loss = restoration_contrast(restored, positives, negatives, 0.1)
        (slope,) = torch.autograd.grad(loss, restored)
        restored = (restored - 2.0 * slope).detach().requires_grad_()
    assert float((restored - IMAGE).square().mean().detach()) < before


def test_what_does_not_fit_is_refused() -> None:
    assert degrade_targets(IMAGE.float(), 1, 2)[1].dtype == torch.float32
    assert degrade_targets(IMAGE[:0], 1, 2)[1].shape == (0, 2, 3, 12, 10)
    for bad, said in (
        ({"target": IMAGE[0]}, r"\(B, C, H, W\)"),
        ({"blur": (2.0, 1.0)}, "blur"),
        ({"boost": (-1.0, 1.0)}, "boost"),
        ({"noise": -0.1}, "noise"),
        ({"n_positives": -1}, "n_positives"),
        ({"target": IMAGE * math.nan}, "finite"),
    ):
        given = {"target": IMAGE, "n_positives": 1, "n_negatives": 1} | bad
        with pytest.raises(ValueError, match=said):
            degrade_targets(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="P > 0"):
        restoration_contrast(IMAGE, IMAGE.unsqueeze(1)[:, :0], IMAGE.unsqueeze(1))
    with pytest.raises(ValueError, match="temperature"):
        restoration_contrast(IMAGE, IMAGE.unsqueeze(1), IMAGE.unsqueeze(1), 0.0)
