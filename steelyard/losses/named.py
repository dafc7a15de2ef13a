"""Losses by name: what a command or a configuration writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from steelyard.losses.bilateral import bilateral_softmax
from steelyard.losses.binary import ccl, gbce
from steelyard.losses.debiased import debiased_contrastive, hard_contrastive
from steelyard.losses.noise_contrastive import sampled_bce
from steelyard.losses.pairwise import bpr, bpr_max, top1_max
from steelyard.losses.softmax import sampled_softmax
from steelyard.losses.softmax_variants import psl, sl_at_k


@dataclass(frozen=True)
class Scored:
    """The positives of a batch with their candidates.

    Args:
        positive: float, (P,): scores, similarities times `scale`.
        negative: float, (P, K).
        log_expected: float, broadcastable to `negative`.
        mask: bool, broadcastable to `negative`: True leaves a draw out.
        scale: inverse temperature.
        n_items: size of the catalogue.
        threshold: float, (P,): of a loss at K, the similarity that the query's K-th best item has.
    """

    positive: Tensor
    negative: Tensor
    log_expected: Tensor
    mask: Tensor | None
    scale: float
    n_items: int
    threshold: Tensor | None = None

    @property
    def scores(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Positives, negatives, log expected counts and mask, as losses take them."""
        return self.positive, self.negative, self.log_expected, self.mask

    @property
    def similarities(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The same before the division by the temperature."""
        return self.positive / self.scale, self.negative / self.scale, self.log_expected, self.mask


Compute = Callable[[Scored, float], Tensor]


@dataclass(frozen=True)
class RetrievalLoss:
    """A loss on the scores of positives and their drawn candidates, with its number.

    Args:
        name: its name in `LOSSES`.
        number: power, weight, share or calibration; what it is says `LOSSES`.
        k: of a loss at K, how long the list is that counts; 0 for the others.
    """

    name: str
    number: float
    k: int = 0

    def __call__(self, batch: Scored) -> Tensor:
        """The mean loss of a batch."""
        return LOSSES[self.name].compute(batch, self.number)

    @property
    def fused(self) -> dict[str, object] | None:
        """The arguments by which `fused_sampled_softmax` is this loss, or None if it is not."""
        if self.name == "softmax":
            return {}
        if self.name == "sl@k":
            return {"decoupled": True}
        return {"decoupled": True, "power": self.number} if self.name == "bsl" else None

    def weight(self, similarity: Tensor, threshold: Tensor) -> Tensor:
        """How much each positive counts in a loss at K: sigmoid((similarity - threshold) / number).

        Args:
            similarity: float, (P,): of the positives; the weight passes its gradient on.
            threshold: float, (P,): the similarity of the query's K-th best item.
        """
        return ((similarity - threshold) / self.number).sigmoid()

    @property
    def bounded(self) -> bool:
        """Whether it wants similarities of bounded length, as cosines, at a fixed temperature."""
        return LOSSES[self.name].bounded and not (self.name == "bsl" and self.number == 1)


@dataclass(frozen=True)
class _Named:
    compute: Compute
    default: float | None = None
    low: float = 0.0
    high: float = math.inf
    bounded: bool = False


LOSSES: dict[str, _Named] = {
    "softmax": _Named(lambda b, _: sampled_softmax(*b.scores)),
    "bsl": _Named(lambda b, x: bilateral_softmax(*b.scores, power=x), 1.2, bounded=True),
    "psl": _Named(lambda b, _: psl(*b.similarities, temperature=1 / b.scale), bounded=True),
    "sl@k": _Named(lambda b, x: _sl_at_k(b, x), 3.0, low=1e-3, bounded=True),
    "debiased": _Named(
        lambda b, x: debiased_contrastive(*b.similarities, temperature=1 / b.scale, tau_plus=x), 0.01, high=0.99,
        bounded=True,
    ),
    "hard": _Named(
        lambda b, x: hard_contrastive(*b.similarities, temperature=1 / b.scale, beta=x, tau_plus=0.0), 0.5,
        bounded=True,
    ),
    "ccl": _Named(lambda b, x: ccl(*b.similarities, margin=0.5, negative_weight=x), 10.0, bounded=True),
    "bpr": _Named(lambda b, _: bpr(*b.scores)),
    "bpr-max": _Named(lambda b, x: bpr_max(*b.scores, regularization=x), 0.0),
    "top1-max": _Named(lambda b, _: top1_max(*b.scores)),
    "bce": _Named(lambda b, _: sampled_bce(*b.scores)),
    "gbce": _Named(lambda b, x: gbce(b.positive, b.negative, b.mask, n_items=b.n_items, t=x), 0.75, high=1.0),
}  # fmt: skip
"""Losses that train a retriever, by name, with what their number is:

softmax: none. bsl: power of the sum (1.2). psl: none. sl@k: a name for each length of list, as "sl@20"; temperature of
the weights (3). debiased: share of positives among unknown items (0.01). hard:
concentration on hard negatives (0.5). ccl: weight of the negatives (10). bpr, top1-max, bce: none. bpr-max: weight of
the squared scores (0). gbce: calibration t (0.75).
"""


def _sl_at_k(batch: Scored, weight_temperature: float) -> Tensor:
    if batch.threshold is None:
        raise ValueError("The loss sl@k needs the threshold of each positive's query.")
    positive, negative, log_expected, mask = batch.similarities
    return sl_at_k(
        positive,
        negative,
        batch.threshold,
        log_expected,
        mask,
        temperature=1 / batch.scale,
        weight_temperature=weight_temperature,
        decoupled=True,
    )


def retrieval_loss(spec: str) -> RetrievalLoss:
    """Make the loss that a name stands for: `softmax`, `bsl:1.2`, `sl@20`, `gbce:0.75`.

    Args:
        spec: a name in `LOSSES`, with its number after a colon or without.

    Returns:
        The loss.

    Raises:
        ValueError: an unknown name, a number that the name does not take, or one out of its range.
    """
    name, colon, written = spec.partition(":")
    at_k = re.fullmatch(r"sl@([1-9]\d{0,4})", name)
    k = int(at_k[1]) if at_k else 0
    name = "sl@k" if at_k else name
    if name not in LOSSES or (name == "sl@k" and not k):
        names = ", ".join(LOSSES).replace("sl@k", "sl@K (such as sl@20)")
        raise ValueError(f"loss must be one of {names}, some with :NUMBER; got {spec!r}.")
    known = LOSSES[name]
    if not colon:
        return RetrievalLoss(name, 0.0 if known.default is None else known.default, k)
    if known.default is None:
        raise ValueError(f"The loss {name} takes no number, got {spec!r}.")
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    open_below = name == "bsl"
    if not (known.low < number if open_below else known.low <= number) or not number <= min(known.high, 1e6):
        raise ValueError(
            f"The number of {name} must lie between {known.low:g} and {min(known.high, 1e6):g}, got {written!r}."
        )
    return RetrievalLoss(name, number, k)
