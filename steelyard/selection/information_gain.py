"""Instruction data that covers a graph of labels: quality-weighted information with diminishing returns."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.sampling.successive import njit

TINY = 1e-6


def propagation(similarity: ArrayLike | Tensor, *, strength: float = 1.0, threshold: float = 0.0) -> Tensor:
    """How much of a label's information reaches each other label.

        a_kl = s_kl where s_kl > threshold, else 0;  a_kk = 1
        P = (I + strength (A - I)), every column divided by its sum

    Args:
        similarity: of labels, (L, L), such as cosines of their names' vectors.
        strength: weight of the edges against a label itself, at least 0; 0 gives the identity.
        threshold: similarities up to here are no edge.

    Returns:
        (L, L): row k sends its information to the columns.

    Raises:
        ValueError: not square, not finite, or a negative strength.

    Reference:
        Chen, Li, Hu, Ma, Ye and Chen (2025), MIG: Automatic data selection for instruction tuning by maximizing
        information gain in semantic space, arXiv 2504.13835; the normalisation as in the authors' code.
    """
    s = torch.as_tensor(similarity)
    if s.ndim != 2 or s.shape[0] != s.shape[1] or not bool(torch.isfinite(s).all()):
        raise ValueError(f"similarity must be a finite square matrix, got shape {tuple(s.shape)}.")
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be finite and not negative, got {strength}.")
    a = strength * torch.where(s > threshold, s, 0.0).double()
    a.fill_diagonal_(1.0)
    return a / a.sum(0)


def maximise_information(
    labels: ArrayLike | Tensor,
    quality: ArrayLike | Tensor,
    n: int,
    *,
    spread: ArrayLike | Tensor | None = None,
    power: float = 0.8,
) -> tuple[Tensor, Tensor]:
    """Keep n rows that greedily maximise the information on all labels.

        E(S) = sum_l phi(sum_{i in S} (q_i v_i P)_l),   phi(x) = (x + 1e-6)^power
        S <- S + argmax_i E(S + i) - E(S)

    phi bends, so that a label that is well covered adds less: quality and diversity in one number. E is monotone and
    submodular, and a bound of old gains spares most rows a look (lazy greedy). Ties go to the smaller id.

    Args:
        labels: indicators of each row's labels, not negative, (N, L).
        quality: not negative, (N,).
        n: rows to keep, at most N.
        spread: P of `propagation`, (L, L); labels stand alone where None.
        power: in (0, 1]; at 1 the rows of largest `sum_l q_i (v_i P)_l` are kept.

    Returns:
        Ids in the order of selection, (n,), and the gain of each, float64.

    Raises:
        TypeError: `n` is not an integer.
        ValueError: shapes that do not fit, negative or not finite numbers, or settings outside their range.

    Reference:
        Chen et al. (2025), arXiv 2504.13835. Their code takes the first-order gain, v_i P phi'; this is the gain.
    """
    v, q, n = torch.as_tensor(labels).double(), torch.as_tensor(quality).double(), operator.index(n)
    if v.ndim != 2 or q.shape != (len(v),):
        raise ValueError(f"labels of shape {tuple(v.shape)} do not fit quality of shape {tuple(q.shape)}.")
    if not 0 <= n <= len(v):
        raise ValueError(f"n must lie between 0 and the {len(v)} rows, got {n}.")
    if not 0 < power <= 1:
        raise ValueError(f"power must lie in (0, 1], got {power}.")
    p = None if spread is None else torch.as_tensor(spread).double()
    if p is not None and p.shape != (v.shape[1], v.shape[1]):
        raise ValueError(f"spread of shape {tuple(p.shape)} does not fit {v.shape[1]} labels.")
    for name, x in (("labels", v), ("quality", q), ("spread", p)):
        if x is not None and not bool((torch.isfinite(x) & (x >= 0)).all()):
            raise ValueError(f"{name} must be finite and not negative.")
    sent = q.unsqueeze(1) * (v if p is None else v @ p)
    ids, gains = _greedy(np.ascontiguousarray(sent.numpy()), n, power, TINY)
    return torch.from_numpy(ids), torch.from_numpy(gains)


@njit
def _greedy(sent: Any, n: int, power: float, tiny: float) -> Any:
    """Lazy greedy with gains of earlier rounds as bounds, in a scan: the row with the largest bound is asked anew
    until its own gain stands above all bounds."""
    rows, size = sent.shape
    bound = np.full(rows, np.inf)
    asked = np.full(rows, -1)
    held = np.zeros(size)
    value = np.full(size, tiny**power)
    ids, gains = np.empty(n, np.int64), np.empty(n)
    for step in range(n):
        while True:
            best = 0
            for i in range(1, rows):
                if bound[i] > bound[best]:
                    best = i
            if asked[best] == step:
                break
            gain = 0.0
            for j in range(size):
                if sent[best, j] > 0:
                    gain += (held[j] + sent[best, j] + tiny) ** power - value[j]
            bound[best] = gain
            asked[best] = step
        ids[step], gains[step] = best, bound[best]
        for j in range(size):
            held[j] += sent[best, j]
            value[j] = (held[j] + tiny) ** power
        bound[best] = -1.0
        asked[best] = -1
    return ids, gains
