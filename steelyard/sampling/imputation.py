"""Missing responses filled by draws from similar complete cases, and the results of several fillings pooled."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.draws import Estimate
from steelyard.sampling.soft_projection import nearest_neighbours

_BLOCK = 4096  # cases whose neighbours are held at once


def knn_sampler(
    x: Tensor | ArrayLike,
    y: Tensor | ArrayLike,
    x_missing: Tensor | ArrayLike,
    k: int,
    *,
    imputations: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill missing responses by drawing from those of the k complete cases that are nearest.

        y~_i ~ Uniform{ y_j : x_j among the k nearest to x_i },  independently for each case and imputation

    The mean of k neighbours, the usual filling, estimates the conditional mean and makes the filled data too
    narrow; a draw has the conditional distribution, its spread and its modes. Over many draws their mean is that
    usual filling, and with k = n the responses are resampled regardless of x. Needs missingness to depend on x
    alone. Analyse each imputation as if complete and combine by `pool_imputations`. All imputations share their
    complete cases, so the variance pooled for a mean is too small, by a factor of about 1 - f^2 where a share f is
    missing.

    Args:
        x: covariates of the complete cases, (n, d), finite, on comparable scales: distances are Euclidean.
        y: their responses, (n,) or (n, ...), of any dtype.
        x_missing: covariates of the cases to fill, (m, d), finite.
        k: neighbours, 1 to n: more of them blur, fewer repeat the same values.
        imputations: independent fillings, at least 1.
        generator: source of randomness; torch's own where None.

    Returns:
        Filled responses, (imputations, m, ...), in the dtype of `y`.

    Raises:
        ValueError: shapes that do not fit, values of x that are not finite, k outside 1 to n, or no imputation.

    Reference:
        Pashmchi, Benoit & Kanagawa (2025), kNNSampler: stochastic imputations for recovering missing value
        distributions, arXiv 2509.08366. The factor 1 - f^2 is ours.
    """
    cases, missing, responses = torch.as_tensor(x), torch.as_tensor(x_missing), torch.as_tensor(y)
    if cases.ndim != 2 or missing.ndim != 2 or cases.shape[1] != missing.shape[1]:
        raise ValueError(
            f"x and x_missing must be (n, d) and (m, d), got {tuple(cases.shape)} and {tuple(missing.shape)}."
        )
    if responses.ndim == 0 or len(responses) != len(cases):
        raise ValueError(f"Give one response a case: y is {tuple(responses.shape)} for {len(cases)} cases.")
    if imputations < 1 or not 1 <= k <= len(cases):
        raise ValueError(
            f"Give k from 1 to the {len(cases)} complete cases and an imputation or more: {k}, {imputations}."
        )
    dtype = torch.promote_types(cases.dtype, missing.dtype)
    dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64
    cases, missing = cases.to(dtype), missing.to(dtype)
    if not bool(cases.isfinite().all() & missing.isfinite().all()):
        raise ValueError("Covariates must be finite: fill or drop the cases that lack one.")
    rank = torch.randint(k, (imputations, len(missing)), generator=generator)
    donors = torch.empty_like(rank)
    for start in range(0, len(missing), _BLOCK):
        block = slice(start, start + _BLOCK)
        near = nearest_neighbours(missing[block], cases, k)
        donors[:, block] = near.T.gather(0, rank[:, block])
    return responses[donors]


def pool_imputations(values: Tensor | ArrayLike, variances: Tensor | ArrayLike) -> Estimate:
    """Combine the estimates of several imputed data sets by Rubin's rules.

        value = mean_m value_m,    stderr^2 = W + (1 + 1/M) B
        W = mean_m variance_m,     B = sum_m (value_m - value)^2 / (M - 1)

    W is what would be uncertain with nothing missing, and (1 + 1/M) B what the missing values add.

    Args:
        values: the estimate on each imputed data set, (M, ...), at least two.
        variances: its squared standard error there, (M, ...): of a mean, the variance over n.

    Returns:
        Estimate of shape (...). Its ess is one more than Rubin's degrees of freedom,
        `(M - 1) (1 + W / ((1 + 1/M) B))^2`: M where all error comes from the missing values, inf where none does.

    Raises:
        ValueError: fewer than two imputations, shapes that differ, or variances that are negative or NaN.

    Reference:
        Rubin (1987), Multiple imputation for nonresponse in surveys, Wiley, chapter 3.
    """
    value, variance = torch.as_tensor(values).double(), torch.as_tensor(variances).double()
    if value.ndim == 0 or len(value) < 2 or value.shape != variance.shape:
        raise ValueError(
            f"Give at least two estimates and as many variances, got {tuple(value.shape)} and "
            f"{tuple(variance.shape)}."
        )
    if not bool((variance >= 0).all()):
        raise ValueError("Variances must not be negative or NaN.")
    m = len(value)
    within, between = variance.mean(0), (1 + 1 / m) * value.var(0)
    freedom = (m - 1) * (1 + within / between).square()  # inf where nothing was missing
    freedom = freedom.where(between > 0, torch.inf)
    return Estimate(value.mean(0), (within + between).sqrt(), freedom + 1)
