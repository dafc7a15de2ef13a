"""Leverage scores and l_p sensitivities: which rows of a matrix a regression cannot do without."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.pivotal import pivotal
from steelyard.sampling.poisson import look_up, poisson, proportional_inclusion

VALUES = 1 << 22  # float64 values held at a time: 32 MB
STEPS = 1000


def orthonormal_basis(a: ArrayLike | Tensor) -> Tensor:
    """Orthonormal columns that span the columns of a matrix.

    Columns are brought to unit length first, so that their scale does not decide the rank; directions below
    max(n, d) times the precision of float64, relative to the largest, count as none.

    Args:
        a: (n, d), finite.

    Returns:
        float64, (n, rank) on the CPU.

    Raises:
        ValueError: not two-dimensional, without rows or columns, or not finite.
    """
    matrix = torch.as_tensor(a).detach().cpu().double()
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"a must be (n, d) with n and d at least 1, got shape {tuple(matrix.shape)}.")
    finite = matrix.isfinite().all(1)
    if not bool(finite.all()):
        raise ValueError(f"a must be finite; look at row {int((~finite).nonzero()[0])}.")
    largest = matrix.abs().amax(0)
    matrix = matrix / largest.where(largest > 0, 1.0)
    length = matrix.norm(dim=0)
    q, r = torch.linalg.qr(matrix / length.where(length > 0, 1.0))
    u, s, _ = torch.linalg.svd(r, full_matrices=False)
    rank = int((s > max(matrix.shape) * torch.finfo(torch.float64).eps * s[0]).sum())
    basis: Tensor = q @ u[:, :rank]
    return basis


def leverage_scores(a: ArrayLike | Tensor) -> Tensor:
    """How much each row of a matrix decides its own fitted value in least squares.

        tau_i = a_i^T (A^T A)^+ a_i = max_x (a_i x)^2 / |A x|^2

    Between 0 and 1, with the rank of A as their sum. O(n d^2).

    Args:
        a: (n, d), finite; columns may depend on each other.

    Returns:
        float64, (n,).

    Raises:
        ValueError: not two-dimensional, without rows or columns, or not finite.

    Reference:
        Drineas, Mahoney & Muthukrishnan (2006), Sampling algorithms for l2 regression and applications, SODA.
    """
    return orthonormal_basis(a).square().sum(1).clamp_(max=1)  # rounding alone exceeds 1


def root_leverage_scores(a: ArrayLike | Tensor, p: float) -> Tensor:
    """Leverage scores to the power p/2: sampling weights for l_p regression without any l_p optimisation.

        q_i proportional to tau_i^(p/2)

    For 1 <= p < 2, `poisson(root_leverage_scores(a, p).log(), m)` with rows scaled by q_i^(-1/p) preserves every
    |A x|_p with about d rows times (n / d)^(1 - p/2), however the rows are scaled.

    Args:
        a: (n, d), finite.
        p: at least 1 and below 2; at 2 these would be the leverage scores.

    Returns:
        float64, (n,), not normalised.

    Raises:
        ValueError: p outside [1, 2], or `a` not a finite matrix.

    Reference:
        Woodruff & Yasuda (2023), Sharper bounds for l_p sensitivity sampling, ICML, arXiv 2306.00732.
    """
    if not 1 <= p <= 2:
        raise ValueError(f"Root leverage scores are for p from 1 to 2, got {p}; use lp_sensitivities.")
    return leverage_scores(a) ** (p / 2)


def lp_sensitivities(a: ArrayLike | Tensor, p: float, *, rtol: float = 1e-2) -> Tensor:
    """The largest share of each row in |A x|_p^p.

        s_i = max_x |a_i x|^p / |A x|_p^p = 1 / min {|A x|_p^p : a_i x = 1}

    Leverage scores at p = 2. For p < 2 their sum is at most d, for p > 2 at most d^(p/2). To sample rows for l_p
    regression or a subspace embedding: `poisson(lp_sensitivities(a, p).log(), m)`, rows scaled by q_i^(-1/p).

    Each minimum is found by reweighted least squares (p < 2) or Newton's method (p > 2). A weighted solution t
    with weights w also gives a dual bound, |A x|_p >= sum w t^2 / |w t|_q with 1/p + 1/q = 1, and a row is done
    when both bounds agree. What is returned is the larger one, which errs on the safe side. That takes about
    10 to 100 solutions of O(n d^2) for each of n rows: minutes for 10,000 rows; `root_leverage_scores` are cheap.

    Args:
        a: (n, d), finite.
        p: at least 1 and finite.
        rtol: how far a sensitivity may be above the true one, as a part of it.

    Returns:
        float64, (n,), between 0 and 1.

    Raises:
        ValueError: p or rtol out of range, or `a` not a finite matrix.
        ArithmeticError: bounds did not meet in 1000 steps; allow a larger rtol.

    Reference:
        Woodruff & Yasuda (2023), Sharper bounds for l_p sensitivity sampling, ICML, arXiv 2306.00732. How the
        maxima are found is ours.
    """
    if not 1 <= p < math.inf:
        raise ValueError(f"p must be at least 1 and finite, got {p}.")
    if not 0 < rtol < 1:
        raise ValueError(f"rtol must lie strictly between 0 and 1, got {rtol}.")
    basis = orthonormal_basis(a)
    leverage = basis.square().sum(1).clamp_(max=1)
    if p == 2:
        return leverage
    result = torch.zeros_like(leverage)
    if basis.numel() == 0:  # a matrix of zeros
        return result
    rows = leverage.nonzero()[:, 0]
    step = max(1, VALUES // basis.numel())
    for low in range(0, len(rows), step):
        part = rows[low : low + step]
        result[part] = _sensitivities(basis, part, p, rtol)
    return result


def _sensitivities(basis: Tensor, rows: Tensor, p: float, rtol: float) -> Tensor:
    """Upper bounds of the sensitivities of some rows, tight to rtol."""
    own = basis[rows]
    fit = own / own.square().sum(1, keepdim=True)  # the minimum at p = 2
    t = fit @ basis.T
    primal = _norm(t, p)
    dual = torch.zeros_like(primal)
    smooth = t.abs().amax(1, keepdim=True)
    active = torch.arange(len(rows))
    for _ in range(STEPS):
        w = _weights(t[active], smooth[active], p)
        solved, new = _weighted_minimum(basis, own[active], w)
        stationary = w * new
        dual[active] = dual[active].maximum(
            (stationary * new).sum(1) / _norm(stationary, p / (p - 1) if p > 1 else math.inf)
        )
        if p > 2:
            solved, new = _descend(basis, fit[active], t[active], solved, primal[active], p)
        fit[active], t[active] = solved, new
        primal[active] = primal[active].minimum(_norm(new, p))
        # Not below what the bounds still disagree on, or the weights would freeze before they are right.
        smooth[active] = ((primal[active] - dual[active]) / len(basis) ** (1 / p))[:, None]
        active = active[(primal[active] / dual[active]) ** p > 1 + rtol]
        if len(active) == 0:
            return dual.pow(-p).clamp_(max=1)
    raise ArithmeticError(
        f"l_{p} sensitivities did not settle to rtol={rtol} in {STEPS} steps; allow a larger one."
    )


def _norm(t: Tensor, p: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(t, p, 1)
    return norm


def _weights(t: Tensor, smooth: Tensor, p: float) -> Tensor:
    """Those of least squares that make its solution stationary for |t|_p^p, with a floor under small t."""
    largest = t.abs().amax(1, keepdim=True)
    floor = smooth.maximum(largest * 1e-9) if p < 2 else largest * 1e-6
    return ((t.square() + floor.square()) / largest.square()) ** (p / 2 - 1)


def _weighted_minimum(basis: Tensor, own: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """argmin sum w (U y)^2 with own.y = 1, and U y, for each row of w."""
    rank = basis.shape[1]
    gram = torch.zeros(len(w), rank * rank, dtype=torch.float64)
    step = max(1, VALUES // rank**2)
    for low in range(0, len(basis), step):
        part = basis[low : low + step]
        gram += w[:, low : low + step] @ (part[:, :, None] * part[:, None]).flatten(1)
    gram = gram.view(-1, rank, rank)
    scale = gram.diagonal(dim1=1, dim2=2).mean(1)
    gram += (scale * 1e-14)[:, None, None] * torch.eye(rank, dtype=torch.float64)
    direction = torch.linalg.solve(gram, own)
    y = direction / (direction * own).sum(1, keepdim=True)
    return y, y @ basis.T


def _descend(
    basis: Tensor, fit: Tensor, t: Tensor, target: Tensor, primal: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Newton's step, which is 1 / (p - 1) of the way to the weighted solution, halved until it descends."""
    length = torch.full((len(fit), 1), 1 / (p - 1), dtype=torch.float64)
    best, best_t = fit, t
    for _ in range(30):
        y = fit + length * (target - fit)
        new = y @ basis.T
        good = (_norm(new, p) < primal)[:, None]
        best, best_t = torch.where(good, y, best), torch.where(good, new, best_t)
        if bool(good.all()):
            break
        length = torch.where(good, length, length / 2)
    return best, best_t


def tree_order(x: ArrayLike | Tensor) -> Tensor:
    """Order points along the leaves of a tree of halves, so that neighbours in the order are near in space.

    Each set is split into two of equal size at the median of its first principal component, until points stand
    alone. `pivotal(inclusion[order], order="given")` then spreads a draw in space. O(n log n (d^2 + d^3)).

    Args:
        x: (n, d), finite.

    Returns:
        int64, (n,): the point numbers in the order of the leaves.

    Raises:
        ValueError: not two-dimensional, without columns or not finite.

    Reference:
        Shimizu, Cheng, Musco & Weare (2024), Improved active learning via dependent leverage score sampling,
        ICLR, arXiv 2310.04966, algorithm 2.
    """
    points = torch.as_tensor(x).detach().cpu().double().numpy()
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"x must be (n, d) with d at least 1, got shape {points.shape}.")
    if not np.isfinite(points).all():
        raise ValueError("x must be finite: a point has NaN or an infinite coordinate.")
    # One power of two for all columns leaves the directions as they are and keeps squares in range.
    points = np.ldexp(points, -int(np.frexp(np.abs(points).max(initial=0))[1]))
    order = np.arange(len(points))
    # All sets of a level have one of two sizes; those of one size are split at once.
    starts, size = np.zeros(1, np.int64), np.full(1, len(points))
    while len(size) and size.max() > 1:
        for length in np.unique(size[size > 1]):
            mine = starts[size == length]
            step = max(1, VALUES // (int(length) * max(1, points.shape[1])))
            for low in range(0, len(mine), step):
                places = mine[low : low + step, None] + np.arange(length)
                order[places] = np.take_along_axis(order[places], _halves(points[order[places]]), 1)
        left = (size + 1) // 2
        starts = np.stack([starts, starts + left], 1).reshape(-1)
        size = np.stack([left, size - left], 1).reshape(-1)
        starts, size = starts[size > 1], size[size > 1]
    return torch.from_numpy(order)


def _halves(sets: NDArray[Any]) -> NDArray[np.int64]:
    """For each of several sets of points the order in which the lower half of the main direction comes first."""
    centered = sets - sets.mean(1, keepdims=True)
    # The smaller of the two matrices that share their largest eigenvalue.
    if sets.shape[1] < sets.shape[2]:
        projected = np.linalg.eigh(centered @ centered.swapaxes(1, 2))[1][:, :, -1]
    else:
        main = np.linalg.eigh(centered.swapaxes(1, 2) @ centered)[1][:, :, -1:]
        projected = (centered @ main)[:, :, 0]
    return np.argpartition(projected, (sets.shape[1] - 1) // 2, 1)


def leverage_sampling(
    a: ArrayLike | Tensor,
    m: int,
    *,
    design: Literal["pivotal", "poisson"] = "pivotal",
    x: ArrayLike | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Draws:
    """Choose the rows whose targets to ask for, with probability in proportion to their leverage.

        pi_i = min(1, c tau_i),  c such that the sum is m

    Label the rows drawn and fit by `weighted_least_squares(a[ids], y, log_expected)`. About d log d + d / eps
    labels bring the squared error within 1 + eps of the best fit's, whatever the targets are. The pivotal design
    also spreads the rows in space and commonly needs a half fewer than independent coins ("poisson").

    The duels of "pivotal" run along the leaves of the points' tree; the paper's go up the tree. Either way the
    inclusion probabilities are exact, the size is m, and only neighbours compete.

    Args:
        a: features, (n, d), finite.
        m: rows to draw: fixed with "pivotal", expected with "poisson"; at most those of leverage above 0.
        design: "pivotal" or "poisson".
        x: coordinates in which "pivotal" spreads the rows, (n, d'); the features where None.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (m,), ascending, and the log of their inclusion probabilities.

    Raises:
        ValueError: an unknown design, m out of range, or a matrix of the wrong shape or not finite.

    Reference:
        Shimizu, Cheng, Musco & Weare (2024), Improved active learning via dependent leverage score sampling,
        ICLR, arXiv 2310.04966.
    """
    if design not in ("pivotal", "poisson"):
        raise ValueError(f"design must be 'pivotal' or 'poisson', got {design!r}.")
    log_score = leverage_scores(a).log()
    if design == "poisson":
        return poisson(log_score, m, generator=generator)
    log_inclusion = proportional_inclusion(log_score, m)
    points = torch.as_tensor(a if x is None else x)
    if points.ndim != 2 or len(points) != len(log_score):
        raise ValueError(
            f"x must be ({len(log_score)}, d), one point for each row, got {tuple(points.shape)}."
        )
    open_ids = ((log_inclusion < 0) & (log_inclusion > -math.inf)).nonzero()[:, 0]
    certain = (log_inclusion == 0).nonzero()[:, 0]
    order = open_ids[tree_order(points[open_ids])]
    won = order[pivotal(log_inclusion[order].exp(), order="given", generator=generator).ids]
    ids = torch.cat([certain, won]).sort().values
    return Draws(ids, log_inclusion[ids], lambda asked: look_up(log_inclusion, asked, -math.inf))


def weighted_least_squares(
    a: ArrayLike | Tensor, y: ArrayLike | Tensor, log_expected: ArrayLike | Tensor
) -> Tensor:
    """Least squares on drawn rows, each weighed by what it stands for.

        argmin_x sum_i (a_i x - y_i)^2 / expected_i

    Args:
        a: features of the rows drawn, (s, d).
        y: their targets, (s,) or (s, q).
        log_expected: log of their expected counts, (s,), as in `Draws`; +inf marks an empty slot.

    Returns:
        float64, (d,) or (d, q): the solution of least norm where there are several.

    Raises:
        ValueError: shapes do not fit, or a value is not finite.

    Reference:
        Drineas, Mahoney & Muthukrishnan (2006), Sampling algorithms for l2 regression and applications, SODA.
    """
    a, y, log_expected = torch.as_tensor(a), torch.as_tensor(y), torch.as_tensor(log_expected)
    if (
        a.ndim != 2
        or y.ndim not in (1, 2)
        or log_expected.ndim != 1
        or not len(a) == len(y) == len(log_expected) > 0
    ):
        raise ValueError(
            f"a (s, d), y (s,) or (s, q) and log_expected (s,) must share s above 0, got {tuple(a.shape)}, "
            f"{tuple(y.shape)} and {tuple(log_expected.shape)}."
        )
    scale = (log_expected.double() / -2).exp()[:, None]
    rows, targets = scale * a.double(), scale * y.double().reshape(len(y), -1)
    if not bool(rows.isfinite().all() and targets.isfinite().all()):
        raise ValueError("a, y and the weights must be finite: is an expected count 0, or an empty slot NaN?")
    solution: Tensor = torch.linalg.lstsq(rows, targets, driver="gelsd").solution
    return solution[:, 0] if y.ndim == 1 else solution
