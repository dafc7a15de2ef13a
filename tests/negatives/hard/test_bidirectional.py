"""The symmetric contrast is that of CLIP without extra columns, and only ever larger with them."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from steelyard.negatives.hard.bidirectional import bidirectional_loss


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


S, TEXTS, IMAGES = random(4, 4, seed=1), random(4, 2, seed=2), random(4, 3, seed=3)


def test_without_extras_it_is_the_loss_of_clip() -> None:
    target = torch.arange(4)
    clip = (cross_entropy(S / 0.5, target) + cross_entropy(S.T / 0.5, target)) / 2
    torch.testing.assert_close(bidirectional_loss(S, temperature=0.5), clip)
    nothing = torch.full((4, 2), -math.inf)
    torch.testing.assert_close(bidirectional_loss(S, nothing, nothing, 0.5), clip)


def test_extras_are_terms_of_their_own_direction() -> None:
    got = bidirectional_loss(S, TEXTS, IMAGES, 0.5, reduction="none")
    for i in range(4):
        own = math.exp(float(S[i, i]) / 0.5)
        texts = [*S[i].tolist(), *TEXTS[i].tolist()]
        images = [*S[:, i].tolist(), *IMAGES[i].tolist()]
        sums = [sum(math.exp(x / 0.5) for x in row) for row in (texts, images)]
        assert float(got[i]) == pytest.approx(sum(math.log(z / own) for z in sums) / 2)
    mirrored = bidirectional_loss(S.T, IMAGES, TEXTS, 0.5, reduction="none")
    torch.testing.assert_close(got, mirrored)


def test_a_negative_never_lowers_the_loss() -> None:
    plain = bidirectional_loss(S, temperature=1.0, reduction="none")
    for extras in ((TEXTS, None), (None, IMAGES), (TEXTS, IMAGES)):
        assert bool((bidirectional_loss(S, *extras, 1.0, reduction="none") > plain).all())
    one = bidirectional_loss(S, TEXTS[:, :1], None, 1.0, reduction="none")
    assert bool((bidirectional_loss(S, TEXTS, None, 1.0, reduction="none") > one).all())


def test_near_miss_captions_teach_which_attribute_belongs_to_which_object() -> None:
    """Two objects with a colour each: the scenes of a batch differ in their words, so that only the swapped
    caption asks who wears what."""
    scenes = [(a, b) for a in range(4) for b in range(4) if a != b]  # colour of the cup, colour of the hat
    image = torch.zeros(len(scenes), 8)
    for i, (a, b) in enumerate(scenes):
        image[i, a] = image[i, 4 + b] = 1
    swapped = torch.cat([image[:, 4:], image[:, :4]], 1)
    words = torch.eye(4).repeat(2, 1)  # what a bag of words sees of a caption
    position = torch.eye(8)

    def accuracy(with_extras: bool) -> float:
        torch.manual_seed(0)
        towers = [torch.nn.Linear(8, 6, bias=False), torch.nn.Linear(12, 6, bias=False)]
        with torch.no_grad():
            towers[1].weight[:, 4:] *= 0.01  # a text tower that begins as a bag of words
        optimizer = torch.optim.Adam([p for t in towers for p in t.parameters()], lr=0.02)
        caption = torch.cat([image @ words, image @ position], 1)
        miss = torch.cat([swapped @ words, swapped @ position], 1)
        # Batches in which no caption has the words of another, as random ones of a large world do.
        batches = [
            [
                i
                for i, (a, b) in enumerate(scenes)
                if ({a, b} == {0, 1} and a < b) or ({a, b} == {2, 3} and a < b)
            ],
            [
                i
                for i, (a, b) in enumerate(scenes)
                if ({a, b} == {0, 2} and a > b) or ({a, b} == {1, 3} and a > b)
            ],
        ]
        for step in range(60):
            rows = batches[step % 2]
            x, t = normalize(towers[0](image[rows]), dim=1), normalize(towers[1](caption[rows]), dim=1)
            m = normalize(towers[1](miss[rows]), dim=1)
            extra = (x * m).sum(1, keepdim=True) if with_extras else None
            optimizer.zero_grad()
            bidirectional_loss(x @ t.T, extra, temperature=0.1).backward()
            optimizer.step()
        with torch.no_grad():
            x = normalize(towers[0](image), dim=1)
            right, wrong = (normalize(towers[1](c), dim=1) for c in (caption, miss))
            return float(((x * right).sum(1) > (x * wrong).sum(1)).double().mean())

    assert accuracy(True) > accuracy(False)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(B, B\)"):
        bidirectional_loss(S[:3])
    with pytest.raises(ValueError, match="extra_texts must"):
        bidirectional_loss(S, TEXTS[:2])
    with pytest.raises(ValueError, match="NaN"):
        bidirectional_loss(S, TEXTS * math.nan)
    with pytest.raises(ValueError, match="temperature"):
        bidirectional_loss(S, temperature=0.0)
    with pytest.raises(ValueError, match="finite"):
        bidirectional_loss(S * math.inf)
