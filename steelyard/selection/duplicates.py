"""Near-duplicates among texts, by MinHash signatures and locality-sensitive hashing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from steelyard.selection.hashed_ngrams import shingles


def near_duplicates(
    texts: Sequence[str] | pa.Array,
    *,
    threshold: float = 0.8,
    shingle: int = 5,
    permutations: int = 128,
    seed: int = 0,
) -> NDArray[np.int64]:
    """For every text, an earlier one that shares most of its shingles with it.

        J(x, y) = |shingles in both| / |shingles in either|,  estimated by the share of equal MinHash values

    A text is compared with the first one of each group whose signatures agree in a whole band; there are as
    many bands as find a pair at the threshold 99 times of 100. The error of the estimated J is at most
    1 / (2 sqrt(permutations)).

    Args:
        texts: strings, or an Arrow array of them.
        threshold: least Jaccard similarity of a duplicate, in (0, 1].
        shingle: tokens of a shingle, 1 to 8; a shorter text is one shingle.
        permutations: length of a signature.
        seed: of the permutations.

    Returns:
        int64, (n,): the place of the earlier text, -1 where there is none; texts without a token are no
        duplicates.

    Raises:
        ImportError: the extra `dedup` is not installed.
        TypeError: not texts.
        ValueError: settings outside their range.

    Reference:
        Broder (1997), On the resemblance and containment of documents, SEQUENCES; Leskovec, Rajaraman and
        Ullman, Mining of Massive Datasets, chapter 3 (bands). Signatures are those of the library rensa.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must lie in (0, 1], got {threshold}.")
    if permutations < 1:
        raise ValueError(f"permutations must be at least 1, got {permutations}.")
    hashes, bounds = shingles(texts, shingle)
    try:
        from rensa import RMinHash
    except ImportError:
        raise ImportError("Near-duplicates need rensa: pip install 'steelyard[dedup]'.") from None
    n = len(bounds) - 1
    earlier = np.full(n, -1, np.int64)
    if n == 0:
        return earlier
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, bounds.astype(np.uint64), permutations, seed
    )
    signatures = np.array(matrix.to_rows(), np.uint32)
    some = np.flatnonzero(np.diff(bounds) > 0)
    width = permutations // _bands(threshold, permutations)
    for start in range(0, permutations - width + 1, width):
        band = np.ascontiguousarray(signatures[some, start : start + width])
        keys = band.view([("", np.uint32)] * width).reshape(-1)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        leader = some[first[group]]
        asked = (leader < some) & ((earlier[some] < 0) | (leader < earlier[some]))
        pairs = some[asked], leader[asked]
        alike = (signatures[pairs[0]] == signatures[pairs[1]]).mean(1) >= threshold
        earlier[pairs[0][alike]] = pairs[1][alike]
    return earlier


def _bands(threshold: float, permutations: int) -> int:
    """The fewest bands of equal width with which a pair at the threshold is a candidate 99 times of 100."""
    widths = [w for w in range(permutations, 0, -1) if permutations % w == 0]
    for width in widths:
        bands = permutations // width
        if 1 - (1 - threshold**width) ** bands >= 0.99:
            return bands
    return permutations
