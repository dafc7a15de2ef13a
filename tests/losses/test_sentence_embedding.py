"""A sentence's embedding as a second target: nothing where aligned, and less overfitting."""

import functools
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from steelyard.losses.sentence_embedding import captioning_loss, sentence_cosine


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(4, 5, 7, generator=g, dtype=torch.float64)
    tokens = torch.randint(7, (4, 5), generator=g)
    summary, reference = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    mask = torch.arange(5) >= torch.tensor([5, 2, 0, 3])[:, None]  # the third caption is padding alone
    return logits, tokens, summary, reference, mask


def test_it_equals_a_plain_loop() -> None:
    logits, tokens, summary, reference, mask = case()
    words, cosines = [], []
    for i in range(4):
        for t in range(5):
            if not mask[i, t]:
                z = [float(v) for v in logits[i, t]]
                words.append(math.log(sum(map(math.exp, z))) - z[int(tokens[i, t])])
        if not mask[i].all():
            u, e = [float(v) for v in summary[i]], [float(v) for v in reference[i]]
            dot = sum(a * b for a, b in zip(u, e, strict=True))
            cosines.append(1 - dot / math.hypot(*u) / math.hypot(*e))
    assert len(cosines) == 3
    want = sum(words) / len(words) + 0.7 * sum(cosines) / 3
    assert float(captioning_loss(logits, tokens, summary, reference, mask, weight=0.7)) == pytest.approx(want)


def test_a_weight_of_0_is_cross_entropy_exactly() -> None:
    logits, tokens, summary, reference, mask = case()
    ignored = tokens.masked_fill(mask, -100)
    for given, target in ((None, tokens), (mask, ignored)):
        got = captioning_loss(logits, tokens, summary, reference, given, weight=0.0)
        torch.testing.assert_close(
            got, cross_entropy(logits.flatten(0, 1), target.flatten()), rtol=1e-14, atol=0
        )


def test_the_term_is_zero_when_aligned_and_does_not_see_lengths() -> None:
    _, _, summary, reference, _ = case()
    torch.testing.assert_close(
        sentence_cosine(
            reference * torch.tensor([[0.1], [1.0], [7.0], [1e200]], dtype=torch.float64),
            reference,
            reduction="none",
        ),
        torch.zeros(4, dtype=torch.float64),
        atol=1e-14,
        rtol=0,
    )
    torch.testing.assert_close(
        sentence_cosine(summary, reference, reduction="none"), 1 - cosine_similarity(summary, reference)
    )
    assert float(sentence_cosine(-reference, 3 * reference)) == pytest.approx(2)
    aligned = reference.clone().requires_grad_()
    assert torch.autograd.grad(sentence_cosine(aligned, reference), aligned)[0].abs().max() < 1e-12


def test_gradients_agree_with_finite_differences_and_leave_the_reference_alone() -> None:
    logits, tokens, summary, reference, mask = case()
    for t in (logits, summary, reference):
        t.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, u: captioning_loss(z, tokens, u, reference, mask, weight=0.7), (logits, summary)
    )
    captioning_loss(logits, tokens, summary, reference, mask, weight=0.7).backward()
    assert reference.grad is None


def test_padding_may_hold_anything_and_has_no_gradient() -> None:
    logits, tokens, summary, reference, mask = case()
    want = captioning_loss(logits, tokens, summary, reference, mask, weight=0.7)
    logits = logits.masked_fill(mask[..., None], math.nan).requires_grad_()
    tokens = tokens.masked_fill(mask, -1)
    summary, reference = (t.index_fill(0, torch.tensor([2]), math.nan) for t in (summary, reference))
    got = captioning_loss(logits, tokens, summary, reference, mask, weight=0.7)
    torch.testing.assert_close(got, want)
    assert not torch.autograd.grad(got, logits)[0][mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_an_empty_summary_and_extreme_lengths_are_finite(dtype: torch.dtype) -> None:
    reference = torch.tensor([[1.0, 2.0], [1.0, 0.0], [3.0, 4.0]], dtype=dtype)
    summary = torch.tensor([[0.0, 0.0], [1e-30, 1e-30], [1e30, 1e30]], dtype=dtype).requires_grad_()
    loss = sentence_cosine(summary, reference, reduction="none")
    torch.testing.assert_close(
        sentence_cosine(summary, 1e-25 * reference, reduction="none"), loss, atol=1e-2, rtol=0
    )
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, torch.tensor([1.0, 1 - 1 / math.sqrt(2), 1 - 7 / math.sqrt(50)]), atol=1e-2, rtol=0
    )
    gradient = torch.autograd.grad(loss[[0, 2]].sum(), summary)[0]
    assert gradient.isfinite().all()
    assert not gradient[0].any()
    huge = captioning_loss(
        torch.tensor([[[1e4, -1e4]]], dtype=dtype),
        torch.tensor([[1]]),
        reference[:1],
        reference[:1],
        weight=1.0,
    )
    assert float(huge) == pytest.approx(2e4, rel=1e-2)


@functools.cache
def held_out(weight: float, weight_decay: float, seed: int) -> float:
    """Cross-entropy of new captions by a linear decoder, trained on 60 pictures that it can learn by heart.

    A picture of 40 features has a topic of 4, which its words depend on and which is its caption's embedding.
    """
    g = torch.Generator().manual_seed(seed)
    picture = torch.randn(560, 40, generator=g)
    topic = picture @ torch.randn(40, 4, generator=g) / math.sqrt(40)
    chance = (topic @ torch.randn(4, 20, generator=g)).softmax(1)
    words = torch.multinomial(chance, 6, replacement=True, generator=g)
    layers = [(0.1 * torch.randn(s, generator=g)).requires_grad_() for s in ((40, 4), (4, 4), (4, 20))]
    encoder, projection, decoder = layers

    def loss(of: slice, weight: float) -> Tensor:
        state = picture[of] @ encoder
        logits = (state @ decoder).unsqueeze(1).expand(-1, 6, -1)
        return captioning_loss(logits, words[of], state @ projection, topic[of], weight=weight)

    optimizer = torch.optim.AdamW(layers, lr=0.03, weight_decay=weight_decay)
    for _ in range(200):
        optimizer.zero_grad()
        loss(slice(60), weight).backward()
        optimizer.step()
    return float(loss(slice(60, None), 0.0).detach())


@pytest.mark.parametrize("seed", range(2))
def test_the_term_keeps_a_decoder_from_overfitting_and_weight_decay_leaves_it_nothing_to_do(
    seed: int,
) -> None:
    gain = held_out(0.0, 0.0, seed) - held_out(3.0, 0.0, seed)
    assert gain > 1
    assert held_out(0.0, 3.0, seed) < held_out(0.0, 0.0, seed) - 1  # decay alone does as well
    assert abs(held_out(0.0, 3.0, seed) - held_out(3.0, 3.0, seed)) < 0.1 * gain


def test_what_is_wrong_is_named() -> None:
    logits, tokens, summary, reference, mask = case()
    with pytest.raises(ValueError, match="project the summary"):
        sentence_cosine(summary[:, :2], reference)
    with pytest.raises(ValueError, match="D above 0"):
        sentence_cosine(summary[:, :0], reference[:, :0])
    with pytest.raises(ValueError, match="length 0"):
        sentence_cosine(summary, reference * 0)
    with pytest.raises(ValueError, match="not finite"):
        sentence_cosine(summary, reference * math.nan)
    with pytest.raises(TypeError, match="reference must be floating"):
        sentence_cosine(summary, reference.long())
    with pytest.raises(ValueError, match="mean over"):
        sentence_cosine(summary[:0], reference[:0])
    assert float(sentence_cosine(summary[:0], reference[:0], reduction="sum")) == 0
    with pytest.raises(ValueError, match="weight"):
        captioning_loss(logits, tokens, summary, reference, weight=-1.0)
    with pytest.raises(ValueError, match="Wanted logits"):
        captioning_loss(logits, tokens[:, :4], summary, reference, weight=1.0)
    with pytest.raises(ValueError, match="summary must be"):
        captioning_loss(logits, tokens, summary[:3], reference[:3], weight=1.0)
    with pytest.raises(ValueError, match="reference must be"):
        captioning_loss(logits, tokens, summary, reference[:3], weight=1.0)
    with pytest.raises(ValueError, match="does not broadcast"):
        captioning_loss(logits, tokens, summary, reference, mask[:3], weight=1.0)
    with pytest.raises(TypeError, match="mask must be bool"):
        captioning_loss(logits, tokens, summary, reference, mask.long(), weight=1.0)
    with pytest.raises(ValueError, match="No word"):
        captioning_loss(logits, tokens, summary, reference, mask | True, weight=1.0)
    with pytest.raises(ValueError, match="mask what is padding"):
        captioning_loss(logits, tokens - 100, summary, reference, weight=1.0)
    with pytest.raises(TypeError, match="tokens must be integers"):
        captioning_loss(logits, tokens.double(), summary, reference, weight=1.0)
    with pytest.raises(TypeError, match="Logits"):
        captioning_loss(logits.long(), tokens, summary, reference, weight=1.0)
