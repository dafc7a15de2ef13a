"""Distillation of score differences: a student learns a teacher's margins, not its scale."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.losses.pooling_bias import mean_shares
from steelyard.losses.softmax import Reduction, reduce


def margin_mse(
    positive: Tensor,
    negative: Tensor,
    teacher_positive: Tensor,
    teacher_negative: Tensor,
    log_expected: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Squared error of the student's margins between positive and negatives against the teacher's.

        L = mean_j ( (s_p - s_j) - (t_p - t_j) )^2

    Adding a number to all scores of a query, the student's or the teacher's, changes nothing. A false negative
    does no harm, since the teacher's margin for it is small.

    Args:
        positive: float, (...): the student's score of the positive.
        negative: float, (..., K): the student's scores of the others; K = 1 in the paper.
        teacher_positive: float, (...): the teacher's score of the positive.
        teacher_negative: float, (..., K): the teacher's scores of the others.
        log_expected: float, broadcastable to `negative`: log of the expected count of each draw, for a
            self-normalised mean over everything they stand for; default 0.
        mask: bool, broadcastable to `negative`: True leaves a candidate out.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (...) for "none". A query without candidates has loss 0.

    Raises:
        ValueError: shapes do not fit, an unknown reduction, or the mean over no queries.

    Reference:
        Hofstätter, Althammer, Schröder, Sertkan and Hanbury (2020), Improving efficient neural ranking models
        with cross-architecture knowledge distillation, arXiv 2010.02666.
    """
    if not (
        negative.shape == teacher_negative.shape
        and negative.shape[:-1] == positive.shape == teacher_positive.shape
    ):
        raise ValueError(
            "Student and teacher must score the same candidates, (...) positives and (..., K) others, got "
            f"{tuple(positive.shape)}, {tuple(negative.shape)}, {tuple(teacher_positive.shape)} and "
            f"{tuple(teacher_negative.shape)}."
        )
    share = mean_shares(negative, log_expected, mask)
    error = (positive.unsqueeze(-1) - negative) - (teacher_positive.unsqueeze(-1) - teacher_negative)
    error = error.masked_fill(share == 0, 0.0)
    return reduce((share * error.square()).sum(-1), reduction)


def tas_balanced_loss(
    score: Tensor,
    pair_teacher: Tensor,
    in_batch_teacher: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float = 0.75,
    reduction: Reduction = "mean",
) -> Tensor:
    """Dual supervision of TAS-B: margins of each query's own pair, and against the whole batch.

        L_i = ( (s_ii - s_i,B+i) - (p_i0 - p_i1) )^2
              + alpha mean_{j != i} ( (s_ii - s_ij) - (t_ii - t_ij) )^2,   j over all 2B passages

    A slow teacher scores the pairs only, a fast one every query against every passage of the batch.

    Args:
        score: float, (B, 2B): the student's scores of each query with the B positives, then the B negatives,
            of all queries in order; its own stand in columns i and B + i.
        pair_teacher: float, (B, 2): the pair teacher's scores of a query's own positive and negative.
        in_batch_teacher: float, (B, 2B): the other teacher's scores, in the order of `score`.
        mask: bool, broadcastable to `score`: True leaves a passage out of the in-batch mean.
        alpha: weight of the in-batch part, at least 0.
        reduction: "mean" over queries, "sum", or "none".

    Returns:
        The loss, a scalar or (B,) for "none".

    Raises:
        ValueError: shapes do not fit, a negative `alpha`, an unknown reduction, or the mean over no queries.

    Reference:
        Hofstätter, Lin, Yang, Lin and Hanbury (2021), Efficiently teaching an effective dense retriever with
        balanced topic aware sampling, SIGIR, arXiv 2104.06967. Reconstructed: the in-batch part as a mean.
    """
    size = len(score)
    if not (score.shape == in_batch_teacher.shape == (size, 2 * size) and pair_teacher.shape == (size, 2)):
        raise ValueError(
            "Wanted (B, 2B) scores, (B, 2) of the pair teacher and (B, 2B) of the in-batch teacher, got "
            f"{tuple(score.shape)}, {tuple(pair_teacher.shape)} and {tuple(in_batch_teacher.shape)}."
        )
    if not alpha >= 0:
        raise ValueError(f"alpha must be at least 0, got {alpha}.")
    own = score.diagonal()
    pair = margin_mse(
        own,
        score.diagonal(size).unsqueeze(-1),
        pair_teacher[:, 0],
        pair_teacher[:, 1:],
        reduction="none",
    )
    itself = torch.eye(size, 2 * size, dtype=torch.bool, device=score.device)
    batch = margin_mse(
        own,
        score,
        in_batch_teacher.diagonal(),
        in_batch_teacher,
        mask=itself if mask is None else itself | mask,
        reduction="none",
    )
    return reduce(pair + alpha * batch, reduction)
