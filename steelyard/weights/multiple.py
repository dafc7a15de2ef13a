"""Multiple importance sampling: draws of several designs in one estimate, each with its share of a point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steelyard.draws import Draws, Weighted
from steelyard.weights.normalizing import as_given

Heuristic = Callable[[Tensor, Tensor], Tensor]


def balance_heuristic(log_q: Tensor, counts: Tensor | None = None) -> Tensor:
    """Share of each design in a point: its share of the expected draws there.

        h_j(x) = n_j q_j(x) / sum_l n_l q_l(x)

    The weight `p h_j / (n_j q_j)` is then `p / sum_l n_l q_l` whichever design drew the point: that of a
    deterministic mixture. No unbiased combination by shares that are not negative has a variance lower by
    more than `(1 / min n_j - 1 / sum n_j) mu^2`. `Draws.merge` gives these weights.

    Args:
        log_q: log-densities, (..., J, n): of each design at each point; -inf where it never draws.
        counts: (J,) or (..., J), number of draws n_j of each design; 1 where not given, as when `log_q` holds
            log expected counts.

    Returns:
        log h, (..., J, n), the shares of each point summing to one; -inf for all where no design draws it.

    Raises:
        TypeError: `log_q` is not floating point.
        ValueError: NaN or +inf in `log_q`, no design, or counts that are not finite, negative,
            all zero, or of another shape.

    Reference:
        Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH;
        Owen & Zhou (2000), Safe and effective importance sampling, JASA 95 (mixture).
    """
    return _shares(_expected(log_q, counts))


def power_heuristic(log_q: Tensor, counts: Tensor | None = None, *, beta: float = 2.0) -> Tensor:
    """Balance heuristic with sharper shares, good where one design is much the best.

        h_j(x) = (n_j q_j(x))^beta / sum_l (n_l q_l(x))^beta

    beta = 1 is the balance heuristic, beta to infinity the maximum heuristic.

    Args:
        log_q: log-densities, (..., J, n): of each design at each point; -inf where it never draws.
        counts: (J,) or (..., J), number of draws of each design; 1 where not given.
        beta: exponent, positive.

    Returns:
        log h, (..., J, n), the shares of each point summing to one; -inf for all where no design draws it.

    Raises:
        TypeError: `log_q` is not floating point.
        ValueError: as for `balance_heuristic`, or an exponent that is not positive and finite.

    Reference:
        Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH.
    """
    if not 0 < beta < math.inf:
        raise ValueError(f"The exponent of the power heuristic is positive and finite, got {beta}.")
    expected = _expected(log_q, counts)
    top = expected.detach().amax(-2, keepdim=True)
    return _shares(
        beta * (expected - top.where(top > -math.inf, 0.0))
    )  # shifted first, lest the product overflow


def maximum_heuristic(log_q: Tensor, counts: Tensor | None = None) -> Tensor:
    """Each point belongs to the design that is likeliest to draw it.

        h_j(x) = 1 if n_j q_j(x) = max_l n_l q_l(x), else 0

    Designs that tie share the point equally.

    Args:
        log_q: log-densities, (..., J, n): of each design at each point; -inf where it never draws.
        counts: (J,) or (..., J), number of draws of each design; 1 where not given.

    Returns:
        log h, (..., J, n), the shares of each point summing to one; -inf for all where no design draws it.

    Raises:
        TypeError: `log_q` is not floating point.
        ValueError: as for `balance_heuristic`.

    Reference:
        Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH
        (ties shared: ours).
    """
    expected = _expected(log_q, counts)
    best = (expected == expected.amax(-2, keepdim=True)) & (expected > -math.inf)
    return _shares(torch.zeros_like(expected).where(best, -math.inf))


def cutoff_heuristic(log_q: Tensor, counts: Tensor | None = None, *, alpha: float = 0.1) -> Tensor:
    """Balance heuristic among the designs that are not negligible at a point.

        h_j(x) = n_j q_j(x) / sum_{l kept} n_l q_l(x),    kept: n_l q_l(x) >= alpha max_k n_k q_k(x)

    alpha = 0 is the balance heuristic, alpha = 1 the maximum heuristic.

    Args:
        log_q: log-densities, (..., J, n): of each design at each point; -inf where it never draws.
        counts: (J,) or (..., J), number of draws of each design; 1 where not given.
        alpha: share of the largest expected count below which a design gets nothing, in [0, 1].

    Returns:
        log h, (..., J, n), the shares of each point summing to one; -inf for all where no design draws it.

    Raises:
        TypeError: `log_q` is not floating point.
        ValueError: as for `balance_heuristic`, or an alpha outside [0, 1].

    Reference:
        Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"The cut-off is a share between 0 and 1, got {alpha}.")
    expected = _expected(log_q, counts)
    lowest = expected.amax(-2, keepdim=True) + (math.log(alpha) if alpha > 0 else -math.inf)
    return _shares(expected.where(expected >= lowest, -math.inf))


def partial_mixture(log_q: Tensor, counts: Tensor | None = None, *, groups: Tensor) -> Tensor:
    """Balance heuristic inside groups of designs, each group an estimate of its own.

        h_j(x) = (N_g / N) n_j q_j(x) / sum_{l in g} n_l q_l(x),    g: the group of j, N_g = sum_{l in g} n_l

    One group is the balance heuristic. A group for each design is standard multiple importance sampling,
    where each draw is weighed by its own design: `p / (N q_j)`. A draw needs the densities of its own
    group only; those of the others may be set to -inf.

    Unbiased only where each group can draw all that matters: where one cannot, the shares sum to less than
    one, and its part of the estimate is missing.

    Args:
        log_q: log-densities, (..., J, n): of each design at each point; -inf where it never draws.
        counts: (J,) or (..., J), number of draws of each design; 1 where not given.
        groups: int64, (J,): number of the group of each design.

    Returns:
        log h, (..., J, n); -inf for all of a group that never draws the point.

    Raises:
        TypeError: `log_q` is not floating point.
        ValueError: as for `balance_heuristic`, or not one group for each design.

    Reference:
        Elvira, Martino, Luengo & Bugallo (2015), Efficient multiple importance sampling estimators, IEEE
        Signal Processing Letters 22(10), doi 10.1109/LSP.2015.2432078; (2019), Generalized multiple importance
        sampling, Statistical Science 34(1), arXiv 1511.03095 (standard and full mixture).
    """
    expected = _expected(log_q, counts)
    designs = expected.shape[-2]
    groups = torch.as_tensor(groups, device=expected.device)
    if groups.shape != (designs,):
        raise ValueError(f"Give one group for each of {designs} designs, got shape {tuple(groups.shape)}.")
    n = torch.ones(designs) if counts is None else torch.as_tensor(counts)
    n = n.to(expected.device).double()
    share = torch.full_like(expected, -math.inf)
    for group in set(groups.tolist()):
        of_group = groups == group
        part = (n[..., of_group].sum(-1) / n.sum(-1)).log()
        share[..., of_group, :] = _shares(expected[..., of_group, :]) + part[..., None, None].to(expected)
    return share


def multiple_importance(
    log_p: Tensor,
    log_q: Tensor,
    origin: Tensor,
    *,
    heuristic: Heuristic = balance_heuristic,
) -> Tensor:
    """Log-weights of draws of several designs taken together.

        w_i = N h_j(x_i) p(x_i) / (n_j q_j(x_i)),    j the design that drew x_i

    `(1/N) sum_i w_i f(x_i)` is unbiased for the integral of p f wherever the shares h sum to one at each
    point that matters and are zero where the design cannot draw. Such weights go into `expectation`, whose
    standard error takes the N draws as if each had picked its design by chance, which is not too small.

    Args:
        log_p: log-density of the target at the draws, (..., N), up to a constant if self-normalised.
        log_q: log-densities of the J designs at all draws, (..., J, N); -inf where one never draws.
        origin: int64, (N,) or (..., N): which design drew each.
        heuristic: shares from `log_q` and the counts, such as `power_heuristic` or
            `functools.partial(power_heuristic, beta=3)`.

    Returns:
        Log-weights, (..., N).

    Raises:
        TypeError: `log_q` is not floating point, or `origin` not int64.
        ValueError: no draws, NaN or +inf, shapes that do not belong together, an origin that is not the number of a
            design, or a draw of density zero under its own design.

    Reference:
        Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH
        (the multi-sample estimator).
    """
    log_p, log_q, origin = as_given(log_p), as_given(log_q), torch.as_tensor(origin)
    if origin.dtype != torch.int64:
        raise TypeError(f"The origin of draws is an int64 number of a design, got {origin.dtype}.")
    if log_q.ndim < 2 or origin.shape[-1:] != log_q.shape[-1:] or log_p.shape[-1:] != log_q.shape[-1:]:
        raise ValueError(
            f"Densities of designs are (..., J, N): got {tuple(log_q.shape)}, with a target of shape "
            f"{tuple(log_p.shape)} and an origin of shape {tuple(origin.shape)}."
        )
    try:
        torch.broadcast_shapes(log_p.shape[:-1], log_q.shape[:-2], origin.shape[:-1])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(
            f"Leading dimensions do not broadcast: log_p {tuple(log_p.shape)}, log_q {tuple(log_q.shape)}, "
            f"origin {tuple(origin.shape)}."
        ) from None
    if log_q.shape[-1] == 0:
        raise ValueError("There is no draw to weigh.")
    if not bool((log_p < math.inf).all()):
        raise ValueError("The target's log-density has NaN or +inf; -inf is where it is zero.")
    designs = torch.arange(log_q.shape[-2], device=origin.device)
    mine = origin.unsqueeze(-2) == designs.unsqueeze(-1)
    if not bool(mine.any(-2).all()):
        raise ValueError(
            f"An origin is the number of one of {len(designs)} designs, 0 to {len(designs) - 1}."
        )
    counts = mine.sum(-1)
    own = (log_q + counts.to(log_q).log().unsqueeze(-1)).where(mine, -math.inf).amax(-2)
    if bool((own == -math.inf).any()):
        raise ValueError("A draw has density zero under the design that drew it.")
    share = heuristic(log_q, counts).where(mine, -math.inf).amax(-2)
    return log_p + math.log(log_q.shape[-1]) + share - own


def merge_weighted(
    draws: Sequence[Draws], scores: Sequence[Tensor], *, heuristic: Heuristic = balance_heuristic
) -> Weighted[Tensor]:
    """Draws of several designs weighed together under weights `exp(score)`, by any heuristic.

        log_weight = score + log h_j - log expected_j,    j the design that drew the candidate

    With the balance heuristic the same as `Draws.merge(draws).weigh(...)`. The sum of the weights is unbiased
    for the sum over the catalogue of `exp(score)`, if the designs together can draw all of it.

    Args:
        draws: J of them; leading dimensions broadcast against each other.
        scores: score of each candidate, broadcastable to the ids, one tensor for each of `draws`.
        heuristic: shares from log-densities and numbers of draws, such as `power_heuristic`.

    Returns:
        All ids side by side, (..., sum of n), their log-weights, and the logsumexp of these; an empty slot
        weighs nothing.

    Raises:
        ValueError: nothing to merge, not one score for each, shapes that do not broadcast, or a candidate
            that its own design never draws.

    Reference:
        Veach & Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH.
    """
    if len(draws) != len(scores):
        raise ValueError(f"Give scores for each of {len(draws)} draws, got {len(scores)}.")
    ids = Draws.merge(draws).ids
    lead = ids.shape[:-1]

    def together(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([p.expand(*lead, d.ids.shape[-1]) for p, d in zip(parts, draws, strict=True)], -1)

    own = together([d.log_expected for d in draws])
    score = together(scores)
    if bool((own == -math.inf).any()):
        raise ValueError("A candidate was drawn that its own design never draws (log_expected of -inf).")
    counts = torch.tensor([d.ids.shape[-1] for d in draws], device=ids.device)
    expected = torch.stack([d.log_expected_of(ids).expand(ids.shape) for d in draws], -2)
    share = heuristic(expected - counts.to(expected).log().unsqueeze(-1), counts)
    origin = torch.repeat_interleave(torch.arange(len(draws), device=ids.device), counts)
    share = share.gather(-2, origin.expand(ids.shape).unsqueeze(-2)).squeeze(-2)
    log_weight = (score + share - own).masked_fill(own == math.inf, -math.inf)
    return Weighted(ids, log_weight, log_weight.logsumexp(-1))


def _expected(log_q: Tensor, counts: Tensor | None) -> Tensor:
    """log (n_j q_j), checked."""
    log_q = as_given(log_q)
    if not log_q.is_floating_point():
        raise TypeError(f"Log-densities must be floating point, got {log_q.dtype}.")
    if log_q.ndim < 2 or log_q.shape[-2] == 0:
        raise ValueError(f"Log-densities are (..., designs, draws), got shape {tuple(log_q.shape)}.")
    if not bool((log_q < math.inf).all()):
        raise ValueError("Log-densities have NaN or +inf.")
    if counts is None:
        return log_q
    n = torch.as_tensor(counts, device=log_q.device)
    if n.shape[-1:] != log_q.shape[-2:-1]:
        raise ValueError(f"Give a count for each of {log_q.shape[-2]} designs, got shape {tuple(n.shape)}.")
    if not bool(((n >= 0) & (n < math.inf)).all()):
        raise ValueError("Numbers of draws must be finite and not negative.")
    if not bool((n.sum(-1) > 0).all()):
        raise ValueError("Numbers of draws are all zero: no design drew anything.")
    try:
        return log_q + n.double().log().unsqueeze(-1).to(log_q)
    except RuntimeError:
        raise ValueError(
            f"Counts of shape {tuple(n.shape)} do not belong to log-densities of shape {tuple(log_q.shape)}."
        ) from None


def _shares(log_size: Tensor) -> Tensor:
    """Sizes of designs made to sum to one at each point, unless all are zero."""
    some = (log_size > -math.inf).any(-2, keepdim=True)
    return torch.log_softmax(log_size.where(some, 0.0), -2).where(some, -math.inf)
