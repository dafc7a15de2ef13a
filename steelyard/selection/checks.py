"""What a draw is worth: whether its weights carry it, whether it moved toward the target, and what it repeats."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.selection.config import SelectConfig
from steelyard.selection.corpus import Block
from steelyard.selection.drawing import Drawn, Weights
from steelyard.selection.dsir import kl_reduction
from steelyard.selection.duplicates import near_duplicates
from steelyard.selection.hashed_ngrams import HashedNgrams
from steelyard.selection.reading import texts_of
from steelyard.selection.writing import contents
from steelyard.weights import effective_sample_size, khat_threshold, pareto_khat

SAMPLE = 5_000
"""Rows at most whose texts are looked at again."""
TOKENS = 2_000_000
"""Tokens at most of them."""
HEAD = 2_000
"""Characters of a text that count in the divergences: one long text would outweigh hundreds of others."""
DISGUISE = 0.8
"""A draw of which more than this share comes again with another seed is hardly random."""


def check_weights(weights: Weights, drawn: Drawn) -> dict[str, Any]:
    """How evenly the weights lie on the rows, and how much chance was in the draw.

    Args:
        weights: of all rows.
        drawn: the draw.

    Returns:
        `rows` long enough, and how many different `texts` they are; `effective_rows` of the weights as they are and `effective_rows_tempered` as they drew; `khat` of the
        weights with its threshold; `length_correlation` of log-weight and tokens; `drawn_again`: the share of
        the draw that another seed would draw too, by its inclusion probabilities; `among_top`: the share that
        stands among the n highest scores; `effective_draws`: effective number of drawn rows under their
        weights.
    """
    n, histogram = len(drawn.rows), weights.histogram
    log_weight = drawn.rows["log_w"] - drawn.log_probability
    tempered = weights.kept * weights.exponent
    return {
        "rows": weights.rows,
        "texts": weights.texts,
        "short": weights.short,
        "effective_rows": histogram.effective_size(),
        "exponent": weights.exponent,
        "effective_rows_tempered": histogram.effective_size(weights.exponent),
        "khat": _shape(weights.kept),
        "khat_tempered": _shape(tempered),
        "khat_threshold": max(float(khat_threshold(max(len(weights.kept), 1))), 0.0),
        "length_correlation": weights.correlation,
        "drawn_again": float(np.exp(drawn.log_probability).sum()) / n if n else 0.0,
        "among_top": float((drawn.rows["log_w"] >= histogram.nth_largest(n)).mean()) if n else 0.0,
        "effective_draws": float(effective_sample_size(torch.from_numpy(log_weight))) if n else 0.0,
    }


def check_texts(
    drawn: Drawn,
    blocks: Sequence[Block],
    ngrams: HashedNgrams,
    text_field: str,
    target: NDArray[np.int64] | None,
) -> dict[str, Any]:
    """Whether the drawn texts are nearer to the target than an even draw of as many, and what they repeat.

    Args:
        drawn: the draw.
        blocks: of the corpus.
        ngrams: what is counted.
        text_field: where the text is.
        target: n-grams of the target; None leaves the divergences out.

    Returns:
        `looked_at` rows; `kl_reduction` in nats an n-gram, from equally many n-grams of the beginnings of the
        texts on both sides; `near_duplicates`, the share of rows that share 80 %
        of their word 5-grams with an earlier one, None where rensa is not installed.
    """
    rows, even = _sample(drawn.rows), _sample(drawn.uniform)
    size = min(len(rows), len(even))
    both = _texts(np.concatenate([rows[:size], even[:size]]), blocks, text_field)
    texts = both[:size], both[size:]
    found: dict[str, Any] = {"looked_at": size, "near_duplicates": None}
    with contextlib.suppress(ImportError):
        found["near_duplicates"] = float((near_duplicates(texts[0]) >= 0).mean()) if size else 0.0
    if target is not None:
        drawn_counts, even_counts = _counts(texts, ngrams)
        reducible = drawn_counts.any() and even_counts.any()
        found["kl_reduction"] = kl_reduction(target, even_counts, drawn_counts) if reducible else None
    return found


def verdicts(found: dict[str, Any], config: SelectConfig) -> list[str]:
    """What the figures mean, in words, with the mend.

    Args:
        found: as the two checks gave it.
        config: the settings.
    """
    n, design = config.n, config.design
    said, texts = unmet(found, config), found["texts"]
    again, effective = found["drawn_again"], found["effective_rows_tempered"]
    wanted = min(4 * n, max(texts // 2, 1))
    mend = f"--temper length,again=0.5 for a draw half of which is chance, --temper ess={wanted} for even weights"
    if design in ("resample", "poisson") and again > DISGUISE and n < texts / 2:
        said.append(
            f"The weights are worth {effective:,.1f} of {texts:,} rows: {again:.0%} of the draw would come "
            f"again with any seed, so that it is the top {n:,} in disguise. Temper the weights ({mend}), or cut "
            "the texts to equal length."
        )
    elif design in ("resample", "poisson") and effective < n / 2 and config.wanted is None:
        said.append(
            f"The weights are worth {effective:,.1f} rows, fewer than the {n:,} drawn: the heavy ones are all in, and "
            f"the rest is filled up with light ones: {mend}."
        )
    if abs(found["length_correlation"]) > 0.5:
        said.append(
            f"The log-weights follow the length of the texts (correlation {found['length_correlation']:.2f}): they are "
            "sums over n-grams. Compare at equal length with --temper length."
        )
    if found["khat_tempered"] is None:
        said.append("k-hat of the weights cannot be fitted: next to the largest of them the others vanish.")
    elif found["khat_tempered"] > found["khat_threshold"]:
        said.append(
            f"k-hat of the weights is {found['khat_tempered']:.2f}, above {found['khat_threshold']:.2f}: an average "
            "over the target by these weights would have no controlled error."
        )
    reduction = found.get("kl_reduction")
    if reduction is not None and reduction <= 0:
        said.append("The selection is no nearer to the target than an even draw of as many rows.")
    if found.get("near_duplicates") is None and "looked_at" in found:
        said.append("Near-duplicates were not looked for: pip install 'steelyard[dedup]'.")
    elif found.get("near_duplicates", 0) > 0.05:
        said.append(f"{found['near_duplicates']:.0%} of the rows looked at nearly repeat another one.")
    return said


def unmet(found: dict[str, Any], config: SelectConfig) -> list[str]:
    """What tempering was to reach and could not."""
    if config.wanted is None:
        return []
    (name, value), design = config.wanted, config.design
    if design == "top":
        return [
            "The design top leaves nothing to chance: ess and again have no say in it. Take --design resample."
        ]
    if name == "ess":
        rows = value if value >= 1 else value * found["texts"]
        if found["effective_rows_tempered"] > rows * (1 - 1e-6):
            return []
        return [
            f"ess={rows:,.0f} is more than the {found['texts']:,} different texts: all weights were made equal."
        ]
    if design == "stratified":
        return [
            f"again={value:g} is reckoned for the designs resample and poisson; by strata another seed would draw "
            f"{found['drawn_again']:.0%} of the rows again."
        ]
    if found["exponent"] == 0:
        return [
            f"again={value:g} cannot be reached: an even draw of {config.n:,} from {found['texts']:,} texts has more "
            "in common with the next. All weights were made equal."
        ]
    return []


def _sample(rows: NDArray[Any]) -> NDArray[Any]:
    """An even part of rows, bounded in number and tokens, of which any beginning is an even part, too."""
    order = np.argsort(rows["content"], kind="stable")[:SAMPLE]
    fits = int(np.searchsorted(np.cumsum(rows["tokens"][order].astype(np.int64)), TOKENS, side="right"))
    return rows[order[: max(fits, 1)]]


def _counts(parts: Sequence[Sequence[str]], ngrams: HashedNgrams) -> list[NDArray[np.int64]]:
    """N-grams of texts by bucket, from the beginnings of so many texts that all parts have about equally many.

    A model of more n-grams is nearer to anything, so that without this the longer texts would win.
    """
    heads = [[text[:HEAD] for text in part] for part in parts]
    sizes = [np.cumsum(ngrams.grams_of(ngrams.scores(part, np.zeros(ngrams.buckets))[1])) for part in heads]
    least = min((int(size[-1]) for size in sizes if len(size)), default=0)
    return [
        ngrams.counts(part[: int(np.searchsorted(size, least)) + 1])
        for part, size in zip(heads, sizes, strict=True)
    ]


def _texts(rows: NDArray[Any], blocks: Sequence[Block], text_field: str) -> list[str]:
    """The texts of rows in any order, the corpus read once."""
    order = np.lexsort((rows["line"], rows["block"]))
    distinct, place = np.unique(rows[["block", "line"]][order], return_inverse=True)
    wanted = rows[order][np.unique(place, return_index=True)[1]]
    found: list[str] = []
    for block, content in contents(blocks, wanted):
        if isinstance(content, list):
            found += texts_of(block.kind, content, text_field)
        else:
            found += [str(t) for t in content.column(text_field).to_pylist()]
    assert len(found) == len(distinct)
    back = np.empty(len(rows), np.int64)
    back[order] = place
    return [found[k] for k in back]


def _shape(log_w: NDArray[np.float64]) -> float | None:
    """k-hat of weights; 0 where they are equal, None where it cannot be fitted."""
    khat = float(pareto_khat(log_w))
    return 0.0 if khat == -math.inf else khat if math.isfinite(khat) else None
