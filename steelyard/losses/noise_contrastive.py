"""Criteria that train a softmax from sampled candidates, and the posterior that each of them learns.

Every criterion here asks of one candidate at a time whether it is the target or noise (the binary ones), or
of a small set which one is the target (the ranking one). What the scores become at the optimum follows from
the odds of the two answers, so it can be turned back into the posterior `p(c | x)` by `log_posterior`:

    criterion                                 noise that equals the target   log p(c | x) at the optimum
    nce                                       kept                           s
    sampled_bce, sampled_mse                  kept                           s + log_expected
    the same                                  masked                         log sigmoid(s + log_expected)
    the same, weighed by `log_expected`       masked                         log sigmoid(s)
    the same, weighed by `log_expected`       kept                           s
    ranking_nce                               kept                           s, up to a constant
    negative_sampling                         kept                           s + log_expected

`log_expected` is the log of the expected count of a candidate under the noise, `log(K q)` with K draws from q.
Compensated partial sums, which scale a random part of the classes up to all N, are the weighed criteria with
`log_expected = log(K / N)`, and `steelyard.losses.sampled_softmax` where they stand in for the cross-entropy.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.losses.softmax import Reduction, check_fits, check_scores, reduce, sampled_softmax


def nce(
    positive: Tensor,
    negative: Tensor,
    positive_log_expected: Tensor,
    log_expected: Tensor,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Noise-contrastive estimation: is a candidate the target, or one of the K draws of noise?

        L = -log sigmoid(s_p - log E_p) - sum_k log sigmoid(-(s_k - log E_k)),   E = K q

    At its optimum `s = log p(c | x)`, normalised without a sum over the classes. A draw of noise that equals
    the target stays in, since noise may do so.

    Args:
        positive: float, (...): score of the target.
        negative: float, (..., K): scores of the draws of noise.
        positive_log_expected: float, broadcastable to `positive`: log of the expected count of the target
            under the noise.
        log_expected: float, broadcastable to `negative`: the same for the draws; +inf for an empty slot.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Gutmann and Hyvärinen (2010), Noise-contrastive estimation, AISTATS; Mnih and Teh (2012), A fast and
        simple algorithm for training neural probabilistic language models, ICML, arXiv 1206.6426.
    """
    check_scores(positive, negative, log_expected, None)
    check_fits("positive_log_expected", positive_log_expected, positive, of="positives")
    own = positive - positive_log_expected
    return reduce(-logsigmoid(own) - logsigmoid(log_expected - negative).sum(-1), reduction)


def ranking_nce(
    positive: Tensor,
    negative: Tensor,
    positive_log_expected: Tensor,
    log_expected: Tensor,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Ranking form of noise-contrastive estimation: which of K + 1 candidates is the target?

        L = -(s_p - log E_p) + log( exp(s_p - log E_p) + sum_k exp(s_k - log E_k) ),   E = K q

    At its optimum `s = log p(c | x)` up to a constant of x, for any K. It is `sampled_softmax` of a corrected
    positive, with hits kept. That recovers the posterior where the target is drawn anew each time; for the
    gradient of the full softmax at given scores, leave the positive uncorrected.

    Args:
        positive: float, (...): score of the target.
        negative: float, (..., K): scores of the draws of noise.
        positive_log_expected: float, broadcastable to `positive`: log of the expected count of the target
            under the noise.
        log_expected: float, broadcastable to `negative`: the same for the draws; +inf for an empty slot.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Ma and Collins (2018), Noise contrastive estimation and negative sampling for conditional models:
        consistency and statistical efficiency, EMNLP, arXiv 1809.01812.
    """
    check_scores(positive, negative, log_expected, None)
    check_fits("positive_log_expected", positive_log_expected, positive, of="positives")
    return sampled_softmax(positive - positive_log_expected, negative, log_expected, reduction=reduction)


def sampled_bce(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy over the target and sampled candidates.

        L = -log sigmoid(s_p) - sum_k log sigmoid(-s_k) / expected_k

    With `log_expected` the sum stands for all other classes (importance sampling), without it for itself
    (Monte Carlo). Both learn the posterior; see the module's table for what to make of the scores.

    Args:
        positive: float, (...): score of the target.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a draw out (it is the target).
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Gao, Thulke, Gerstenberger, Tran, Schlüter and Ney (2021), On sampling-based training criteria for
        neural language modeling, Interspeech, arXiv 2104.10507.
    """
    check_scores(positive, negative, log_expected, mask)
    others = _summed(-logsigmoid(-negative), log_expected, mask)
    return reduce(others - logsigmoid(positive), reduction)


def sampled_mse(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Squared error of sigmoid outputs over the target and sampled candidates.

        L = (1 - sigmoid(s_p))^2 + sum_k sigmoid(s_k)^2 / expected_k

    Has the optimum of `sampled_bce`, since both are proper scores of the same question; its gradient vanishes
    where a candidate is wrong beyond doubt.

    Args:
        positive: float, (...): score of the target.
        negative: float, (..., K): scores of the drawn candidates.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a draw out (it is the target).
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Gao et al. (2021), On sampling-based training criteria for neural language modeling, Interspeech,
        arXiv 2104.10507. Reconstructed: that the outputs are sigmoids.
    """
    check_scores(positive, negative, log_expected, mask)
    others = _summed(negative.sigmoid().square(), log_expected, mask)
    return reduce(others + (-positive).sigmoid().square(), reduction)


def log_posterior(
    score: Tensor,
    log_expected: Tensor | None = None,
    *,
    criterion: Literal["binary", "binary masked", "ranking"],
) -> Tensor:
    """Log of the posterior that the scores of a criterion stand for at its optimum.

        u = s + log_expected
        binary: u        binary masked: log sigmoid(u)        ranking: u - logsumexp over the classes

    Args:
        score: float, (..., C): scores, of all classes for "ranking".
        log_expected: float, broadcastable to `score`: log of the expected count of each class under the
            noise, where the criterion was trained without it; None where the criterion corrects for it.
        criterion: "binary" for `nce` and for `sampled_bce`, `sampled_mse` and `negative_sampling` with noise
            that may equal the target; "binary masked" where such noise is masked; "ranking" for
            `ranking_nce`, `sampled_softmax` and the full softmax.

    Returns:
        float, (..., C). Away from the optimum, binary posteriors do not sum to 1 and may exceed it.

    Raises:
        ValueError: an unknown criterion, or shapes that do not fit.
        TypeError: expected counts that are not floating point.

    Reference:
        Gao et al. (2021), On sampling-based training criteria for neural language modeling, Interspeech,
        arXiv 2104.10507. Reconstructed: derived here from the odds of each criterion.
    """
    check_fits("log_expected", log_expected, score, of="scores")
    log_odds = score if log_expected is None else score + log_expected
    if criterion == "binary":
        return log_odds
    if criterion == "binary masked":
        return logsigmoid(log_odds)
    if criterion == "ranking":
        return torch.log_softmax(log_odds, -1)
    raise ValueError(f'criterion must be "binary", "binary masked" or "ranking", got {criterion!r}.')


def negative_sampling(
    positive: Tensor, negative: Tensor, mask: Tensor | None = None, *, reduction: Reduction = "mean"
) -> Tensor:
    """Skip-gram with negative sampling: word2vec's loss of a word and its context against noise words.

        L = -log sigmoid(u_o . v) - sum_k log sigmoid(-u_k . v)

    With noise from the unigram distribution, free scores become `PMI(word, context) - log K`. Words draw
    noise in proportion to count^0.75. Equals `sampled_bce` that is not weighed.

    Args:
        positive: float, (...): inner product of a word's and its true context's vectors.
        negative: float, (..., K): those with the noise words.
        mask: bool, broadcastable to `negative`: True leaves a draw out (the original skips the true context).
        reduction: "mean" over pairs, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no pairs.
        TypeError: scores or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Mikolov, Sutskever, Chen, Corrado and Dean (2013), Distributed representations of words and phrases
        and their compositionality, NeurIPS, arXiv 1310.4546; the optimum: Levy and Goldberg (2014), Neural
        word embedding as implicit matrix factorization, NeurIPS.
    """
    return sampled_bce(positive, negative, None, mask, reduction=reduction)


def subsampling_keep_probability(frequency: Tensor, threshold: float = 1e-5) -> Tensor:
    """Chance to keep an occurrence of a word, so that frequent words do not crowd out the others.

        keep = min(1, sqrt(threshold / f))

    The formula of the paper; the released program keeps `sqrt(threshold / f) + threshold / f`.

    Args:
        frequency: float, (...): the word's share of all occurrences, in [0, 1].
        threshold: share up to which words are always kept.

    Returns:
        (...), in (0, 1]; 1 for a word that does not occur.

    Raises:
        ValueError: a frequency outside [0, 1], or a threshold that is not positive.

    Reference:
        Mikolov et al. (2013), arXiv 1310.4546, equation 5.
    """
    f = torch.as_tensor(frequency)
    if not bool(((f >= 0) & (f <= 1)).all()):
        raise ValueError("frequency must lie in [0, 1]: divide the counts by their sum.")
    if not threshold > 0:
        raise ValueError(f"threshold must be positive, got {threshold}.")
    return torch.sqrt(threshold / f).clamp(max=1.0)


def phrase_score(
    pair_count: Tensor, first_count: Tensor, second_count: Tensor, *, discount: float = 5.0
) -> Tensor:
    """How much more often two words stand side by side than their counts explain.

        score = (count(a b) - discount) / (count(a) count(b))

    Pairs above a threshold become one word; the discount keeps rare pairs from becoming phrases. The released
    program multiplies by the number of words, for a threshold that does not depend on the corpus.

    Args:
        pair_count: (...): how often the second word follows the first.
        first_count: broadcastable to (...): count of the first word, positive.
        second_count: broadcastable to (...): count of the second word, positive.
        discount: taken off the count of the pair.

    Returns:
        float64, (...); negative for pairs that are rarer than the discount.

    Raises:
        ValueError: a word that does not occur.

    Reference:
        Mikolov et al. (2013), arXiv 1310.4546, equation 6.
    """
    a, b = (torch.as_tensor(count).to(torch.float64) for count in (first_count, second_count))
    if not bool((a > 0).all() and (b > 0).all()):
        raise ValueError("The counts of the words must be positive.")
    return (torch.as_tensor(pair_count).to(torch.float64) - discount) / a / b


def _summed(loss: Tensor, log_expected: Tensor | None, mask: Tensor | None) -> Tensor:
    """Sum over the candidates that are not masked, each for what it stands for."""
    if log_expected is not None:
        loss = loss * torch.exp(-log_expected)
    if mask is not None:
        loss = loss.masked_fill(mask, 0.0)
    return loss.sum(-1)
