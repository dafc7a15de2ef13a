"""What a table of probabilities learns from a teacher's labels, with ever more said about each."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.losses.pairs import check_integers, widened
from steelyard.losses.softmax import Reduction, reduce


def hard_label_table(states: Tensor, labels: Tensor, *, n_states: int, n_labels: int) -> Tensor:
    """Maximum likelihood of a teacher of whom only sampled labels are known: the share of each label.

        p(a | s) = count(s, a) / count(s),   1 / A for a state that was not seen

    The total-variation error falls like sqrt(S A / n), however the labels are used.

    Args:
        states: integers, (n,), in 0 to n_states - 1.
        labels: integers, (n,), in 0 to n_labels - 1: one draw from the teacher in each state.
        n_states: S, at least 1.
        n_labels: A, at least 1.

    Returns:
        float64, (S, A): probabilities, each row of sum 1.

    Raises:
        TypeError: states or labels that are not integers.
        ValueError: shapes do not fit, or a state or label out of range.

    Reference:
        Zhao and Zhu (2023), Towards the fundamental limits of knowledge transfer over finite domains, arXiv
        2310.07838.
    """
    count = _cells(states, labels, n_states, n_labels).bincount(minlength=n_states * n_labels)
    return _normalised(count.view(n_states, n_labels).double())


def sampled_label_table(
    states: Tensor, labels: Tensor, log_prob: Tensor, *, n_states: int, n_labels: int
) -> Tensor:
    """Fit to a teacher who tells the probability of each sampled label: least squares of log-probabilities.

        minimise  sum_i ( log p(a_i | s_i) - log q(a_i | s_i) )^2   over tables p
        p(a | s) = q(a | s)  for labels seen in s,   (1 - their sum) / (labels not seen)  for the others

    The error is the teacher's mass on labels not seen yet, at most, which falls like S A / n; once each was
    seen it is 0. How often a label was drawn plays no part. Cross-entropy weighed by the probabilities,
    `-sum_i q(a_i | s_i) log p(a_i | s_i)`, has its optimum at `count q / sum count q` instead, and tends to
    `q^2 / sum q^2`.

    Args:
        states: integers, (n,), in 0 to n_states - 1.
        labels: integers, (n,), in 0 to n_labels - 1: one draw from the teacher in each state.
        log_prob: float, (n,): the teacher's log-probability of each of these labels in its state, finite and
            at most 0. Where a label came with several, their mean is fitted.
        n_states: S, at least 1.
        n_labels: A, at least 1.

    Returns:
        float64, (S, A): probabilities, each row of sum 1. A row whose given probabilities are off 1 by less
        than 0.001 where they cannot be is rounding, and scaled.

    Raises:
        TypeError: states or labels that are not integers, or log-probabilities that are not floating point.
        ValueError: shapes do not fit, a value out of range, probabilities of a state that add to more than 1,
            or to less with every label seen.

    Reference:
        Zhao and Zhu (2023), Towards the fundamental limits of knowledge transfer over finite domains, arXiv
        2310.07838. Reconstructed from the abstract: that what was not seen shares the rest evenly.
    """
    cell = _cells(states, labels, n_states, n_labels)
    if not log_prob.is_floating_point():
        raise TypeError(f"log_prob must be floating point, got {log_prob.dtype}.")
    if log_prob.shape != labels.shape:
        raise ValueError(
            f"Wanted a log-probability for each of {tuple(labels.shape)} labels, got {tuple(log_prob.shape)}."
        )
    given = _log_probabilities(log_prob)
    count = cell.bincount(minlength=n_states * n_labels).view(n_states, n_labels)
    total = torch.zeros(n_states * n_labels, dtype=torch.float64, device=cell.device)
    total = total.index_add_(0, cell, given.to(cell.device)).view(n_states, n_labels)
    seen = count > 0
    p = torch.where(seen, (total / count.clamp(min=1)).exp(), 0.0)
    mass, missing = p.sum(1, keepdim=True), (~seen).sum(1, keepdim=True)
    wrong = (mass > 1 + 1e-3) | ((missing == 0) & (mass < 1 - 1e-3))
    if bool(wrong.any()):
        s = int(wrong[:, 0].nonzero()[0, 0])
        raise ValueError(
            f"The probabilities given in state {s} add to {float(mass[s, 0]):.6g} over {int(seen[s].sum())} of "
            f"{n_labels} labels, which no distribution does; give log_prob normalised over all labels."
        )
    rest = (1 - mass).clamp(min=0) / missing.clamp(min=1)
    p = torch.where(seen, p, rest)
    return p / p.sum(1, keepdim=True)


def soft_label_table(states: Tensor, log_prob: Tensor, *, n_states: int) -> Tensor:
    """Fit to a teacher who tells the whole distribution in each sampled state: least divergence.

        minimise  sum_i KL( q(. | s_i) || p(. | s_i) )   over tables p
        p(. | s) = mean of the q given in s,   1 / A for a state that was not seen

    Exact in each state seen once. The error is the mass of the states not seen, at most, which falls like
    S / n whatever the number of labels.

    Args:
        states: integers, (n,), in 0 to n_states - 1.
        log_prob: float, (n, A): the teacher's log-probabilities in each, or unnormalised logits; -inf for a
            label without a chance.
        n_states: S, at least 1.

    Returns:
        float64, (S, A): probabilities, each row of sum 1.

    Raises:
        TypeError: states that are not integers, or log-probabilities that are not floating point.
        ValueError: shapes do not fit, a state out of range, or a row that is no distribution.

    Reference:
        Zhao and Zhu (2023), Towards the fundamental limits of knowledge transfer over finite domains, arXiv
        2310.07838.
    """
    if not log_prob.is_floating_point():
        raise TypeError(f"log_prob must be floating point, got {log_prob.dtype}.")
    if log_prob.ndim != 2 or log_prob.shape[1] == 0:
        raise ValueError(f"log_prob must be (n, A), A above 0, got {tuple(log_prob.shape)}.")
    _check_ids("states", states, len(log_prob), n_states)
    q = log_prob.detach().double().softmax(1)
    if bool(q.isnan().any()):
        raise ValueError("log_prob has NaN, +inf, or a row of -inf.")
    total = torch.zeros(n_states, q.shape[1], dtype=torch.float64, device=q.device)
    return _normalised(total.index_add_(0, states.long().to(q.device), q))


def squared_logit(
    score: Tensor, labels: Tensor, log_prob: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Squared error of the student's log-probability of each sampled label: the loss of the fit above.

        L_i = ( log softmax(score_i)_a - log q(a | s_i) )^2 / 2

    For students that are no tables. It is 0 where they agree with the teacher on what was drawn.

    Args:
        score: float, (..., A): the student's logits.
        labels: integers, (...): draws from the teacher.
        log_prob: float, (...), finite and at most 0: the teacher's log-probabilities of the draws; taken as
            constants.
        reduction: "mean" over draws, "sum", or "none".

    Returns:
        The loss, in float32 at least, a scalar or (...) for "none"; +inf where the student rules out a draw.

    Raises:
        TypeError: scores or log-probabilities that are not floating point, or labels that are not integers.
        ValueError: shapes do not fit, a label or a log-probability out of range, an unknown
            reduction, or the mean over no draws.

    Reference:
        Ba and Caruana (2014), Do deep nets really need to be deep?, NeurIPS, arXiv 1312.6184 (on all logits);
        Zhao and Zhu (2023), arXiv 2310.07838 (on sampled ones). Reconstructed: the factor.
    """
    if not (score.is_floating_point() and log_prob.is_floating_point()):
        raise TypeError(f"score and log_prob must be floating point, got {score.dtype} and {log_prob.dtype}.")
    check_integers("labels", labels)
    if score.ndim == 0 or not score.shape[:-1] == labels.shape == log_prob.shape:
        raise ValueError(
            f"Wanted scores (..., A), labels and log_prob (...), got {tuple(score.shape)}, {tuple(labels.shape)} "
            f"and {tuple(log_prob.shape)}."
        )
    if labels.numel() and not (int(labels.min()) >= 0 and int(labels.max()) < score.shape[-1]):
        raise ValueError(
            f"labels must lie in 0 to {score.shape[-1] - 1}, got {int(labels.min())} to {int(labels.max())}."
        )
    given = _log_probabilities(log_prob)
    log_p = widened(score).log_softmax(-1).gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    return reduce((log_p - given.to(log_p.dtype)).square() / 2, reduction)


def _normalised(total: Tensor) -> Tensor:
    """Rows over their sums, uniform where that is 0."""
    size = total.sum(1, keepdim=True)
    return torch.where(size > 0, total / size.clamp(min=1e-300), 1 / total.shape[1])


def _log_probabilities(given: Tensor) -> Tensor:
    """Checked, as float64 constants; a little above 0 is rounding."""
    found = given.detach().double()
    if not bool((found.isfinite() & (found <= 1e-3)).all()):
        raise ValueError("Log-probabilities of drawn labels must be finite and at most 0.")
    return found


def _check_ids(name: str, ids: Tensor, size: int, limit: int) -> None:
    check_integers(name, ids)
    if limit < 1:
        raise ValueError(f"n_{name} must be at least 1, got {limit}.")
    if ids.shape != (size,):
        raise ValueError(f"{name} must be ({size},), one for each draw, got {tuple(ids.shape)}.")
    if size and not (int(ids.min()) >= 0 and int(ids.max()) < limit):
        raise ValueError(f"{name} must lie in 0 to {limit - 1}, got {int(ids.min())} to {int(ids.max())}.")


def _cells(states: Tensor, labels: Tensor, n_states: int, n_labels: int) -> Tensor:
    """Place of each draw in the flattened table."""
    _check_ids("states", states, states.numel(), n_states)
    _check_ids("labels", labels, states.numel(), n_labels)
    return states.long() * n_labels + labels.long()
