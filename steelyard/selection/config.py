"""The settings of a selection, checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import get_args

from steelyard.selection.designs import Design
from steelyard.selection.hashed_ngrams import HashedNgrams
from steelyard.selection.scorers import SCORERS

_TEMPER = re.compile(r"none|length|(?:length,)?(ess|again)=(\d+(?:\.\d+)?(?:e\d+)?|\.\d+)")


@dataclass(frozen=True)
class SelectConfig:
    """Settings of one selection.

    Args:
        n: rows to select.
        method: what scores the rows: "dsir" (log ratio of hashed n-grams), "classifier" (log-odds of a linear
            classifier of target against corpus), "betr" (closeness to the target's rows, distilled) or
            "random".
        design: "resample" (without replacement, proportional to the weights: Gumbel top-k), "top" (the
            highest scores), "poisson" (each row by itself, n on average) or "stratified" (equal numbers from
            parts of equal weight).
        temper: "none"; "length" (as if all texts were equally long); "ess=5000" (the largest power of the
            weights with so many effective rows; below 1 a share of the rows); "again=0.5" (the power with which
            another seed would draw that share of the rows again); or "length,ess=..." and "length,again=...".
        text_field: name of the field, or column, with the text.
        n_grams: longest n-gram, in tokens.
        buckets: hash buckets.
        smoothing: count added to every bucket.
        min_tokens: shorter texts are left out, and counted.
        strata: parts of the stratified design.
        seed: of everything random.
        strict: stop at the first line that cannot be used, rather than count it.

    Raises:
        TypeError: a value of another type.
        ValueError: a value outside its range, said with the mend.
    """

    n: int
    method: str = "dsir"
    design: Design = "resample"
    temper: str = "none"
    text_field: str = "text"
    n_grams: int = 2
    buckets: int = 10_000
    smoothing: float = 1.0
    min_tokens: int = 1
    strata: int = 10
    seed: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        for f in fields(self):
            value, kinds = getattr(self, f.name), {"int": (int,), "float": (int, float), "bool": (bool,)}
            kind = kinds.get(str(f.type), (str,))
            if not isinstance(value, kind) or (bool not in kind and isinstance(value, bool)):
                raise TypeError(f"{f.name} must be of type {f.type}, got {value!r}.")
        if self.method not in SCORERS:
            raise ValueError(f"method must be one of {', '.join(SCORERS)}, got {self.method!r}.")
        if self.design not in get_args(Design):
            raise ValueError(f"design must be one of {', '.join(get_args(Design))}, got {self.design!r}.")
        for name in ("n", "min_tokens", "strata"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed must lie in [0, 2^62), got {self.seed}.")
        if not 0 < self.smoothing < math.inf:
            raise ValueError(f"smoothing must be positive and finite, got {self.smoothing}.")
        if not self.text_field:
            raise ValueError("text_field must name a field.")
        if not _TEMPER.fullmatch(self.temper):
            raise ValueError(
                f"temper must be none, length, ess=ROWS or again=SHARE, the last two after length, too; got "
                f"{self.temper!r}."
            )
        if (wanted := self.wanted) and (wanted[1] <= 0 or (wanted[0] == "again" and wanted[1] >= 1)):
            raise ValueError(f"ess must be above 0, and again between 0 and 1, got {self.temper!r}.")
        if self.design == "stratified" and self.strata > self.n:
            raise ValueError(f"{self.strata} strata cannot each give a row to n={self.n}: lower --strata.")
        self.ngrams_of()

    @property
    def wanted(self) -> tuple[str, float] | None:
        """What the power of the weights is to reach, "ess" or "again", and how much of it."""
        match = _TEMPER.fullmatch(self.temper)
        return (match[1], float(match[2])) if match and match[1] else None

    @property
    def by_length(self) -> bool:
        """Whether scores are taken to equal length."""
        return self.temper.startswith("length")

    def ngrams_of(self) -> HashedNgrams:
        """What is counted."""
        return HashedNgrams(self.n_grams, self.buckets)
