"""Losses for negatives that may be positives nobody labelled: weigh them down, or model the label's flip.

Scores are on the scale of the loss, as for `sampled_softmax`: divide similarities by the temperature first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from steelyard.losses.pairwise import check_scores
from steelyard.losses.softmax import Reduction, check_fits, reduce


def weighted_info_nce(
    positive: Tensor,
    negative: Tensor,
    log_weight: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    positive_log_weight: float | Tensor = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE whose negatives count as much as they are believed to be negative.

        L = -s_p + log( v exp(s_p) + sum_j w_j exp(s_j) / expected_j )

    `w=1` is `sampled_softmax`; a weight of 0 takes a candidate out with its gradient, as `mask` does: the
    0/1 weights of DCLR are `mask=similarity_of_another_model >= phi`. With `v=0` and `cluster_log_weight` it
    is the loss of MEOW, with a small network's `logsigmoid` as weights that of AdaMEOW (without their
    prototype term).

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the candidates.
        log_weight: float, broadcastable to `negative`: log of w, -inf for a candidate that is no negative.
            It receives its gradient: detach weights that come from a model trained by another loss, since
            this one is least where every weight is 0.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a candidate out.
        positive_log_weight: log of v, one or (...).
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an empty denominator, an unknown reduction, or the mean over no queries.
        TypeError: weights or expected counts that are not floating point, or a mask that is not bool.

    Reference:
        Zhou, Zhang, Zhao and Wen (2022), Debiased contrastive learning of unsupervised sentence
        representations, ACL, arXiv 2205.00656 (DCLR). Yu and Li (2023), Heterogeneous graph contrastive
        learning with meta-path contexts and weighted negative samples, SDM, arXiv 2212.13847 (MEOW); Yu, Ge,
        Li and Zhou (2024), the same with adaptively weighted negative samples, IEEE TKDE (AdaMEOW).
    """
    if negative.shape[:-1] != positive.shape:
        raise ValueError(
            f"negative must be (..., K) over positive's shape {tuple(positive.shape)}, got {tuple(negative.shape)}."
        )
    for name, tensor in (("log_weight", log_weight), ("log_expected", log_expected), ("mask", mask)):
        check_fits(name, tensor, negative)
    weights = log_weight if log_expected is None else log_weight - log_expected
    logits = negative + weights
    dropped = weights == -math.inf if mask is None else (weights == -math.inf) | mask
    logits = logits.masked_fill(dropped, -math.inf)
    if isinstance(positive_log_weight, Tensor):
        check_fits("positive_log_weight", positive_log_weight, positive, of="positives")
    own = positive + positive_log_weight
    total = torch.logsumexp(torch.cat([own.unsqueeze(-1), logits], -1), -1)
    if bool((total == -math.inf).any()):
        raise ValueError(
            "A query has nothing in its denominator: give its positive a weight, or more candidates."
        )
    return reduce(total - positive, reduction)


def cluster_log_weight(anchor: Tensor, candidate: Tensor) -> Tensor:
    """Log-weights that grow with the number of clusterings that tell an anchor and a candidate apart.

        w_ij = (1/M) sum_m [anchor_mi != candidate_mj]

    Members of the anchor's own cluster are likely of its class. With M clusterings of different sizes the
    weight is a vote; -inf for a pair that none of them parts, such as an anchor and itself. MEOW leaves out
    the 1/M, which adds log M to a loss without the positive in its denominator and changes no gradient.

    Args:
        anchor: int64, (M, B): cluster of each anchor in each clustering.
        candidate: int64, (M, K): clusters of the candidates.

    Returns:
        float32, (B, K), for `weighted_info_nce`.

    Raises:
        ValueError: not (M, B) and (M, K) with the same M > 0.

    Reference:
        Yu and Li (2023), Heterogeneous graph contrastive learning with meta-path contexts and weighted
        negative samples, SDM, arXiv 2212.13847.
    """
    if anchor.ndim != 2 or candidate.ndim != 2 or len(anchor) != len(candidate) or len(anchor) == 0:
        raise ValueError(
            f"anchor and candidate must be (M, B) and (M, K), M > 0, got {tuple(anchor.shape)} and "
            f"{tuple(candidate.shape)}."
        )
    apart = torch.zeros(anchor.shape[1], candidate.shape[1], device=anchor.device)
    for left, right in zip(anchor, candidate, strict=True):
        apart += left[:, None] != right
    return (apart / len(anchor)).log()


class FalseNegativeHead(nn.Module):
    """A small head that says how likely a mined negative is in truth relevant.

        logit(phi) = MLP( [q, d, q * d] )

    Trained on judged pairs with `binary_cross_entropy_with_logits`, while the encoder may stay frozen. Its
    logits weigh negatives (`false_negative_weighted`), and reorder results by `score + c * sigmoid(logit)`.
    Reconstructed: the published input of the head was not found.

    Args:
        dim: size of the embeddings.
        hidden: size of the hidden layer.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(self, dim: int, hidden: int = 64) -> None:
        super().__init__()
        if min(dim, hidden) < 1:
            raise ValueError(f"Sizes must be at least 1, got dim {dim} and hidden {hidden}.")
        self.layers = nn.Sequential(nn.Linear(3 * dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Logits of phi.

        Args:
            queries: float, (..., dim).
            candidates: float, (..., K, dim), or (K, dim) that all queries share.

        Returns:
            float, (..., K).
        """
        left = queries.unsqueeze(-2)
        product = left * candidates
        logit: Tensor = self.layers(
            torch.cat([left.expand_as(product), candidates.expand_as(product), product], -1)
        )
        return logit.squeeze(-1)


def false_negative_weighted(
    positive: Tensor,
    negative: Tensor,
    false_logit: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE in which a candidate counts with the chance that it is a true negative.

        L = -s_p + log( exp(s_p) + sum_j (1 - phi_j) exp(s_j) / expected_j ),   phi = sigmoid(false_logit)

    The odds get no gradient: the loss would be least where all are called false. `false_logit=-inf` is
    `sampled_softmax`, `+inf` drops the candidate.

    Args:
        positive: float, (...): score of the positive.
        negative: float, (..., K): scores of the candidates.
        false_logit: float, broadcastable to `negative`: as `FalseNegativeHead` returns them.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw; default 0.
        mask: bool, broadcastable to `negative`: True leaves a candidate out.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query whose candidates are all out has loss 0.

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.
        TypeError: what should be floating point is not, or a mask that is not bool.
    """
    check_fits("false_logit", false_logit, negative)
    log_weight = logsigmoid(-false_logit.detach())
    return weighted_info_nce(positive, negative, log_weight, log_expected, mask, reduction=reduction)


def nbpo(
    positive: Tensor,
    negative: Tensor,
    positive_flip: float | Tensor,
    negative_flip: float | Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Pointwise logistic loss that allows for positives whose label was lost.

        p = sigmoid(score),   gamma = sigmoid(flip)
        L = -log( p_p (1 - gamma_p) ) - sum_j log( 1 - p_j + gamma_j p_j ) / expected_j

    `gamma` is the chance that a liked item goes unlabelled; an unlabelled one is then either disliked, or liked
    and lost. A high score on an unlabelled item is pushed down less the larger its gamma. `flip=-inf` is the
    plain logistic loss. A fixed chance g is `flip=math.log(g / (1 - g))`; a learned one is the output of a
    model of its own, which wants a prior (the authors give it factors with an L2 penalty), since the data
    tell "disliked" from "lost" through the form of the two models only.

    Args:
        positive: float, (...): score of a labelled item.
        negative: float, (..., K): scores of unlabelled ones, four in the paper.
        positive_flip: logit of gamma of the labelled item, one or broadcastable to `positive`; below +inf.
        negative_flip: the same for the unlabelled ones, one or broadcastable to `negative`.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, so that the
            sum stands for all unlabelled items; default 0.
        mask: bool, broadcastable to `negative`: True leaves a candidate out.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none".

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.
        TypeError: what should be floating point is not, or a mask that is not bool.

    Reference:
        Yu and Qin (2020), Sampler design for implicit feedback data by noisy-label robust learning, SIGIR,
        arXiv 2007.07204. Reconstructed from the update rule in the authors' code, whose extra damping of the
        positive's step is left out.
    """
    check_scores(positive, negative, mask)
    check_fits("log_expected", log_expected, negative)
    flip_p = torch.as_tensor(positive_flip, dtype=positive.dtype, device=positive.device)
    flip_n = torch.as_tensor(negative_flip, dtype=negative.dtype, device=negative.device)
    check_fits("positive_flip", flip_p, positive, of="positives")
    check_fits("negative_flip", flip_n, negative)
    labelled = -logsigmoid(positive) - logsigmoid(-flip_p)
    lost = -torch.logaddexp(logsigmoid(-negative), logsigmoid(flip_n) + logsigmoid(negative))
    if log_expected is not None:
        lost = lost * torch.exp(-log_expected)
    if mask is not None:
        lost = lost.masked_fill(mask, 0.0)
    return reduce(labelled + lost.sum(-1), reduction)
