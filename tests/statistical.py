"""Assertions for random results, each with a stated chance of failing a right method."""

from __future__ import annotations

import numpy as np
from scipy import stats


def assert_unbiased(samples: object, truth: object, significance: float = 1e-4) -> None:
    """Assert that the mean of independent replications agrees with the truth.

        |mean - truth| <= z sqrt(variance / replications),   z = the normal quantile 1 - significance / (2 m)

    with m the number of components (Bonferroni), so a right method fails with probability at most about
    `significance`, whatever the number of components. A component that never varies must equal its truth.

    Args:
        samples: (replications, ...), independent along the first dimension; at least 30 replications.
        truth: (...), broadcast over the components.
        significance: chance that an unbiased method fails.

    Raises:
        AssertionError: some mean is too far from its truth, or a sample is not finite.
        ValueError: fewer than 30 replications.
    """
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < 30:
        raise ValueError(f"The normal approximation wants at least 30 replications, got {len(values)}.")
    values = values.reshape(len(values), -1)
    assert np.isfinite(values).all(), "some samples are not finite"
    wanted = np.broadcast_to(np.asarray(truth, dtype=np.float64), np.shape(samples)[1:]).reshape(-1)
    mean = values.mean(0)
    rounding = 1e-12 * np.maximum(np.abs(wanted), np.abs(values).max(0))
    error = np.maximum(np.abs(mean - wanted) - rounding, 0)
    stderr = values.std(0, ddof=1) / np.sqrt(len(values))
    limit = stats.norm.isf(significance / (2 * len(wanted)))
    z = np.divide(error, stderr, out=np.where(error > 0, np.inf, 0.0), where=stderr > 0)
    worst = int(z.argmax())
    assert z[worst] <= limit, (
        f"component {worst}: mean {mean[worst]:.6g} of {len(values)} replications is {z[worst]:.2f} standard "
        f"errors ({stderr[worst]:.3g}) from {wanted[worst]:.6g}; at most {limit:.2f} are allowed"
    )


def assert_coverage(hits: object, level: float, band: float = 0.02, significance: float = 1e-4) -> None:
    """Assert that intervals cover the truth with a probability inside `level` plus or minus `band`.

    The exact binomial test of each end of the band at significance / 2: a method whose coverage lies in
    the band fails with probability at most `significance`.

    Args:
        hits: bool, (replications,): whether the interval of an independent replication held the truth.
        level: coverage that the intervals claim.
        band: how far the coverage may be off; 0 asks for the exact level.
        significance: chance that a method with coverage inside the band fails.

    Raises:
        AssertionError: too few or too many hits.
        ValueError: so few replications that intervals that never cover would pass.
    """
    covered = np.asarray(hits, dtype=bool).reshape(-1)
    n, count = len(covered), int(covered.sum())
    low, high = max(level - band, 0.0), min(level + band, 1.0)
    if stats.binom.cdf(0, n, low) >= significance / 2:
        raise ValueError(f"{n} replications cannot tell a coverage of {low:.3f} from none; give more.")
    too_few = stats.binom.cdf(count, n, low)
    too_many = stats.binom.sf(count - 1, n, high)
    assert min(too_few, too_many) >= significance / 2, (
        f"{count} of {n} intervals cover ({count / n:.4f}); expected {low:.3f} to {high:.3f}"
    )
