"""Sampled and full softmax in chunks that stay in cache: the logits are never held whole."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Pairs = tuple[Tensor, Tensor]


def fused_sampled_softmax(
    positive: Tensor,
    queries: Tensor,
    candidates: Tensor,
    log_expected: Tensor | None = None,
    *,
    scale: float | Tensor = 1.0,
    owner: Tensor | None = None,
    hits: Pairs | None = None,
    weight: Tensor | None = None,
    decoupled: bool = False,
    power: float = 1.0,
    chunk_bytes: int = 1 << 22,
) -> Tensor:
    """Mean sampled softmax loss over candidates that all queries share, in bounded memory.

        s_bk = scale * <queries_b, candidates_k>
        L = mean_p [ -s_p + power log( exp(s_p) + sum_k exp(s_bk - log_expected_k) ) ],   b = owner_p

    `decoupled` leaves exp(s_p) out of the sum (decoupled contrastive learning); with it, a `power` above 1 is
    the bilateral softmax loss BSL: scores of bounded length, as cosines, then pay more for their negatives
    than a likelihood would ask, which holds back the fit of noisy positives.

    Equals `sampled_softmax(positive, scale * queries[owner] @ candidates.T, log_expected, mask)`. The
    gradient is known in closed form once a query's normaliser is: `dL/ds_bk` is the candidate's
    self-normalised weight, summed over the query's positives. So each block of queries meets all
    candidates once, in a buffer of `chunk_bytes` that is written, exponentiated and multiplied back
    while it is in cache; three matrix products and no logits kept. All positives of a query share its
    sum over candidates, so they cost no more than one. With `log_expected=None` and the catalogue as candidates
    (the positive masked by `hits`) it is the exact full softmax: `fused_softmax`.

    Args:
        positive: float, (P,): score of each positive with its query, on the scale of the loss.
        queries: float, (B, d).
        candidates: float, (K, d).
        log_expected: float, (K,), or None where each candidate stands for itself alone.
        scale: inverse temperature; a scalar tensor receives its gradient.
        owner: int64, (P,), never falling: the query of each positive; default one positive a query, P = B.
        hits: (rows, columns), int64, rows never falling: the (query, candidate) pairs to leave out.
        weight: float, (P,): weight of each positive in the mean, which may depend on scores and receives its gradient;
            default ones.
        decoupled: leave the positive out of the sum; a positive whose query has no candidate then counts 0.
        power: of the sum; 1 is the softmax.
        chunk_bytes: size of the buffer of logits; it grows to hold at least 64 queries, since a
            product of fewer rows runs at the speed of memory.

    Returns:
        Scalar loss, `sum_p weight_p L_p / sum_p weight_p`.

    Raises:
        TypeError: an input is not floating point.
        ValueError: shapes do not fit, no positives, weights that do not sum to a positive number, owners or
            hits out of order or range, a `power` that is not positive, or a gradient wanted by `log_expected`,
            which gets none.

    Reference:
        Gradients made in the forward pass and logits in blocks: Hsu et al. (2024), Liger Kernel,
        arXiv 2410.10989; Wijmans et al. (2024), Cut your losses, arXiv 2411.09009. `decoupled`: Yeh et al.
        (2022), Decoupled contrastive learning, ECCV, arXiv 2110.06848. `power`: Wu et al. (2024), BSL:
        Understanding and improving softmax loss for recommendation, ICDE, arXiv 2312.12882, as their code has
        it (tau_1 / tau_2 of the paper).
    """
    if not 0 < power < math.inf:
        raise ValueError(f"power must be positive and finite, got {power}.")
    scale_tensor = _scalar(scale, queries)
    _check_matrices(queries, candidates)
    _check_vectors(positive, queries, candidates, log_expected, weight, owner)
    if hits is not None:
        _check_hits(hits, len(queries), len(candidates))
    if weight is None:
        share = torch.full_like(positive, 1 / len(positive)).detach()
    else:
        total = weight.sum()
        if not bool(total > 0):
            raise ValueError(
                f"The weights of the positives must sum to a positive number, got {float(total.detach())}."
            )
        share = (weight / total).to(positive.dtype)
    loss: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
        positive,
        queries,
        candidates,
        scale_tensor,
        log_expected,
        owner,
        hits,
        share,
        decoupled,
        power,
        chunk_bytes,
    )
    return loss


def fused_softmax(
    queries: Tensor,
    items: Tensor,
    targets: Tensor,
    *,
    scale: float | Tensor = 1.0,
    chunk_bytes: int = 1 << 22,
) -> Tensor:
    """Mean full softmax cross-entropy over a whole catalogue, in bounded memory.

        L = mean_b [ -s_bt + log sum_j exp(s_bj) ],   s_bj = scale * <queries_b, items_j>

    Args:
        queries: float, (B, d).
        items: float, (I, d).
        targets: int64, (B,): the row of `items` that each query wants.
        scale: inverse temperature; a scalar tensor receives its gradient.
        chunk_bytes: size of the buffer of logits.

    Returns:
        Scalar loss.

    Raises:
        TypeError: queries or items are not floating point, or targets not int64.
        ValueError: shapes do not fit, no queries, or a target outside the catalogue.
    """
    scale = _scalar(scale, queries)
    _check_matrices(queries, items)
    if targets.dtype != torch.int64:
        raise TypeError(f"targets must be int64, got {targets.dtype}.")
    if targets.shape != queries.shape[:1]:
        raise ValueError(f"targets must be ({len(queries)},), got {tuple(targets.shape)}.")
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(items):
        raise ValueError(
            f"targets must lie in [0, {len(items)}), got {int(targets.min())} to {int(targets.max())}."
        )
    positive = (queries * items[targets]).sum(-1) * scale
    hits = (torch.arange(len(targets)), targets)
    return fused_sampled_softmax(positive, queries, items, scale=scale, hits=hits, chunk_bytes=chunk_bytes)


def _scalar(scale: float | Tensor, queries: Tensor) -> Tensor:
    scalar = torch.as_tensor(scale, dtype=queries.dtype)
    if scalar.ndim:
        raise ValueError(f"scale must be one number for all queries, got shape {tuple(scalar.shape)}.")
    return scalar


def _check_matrices(queries: Tensor, candidates: Tensor) -> None:
    for name, tensor in (("queries", queries), ("candidates", candidates)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}.")
    if queries.ndim != 2 or candidates.ndim != 2 or queries.shape[1] != candidates.shape[1]:
        raise ValueError(
            f"queries (B, d) and candidates (K, d) must share d, got {tuple(queries.shape)} and "
            f"{tuple(candidates.shape)}."
        )
    if len(queries) == 0:
        raise ValueError("There is no query to take a mean over.")


def _check_vectors(
    positive: Tensor,
    queries: Tensor,
    candidates: Tensor,
    log_expected: Tensor | None,
    weight: Tensor | None,
    owner: Tensor | None,
) -> None:
    if owner is None:
        n = len(queries)
    else:
        n = len(owner)
        if owner.dtype != torch.int64 or owner.ndim != 1:
            raise ValueError(f"owner must be int64 (P,), got {owner.dtype} {tuple(owner.shape)}.")
        if bool((owner[1:] < owner[:-1]).any()):
            raise ValueError("owner must never fall: sort the positives by their query.")
        if n and not 0 <= int(owner[0]) <= int(owner[-1]) < len(queries):
            raise ValueError(
                f"owner must lie in [0, {len(queries)}), got {int(owner[0])} to {int(owner[-1])}."
            )
    if n == 0:
        raise ValueError("There is no positive to take a mean over.")
    for name, tensor, size in (
        ("positive", positive, n),
        ("log_expected", log_expected, len(candidates)),
        ("weight", weight, n),
    ):
        if tensor is None:
            continue
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}.")
        if tensor.shape != (size,):
            raise ValueError(f"{name} must be ({size},), got {tuple(tensor.shape)}.")
    if log_expected is not None and log_expected.requires_grad and torch.is_grad_enabled():
        raise ValueError("log_expected gets no gradient here but requires one: pass log_expected.detach().")
    if not positive.dtype == queries.dtype == candidates.dtype:
        raise ValueError(
            f"positive, queries and candidates must share a dtype, got {positive.dtype}, {queries.dtype}, "
            f"{candidates.dtype}."
        )


def _check_hits(hits: Pairs, n_queries: int, n_candidates: int) -> None:
    mend = "make them with Context.hits(ids) or mask.nonzero(as_tuple=True)"
    if len(hits) != 2 or any(t.ndim != 1 or t.dtype != torch.int64 for t in hits):
        given = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in hits)
        raise ValueError(f"hits must be int64 rows (h,) and columns (h,), got {given}; {mend}.")
    rows, columns = hits
    if len(rows) != len(columns):
        raise ValueError(f"hits has {len(rows)} rows for {len(columns)} columns; {mend}.")
    if len(rows) == 0:
        return
    for name, tensor, size in (("rows", rows, n_queries), ("columns", columns, n_candidates)):
        low, high = (int(end) for end in tensor.aminmax())
        if low < 0 or high >= size:
            raise ValueError(f"The {name} of hits must lie in [0, {size}), got {low} to {high}; {mend}.")
    if bool((rows[1:] < rows[:-1]).any()):
        raise ValueError(f"The rows of hits must never fall: sort the pairs by row, or {mend}.")


class _Fused(torch.autograd.Function):
    """Forward pass that leaves the gradients behind; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        positive: Tensor,
        queries: Tensor,
        candidates: Tensor,
        scale: Tensor,
        log_expected: Tensor | None,
        owner: Tensor | None,
        hits: Pairs | None,
        share: Tensor,
        decoupled: bool,
        power: float,
        chunk_bytes: int,
    ) -> Tensor:
        n, k = len(queries), len(candidates)
        wanted = any(ctx.needs_input_grad)
        # exp2 runs at twice the speed of exp, so logits are kept in units of log 2.
        unit = 1 / math.log(2)
        scaled, score = queries * (scale * unit), positive * unit
        bias = None if log_expected is None else log_expected.to(queries.dtype) * unit
        rows = min(n, max(64, chunk_bytes // (max(k, 1) * queries.element_size())))
        starts = range(0, n, rows)
        owner = torch.arange(n) if owner is None else owner
        edges = torch.tensor([*starts, n])
        own = torch.searchsorted(owner, edges).tolist()
        hit = torch.searchsorted(hits[0], edges).tolist() if hits is not None else []
        buffer, lowest = queries.new_empty(rows, k), torch.finfo(queries.dtype).min
        loss, d_positive = torch.empty_like(positive), torch.empty_like(positive)
        d_queries, d_candidates = torch.empty_like(queries), torch.zeros_like(candidates)
        for i, start in enumerate(starts):
            block, mine = slice(start, min(start + rows, n)), slice(own[i], own[i + 1])
            logits = torch.mm(scaled[block], candidates.T, out=buffer[: block.stop - start])
            if bias is not None:
                logits.sub_(bias)
            if hits is not None:
                here = slice(hit[i], hit[i + 1])
                logits[hits[0][here] - start, hits[1][here]] = -math.inf
            top = logits.amax(1) if k else logits.new_full((len(logits),), -math.inf)
            total = logits.sub_(top.clamp(min=lowest).unsqueeze(1)).exp2_().sum(1)
            # Each positive has a maximum of its own: another one's may be too far away for its digits.
            row = owner[mine] - start
            larger = top[row].clamp(min=lowest) if decoupled else torch.maximum(top[row], score[mine])
            fall = torch.exp2(top[row] - larger)
            others = total[row] * fall
            everything = others if decoupled else others + torch.exp2(score[mine] - larger)
            loss[mine] = power * (larger + torch.log2(everything)) - score[mine]
            d_positive[mine] = power * (1 - others / everything) - 1
            reach = power * share[mine] * fall / everything
            nothing = top[row] == -math.inf
            if decoupled and bool(nothing.any()):  # no candidate to push against
                loss[mine] = loss[mine].masked_fill(nothing, 0)
                d_positive[mine] = d_positive[mine].masked_fill(nothing, 0)
                reach = reach.masked_fill(nothing, 0)
            if wanted:
                factor = top.new_zeros(len(top)).index_add_(0, row, reach)
                torch.mm(logits, candidates, out=d_queries[block]).mul_(factor.unsqueeze(1))
                d_candidates.addmm_(logits.T, queries[block] * factor.unsqueeze(1))
        if wanted:
            d_scale = (queries * d_queries).sum()
            ctx.save_for_backward(
                d_positive * share, d_queries.mul_(scale), d_candidates.mul_(scale), d_scale, loss.div_(unit)
            )
            return (loss * share).sum()
        return (loss * share).sum() / unit

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, misc, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        for at, gradient in zip((0, 1, 2, 3, 7), ctx.saved_tensors, strict=True):
            if ctx.needs_input_grad[at]:
                gradients[at] = grad * gradient
        return tuple(gradients)
