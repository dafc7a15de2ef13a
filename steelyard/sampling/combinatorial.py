"""Choosing a subset by gradients: exact expected costs of independent coins, then coins fixed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

_ROUNDING = 1e-9  # of the steepest slope: the noise of the Fourier sums must not turn a coin to and fro
_MULTILINEAR = 1e-6


def poisson_binomial(p: Tensor) -> Tensor:
    """Law of the number of heads of independent, unequal coins, differentiably.

        P(N = k) = coefficient of z^k in prod_i (1 - p_i + p_i z)

    The product is taken pairwise up a tree by fast Fourier transforms: O(n log^2 n). Each probability is right to
    about 1e-16 of the whole, not of itself: one that small may come out as 0 or barely below.

    Args:
        p: probabilities, (..., n), in [0, 1].

    Returns:
        (..., n + 1), float64, with gradients to `p`.

    Raises:
        ValueError: values outside [0, 1] or NaN.

    Reference:
        Hong (2013), On computing the distribution function for the Poisson binomial distribution, Computational
        Statistics & Data Analysis 59; as an objective: Bu et al. (2024), arXiv 2405.08424.
    """
    coins = _probabilities(p)
    n = coins.shape[-1]
    size = 1 << max(0, (n - 1).bit_length())
    coins = torch.nn.functional.pad(coins, (0, size - n))
    law = torch.stack([1 - coins, coins], -1)
    while law.shape[-2] > 1:
        length = law.shape[-1]
        spectrum = torch.fft.rfft(law, 2 * length)
        product = spectrum[..., 0::2, :] * spectrum[..., 1::2, :]
        law = torch.fft.irfft(product, 2 * length)[..., : 2 * length - 1]
    return law.squeeze(-2)[..., : n + 1]


def expected_cardinality_gap(p: Tensor, allowed: Iterable[int]) -> Tensor:
    """Expected distance of the size of a random subset from the sizes that are allowed.

        E[min_{c in allowed} | |X| - c |] = sum_k P(N = k) min_c |k - c|

    Zero only where the size is allowed with certainty. `allowed=[k]` asks for k, `range(k + 1)` for at most k.

    Args:
        p: inclusion probabilities, (..., n), in [0, 1].
        allowed: sizes, at least one.

    Returns:
        (...,), float64.

    Raises:
        ValueError: values outside [0, 1], or no size.

    Reference:
        Bu, Jo, Lee, Ahn & Shin (2024), Tackling prevalent conditions in unsupervised combinatorial optimization:
        cardinality, minimum, covering, and more, ICML, arXiv 2405.08424.
    """
    law = poisson_binomial(p)
    sizes = torch.as_tensor(sorted(allowed), dtype=torch.float64, device=law.device)
    if len(sizes) == 0:
        raise ValueError("Give at least one allowed size.")
    count = torch.arange(law.shape[-1], dtype=torch.float64, device=law.device)
    return law @ (count.unsqueeze(-1) - sizes).abs().amin(-1)


def expected_minimum(p: Tensor, cost: Tensor, *, empty: float | None = None) -> Tensor:
    """Expected cost of the cheapest chosen candidate, as of the nearest open facility.

        E[min_{v in X} c_v] = sum_j c_(j) p_(j) prod_{i < j} (1 - p_(i)) + empty prod_i (1 - p_i)

    with c_(1) <= c_(2) <= ... in order.

    Args:
        p: inclusion probabilities, (..., n), in [0, 1].
        cost: of each candidate for each of m clients, (m, n), finite.
        empty: cost where nothing is chosen; the client's largest where None.

    Returns:
        One expectation a client, (..., m), float64.

    Raises:
        ValueError: values outside [0, 1], costs that are not finite, or shapes that do not fit.

    Reference:
        Bu et al. (2024), Tackling prevalent conditions in unsupervised combinatorial optimization, ICML, arXiv
        2405.08424 (minimum with respect to a subset).
    """
    chances = _probabilities(p)
    _matrix(cost, "cost", chances)
    cost, order = cost.to(chances).sort(-1)
    chosen = chances[..., order]
    left = (1 - chosen).cumprod(-1)  # nobody so far
    before = torch.nn.functional.pad(left[..., :-1], (1, 0), value=1.0)
    last = cost[:, -1] if empty is None else torch.full_like(cost[:, -1], empty)
    return (cost * chosen * before).sum(-1) + last * left[..., -1]


def expected_uncovered(p: Tensor, covers: Tensor) -> Tensor:
    """Probability that an element is covered by none of the chosen candidates.

        P(element i uncovered) = prod_{v that cover i} (1 - p_v)

    Args:
        p: inclusion probabilities, (..., n), in [0, 1].
        covers: which candidates cover each of m elements, bool, (m, n).

    Returns:
        (..., m), float64; 1 for an element that no candidate covers.

    Raises:
        ValueError: values outside [0, 1], or shapes that do not fit.

    Reference:
        Bu et al. (2024), Tackling prevalent conditions in unsupervised combinatorial optimization, ICML, arXiv
        2405.08424 (covering).
    """
    chances = _probabilities(p)
    _matrix(covers, "covers", chances)
    return (1 - chances.unsqueeze(-2) * covers.to(chances)).prod(-1)


def expected_conflicts(p: Tensor, conflict: Tensor) -> Tensor:
    """Expected number of pairs that are both chosen and must not be.

        E = sum_{u < v} conflict_uv p_u p_v

    A clique has no conflict where the pairs without an edge are in conflict, an independent set where those with
    an edge are.

    Args:
        p: inclusion probabilities, (..., n), in [0, 1].
        conflict: symmetric, bool or weights, (n, n); the diagonal is not looked at.

    Returns:
        (...,), float64.

    Raises:
        ValueError: values outside [0, 1], or a matrix that is not square and symmetric.

    Reference:
        Bu et al. (2024), Tackling prevalent conditions in unsupervised combinatorial optimization, ICML, arXiv
        2405.08424 (cliques).
    """
    chances = _probabilities(p)
    _matrix(conflict, "conflict", chances)
    if conflict.shape[0] != conflict.shape[1] or not torch.equal(conflict, conflict.T):
        raise ValueError(f"conflict must be square and symmetric, got shape {tuple(conflict.shape)}.")
    pairs = conflict.to(chances).triu(1)
    return ((chances @ pairs) * chances).sum(-1)


def derandomize(objective: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
    """Fix coins one by one, each time the one whose fixing lowers the expected cost most.

        (i, x) <- argmin f(p with p_i = x),  x in {0, 1},   until no change lowers f and every coin is fixed

    The expectation of a cost under independent coins is linear in each p_i, so that one gradient gives the value
    after every possible fixing: f(p with p_i = x) - f(p) = (x - p_i) df/dp_i. The value never rises, so the result
    costs no more than the expectation at the start, and no change of a single choice lowers it. A fixed coin may
    be turned again. Takes one evaluation and one gradient a step, at least as many steps as there are coins.

    Args:
        objective: expected cost, float64 (..., n) -> (...,), a sum of expectations such as those of this module
            (linear in each coordinate); a constraint enters as its expected violation times a weight larger than
            what breaking it can save.
        p: probabilities to start from, (..., n), in [0, 1]; rows are fixed independently.

    Returns:
        The choice, bool, (..., n). A coin that makes no difference is not chosen.

    Raises:
        ValueError: values outside [0, 1], or an objective of the wrong shape, not finite, or not linear in a
            coordinate.

    Reference:
        Bu et al. (2024), Tackling prevalent conditions in unsupervised combinatorial optimization, ICML, arXiv
        2405.08424 (incremental greedy derandomization). Changes by gradient in place of two evaluations a coin
        are ours.
    """
    x = _probabilities(p).detach().clone()
    predicted = None
    while True:
        value, slope = _value_and_slope(objective, x)
        if predicted is not None and bool(
            ((value - predicted).abs() > _MULTILINEAR * (1 + value.abs() + predicted.abs())).any()
        ):
            raise ValueError(
                "The objective is not linear in each probability, so it is no expectation under independent "
                "coins: build it from expected_* terms and sums of them."
            )
        down, up = -x * slope, (1 - x) * slope
        change = torch.minimum(down, up)
        best, place = change.min(-1)
        lowers = best < -_ROUNDING * slope.abs().amax(-1)
        loose = (x > 0) & (x < 1)
        place = place.where(lowers, change.masked_fill(~loose, torch.inf).argmin(-1)).unsqueeze(-1)
        active = lowers | loose.any(-1)
        if not bool(active.any()):
            return x > 0.5
        target = (up < down).gather(-1, place).to(x)
        predicted = value + change.gather(-1, place).squeeze(-1).where(active, 0.0)
        x = x.scatter(-1, place, target.where(active.unsqueeze(-1), x.gather(-1, place)))


def _value_and_slope(objective: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        value = objective(leaf)
        if value.shape != x.shape[:-1]:
            raise ValueError(
                f"The objective must map {tuple(x.shape)} to {tuple(x.shape[:-1])}, got {tuple(value.shape)}."
            )
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    if not bool(value.isfinite().all() & slope.isfinite().all()):
        raise ValueError("The objective and its gradient must be finite.")
    return value.detach().to(x), slope


def _probabilities(p: Tensor) -> Tensor:
    chances = torch.as_tensor(p).double()
    if chances.ndim == 0 or chances.shape[-1] == 0:
        raise ValueError(f"p needs a dimension of candidates, not empty, got shape {tuple(chances.shape)}.")
    if not bool(((chances >= 0) & (chances <= 1)).all()):
        raise ValueError("Probabilities must lie in [0, 1]; pass what a network puts out through a sigmoid.")
    return chances


def _matrix(given: Tensor, name: str, chances: Tensor) -> None:
    if given.ndim != 2 or given.shape[1] != chances.shape[-1]:
        raise ValueError(f"{name} must have {chances.shape[-1]} columns, got shape {tuple(given.shape)}.")
    if given.is_floating_point() and not bool(given.isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or an infinity.")
