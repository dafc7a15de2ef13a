"""Coresets by sensitivity: a small weighted sample that prices every clustering, or every loss, like all rows."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Draws
from steelyard.sampling.alias import AliasTable
from steelyard.sampling.poisson import look_up

PRODUCTS = 1 << 20


def sensitivity_coreset(
    x: ArrayLike | Tensor,
    centers: ArrayLike | Tensor,
    m: int,
    *,
    z: float = 2.0,
    rule: Literal["stable", "classic"] = "stable",
    generator: torch.Generator | None = None,
) -> Draws:
    """Draw rows whose weighted clustering cost is near that of all rows, for every set of k centres.

        cost_i = |x_i - its nearest centre|^z,  C_i its cluster,  D_i = cost(C_i) / |C_i|
        "stable":   p_i = (1 / (k |C_i|) + cost_i / (k cost(C_i)) + cost_i / cost + D_i / cost) / 4
        "classic":  p_i = (cost_i / cost + 1 / (k |C_i|)) / 2

    The centres need only be good up to a constant factor, as those of `kmeans_plus_plus` are. m independent draws,
    of expected count m p_i; weights exp(-log_expected) make the cost of any centres unbiased, and their sum is
    near n. About k / eps^2 min(sqrt(k), 1 / eps^2) draws (k-means) keep every cost within 1 + eps; with "stable"
    k / eps^2 suffice where the data have clear clusters. A term without cost (all rows on their centres) gives
    its share to the uniform one over clusters.

    Args:
        x: (n, d), finite.
        centers: (k, d), finite, such as `x[kmeans_plus_plus(x, k)]`; a centre may own no row.
        m: number of draws, at least 1.
        z: power of the distance: 2 for k-means, 1 for k-medians.
        rule: which bound of the sensitivities.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (m,), a row as often as it was drawn, and the log of their expected counts.

    Raises:
        ValueError: shapes do not fit, not finite, m below 1, z not positive, or an unknown rule.

    Reference:
        Bansal, Cohen-Addad, Prabhu, Saulpic & Schwiegelshohn (2024), Sensitivity sampling for k-means: worst case
        and stability optimal coreset bounds, FOCS, arXiv 2405.01339 ("stable"); Feldman & Langberg (2011), A
        unified framework for approximating and clustering data, STOC, arXiv 1106.1379 ("classic").
    """
    if rule not in ("stable", "classic"):
        raise ValueError(f"rule must be 'stable' or 'classic', got {rule!r}.")
    cost, label, k = _assign(x, centers, z)
    size = torch.bincount(label, minlength=k).double()
    used = int((size > 0).sum())
    spread = 1 / (used * size[label])
    total = cost.sum()
    if total == 0:
        return _independent(spread, m, generator)
    share = cost / total
    if rule == "classic":
        return _independent((share + spread) / 2, m, generator)
    of_cluster = torch.zeros(k, dtype=torch.float64).index_add_(0, label, cost)
    own = of_cluster[label]
    within = torch.where(own > 0, cost / (used * own.where(own > 0, 1.0)), spread)
    return _independent((spread + within + share + own / size[label] / total) / 4, m, generator)


def clustered_sensitivity(
    x: ArrayLike | Tensor,
    centers: ArrayLike | Tensor,
    center_loss: ArrayLike | Tensor,
    m: int,
    *,
    lam: float,
    z: float = 2.0,
    generator: torch.Generator | None = None,
) -> Draws:
    """Choose training rows by the loss of their cluster's centre, so that few losses have to be computed.

        s_i = loss(c_i) + lam |x_i - c_i|^z,    p_i = s_i / sum s,    expected_i = m p_i

    with c_i the centre nearest to x_i. Then sum_{drawn} loss(x_i) / (m p_i) is unbiased for the loss of all rows
    and, if |loss(x) - loss(c)| <= lam |x - c|^z, has a standard error of at most (loss + lam Phi) / sqrt(m), with
    Phi the clustering cost sum |x_i - c_i|^z. Gradients and other sums weigh the same way.

    Args:
        x: embeddings of the rows, (n, d), finite.
        centers: (k, d), finite, rows of x as a rule, so that their loss can be computed.
        center_loss: (k,), finite and not negative.
        m: number of draws, at least 1.
        lam: how much the loss may change with the distance, at least 0; 0 trusts the centres, and a row whose
            centre has no loss is then never drawn.
        z: power of the distance, above 0.
        generator: source of randomness; torch's own where None.

    Returns:
        Draws with ids (m,), a row as often as it was drawn, and the log of their expected counts.

    Raises:
        ValueError: shapes do not fit, not finite, a negative loss or lam, all scores 0, m below 1 or z not positive.

    Reference:
        Axiotis, Cohen-Addad, Henzinger, Jerome, Mirrokni, Saulpic, Woodruff & Wunder (2024), Data-efficient
        learning via clustering-based sensitivity sampling, ICML, arXiv 2402.17327. Reconstructed from its abstract.
    """
    cost, label, k = _assign(x, centers, z)
    loss = torch.as_tensor(center_loss).detach().cpu().double()
    if loss.shape != (k,):
        raise ValueError(f"center_loss must be ({k},), one for each centre, got {tuple(loss.shape)}.")
    if not bool((loss.isfinite() & (loss >= 0)).all()) or not 0 <= lam < math.inf:
        raise ValueError("Losses of centres and lam must be finite and not negative.")
    score = loss[label] + lam * cost
    if not bool((score > 0).any()):
        raise ValueError("Every score is 0: no centre has a loss, and lam or all distances are 0.")
    return _independent(score, m, generator)


def _assign(x: ArrayLike | Tensor, centers: ArrayLike | Tensor, z: float) -> tuple[Tensor, Tensor, int]:
    """Distance^z to the nearest centre in float64, (n,), the number of that centre, (n,), and of all centres."""
    rows, c = torch.as_tensor(x).detach().cpu(), torch.as_tensor(centers).detach().cpu()
    if rows.ndim != 2 or c.ndim != 2 or rows.shape[1] != c.shape[1] or 0 in rows.shape or len(c) == 0:
        raise ValueError(
            f"x (n, d) and centers (k, d) must share d and not be empty, got {tuple(rows.shape)} and {tuple(c.shape)}."
        )
    if not 0 < z < math.inf:
        raise ValueError(f"z must be positive and finite, got {z}.")
    dtype = torch.float64 if torch.float64 in (rows.dtype, c.dtype) else torch.float32
    origin = c[:1].to(dtype)
    rows, c = rows.to(dtype) - origin, c.to(dtype) - origin
    if not bool(rows.isfinite().all() and c.isfinite().all()):
        raise ValueError("x and centers must be finite.")
    half = c.square().sum(1) / -2
    cost, label = torch.empty(len(rows), dtype=torch.float64), torch.empty(len(rows), dtype=torch.int64)
    step = max(1, PRODUCTS // len(c))
    for low in range(0, len(rows), step):
        part = rows[low : low + step]
        nearest = torch.addmm(half, part, c.T).argmax(1)
        label[low : low + step] = nearest
        # By differences: the product loses the digits of a distance much below the norm.
        cost[low : low + step] = (part - c[nearest]).double().norm(dim=1) ** z
    return cost, label, len(c)


def _independent(score: Tensor, m: int, generator: torch.Generator | None) -> Draws:
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}.")
    table = AliasTable(score)
    log_expected = table.log_probability + np.log(m)
    ids = table.sample(m, generator=generator)
    return Draws(ids, log_expected[ids], lambda asked: look_up(log_expected, asked, -math.inf))
