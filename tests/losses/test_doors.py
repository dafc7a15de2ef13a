"""What every loss on scores refuses in the same words: other shapes, masks that are no masks, ids for floats."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from steelyard import losses

POSITIVE = torch.linspace(-1, 1, 3)
NEGATIVE = torch.linspace(-1, 1, 12).view(3, 4).tanh()

ON_DRAWS: dict[str, Callable[..., object]] = {
    "sampled softmax": partial(losses.sampled_softmax, POSITIVE, NEGATIVE),
    "bilateral": partial(losses.bilateral_softmax, POSITIVE, NEGATIVE),
    "bpr": partial(losses.bpr, POSITIVE, NEGATIVE),
    "top1-max": partial(losses.top1_max, POSITIVE, NEGATIVE),
    "ccl": partial(losses.ccl, POSITIVE, NEGATIVE),
    "psl": partial(losses.psl, POSITIVE, NEGATIVE, temperature=0.5),
    "sl@k": partial(losses.sl_at_k, POSITIVE, NEGATIVE, POSITIVE, temperature=0.5, weight_temperature=0.5),
    "debiased": partial(losses.debiased_contrastive, POSITIVE, NEGATIVE, temperature=0.5),
    "hasa": partial(losses.hasa, POSITIVE, NEGATIVE, torch.zeros(3, 4), temperature=0.5, tau=0.1),
    "robust": partial(losses.robust_contrastive, POSITIVE, NEGATIVE, temperature=0.5),
    "weighted": partial(losses.weighted_info_nce, POSITIVE, NEGATIVE, torch.zeros(4)),
    "false negatives": partial(losses.false_negative_weighted, POSITIVE, NEGATIVE, torch.zeros(4)),
    "nbpo": partial(losses.nbpo, POSITIVE, NEGATIVE, 0.0, 0.0),
    "bce": partial(losses.sampled_bce, POSITIVE, NEGATIVE),
    "mse": partial(losses.sampled_mse, POSITIVE, NEGATIVE),
    "cet": partial(losses.cet, POSITIVE, NEGATIVE, POSITIVE, NEGATIVE),
    "margin mse": partial(losses.margin_mse, POSITIVE, NEGATIVE, POSITIVE, NEGATIVE),
    "auc": partial(losses.mann_whitney, POSITIVE, NEGATIVE),
    "kl": partial(losses.kl_distillation, NEGATIVE, NEGATIVE),
    "threshold": partial(losses.top_k_threshold, NEGATIVE, k=2),
    "regression": partial(losses.regression_compatible, NEGATIVE, NEGATIVE.abs()),
}
ON_MASKS: dict[str, Callable[..., object]] = {
    "gbce": partial(losses.gbce, POSITIVE, NEGATIVE, n_items=9),
    "negative sampling": partial(losses.negative_sampling, POSITIVE, NEGATIVE),
    "judge": partial(losses.judge_alignment, NEGATIVE, NEGATIVE, temperature=1.0),
    "top-kd": partial(losses.top_kd, NEGATIVE, NEGATIVE, k=2),
    "soft sorting": partial(losses.log_soft_permutation, NEGATIVE, temperature=1.0),
    "diht": partial(losses.diht, NEGATIVE[:, :3], temperature=0.5),
    "clusterns": partial(losses.clusterns, NEGATIVE[:, :3], temperature=0.5, alpha=0.1, beta=0.2),
}


@pytest.mark.parametrize("name", ON_DRAWS)
def test_expected_counts_that_do_not_fit_are_refused_by_name(name: str) -> None:
    loss = ON_DRAWS[name]
    for wrong in (torch.zeros(2, 4), torch.zeros(3, 5), torch.zeros(1, 3, 4), torch.zeros(0)):
        with pytest.raises(ValueError, match=r"log_expected of shape .* does not broadcast"):
            loss(log_expected=wrong)
    for kind in (torch.int64, torch.bool):
        with pytest.raises(TypeError, match="log_expected must be floating point"):
            loss(log_expected=torch.zeros(3, 4, dtype=kind))


@pytest.mark.parametrize("name", [*ON_DRAWS, *ON_MASKS])
def test_masks_that_do_not_fit_are_refused_by_name(name: str) -> None:
    loss = (ON_DRAWS | ON_MASKS)[name]
    if name in ("sampled softmax", "bilateral"):
        loss = partial(loss, log_expected=torch.zeros(()))
    for wrong in ((2, 4), (3, 5), (1, 3, 4), (0,)):
        with pytest.raises(ValueError, match=r"mask of shape .* does not broadcast"):
            loss(mask=torch.zeros(wrong, dtype=torch.bool))
    for kind in (torch.int64, torch.float32):
        with pytest.raises(TypeError, match="mask must be bool"):
            loss(mask=torch.zeros(3, 4, dtype=kind))


@pytest.mark.parametrize("loss", [losses.nce, losses.ranking_nce])
@pytest.mark.parametrize("shape", [(2,), (3, 1), (0,)])
def test_the_targets_expected_counts_must_fit_the_targets(
    loss: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="positive_log_expected of shape"):
        loss(POSITIVE, NEGATIVE, torch.zeros(shape), torch.zeros(4))


def test_one_target_is_not_spread_over_the_negatives_of_many() -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., K\)"):
        losses.ranking_nce(torch.zeros(()), NEGATIVE, torch.zeros(3), torch.zeros(4))


def test_other_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="threshold of shape"):
        losses.sl_at_k(POSITIVE, NEGATIVE, torch.zeros(2), temperature=0.5, weight_temperature=0.5)
    with pytest.raises(ValueError, match="log_odds of shape"):
        losses.hasa(POSITIVE, NEGATIVE, torch.zeros(3, 5), temperature=0.5, tau=0.1)
    with pytest.raises(ValueError, match="false_logit of shape"):
        losses.false_negative_weighted(POSITIVE, NEGATIVE, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="positive_flip of shape"):
        losses.nbpo(POSITIVE, NEGATIVE, torch.zeros(2), 0.0)
    with pytest.raises(ValueError, match="log_expected of shape"):
        losses.log_posterior(NEGATIVE, torch.zeros(3, 5), criterion="ranking")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_scores_that_are_no_floats_are_refused(kind: torch.dtype) -> None:
    positive, negative = torch.zeros(3, dtype=kind), torch.zeros(3, 4, dtype=kind)
    for loss in (losses.sampled_softmax, losses.bilateral_softmax):
        with pytest.raises(TypeError, match="positive must hold floating-point"):
            loss(positive, NEGATIVE, torch.zeros(4))
        with pytest.raises(TypeError, match="negative must hold floating-point"):
            loss(POSITIVE, negative, torch.zeros(4))
    with pytest.raises(TypeError, match="positive must hold floating-point"):
        losses.sampled_bce(positive, NEGATIVE)
    with pytest.raises(TypeError, match="score must be floating point"):
        losses.top_k_threshold(negative, k=1)


X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(2, -1, 12).view(4, 3).sin()
SHARES = Y.softmax(1)
EDGES = torch.tensor([[0, 1], [2, 3]])
OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "moments": lambda x, y: losses.logit_moments(x, y, torch.arange(4)).variance.sum(),
    "spectral": losses.spectral_contrastive,
    "structure": lambda x, y: losses.ms_ssim_loss(
        x.view(1, 1, 3, 4), y.view(1, 1, 3, 4), scale_weights=(1.0,), window_size=3
    ),
    "prototypes": lambda x, y: losses.proto_triplet(x, torch.arange(4), y),
    "utilization": losses.utilization,
    "centroids": lambda x, y: losses.nearest_centroids(x, y)[1].sum(),
    "meta-nodes": lambda x, y: losses.pamc(x, SHARES.to(y.dtype), EDGES, temperature=0.5),
    "adversarial": losses.adversarial_contrast,
}


@pytest.mark.parametrize("name", OF_TWO)
def test_two_tensors_of_two_precisions_meet_in_the_wider_one(name: str) -> None:
    loss = OF_TWO[name]
    expected = float(loss(X, Y))
    assert float(loss(X.double(), Y)) == pytest.approx(expected, rel=1e-5)
    assert float(loss(X, Y.double())) == pytest.approx(expected, rel=1e-5)
    assert float(loss(X.bfloat16(), Y)) == pytest.approx(expected, rel=0.05)
