"""Softmax losses bent towards a ranking measure: PSL by its activation, SL@K by a weight for the top K."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.losses.bilateral import bilateral_softmax
from steelyard.losses.pairwise import check_scores
from steelyard.losses.softmax import Reduction, check_fits, log_weights, reduce, sampled_softmax

Activation = Literal["exp", "tanh", "relu", "atan"]


def psl(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float,
    activation: Activation = "tanh",
    reduction: Reduction = "mean",
) -> Tensor:
    """Pairwise softmax loss: the softmax loss with its exponential replaced by a tighter function (PSL).

        L = log sum_j f(s_j - s_p)^(1 / temperature) / expected_j
        f(d): exp(d), 1 + tanh(d), max(0, 1 + d) or max(0, 1 + atan(d))

    All of these lie at or above the step function 1[d >= 0]; the last three grow less than the exponential,
    so false negatives that score high weigh less and the bound on DCG is tighter. With "exp" it is
    `bilateral_softmax` of scores over the temperature with `power=1`. It is made for differences in [-1, 1]:
    halve cosines, whose differences reach 2.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, so that the
            sum estimates that over everything; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        temperature: above 0.
        activation: f.
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive has loss 0 and no gradient where all its draws are
        masked or have f = 0; just before that point it falls without bound.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, an unknown activation or reduction,
            or the mean over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Yang et al. (2024), PSL: Rethinking and improving softmax loss from pairwise perspective for
        recommendation, NeurIPS, arXiv 2411.00163. The correction by expected counts is ours.
    """
    check_scores(positive, negative, mask)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    correction = negative.new_zeros(()) if log_expected is None else log_expected
    log_count = log_weights(positive, torch.zeros_like(negative), correction, mask)
    gap = (negative - positive.unsqueeze(-1)).masked_fill(log_count == -math.inf, 0.0)
    logits = _log_activation(gap, activation) / temperature + log_count
    nothing = (logits == -math.inf).all(-1)
    if logits.shape[-1] == 0:
        return reduce(positive * 0, reduction)
    logits = logits.masked_fill(nothing.unsqueeze(-1), 0.0)  # logsumexp of a row of -inf has no gradient
    return reduce(torch.logsumexp(logits, -1).masked_fill(nothing, 0.0), reduction)


def sl_at_k(
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float,
    weight_temperature: float,
    decoupled: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """Softmax loss weighed by whether the positive stands among its query's top K (SL@K).

        L = sigmoid((s_p - threshold) / weight_temperature) ( log( e_p + sum_j e_j / expected_j ) - log e_p )
        e = exp(s / temperature),   threshold = the query's K-th largest score of all

    Summed over a query's positives and with every item in the sum, 2 L is at least -log DCG@K wherever one
    of them stands in the top K. A positive that is far below the top K is pulled less, also where its label
    is noise. The gradient flows through the weight, as in the authors' code. As the weight's temperature
    grows L becomes half the softmax loss.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the drawn candidates.
        threshold: float, broadcastable to `positive`: from `top_k_threshold`, refreshed now and then; taken
            as a constant. -inf counts every positive in full.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default each
            stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a draw out (it is the positive).
        temperature: of the softmax, above 0.
        weight_temperature: of the weight, above 0.
        decoupled: leave the positive out of the sum, as the authors' code does (the paper sums over all).
        reduction: "mean" over positives, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A positive all of whose draws are masked has loss 0.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, an unknown reduction, or the mean
            over nothing.
        TypeError: scores that are not floating point.

    Reference:
        Yang et al. (2025), Breaking the top-K barrier: Advancing top-K ranking metrics optimization in
        recommender systems, KDD, arXiv 2508.05673. The correction by expected counts is ours.
    """
    check_scores(positive, negative, mask)
    for name, t in (("temperature", temperature), ("weight_temperature", weight_temperature)):
        if not 0 < t < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {t}.")
    check_fits("threshold", threshold, positive, of="positives")
    over = positive - threshold.detach()
    correction = negative.new_zeros(()) if log_expected is None else log_expected
    arguments = (positive / temperature, negative / temperature, correction, mask)
    if decoupled:
        loss = bilateral_softmax(*arguments, power=1.0, reduction="none")
    else:
        loss = sampled_softmax(*arguments, reduction="none")
    return reduce((over / weight_temperature).sigmoid() * loss, reduction)


def top_k_threshold(
    score: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    k: int,
    own: Tensor | None = None,
) -> Tensor:
    """The K-th largest score of everything, estimated from a few weighed candidates.

        threshold = the largest b with  #{own >= b} + sum_{j: s_j >= b} 1 / expected_j >= k

    The K-th largest score of the draws themselves, which stand for many more, lies far below it. Own items
    that are not drawn are counted once each; mask them among the draws.

    Args:
        score: float, (..., N): scores of the drawn candidates.
        log_expected: float, broadcastable to `score`: log of the expected count of each draw; default each
            stands for itself.
        mask: bool, broadcastable to `score`: True leaves a draw out.
        k: length of the top list, at least 1.
        own: float, (..., P): scores of the query's own positives, known without drawing; -inf pads.

    Returns:
        float, (...), without gradient; -inf where the candidates stand for fewer than k items.

    Raises:
        ValueError: shapes do not fit, `k` below 1, or a score that is NaN.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Yang et al. (2025), Breaking the top-K barrier, KDD, arXiv 2508.05673, who take the K-th largest of
        the positives and the drawn negatives. The weights are ours.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    if not score.is_floating_point():
        raise TypeError(f"score must be floating point, got {score.dtype}; call .float() on it.")
    check_fits("log_expected", log_expected, score, of="scores")
    check_fits("mask", mask, score, of="scores")
    score = score.detach()
    log_count = torch.zeros_like(score) if log_expected is None else 0 - log_expected.detach()
    log_count = log_count.expand(score.shape)
    left_out = torch.zeros_like(score, dtype=torch.bool) if mask is None else mask.expand(score.shape)
    count = log_count.double().exp().masked_fill(left_out, 0.0)
    score = score.masked_fill(left_out, -math.inf)
    if own is not None:
        if own.shape[:-1] != score.shape[:-1]:
            raise ValueError(
                f"own must be (..., P) beside scores {tuple(score.shape)}, got {tuple(own.shape)}."
            )
        score = torch.cat([score, own.detach()], -1)
        count = torch.cat([count, torch.ones_like(own, dtype=torch.float64)], -1)
    if bool(score.isnan().any()):
        raise ValueError("A score is NaN; mask it.")
    count = count.masked_fill(score == -math.inf, 0.0)
    if bool(((count >= 1) | (count == 0)).all()):  # then the first k of them stand for at least k
        score, order = score.topk(min(k, score.shape[-1]), -1)
    else:
        score, order = score.sort(-1, descending=True)
    reached = count.gather(-1, order).cumsum(-1) >= k * (1 - 1e-6)  # counts come from rounded logs
    if score.shape[-1] == 0:
        return score.new_full(score.shape[:-1], -math.inf)
    return torch.where(reached, score, -math.inf).amax(-1)


def _log_activation(gap: Tensor, activation: Activation) -> Tensor:
    if activation == "exp":
        return gap
    if activation == "tanh":  # 1 + tanh(d) = 2 sigmoid(2 d), which keeps its digits where tanh is near -1
        return math.log(2) + logsigmoid(2 * gap)
    if activation == "relu":
        value = 1 + gap
    elif activation == "atan":
        value = 1 + gap.atan()
    else:
        raise ValueError(f'activation must be "exp", "tanh", "relu" or "atan", got {activation!r}.')
    zero = value <= 0  # so that NaN stays NaN
    return torch.where(zero, -math.inf, torch.where(zero, 1.0, value).log())
