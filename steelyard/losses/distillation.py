"""Distillation of a teacher's distribution: in full, by its top, across a batch, or from a few cached draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.draws import Draws
from steelyard.losses.pairs import check_integers
from steelyard.losses.softmax import Reduction, check_fits, reduce


def kl_distillation(
    score: Tensor,
    teacher: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Divergence of the student's softmax over candidates from the teacher's.

        L = temperature^2 KL( p || q ),   p, q = softmax of teacher, score over temperature - log_expected

    The square keeps the gradient's size as the temperature changes. A teacher that is sure of one candidate
    gives the softmax loss of it. With noise on the student's queries, and the student as the next teacher,
    it is the step of noisy self-training.

    Args:
        score: float, (..., N): the student's scores of the candidates.
        teacher: float, (..., N): the teacher's scores of the same; taken as constants.
        log_expected: float, broadcastable to `score`: log of the expected count of each draw, for a
            self-normalised estimate of the divergence over everything; default each stands for itself.
        mask: bool, broadcastable to `score`: True leaves a candidate out of both distributions.
        temperature: above 0.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none"; 0 for a query without candidates, and
        +inf where the student rules out what the teacher does not.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, an unknown reduction, or the mean
            over no queries.
        TypeError: scores that are not floating point.

    Reference:
        Hinton, Vinyals and Dean (2015), Distilling the knowledge in a neural network, arXiv 1503.02531; Jiang,
        Drummond and Cohn (2023), Noisy self-training with synthetic queries for dense retrieval, Findings of
        EMNLP, arXiv 2311.15563. The correction by expected counts is ours.
    """
    log_p, log_q = _log_chances(score, teacher, log_expected, mask, temperature)
    return reduce(temperature**2 * _kl(log_p, log_q), reduction)


def top_kd(
    score: Tensor,
    teacher: Tensor,
    mask: Tensor | None = None,
    *,
    k: int,
    scale: float = 1.0,
    top_weight: float = 1.0,
    rest_weight: float = 1.0,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Distillation that sharpens the teacher's best k and supervises them and the rest apart (TopKD).

        t' = teacher, the k largest times `scale`;   p, q = softmax of t', score over temperature
        L = temperature^2 ( KL(p || q) + top_weight KL(p | top || q | top) + rest_weight KL(p | rest || q | rest) )

    "| top" is the distribution within the k best of the teacher. The order within a small rest is lost in
    the first part, where the rest has hardly any mass. Reconstructed: the formulas of the paper's two modules
    were not found. Scaling is of scores above the list's mean, so that a common shift of the teacher's
    scores changes nothing.

    Args:
        score: float, (..., N): the student's scores of the candidates.
        teacher: float, (..., N): the teacher's scores of the same; taken as constants. What is -inf has no
            chance and is no part of the mean.
        mask: bool, broadcastable to `score`: True leaves a candidate out.
        k: how many of the teacher's best, at least 1. Of equal ones some are taken.
        scale: of the best scores' distances from the mean, at least 1 to sharpen; 1 leaves them.
        top_weight: at least 0.
        rest_weight: at least 0.
        temperature: above 0.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none"; 0 for a query without candidates.

    Raises:
        ValueError: shapes do not fit, an option out of range, an unknown reduction, or the mean over no
            queries.
        TypeError: scores that are not floating point.

    Reference:
        Wang and Zhou (2025), TopKD: Top-scaled knowledge distillation, arXiv 2508.04539.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    for name, value in (("scale", scale), ("top_weight", top_weight), ("rest_weight", rest_weight)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {value}.")
    score, teacher, left_out = _checked(score, teacher, mask)
    ranked = teacher.masked_fill(left_out, -math.inf)
    best = ranked.topk(min(k, ranked.shape[-1]), -1).indices
    top = torch.zeros_like(left_out).scatter_(-1, best, True) & ~left_out
    ruled_out = left_out | (teacher == -math.inf)  # of no chance, which no scaling changes
    mean = teacher.masked_fill(ruled_out, 0.0).sum(-1, keepdim=True)
    mean = mean / (~ruled_out).sum(-1, keepdim=True).clamp(min=1)
    scaled = torch.where(top & ~ruled_out, mean + scale * (teacher - mean), teacher)
    loss = torch.zeros_like(score.sum(-1))
    for weight, away in ((1.0, left_out), (top_weight, ~top), (rest_weight, left_out | top)):
        if weight > 0:
            log_p, log_q = _log_chances(score, scaled, None, away, temperature)
            loss = loss + weight * _kl(log_p, log_q)
    return reduce(temperature**2 * loss, reduction)


def sinkhorn_distillation(
    score: Tensor,
    teacher: Tensor,
    *,
    temperature: float = 2.0,
    epsilon: float = 0.1,
    steps: int = 20,
) -> Tensor:
    """Optimal-transport distance between a batch of the student's outputs and one of the teacher's (SinKD).

        C_ij = |softmax(score_i / t) - softmax(teacher_j / t)|_1
        P: exp(-C / epsilon) with rows and columns scaled to sum to 1 / B, in turns
        L = sum_ij P_ij C_ij

    Where student and teacher hardly overlap, a divergence says little of how far apart they are; the
    distance does. It compares batches as sets, so one sample may be matched by another: add it to a loss of
    each sample. It is at most 2, and comes down to the cost of the best matching as epsilon falls and the
    steps grow.

    Args:
        score: float, (B, V): the student's logits.
        teacher: float, (B, V): the teacher's logits; taken as constants.
        temperature: t, above 0.
        epsilon: entropy of the plan, in units of C, above 0.
        steps: rounds of scaling, at least 1.

    Returns:
        The loss, a scalar in float32 at least. Memory grows with B^2 times the steps for the gradient, and
        time with B^2 V.

    Raises:
        ValueError: shapes do not fit, an empty batch, an infinite logit, or an option out of range.
        TypeError: logits that are not floating point.

    Reference:
        Cui et al. (2024), Sinkhorn distance minimization for knowledge distillation, LREC-COLING, arXiv
        2402.17110, in the form of the authors' code, with the plan's total mass 1 in place of B.
    """
    score, teacher, _ = _checked(score, teacher, None)
    if score.ndim != 2 or 0 in score.shape:
        raise ValueError(
            f"score and teacher must be (B, V) with something in them, got {tuple(score.shape)}."
        )
    for name, value in (("temperature", temperature), ("epsilon", epsilon)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}.")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}.")
    cost = torch.cdist((score / temperature).softmax(-1), (teacher / temperature).softmax(-1), p=1)
    log_plan = -cost / epsilon
    for _ in range(steps):
        log_plan = torch.log_softmax(torch.log_softmax(log_plan, 1), 0)
    return (log_plan.exp() * cost).sum() / len(cost)


def sample_teacher(
    log_prob: Tensor, n: int, *, power: float = 1.0, generator: torch.Generator | None = None
) -> Draws:
    """Draw a few ids from a teacher's distribution, to cache in place of all its probabilities.

        q proportional to p^power,   n draws with replacement

    Args:
        log_prob: float, (..., V): log-probabilities of the teacher; unnormalised ones are normalised.
        n: draws, at least 1.
        power: 1 draws from the teacher itself, less is flatter, 0 uniform over what has probability.
        generator: source of randomness.

    Returns:
        The draws with `log(n q)`, (..., n), for `sampled_distillation`.

    Raises:
        ValueError: `n` below 1, a negative power, or a row that is no distribution.
        TypeError: log-probabilities that are not floating point.

    Reference:
        Anshumann et al. (2025), Sparse logit sampling: Accelerating knowledge distillation in LLMs, ACL,
        arXiv 2503.16870.
    """
    if not log_prob.is_floating_point():
        raise TypeError(f"log_prob must be floating point, got {log_prob.dtype}.")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    if not 0 <= power < math.inf:
        raise ValueError(f"power must be finite and at least 0, got {power}.")
    if log_prob.ndim == 0 or log_prob.shape[-1] == 0:
        raise ValueError(f"log_prob must be (..., V), V above 0, got {tuple(log_prob.shape)}.")
    p = log_prob.detach().double()
    log_q = torch.where(p == -math.inf, p, power * p).log_softmax(-1)
    if bool(log_q.isnan().any()):
        raise ValueError("log_prob has NaN, +inf, or a row of -inf.")
    size = log_q.shape[-1]
    ids = torch.multinomial(log_q.reshape(-1, size).exp(), n, replacement=True, generator=generator)
    ids = ids.reshape(*log_q.shape[:-1], n)

    def design(asked: Tensor) -> Tensor:
        inside = (asked >= 0) & (asked < size)
        rows = (log_q[..., 0] + asked.sum(-1)).shape
        asked = torch.where(inside, asked, 0).expand(*rows, -1)
        return torch.where(inside, log_q.expand(*rows, -1).gather(-1, asked) + math.log(n), -math.inf)

    return Draws(ids, design(ids), design)


def sampled_distillation(
    score: Tensor,
    ids: Tensor,
    log_prob: Tensor,
    log_expected: Tensor,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of the student to a teacher known by a few weighed draws (Random Sampling KD).

        L = -sum_draws (p_v / expected_v) log softmax(score)_v

    Unbiased for `-sum_v p_v log softmax(score)_v`, value and gradient. Keeping the teacher's k largest
    probabilities instead moves the student's optimum to a distribution without a tail. With draws from the
    teacher itself each weighs 1 / n.

    Args:
        score: float, (..., V): the student's logits of everything.
        ids: int64, (..., n): the draws, from `sample_teacher`.
        log_prob: float, (..., n): the teacher's log-probabilities of the draws, taken as constants.
        log_expected: float, (..., n): log of the expected count of each draw; +inf for an empty slot.
        reduction: "mean" over positions, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an id out of range, an unknown reduction, or the mean over nothing.
        TypeError: logits that are not floating point, or ids that are not integers.

    Reference:
        Anshumann et al. (2025), Sparse logit sampling: Accelerating knowledge distillation in LLMs, ACL,
        arXiv 2503.16870.
    """
    if not score.is_floating_point():
        raise TypeError(f"score must be floating point, got {score.dtype}; call .float() on it.")
    if score.shape[:-1] != ids.shape[:-1] or not ids.shape == log_prob.shape == log_expected.shape:
        raise ValueError(
            "Wanted scores (..., V) and ids, log_prob and log_expected (..., n), got "
            f"{tuple(score.shape)}, {tuple(ids.shape)}, {tuple(log_prob.shape)} and {tuple(log_expected.shape)}."
        )
    check_integers("ids", ids)
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < score.shape[-1]):
        raise ValueError(
            f"ids must lie in 0 to {score.shape[-1] - 1}, got {int(ids.min())} to {int(ids.max())}."
        )
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    weight = (log_prob.detach() - log_expected.detach()).exp()
    log_q = torch.log_softmax(score, -1).gather(-1, ids.long()).masked_fill(weight == 0, 0.0)
    return reduce(-(weight.to(log_q.dtype) * log_q).sum(-1), reduction)


def _checked(score: Tensor, teacher: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if not (score.is_floating_point() and teacher.is_floating_point()):
        raise TypeError(f"score and teacher must be floating point, got {score.dtype} and {teacher.dtype}.")
    if score.shape != teacher.shape or score.ndim == 0:
        raise ValueError(
            f"score and teacher must both be (..., N), got {tuple(score.shape)} and {tuple(teacher.shape)}."
        )
    check_fits("mask", mask, score, of="scores")
    left_out = torch.zeros((), dtype=torch.bool, device=score.device) if mask is None else mask
    left_out = left_out.expand(score.shape)
    dtype = torch.promote_types(torch.promote_types(score.dtype, teacher.dtype), torch.float32)
    return score.to(dtype), teacher.detach().to(dtype), left_out


def _log_chances(
    score: Tensor, teacher: Tensor, log_expected: Tensor | None, mask: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-chances of teacher and student, -inf where left out; a row without candidates has only those."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    score, teacher, left_out = _checked(score, teacher, mask)
    if log_expected is not None:
        check_fits("log_expected", log_expected, score, of="scores")
        log_expected = log_expected.expand(score.shape)
        left_out = left_out | (log_expected == math.inf)
    chances = []
    for values in (teacher, score):
        logits = values / temperature if log_expected is None else values / temperature - log_expected
        logits = logits.masked_fill(left_out, -math.inf)
        empty = (logits == -math.inf).all(-1, keepdim=True)
        chances.append(
            torch.log_softmax(logits.masked_fill(empty, 0.0), -1).masked_fill(left_out | empty, -math.inf)
        )
    return chances[0], chances[1]


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    absent = log_p == -math.inf  # 0 log 0 is 0, whatever the student says
    gap = torch.where(absent, 0.0, log_p) - log_q.masked_fill(absent, 0.0)
    return (log_p.exp() * gap).sum(-1)
