"""Kernel thinning: a few rows whose kernel mean is nearly that of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.sampling.successive import njit

Kernel = Callable[[Tensor, Tensor], Tensor]
"""(..., p, d) and (..., q, d) to (..., p, q): symmetric and positive definite."""

BLOCK = 512  # rows decided one after the other before all later ones are told: 512 x 512 floats are 1 MB
TILE = 1 << 19  # kernel values held at a time


@dataclass(frozen=True)
class GaussianKernel:
    """exp(-|x - y|^2 / (2 bandwidth^2)).

    In float32 a value is off by about 1e-7 times the largest squared distance in bandwidths; give float64 rows
    where that matters.

    Args:
        bandwidth: in the units of the rows, above 0.

    Raises:
        ValueError: the bandwidth is not positive and finite.
    """

    bandwidth: float

    def __post_init__(self) -> None:
        _check_bandwidth(self.bandwidth)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        # exp2 is three times faster than exp on CPUs; shifting by a row keeps the digits of distant rows; and
        # with |x|^2 as two more columns one matrix product makes the exponent, -|x - y|^2 / 2 in such units.
        factor = math.sqrt(1 / math.log(2)) / self.bandwidth
        origin = b[..., :1, :]
        a, b = (a - origin) * factor, (b - origin) * factor
        square = (a * a).sum(-1, keepdim=True) / -2
        a = torch.cat([a, square, torch.ones_like(square)], -1)
        square = (b * b).sum(-1, keepdim=True) / -2
        b = torch.cat([b, torch.ones_like(square), square], -1)
        return (a @ b.mT).exp2_()

    def power(self, alpha: float, dimension: int) -> GaussianKernel:  # noqa: ARG002
        """The kernel whose spectral density is this one's to the power alpha, with value 1 at 0."""
        return GaussianKernel(self.bandwidth * math.sqrt(alpha))


@dataclass(frozen=True)
class MaternKernel:
    """2^(1-s) / Gamma(s) z^s K_s(z) with z = sqrt(2 s) |x - y| / bandwidth; s = 1/2 is the Laplace kernel.

    Fast for a smoothness of 1/2, 3/2 and 5/2, which have closed forms; others call a Bessel function.

    Args:
        smoothness: s, above 0.
        bandwidth: in the units of the rows, above 0.

    Raises:
        ValueError: an argument is not positive and finite.
    """

    smoothness: float
    bandwidth: float

    def __post_init__(self) -> None:
        _check_bandwidth(self.bandwidth)
        if not 0 < self.smoothness < math.inf:
            raise ValueError(f"smoothness must be positive and finite, got {self.smoothness}.")

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        s = self.smoothness
        z = torch.cdist(a, b) * (math.sqrt(2 * s) / self.bandwidth)
        if s in (0.5, 1.5, 2.5):
            decay = torch.exp2(z * (-1 / math.log(2)))
            return decay if s == 0.5 else decay * (1 + z if s == 1.5 else 1 + z + z * z / 3)
        wide = z.double().clamp(min=1e-8)
        from scipy import special  # a tenth of a second that only this needs

        bessel = torch.as_tensor(special.kv(s, wide.numpy()))
        value = bessel * wide**s * (2 ** (1 - s) / math.gamma(s))
        return torch.where(z < 1e-8, 1.0, value.clamp(max=1)).to(z.dtype)

    def power(self, alpha: float, dimension: int) -> MaternKernel:
        """The kernel whose spectral density is this one's to the power alpha, with value 1 at 0.

        Raises:
            ValueError: alpha (s + d/2) <= d/2: that density belongs to no kernel.
        """
        s = alpha * (self.smoothness + dimension / 2) - dimension / 2
        if s <= 0:
            least = dimension / (2 * self.smoothness + dimension)
            raise ValueError(
                f"alpha must exceed {least:.4g} for {self} in {dimension} dimensions, got {alpha}."
            )
        return MaternKernel(s, self.bandwidth * math.sqrt(s / self.smoothness))


def _check_bandwidth(bandwidth: float) -> None:
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}.")


def kernel_thinning(
    x: ArrayLike | Tensor,
    m: int,
    kernel: Kernel,
    *,
    split: str | Kernel = "target",
    alpha: float = 0.5,
    delta: float = 0.5,
    swap: bool = True,
    unique: bool = False,
    mean: ArrayLike | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Halve the rows m times so that the kernel mean of those kept stays near that of all.

    Splitting halves each set by pairs (x, y), in their order, b^2 = k(x, x) + k(y, y) - 2 k(x, y):

        a = max(s sqrt(b^2 L_j), b^2),    L_j = 2 log(2 n m / (delta 2^j)) at round j = 0, 1, ...
        alpha = sum over earlier rows r of the set of (-1 if r went left else 1) (k(r, x) - k(r, y))
        y goes left and x right with probability (1 - alpha / a) / 2, else the reverse
        s^2 <- s^2 + 2 b^2 [1/2 + (b^2 / (2a) - 1) s^2 / a]_+,    from b^2 of the first pair

    which makes 2^m sets of floor(n / 2^m) rows. Swapping takes the set, or every 2^m-th row, of least maximum
    mean discrepancy to all rows, and replaces its members one after the other by the row that lowers it most.
    From n to sqrt(n) rows the discrepancy is about n^(-1/2), where independent rows have n^(-1/4).

    The order of the rows matters, and a remainder of n by 2^m at the end is used by swapping only. The law of the
    choice is unknown and its weights are equal: these are plain row numbers, not `Draws`. Takes about n^2 kernel
    values in O(n d) memory; `compress_plus_plus` takes far fewer.

    Args:
        x: (n, d), finite. float32 and float64 are kept; other types become float32, integers float64.
        m: number of halvings, 0 to log2(n).
        kernel: the target kernel: `GaussianKernel`, `MaternKernel`, or any function of two sets of rows
            (..., p, d) and (..., q, d) that gives their kernel matrix (..., p, q).
        split: the kernel of splitting: "target" (the kernel itself), "root" (the one with the square root of its
            spectral density), "plus" (KT+: the sum of the kernel and the one with its spectral density to the
            power alpha, each divided by its largest value), or any other kernel.
        alpha: the power of "plus", at least 1/2 and below 1.
        delta: probability with which the bounds may fail.
        swap: False returns the first of the split sets, in which every row is as likely.
        unique: True never keeps a row twice; swapping may otherwise, where that is nearer.
        mean: (n,): mean of the kernel between each row and the target, where that is not all rows: zeros for a
            Stein kernel.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, int64, (floor(n / 2^m),).

    Raises:
        ValueError: not two-dimensional, empty, not finite, m outside 0 to log2(n), delta or alpha out of range,
            a mean of another shape or not finite, kernel values not finite, or a named split of a kernel that has no `power`.

    Reference:
        Dwivedi & Mackey (2024), Kernel thinning, JMLR 25, arXiv 2105.05842 (root); Dwivedi & Mackey (2022),
        Generalized kernel thinning, ICLR, arXiv 2110.01593 (target and KT+).
    """
    rows = checked_rows(x)
    n = len(rows)
    if not 0 <= m < n.bit_length():
        raise ValueError(
            f"m must lie between 0 and {n.bit_length() - 1}, since {n} rows are halved; got {m}."
        )
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}.")
    target = None if mean is None else torch.as_tensor(mean).detach().cpu().double()
    if target is not None and target.shape != (n,):
        raise ValueError(f"mean must have one value for each of {n} rows, got shape {tuple(target.shape)}.")
    if target is not None and not bool(target.isfinite().all()):
        raise ValueError(f"mean must be finite; look at row {int((~target.isfinite()).nonzero()[0])}.")
    if m == 0:
        return torch.arange(n)
    splitter = _splitter(kernel, split, alpha, rows.shape[1])
    sums = torch.zeros(n, dtype=torch.float64) if swap and target is None else None
    shared = sums if splitter is kernel and n % 2**m == 0 else None
    splitter, kernel = finite(splitter), finite(kernel)
    sets = kt_split(rows, m, splitter, delta, generator, shared)
    if not swap:
        return sets[0]
    if sums is not None:
        if shared is None or n <= BLOCK:
            sums.zero_()
            _visit(rows, kernel, sums, None)
        target = sums / n
    assert target is not None
    return kt_swap(rows, sets, kernel, target, unique)


def mmd(x: ArrayLike | Tensor, ids: ArrayLike | Tensor, kernel: Kernel) -> float:
    """Maximum mean discrepancy between chosen rows and all rows, equally weighted.

        MMD^2 = mean k(x_i, x_j) - 2 mean k(x_i, c_j) + mean k(c_i, c_j)

    Computed in O((n + s) d) memory; values in the type of x, sums in float64.

    Args:
        x: (n, d), finite.
        ids: int64, (s,): the chosen rows.
        kernel: as in `kernel_thinning`.

    Raises:
        ValueError: not two-dimensional, empty or not finite, nothing chosen, ids that are no row numbers, or kernel
            values not finite.

    Reference:
        Gretton, Borgwardt, Rasch, Schölkopf & Smola (2012), A kernel two-sample test, JMLR 13.
    """
    rows = checked_rows(x)
    n, chosen, kernel = len(rows), torch.as_tensor(ids).detach().cpu(), finite(kernel)
    if chosen.ndim != 1 or len(chosen) == 0:
        raise ValueError(f"ids must be a non-empty vector of row numbers, got shape {tuple(chosen.shape)}.")
    if chosen.is_floating_point() or chosen.dtype == torch.bool or chosen.min() < 0 or chosen.max() >= n:
        raise ValueError(f"ids must be row numbers from 0 to {n - 1}, got {chosen.tolist()[:5]} ...")
    chosen, size = chosen.long(), len(chosen)
    sums = torch.zeros(n, dtype=torch.float64)
    _visit(rows, kernel, sums, None)
    square = sums.mean() / n - 2 * sums[chosen].mean() / n + _within(rows, chosen[None], kernel)[0] / size**2
    return math.sqrt(max(float(square), 0.0))


def checked_rows(x: ArrayLike | Tensor) -> Tensor:
    """Rows as a float32 or float64 tensor."""
    rows = torch.as_tensor(x).detach().cpu()
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"x must be (n, d) with n and d at least 1, got shape {tuple(rows.shape)}.")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float() if rows.is_floating_point() else rows.double()
    finite = rows.isfinite().all(1)
    if not bool(finite.all()):
        raise ValueError(f"x must be finite; look at row {int((~finite).nonzero()[0])}.")
    return rows


def finite(kernel: Kernel) -> Kernel:
    """The kernel, but with an error where a value overflows: no comparison with NaN would show it."""

    def checked(a: Tensor, b: Tensor) -> Tensor:
        values = kernel(a, b)
        if not bool(values.sum().isfinite()):
            raise ValueError("Kernel values are not finite: rescale x, or give it as float64.")
        return values

    return checked


def _splitter(kernel: Kernel, split: str | Kernel, alpha: float, d: int) -> Kernel:
    if not isinstance(split, str):
        return split
    if split == "target":
        return kernel
    if split not in ("root", "plus"):
        raise ValueError(f"split must be 'target', 'root', 'plus' or a kernel, got {split!r}.")
    if not 0.5 <= alpha < 1:
        raise ValueError(f"alpha must be at least 1/2 and below 1, got {alpha}.")
    if not isinstance(kernel, GaussianKernel | MaternKernel):
        raise ValueError(
            f"split={split!r} needs a GaussianKernel or MaternKernel; for others give it as a kernel."
        )
    if split == "root":
        return kernel.power(0.5, d)
    power = kernel.power(alpha, d)
    return lambda a, b: kernel(a, b).add_(power(a, b))  # the largest value of either is 1


def kt_split(
    rows: Tensor,
    m: int,
    kernel: Kernel,
    delta: float,
    generator: torch.Generator | None,
    sums: Tensor | None = None,
) -> Tensor:
    """Halve m times; (2^m, n // 2^m) row numbers. `sums`, (n,), takes up the kernel's row sums where n > BLOCK."""
    sets = torch.arange(len(rows) >> m << m)[None]
    for j in range(m):
        log_multiplier = 2 * math.log(2 * len(rows) * m / (delta * 2**j))
        sets = halve(rows, sets, kernel, log_multiplier, generator, sums if j == 0 else None).flatten(0, 1)
    return sets


def halve(
    rows: Tensor,
    sets: Tensor,
    kernel: Kernel,
    log_multiplier: float,
    generator: torch.Generator | None,
    sums: Tensor | None = None,
) -> Tensor:
    """Halve each of several sets of row numbers, (c, length) with an even length, into (c, 2, length // 2)."""
    count, length = sets.shape
    coins = torch.rand(count, length // 2, generator=generator, dtype=torch.float64).numpy()
    side = np.empty(sets.shape, np.float64 if rows.dtype == torch.float64 else np.float32)
    if length <= BLOCK:
        step = max(1, TILE // length**2)
        for low in range(0, count, step):
            part = slice(low, low + step)
            points = rows[sets[part]]
            values, pull = kernel(points, points), np.zeros(points.shape[:2])
            decide(values.numpy(), pull, coins[part], side[part], np.zeros(len(points)), log_multiplier)
    else:
        for its_rows, its_coins, its_side in zip(sets, coins, side, strict=True):
            _visit(rows[its_rows], kernel, sums, _Halving(its_coins, its_side, log_multiplier))
    left = torch.from_numpy(side < 0)
    return torch.stack([sets[left].view(count, -1), sets[~left].view(count, -1)], 1)


class _Halving:
    """One set being halved, block by block: what earlier rows say of later ones, and the threshold's state."""

    def __init__(self, coins: NDArray[np.float64], side: NDArray[Any], log_multiplier: float) -> None:
        self.coins, self.side, self.log_multiplier = coins[None], side[None], log_multiplier
        self.pull, self.variance = np.zeros((1, len(side))), np.zeros(1)

    def __call__(self, values: Tensor, low: int, high: int) -> Tensor:
        block, pairs = np.s_[:, low:high], np.s_[:, low // 2 : high // 2]
        k, pull, side = values.numpy()[None], self.pull[block], self.side[block]
        decide(k, pull, self.coins[pairs], side, self.variance, self.log_multiplier)
        return torch.from_numpy(side[0])


def _visit(x: Tensor, kernel: Kernel, sums: Tensor | None, halving: _Halving | None) -> None:
    """Meet each pair of rows once, in tiles: add up the kernel's row sums, and halve the rows, if asked to."""
    n = len(x)
    step = max(1, TILE // BLOCK)
    ones = torch.ones(max(BLOCK, step), dtype=x.dtype)
    for low in range(0, n, BLOCK):
        block = x[low : low + BLOCK]
        high = low + len(block)
        values = kernel(block, block)
        side = halving(values, low, high) if halving is not None else None
        if sums is not None:
            sums[low:high] += values.mv(ones[: len(block)])
        for start in range(high, n, step):
            later = slice(start, min(start + step, n))
            values = kernel(x[later], block)
            if halving is not None and side is not None:
                halving.pull[0, later] += values.mv(side).numpy()
            if sums is not None:
                sums[later] += values.mv(ones[: len(block)])
                sums[low:high] += values.mT.mv(ones[: len(values)])


@njit
def decide(values: Any, pull: Any, coins: Any, side: Any, variance: Any, log_multiplier: float) -> None:
    """Halve each set of a batch by self-balancing pairs; `side` becomes -1 (left) or 1."""
    count, length = side.shape
    for s in range(count):
        for i in range(0, length - 1, 2):
            j = i + 1
            b2 = max(np.float64(values[s, i, i]) + values[s, j, j] - 2 * np.float64(values[s, i, j]), 0.0)
            a = max(math.sqrt(variance[s] * b2 * log_multiplier), b2)
            if variance[s] == 0:
                variance[s] = b2
            elif a > 0:
                variance[s] += 2 * b2 * max(0.5 + (b2 / (2 * a) - 1) * variance[s] / a, 0.0)
            alpha = pull[s, i] - pull[s, j]
            if a == 0:  # equal rows: either way is as good
                alpha, a = 0.0, 1.0
            sign = 1 if coins[s, i // 2] < 0.5 * (1 - alpha / a) else -1
            side[s, i], side[s, j] = sign, -sign
            for r in range(j + 1, length):
                pull[s, r] += sign * (values[s, i, r] - values[s, j, r])


def kt_swap(rows: Tensor, sets: Tensor, kernel: Kernel, mean: Tensor, unique: bool) -> Tensor:
    """The best of several sets, or every t-th row, refined: each member in turn by the best of all rows."""
    n, size = len(rows), sets.shape[1]
    every = torch.arange(n - 1, -1, -(n // size))[:size].flip(0)
    sets = torch.cat([every[None], sets])
    within = _within(rows, sets, kernel)
    chosen = sets[int((within / size**2 - 2 * mean[sets].mean(1)).argmin())].clone()
    # What the squared discrepancy would gain by each row, up to a constant and the factor 1 / size.
    loss = torch.empty(n, dtype=torch.float64)
    step = max(1, TILE // size)
    for low in range(0, n, step):
        part = rows[low : low + step]
        loss[low : low + step] = 2 * kernel(part, rows[chosen]).sum(1, dtype=torch.float64)
        loss[low : low + step] += kernel(part[:, None], part[:, None]).flatten()
    loss -= 2 * size * mean
    taken, columns = torch.zeros(n, dtype=torch.float64), torch.empty(0)
    if unique:
        taken[chosen] = math.inf
    for position in range(size):
        if position % 16 == 0:
            columns = kernel(rows, rows[chosen[position : position + 16]])
        old, column = int(chosen[position]), columns[:, position % 16]
        loss.sub_(column, alpha=2)
        taken[old] = 0
        new = int((loss + taken if unique else loss).argmin())
        if new != old:
            column = kernel(rows, rows[new : new + 1])[:, 0]
            chosen[position] = new
        if unique:
            taken[new] = math.inf
        loss.add_(column, alpha=2)
    return chosen


def _within(rows: Tensor, sets: Tensor, kernel: Kernel) -> Tensor:
    """Sum of the kernel over all pairs of each set's members."""
    size = sets.shape[1]
    total = torch.zeros(len(sets), dtype=torch.float64)
    many, few = max(1, TILE // size**2), max(1, TILE // size)
    for low in range(0, len(sets), many):
        members = rows[sets[low : low + many]]
        for start in range(0, size, few):
            part = members[:, start : start + few]
            total[low : low + many] += kernel(part, members).sum((1, 2), dtype=torch.float64)
    return total
