"""Non-negative contrastive learning: features that count, so that each dimension can be read."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu, relu

from steelyard.losses.contrastive import check_views, nt_xent
from steelyard.losses.pairs import widened, widened_alike
from steelyard.losses.softmax import Reduction


def nonnegative(feature: Tensor, *, smooth_gradient: bool = True) -> Tensor:
    """Features with what is below 0 set to 0.

        z = relu(x),   with the gradient of relu, or that of gelu, which does not vanish just below 0

    Args:
        feature: float, (...).
        smooth_gradient: let the gradient of gelu through, so that a feature that fell just below 0 can come
            back; from below -0.75 it cannot, whose slope has the other sign.

    Returns:
        float, of the same shape and dtype, at least 0.

    Raises:
        TypeError: features that are not floating point.

    Reference:
        Wang, Zhang, Guo and Wang (2024), Non-negative contrastive learning, ICLR, arXiv 2403.12459.
        Reconstructed: gelu for the backward pass.
    """
    if not feature.is_floating_point():
        raise TypeError(f"Features must be floating point, got {feature.dtype}.")
    if not smooth_gradient:
        return relu(feature)
    smooth = gelu(feature)
    return smooth + (relu(feature) - smooth).detach()


def spectral_contrastive(first: Tensor, second: Tensor) -> Tensor:
    """Contrast as a factorisation: inner products of positives up, squares of all others down.

        L = -2 mean_i u_i . v_i  +  mean_{i != j} (u_i . v_j)^2

    The second mean is over pairs of independent draws only, so that L is unbiased for
    -2 E[z . z+] + E[(z . z')^2] = |A - F F^T|^2 - |A|^2, with A the normalised co-occurrence of views,
    P(x, x') / sqrt(P(x) P(x')), and rows sqrt(P(x)) z_x of F. With features at least 0 that is a non-negative
    matrix factorisation, which is unique up to the order of dimensions where F F^T alone could be rotated.

    Args:
        first: float, (B, d), B at least 2; not normalised.
        second: float, (B, d): the other views.

    Returns:
        A scalar, in float32 at least.

    Raises:
        TypeError: embeddings that are not floating point.
        ValueError: shapes do not fit, or fewer than two examples.

    Reference:
        HaoChen, Wei, Gaidon and Ma (2021), Provable guarantees for self-supervised deep learning with
        spectral contrastive loss, NeurIPS, arXiv 2106.04156.
    """
    check_views(first, second)
    size = len(first)
    if size < 2:
        raise ValueError("Negatives are the views of other examples; give two examples or more.")
    u, v = widened_alike(first, second)
    product = u @ v.T
    pulled = product.diagonal()
    pushed = product.square().sum() - pulled.square().sum()
    return pushed / (size * (size - 1)) - 2 * pulled.mean()


def nonnegative_contrastive(
    first: Tensor,
    second: Tensor,
    *,
    temperature: float = 0.5,
    smooth_gradient: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    """InfoNCE between two views of features that are set to 0 below 0, then normalised.

        L = nt_xent( relu(u), relu(v) )

    Args:
        first: float, (B, d): features before the cut.
        second: float, (B, d): those of the other views.
        temperature: above 0.
        smooth_gradient: as in `nonnegative`.
        reduction: "mean" over the 2B views, "sum", or "none".

    Returns:
        The loss, a scalar or (2B,) for "none", in float32 at least. A view without a feature above 0 has
        similarity 0 to all.

    Raises:
        TypeError: features that are not floating point.
        ValueError: shapes do not fit, a temperature out of range, an unknown reduction, or the mean over no
            views.

    Reference:
        Wang, Zhang, Guo and Wang (2024), Non-negative contrastive learning, ICLR, arXiv 2403.12459.
    """
    check_views(first, second)
    z = [nonnegative(widened(of), smooth_gradient=smooth_gradient) for of in (first, second)]
    return nt_xent(z[0], z[1], temperature=temperature, reduction=reduction)
