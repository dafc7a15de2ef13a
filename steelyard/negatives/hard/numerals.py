"""Distractors with numerals in them, drawn with better odds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

_DIGIT = re.compile(r"\d")


def numeric_aware_log_weights(texts: Sequence[str], ratio: float) -> Tensor:
    """Log-probabilities by which a text with a numeral is `ratio` times as likely as one without.

        P(j) = r^[text j has a digit] / sum_k r^[text k has a digit]

    For retrievers of facts to calculate with: a fact without a number is an easy negative. What it does to
    the softmax: draws from this law are weighed exactly by `log n + log P(j)`, and then estimate the sum over
    all texts, with less variance where numerals score high; unweighed, the loss is another one.

    Args:
        texts: the candidates; a numeral is any digit of any script, a number word is none.
        ratio: r, positive and finite; 1 is uniform.

    Returns:
        float64, (n,), normalised; empty for no texts.

    Raises:
        TypeError: one string in place of many, or an entry that is no string.
        ValueError: a ratio that is not positive and finite.

    Reference:
        Sun et al. (2022), APOLLO: an optimized training approach for long-form numerical reasoning, COLING
        2024, arXiv 2212.07249; that its number-aware sampling is an odds ratio is reconstructed.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of strings, got one string.")
    if not 0 < ratio < math.inf:
        raise ValueError(f"ratio must be positive and finite, got {ratio}.")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be strings, got {type(text).__name__}.")
    numeric = torch.tensor([_DIGIT.search(text) is not None for text in texts], dtype=torch.float64)
    return (numeric * math.log(ratio)).log_softmax(0)
