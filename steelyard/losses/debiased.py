"""Contrastive losses whose negatives are possibly false and unequally hard.

All share one loss and one negative term, with `e_j = exp(s_j / temperature)`:

    L = -log( e_+ / (alpha e_+ + N g) )
    g = max( (M - tau M_false) / (1 - tau), exp(min_score / temperature) )
    M = sum_j w_j e_j,   w_j proportional to e_j^beta / expected_j,   sum_j w_j = 1

Scores are raw similarities and the temperature is an argument here, unlike in `sampled_softmax`, since the
floor depends on it: with cosines, whose lowest is -1, it is `exp(-1 / temperature)`. `N` is the number of
candidates that the negatives stand for, `sum_j 1 / expected_j`, which is K without `log_expected`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.losses.softmax import Reduction, check_fits, reduce


def debiased_contrastive(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float | Tensor,
    tau_plus: float | Tensor = 0.1,
    positive_samples: Tensor | None = None,
    min_score: float = -1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE less the share that hidden positives are expected to have in the negative sum.

        L = -log( e_+ / (e_+ + N g) )
        g = max( (mean_j e_j - tau_plus mean_m e+_m) / (1 - tau_plus), exp(min_score / temperature) )

    Of unlabelled candidates a share `tau_plus` has the query's own class, so their mean is a mixture, and
    what is left after taking the positives out estimates the mean over true negatives, without bias until
    the floor. `tau_plus=0` is InfoNCE. Called `hard_contrastive` with `beta=0`.

    Args:
        positive: float, (...): similarity of the positive.
        negative: float, (..., K): similarities of the candidates, not divided by the temperature.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, so that sums
            are Horvitz-Thompson estimates of those over everything; default each stands for itself.
        mask: bool, broadcastable to `negative`: True leaves a candidate out.
        temperature: above 0; a tensor receives its gradient.
        tau_plus: chance that a candidate has the query's class, in [0, 1), one or (...).
        positive_samples: float, (..., M): similarities of samples of the query's class; default the positive.
        min_score: lowest similarity there is; -inf where there is none (g then stops at 0).
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query without candidates has loss 0.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, `tau_plus` out of range, an unknown
            reduction, or the mean over no queries.

    Reference:
        Chuang, Robinson, Lin, Torralba and Jegelka (2020), Debiased contrastive learning, NeurIPS,
        arXiv 2007.00224.
    """
    return hard_contrastive(
        positive,
        negative,
        log_expected,
        mask,
        temperature=temperature,
        beta=0.0,
        tau_plus=tau_plus,
        positive_samples=positive_samples,
        min_score=min_score,
        reduction=reduction,
    )


def hard_contrastive(
    positive: Tensor,
    negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float | Tensor,
    beta: float = 1.0,
    tau_plus: float | Tensor = 0.1,
    positive_samples: Tensor | None = None,
    min_score: float = -1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Debiased InfoNCE whose negatives weigh by their hardness.

        L = -log( e_+ / (e_+ + N g) )
        g = max( (sum_j w_j e_j - tau_plus M_+) / (1 - tau_plus), exp(min_score / temperature) )
        w_j proportional to e_j^beta / expected_j;   M_+ the same mean over the positive samples

    The weights are the self-normalised importance weights of drawing negatives in proportion to `e^beta`
    instead. `beta=0` is `debiased_contrastive`, and as beta grows only the hardest negative is left, N
    times. Gradients flow through the weights, as in the authors' code.

    Args:
        positive: float, (...): similarity of the positive.
        negative: float, (..., K): similarities of the candidates, not divided by the temperature.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a candidate out.
        temperature: above 0; a tensor receives its gradient.
        beta: concentration on hard negatives, at least 0.
        tau_plus: chance that a candidate has the query's class, in [0, 1), one or (...).
        positive_samples: float, (..., M): similarities of samples of the query's class; default the positive.
        min_score: lowest similarity there is; -inf where there is none.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query without candidates has loss 0.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, `beta` or `tau_plus` out of range,
            an unknown reduction, or the mean over no queries.

    Reference:
        Robinson, Chuang, Sra and Jegelka (2021), Contrastive learning with hard negative samples, ICLR,
        arXiv 2010.04592.
    """
    t = _temperature(temperature, negative)
    drawn = positive.unsqueeze(-1) if positive_samples is None else positive_samples
    if drawn.shape[:-1] != positive.shape or drawn.shape[-1] == 0:
        raise ValueError(
            f"positive_samples must be (..., M), M > 0, over positive's shape {tuple(positive.shape)}, got "
            f"{tuple(drawn.shape)}."
        )
    score, log_weight = _weighed(positive, negative / t, log_expected, mask)
    log_false = _tilted_log_mean(drawn / t, torch.zeros_like(drawn), beta)
    log_true = _true_log_mean(_tilted_log_mean(score, log_weight, beta), log_false, tau_plus, min_score / t)
    return reduce(_contrast(positive / t, log_true + log_weight.logsumexp(-1)), reduction)


def hasa(
    positive: Tensor,
    negative: Tensor,
    log_odds: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    temperature: float | Tensor,
    tau: float | Tensor,
    beta: float = 1.0,
    min_score: float = -1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Hardness- and structure-aware InfoNCE: false negatives are named one by one, by their odds.

        L = -log( e_+ / (e_+ + N g) )
        g = max( (sum_j w_j e_j - tau sum_j f_j e_j) / (1 - tau), exp(min_score / temperature) )
        w_j proportional to e_j^beta / expected_j,   f_j proportional to odds_j e_j^beta / expected_j

    On a knowledge graph a corrupted triple whose tail is near its head is often a fact that is missing: the
    authors take tails two hops from the head, `torch.where(hops == 2, 0.0, -torch.inf)`. Where the odds are
    right, the candidates all there are, tau their share and beta 0, g is the mean over the true negatives.
    A candidate with high odds gets less gradient, and may be pulled in rather than pushed away.
    Reconstructed: the authors' code puts 1 for a difference that is not positive, in place of the floor, and
    scores two-hop tails beside the candidates; here they are among them.

    Args:
        positive: float, (...): similarity of the true triple.
        negative: float, (..., K): similarities of the corrupted ones, not divided by the temperature.
        log_odds: float, broadcastable to `negative`: log of the chance, up to a factor, that each is true;
            -inf for one that is surely false. Where none is likely true, nothing is taken off.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a candidate out (it is a known triple).
        temperature: above 0; a tensor receives its gradient.
        tau: share of false negatives among the candidates, in [0, 1), one or (...).
        beta: concentration on hard negatives, at least 0.
        min_score: lowest similarity there is; -inf where there is none.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query without candidates has loss 0.

    Raises:
        ValueError: shapes do not fit, a temperature that is not positive, `beta` or `tau` out of range, an
            unknown reduction, or the mean over no queries.

    Reference:
        Zhang, Zhang and Molybog (2024), HaSa: Hardness and structure-aware contrastive knowledge graph
        embedding, WWW, arXiv 2305.10563.
    """
    t = _temperature(temperature, negative)
    score, log_weight = _weighed(positive, negative / t, log_expected, mask)
    check_fits("log_odds", log_odds, negative)
    log_false_weight = log_weight + log_odds
    # where nothing is likely true the mixture has one part only, the true negatives
    share = torch.where((log_false_weight == -math.inf).all(-1), 0.0, torch.as_tensor(tau, dtype=score.dtype))
    log_false = _tilted_log_mean(score, log_false_weight, beta)
    log_true = _true_log_mean(_tilted_log_mean(score, log_weight, beta), log_false, share, min_score / t)
    return reduce(_contrast(positive / t, log_true + log_weight.logsumexp(-1)), reduction)


def diht(
    score: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float | Tensor,
    alpha: float = 1.0,
    beta: float = 0.25,
    reduction: Reduction = "mean",
) -> Tensor:
    """Hard-negative InfoNCE between two modalities, in both directions.

        L_i = -log( e_ii / (alpha e_ii + sum_{j != i} w_ij e_ij) )
        w_ij = (B - 1) e_ij^beta / sum_{k != i} e_ik^beta

    and the same down the columns; each pair's loss is the mean of its two. `alpha=1, beta=0` is symmetric
    InfoNCE, `alpha=0` leaves the positive out of the denominator, and a large beta keeps the hardest
    negative only. With `alpha=1` it is also the cross-modal hard-negative loss of Choi et al., who tilt the
    negatives in each direction in the same way. Gradients flow through the weights.

    Args:
        score: float, (B, B): similarity of the i-th item of one modality and the j-th of the other, not
            divided by the temperature; pairs lie on the diagonal.
        mask: bool, broadcastable to `score`: True leaves a pair out as a negative, in both directions.
        temperature: above 0; a tensor receives its gradient.
        alpha: weight of the positive in its denominator, at least 0.
        beta: concentration on hard negatives, at least 0.
        reduction: "mean" over pairs, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none". An item without negatives has loss log(alpha) in that direction.

    Raises:
        ValueError: `score` is not square, a temperature that is not positive, `alpha` or `beta` out of range,
            `alpha=0` for an item without negatives, an unknown reduction, or the mean over no pairs.

    Reference:
        Radenovic et al. (2023), Filtering, distillation, and hard negatives for vision-language
        pre-training, CVPR, arXiv 2301.02280. Choi, Beedu and Essa (2023), Multimodal contrastive learning with
        hard negative sampling for human activity recognition, arXiv 2309.01262.
    """
    if score.ndim != 2 or score.shape[0] != score.shape[1]:
        raise ValueError(f"score must be (B, B) with the pairs on its diagonal, got {tuple(score.shape)}.")
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be finite and at least 0, got {alpha}.")
    t = _temperature(temperature, score)
    own = torch.eye(len(score), dtype=torch.bool, device=score.device)
    if mask is not None:
        check_fits("mask", mask, score, of="scores")
        own = own | mask
    positive = score.diagonal() / t
    directions = []
    for rows, dropped in ((score, own), (score.T, own.T)):
        scaled, log_weight = _weighed(positive, rows / t, None, dropped)
        log_sum = _tilted_log_mean(scaled, log_weight, beta) + log_weight.logsumexp(-1)
        if alpha == 0 and bool((log_sum == -math.inf).any()):
            raise ValueError(
                "With alpha=0 each item needs a negative, since the log of an empty sum is -inf."
            )
        directions.append(_contrast(positive, log_sum, alpha))
    return reduce((directions[0] + directions[1]) / 2, reduction)


def _temperature(temperature: float | Tensor, like: Tensor) -> Tensor:
    t = torch.as_tensor(temperature, dtype=None if isinstance(temperature, Tensor) else torch.float64)
    if t.ndim > 0 or not 0 < float(t.detach()) < math.inf:
        raise ValueError(f"temperature must be one positive number, got {temperature}.")
    return t.to(
        like.device, torch.promote_types(like.dtype, torch.float32)
    )  # a bfloat16 0.07 is off by 0.4 %


def _weighed(
    positive: Tensor, score: Tensor, log_expected: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores, 0 where left out, and log-weights, -inf where left out."""
    if score.shape[:-1] != positive.shape:
        raise ValueError(
            f"negative must be (..., K) over positive's shape {tuple(positive.shape)}, got {tuple(score.shape)}."
        )
    check_fits("log_expected", log_expected, score)
    check_fits("mask", mask, score)
    log_weight = torch.zeros_like(score) if log_expected is None else 0 - log_expected
    log_weight = log_weight.expand(score.shape)
    if mask is not None:
        log_weight = log_weight.masked_fill(mask, -math.inf)
    log_weight = log_weight.masked_fill(
        score.detach() == -math.inf, -math.inf
    )  # it adds nothing, and 0 * inf is NaN
    return score.masked_fill(log_weight == -math.inf, 0.0), log_weight


def _tilted_log_mean(score: Tensor, log_weight: Tensor, beta: float) -> Tensor:
    """log of sum_j w_j exp(s_j), w = softmax(log_weight + beta s); -inf where no candidate has weight."""
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be finite and at least 0, got {beta}.")
    empty = (log_weight == -math.inf).all(-1)
    shown = log_weight.masked_fill(empty.unsqueeze(-1), 0.0)
    empty = empty | (score == -math.inf).all(-1)  # a mean of zeros; logsumexp of -inf alone has no gradient
    score = score.masked_fill(empty.unsqueeze(-1), 0.0)
    if beta == 0:
        log_mean = torch.logsumexp(shown + score, -1) - torch.logsumexp(shown, -1)
    else:  # weights first: two logsumexps of large beta times s would leave few digits in their difference
        log_mean = torch.logsumexp(torch.log_softmax(shown + beta * score, -1) + score, -1)
    return log_mean.masked_fill(empty, -math.inf)


def _true_log_mean(log_mean: Tensor, log_false: Tensor, tau: float | Tensor, log_floor: Tensor) -> Tensor:
    """log of max((exp(mean) - tau exp(false)) / (1 - tau), floor); mean and no floor where tau is 0."""
    share = torch.as_tensor(tau, dtype=log_mean.dtype, device=log_mean.device)
    if not bool(((share >= 0) & (share < 1)).all()):
        raise ValueError(f"The share of false negatives must lie in [0, 1), got {tau}.")
    gap = share.log() + log_false - log_mean
    left = (gap < 0) & (share > 0)  # False where there is nothing to take off, or nothing is left
    log_rest = log_mean + torch.log(-torch.expm1(torch.where(left, gap, -1.0))) - torch.log1p(-share)
    rest = torch.where(left & (log_rest > log_floor), log_rest, log_floor)
    result = torch.where((share > 0) & ~log_mean.isnan(), rest, log_mean)  # NaN must not become the floor
    return torch.where(log_mean == -math.inf, log_mean, result)


def _contrast(positive: Tensor, log_negative: Tensor, alpha: float = 1.0) -> Tensor:
    """-log( e_+ / (alpha e_+ + negative) ), from logs."""
    log_alpha = torch.full_like(log_negative, math.log(alpha) if alpha > 0 else -math.inf)
    return torch.logaddexp(log_alpha, log_negative - positive)
