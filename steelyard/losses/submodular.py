"""Losses that are set functions: how much information the classes of a batch hold, apart or in common."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from steelyard.losses.pairs import check_integers, check_number, widened

SetFunction = Literal["graph cut", "facility location", "log det"]


def set_value(kernel: Tensor, members: Tensor, function: SetFunction, *, trade_off: float = 0.5) -> Tensor:
    """Value of a submodular function of a set of a batch's members.

        graph cut:          f(A) = sum_{i in V} sum_{j in A} S_ij - lambda sum_{i, j in A} S_ij
        facility location:  f(A) = sum_{i in V} max_{j in A} S_ij
        log det:            f(A) = log det( S_A + lambda I )

    The graph cut is monotone where S is not negative and lambda at most 1/2, the log det where lambda is at
    least 1 and S positive semidefinite. Facility location takes a kernel that is not negative; f of nothing
    is 0.

    Args:
        kernel: float, (B, B): S, symmetric similarities within a batch.
        members: bool, (B,): True for those of A.
        function: which.
        trade_off: lambda, at least 0; unused by facility location.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: a kernel that is not floating point, or members that are not bool.
        ValueError: shapes do not fit, an unknown function, a negative lambda, or a matrix that is not
            positive definite.

    Reference:
        Majee, Kothawade, Killamsetty and Iyer (2024), SCoRe: submodular combinatorial representation
        learning, ICML, arXiv 2310.00165.
    """
    if members.dtype != torch.bool:
        raise TypeError(f"members must be bool, True for those of the set, got {members.dtype}.")
    s = _checked(kernel, members, function, trade_off)
    if function == "graph cut":
        return s[:, members].sum() - trade_off * s[members][:, members].sum()
    if function == "facility location":
        return s[:, members].amax(1).sum() if bool(members.any()) else s.new_zeros(())
    return _log_det(s[members][:, members], trade_off)


def submodular_loss(
    kernel: Tensor,
    labels: Tensor,
    function: SetFunction = "facility location",
    *,
    form: Literal["correlation", "information"] = "correlation",
    trade_off: float = 0.5,
) -> Tensor:
    """Total correlation, or total information, of the classes of a batch as sets of embeddings.

        information:  L = sum_k f(A_k)
        correlation:  L = sum_k f(A_k) - f(union of A_k)

    The information of graph cut and log det falls as the members of each class come together; that of
    facility location is its correlation and a constant where S_ii is i's largest. The correlation, not
    negative for these f, falls as the classes come apart:

        graph cut:          lambda sum over pairs of two classes of S_ij
        facility location:  sum over members i and other classes k of max_{j in A_k} S_ij
        log det:            sum_k log det( S_k + lambda I ) - log det( S + lambda I )

    Each class counts once as a set, so that a rare one is not outvoted as in a sum over pairs. Values grow
    with the batch; divide by its size if it varies. The paper's information of the graph cut,
    sum_{A, not A} S - lambda sum_A S, is this one with 1 + lambda.

    Args:
        kernel: float, (B, B): S, symmetric similarities within a batch: cosines, or exp(-|x - y|^2 / d).
        labels: integers, (B,).
        function: the f of `set_value`.
        form: which of the two.
        trade_off: lambda, at least 0; unused by facility location.

    Returns:
        A scalar, in float32 at least; 0 for an empty batch.

    Raises:
        TypeError: a kernel that is not floating point, or labels that are not integers.
        ValueError: shapes do not fit, an unknown function or form, a negative lambda, or a matrix that is not
            positive definite.

    Reference:
        Majee, Kothawade, Killamsetty and Iyer (2024), SCoRe: submodular combinatorial representation
        learning, ICML, arXiv 2310.00165. The authors' code scales by temperatures and takes soft maxima; here
        the sets' values themselves.
    """
    check_integers("labels", labels)
    s = _checked(kernel, labels, function, trade_off)
    if form not in ("correlation", "information"):
        raise ValueError(f'form must be "correlation" or "information", got {form!r}.')
    if len(s) == 0:
        return s.sum()
    row: Tensor
    names, row = torch.unique(labels, return_inverse=True)
    same = row.unsqueeze(1) == row
    if function == "graph cut":
        within = torch.where(same, s, 0.0).sum()
        return trade_off * (s.sum() - within) if form == "correlation" else s.sum() - trade_off * within
    if function == "facility location":
        most = s.new_full((len(s), len(names)), -math.inf)
        information = most.scatter_reduce(1, row.expand_as(s), s, "amax").sum()
        return information - s.amax(1).sum() if form == "correlation" else information
    parts = [
        _log_det(s[members][:, members], trade_off)
        for members in (torch.nonzero(row == k)[:, 0] for k in range(len(names)))
    ]
    information = torch.stack(parts).sum()
    return information - _log_det(s, trade_off) if form == "correlation" else information


def _checked(kernel: Tensor, of_each: Tensor, function: str, trade_off: float) -> Tensor:
    if not kernel.is_floating_point():
        raise TypeError(f"The kernel must be floating point, got {kernel.dtype}.")
    if of_each.ndim != 1 or kernel.shape != (len(of_each), len(of_each)):
        raise ValueError(
            f"Wanted a (B, B) kernel and one label or flag for each, got {tuple(kernel.shape)} and "
            f"{tuple(of_each.shape)}."
        )
    if function not in ("graph cut", "facility location", "log det"):
        raise ValueError(f'function must be "graph cut", "facility location" or "log det", got {function!r}.')
    check_number("trade_off", trade_off, least=0)
    return widened(kernel)


def _log_det(matrix: Tensor, ridge: float) -> Tensor:
    """log det(S + ridge I), by Cholesky; 0 for no rows."""
    raised = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(raised)
    if int(info) != 0:
        raise ValueError(
            f"kernel + {ridge:g} I is not positive definite; raise trade_off, or give a kernel of inner products."
        )
    result: Tensor = 2 * factor.diagonal().log().sum()
    return result
