"""Self-generated training data: which questions count more, which need help, and which answers have drifted away."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor


def answer_entropy_weights(
    answers: Sequence[Sequence[Hashable]], *, sharpness: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Weigh questions by how much a model's sampled answers to them differ.

        H_i = -sum_c p_c log p_c,  p_c the share of question i's answers that are c
        w_i = N H_i^a / sum_j H_j^a

    At a = 0 all questions count alike. A question whose answers all agree has H = 0 and, for a > 0, no weight. The
    weights go with a supervised or a preference loss, question by question.

    Args:
        answers: final answers of each question, equal ones equal; their numbers may differ.
        sharpness: a, finite; above 0 prefers uncertain questions, below 0 certain ones (H = 0 is then refused).

    Returns:
        Weights with mean 1, and entropies in nats, float64, (N,).

    Raises:
        ValueError: no question, one without an answer, no question with a weight, or an infinite one.

    Reference:
        Wang, Deng, Ma and Wang (2025), Entropy-based adaptive weighting for self-training, arXiv 2503.23913.
    """
    if not answers or not all(len(a) for a in answers):
        raise ValueError("There must be a question, and an answer to each.")
    entropies = []
    for given in answers:
        counts: dict[Hashable, int] = {}
        for answer in given:
            counts[answer] = counts.get(answer, 0) + 1
        shares = [c / len(given) for c in counts.values()]
        entropies.append(-sum(p * math.log(p) for p in shares) + 0.0)
    h = torch.tensor(entropies, dtype=torch.float64)
    power = torch.ones_like(h) if sharpness == 0 else h**sharpness
    if not bool(torch.isfinite(power).all()) or float(power.sum()) == 0:
        raise ValueError(
            f"No weights follow from the entropies at sharpness {sharpness}: all answers agree, or some do and the "
            "sharpness is negative or infinite."
        )
    return power * len(h) / power.sum(), h


@dataclass(frozen=True)
class Attempts:
    """What was tried of each question.

    Args:
        solved: correct attempts, int64, (N,).
        tried: attempts in all, (N,).
        guided: those with a hint, (N,).
    """

    solved: Tensor
    tried: Tensor
    guided: Tensor


def balanced_attempts(
    attempt: Callable[[int, bool], bool], questions: int, *, wanted: int, first: int, budget: int
) -> Attempts:
    """Spend attempts so that hard questions get as many correct answers as easy ones, hints where they are needed.

        first `first` plain attempts a question; then, round by round while budget is left, a guided attempt for each
        question with fewer than `wanted` correct ones; at most `wanted` correct ones of a question are kept

    Attempts without help solve easy questions again and again and the tail of hard ones narrows; a hint (the answer, a
    rationale, a better prefix) buys a correct attempt at a hard one for fewer tries.

    Args:
        attempt: called with a question and whether to give a hint, says whether the attempt is correct.
        questions: how many there are.
        wanted: correct attempts of each, at least 1.
        first: plain attempts at each, at least 1.
        budget: attempts in all, the first ones included.

    Returns:
        What was tried and kept.

    Raises:
        ValueError: a number below its least, or a budget below the first attempts.

    Reference:
        Ding, Xi, He, Li, Zhai, Shi, Cai, Gui, Zhang and Huang (2025), Mitigating tail narrowing in LLM
        self-improvement via Socratic-guided sampling, NAACL, arXiv 2411.00750, seen in its abstract.
    """
    n = operator.index(questions)
    if n < 1 or wanted < 1 or first < 1:
        raise ValueError(f"questions, wanted and first must be at least 1, got {n}, {wanted}, {first}.")
    if budget < n * first:
        raise ValueError(f"A budget of {budget} does not cover {first} attempts at each of {n} questions.")
    solved, tried, guided = (torch.zeros(n, dtype=torch.int64) for _ in range(3))
    for i in range(n):
        for _ in range(first):
            solved[i] += bool(attempt(i, False))
            tried[i] += 1
    left = budget - n * first
    while left > 0 and bool((short := (solved < wanted).nonzero().squeeze(1)).numel()):
        for i in short.tolist()[:left]:
            solved[i] += bool(attempt(i, True))
            tried[i] += 1
            guided[i] += 1
        left -= min(left, len(short))
    return Attempts(solved.clamp(max=wanted), tried, guided)


def mean_matching_weights(
    losses: ArrayLike | Tensor,
    valid_losses: ArrayLike | Tensor,
    *,
    bound: float = 1000.0,
    bandwidth: float | None = None,
    iterations: int = 500,
) -> Tensor:
    """Importance weights of samples by matching the mean of a kernel of their losses to that of a validation set.

        min over b:  |1/n sum_i b_i k(l_i, .) - 1/m sum_j k(v_j, .)|^2,   0 <= b_i <= B,  |mean b - 1| <= B / sqrt(n)
        k(x, y) = exp(-(x - y)^2 / (2 s^2))

    Solved by accelerated projected gradients. One number a sample, its loss, stands for the sample.

    Args:
        losses: of the samples under the model, (n,).
        valid_losses: of a small set from the right distribution, (m,).
        bound: B.
        bandwidth: s; the median distance of all losses where None.
        iterations: at most.

    Returns:
        float64, (n,).

    Raises:
        ValueError: no losses, not finite, or settings outside their range.

    Reference:
        Huang, Smola, Gretton, Borgwardt and Schölkopf (2007), Correcting sample selection bias by unlabeled data,
        NeurIPS; on losses: Fang, Lu, Niu and Sugiyama (2020), Rethinking importance weighting for deep learning
        under distribution shift, NeurIPS, arXiv 2006.04662.
    """
    x, v = (torch.as_tensor(each).double().flatten() for each in (losses, valid_losses))
    if len(x) == 0 or len(v) == 0 or not bool(torch.isfinite(torch.cat([x, v])).all()):
        raise ValueError("Both sets of losses must be finite and hold a loss.")
    if not bound >= 1 or iterations < 1 or (bandwidth is not None and not 0 < bandwidth < math.inf):
        raise ValueError(
            f"bound, iterations and bandwidth must be at least 1, 1 and above 0, got {bound}, {iterations}, {bandwidth}."
        )
    everything = torch.cat([x, v])[:2000]
    s = bandwidth or float(torch.pdist(everything.unsqueeze(1)).median()) if len(everything) > 1 else 1.0
    s = s if s > 0 else 1.0
    kernel = torch.exp(-((x.unsqueeze(1) - x) ** 2) / (2 * s * s))
    reach = torch.exp(-((x.unsqueeze(1) - v) ** 2) / (2 * s * s)).mean(1)
    n = len(x)
    slack = min(bound / math.sqrt(n), 1.0)
    size = n / float(kernel.sum(1).max())  # the largest row sum is not below the largest eigenvalue
    b = y = torch.ones(n, dtype=torch.float64)
    t = 1.0
    for _ in range(iterations):
        moved = _project(y - size * (kernel @ y / n - reach), bound, n * (1 - slack), n * (1 + slack))
        if float((moved - b).abs().max()) < 1e-10:
            break
        later = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y, b, t = moved + (t - 1) / later * (moved - b), moved, later
    return b


def loss_ratio_weights(losses: ArrayLike | Tensor, valid_losses: ArrayLike | Tensor) -> Tensor:
    """Importance weights of samples by their loss alone, against the mean loss of a validation set.

        w_i = mean(v) / l_i,  at most 2

    Args:
        losses: above 0, (n,).
        valid_losses: above 0, (m,).

    Returns:
        float64, (n,).

    Raises:
        ValueError: no losses, or losses that are not positive and finite.

    Reference:
        Jiang, Chan, Xue, Liu and Guo (2025), Importance weighting can help large language models self-improve, AAAI,
        arXiv 2408.09849, as in the authors' code.
    """
    x, v = (torch.as_tensor(each).double().flatten() for each in (losses, valid_losses))
    both = torch.cat([x, v])
    if len(x) == 0 or len(v) == 0 or not bool((torch.isfinite(both) & (both > 0)).all()):
        raise ValueError("Both sets of losses must hold a loss, and all must be positive and finite.")
    return (v.mean() / x).clamp(max=2.0)


def drift(weights: ArrayLike | Tensor) -> Tensor:
    """How far importance weights are from 1, whichever way: `max(w, 1 / w)`, infinite at 0.

    Samples of high drift have left the distribution; keep, of those whose answer the majority gives, the ones of
    lowest drift.

    Args:
        weights: not negative.

    Returns:
        At least 1, shape of `weights`.

    Raises:
        ValueError: negative or NaN.

    Reference:
        Jiang, Chan, Xue, Liu and Guo (2025), Importance weighting can help large language models self-improve, AAAI,
        arXiv 2408.09849.
    """
    w = torch.as_tensor(weights)
    w = w if w.is_floating_point() else w.double()
    if not bool((w >= 0).all()):
        raise ValueError("Importance weights must not be negative or NaN.")
    return torch.maximum(w, 1 / w)


def _project(b: Tensor, bound: float, low: float, high: float) -> Tensor:
    """The nearest point with entries in [0, bound] whose sum lies in [low, high]."""
    inside = b.clamp(0, bound)
    total = float(inside.sum())
    if low <= total <= high:
        return inside
    goal = low if total < low else high
    left, right = float(b.min()) - bound, float(b.max())
    for _ in range(100):
        middle = (left + right) / 2
        left, right = (middle, right) if float((b - middle).clamp(0, bound).sum()) > goal else (left, middle)
    return (b - (left + right) / 2).clamp(0, bound)
