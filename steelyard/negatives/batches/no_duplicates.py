"""Batches in which no two rows share a positive, so that no in-batch negative is one by accident."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.negatives.batches.packing import check_batch_size, in_random_order, of_sizes
from steelyard.negatives.context import MULTIPLIER
from steelyard.ragged import Ragged
from steelyard.sampling.successive import njit


def no_duplicate_batches(
    keys: Ragged, batch_size: int, *, order: Tensor | None = None, generator: torch.Generator | None = None
) -> Ragged:
    """An epoch of batches in which no two rows have a key in common.

        batch(row) = the first batch with room after the last one that holds any key of the row

    A key stands for a text: the hash or number of the query, of its positive, of a hard negative. Of a text
    that repeats in the batch, every copy but its own row's would be a false negative. Rows are placed in
    random order, each once and none lost; a text of m rows takes m batches whatever is done, and what is left
    of these at the end may be short. Takes time and memory in proportion to the number of keys: each batch
    remembers whether it has room (disjoint sets), each key the last batch that holds it (a hash table).

    Args:
        keys: the keys of each row, not negative, n rows of any length; a key that a row repeats counts once.
        batch_size: rows of a batch at most.
        order: int64, (n,): place the rows in this order instead of a random one, as another method's batches
            have them (`batches.values`), and leave the batches in theirs.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, one row a batch, each of the n once; batches in random order.

    Raises:
        TypeError: a batch size that is not an integer, or an order that is not int64.
        ValueError: a batch size below 1, a negative key, or an order that is no permutation of the rows.

    Reference:
        Batches without duplicates as in sentence-transformers (NoDuplicatesBatchSampler), Reimers & Gurevych
        (2019), Sentence-BERT, EMNLP, arXiv 1908.10084; the placement in one pass is ours.
    """
    check_batch_size(batch_size)
    if len(keys.values) and int(keys.values.min()) < 0:
        raise ValueError(f"Keys must not be negative, got {int(keys.values.min())}.")
    n = len(keys)
    rows = torch.randperm(n, generator=generator) if order is None else torch.as_tensor(order)
    if rows.dtype != torch.int64:
        raise TypeError(f"order must be int64, got {rows.dtype}.")
    if rows.shape != (n,) or not torch.equal(
        torch.bincount(rows.clamp(0, n), minlength=n)[:n], torch.ones(n).long()
    ):
        raise ValueError(f"order must hold each of the {n} rows once.")
    batch = np.empty(n, np.int64)
    _place(keys.offsets.numpy(), keys.values.numpy(), rows.numpy(), batch_size, batch)
    placed = torch.from_numpy(batch)
    sizes = torch.bincount(placed)
    filled = np.empty(n, np.int64)
    _gather(rows.numpy(), batch, (sizes.cumsum(0) - sizes).numpy(), filled)
    batches = of_sizes(torch.from_numpy(filled), sizes)
    return batches if order is not None else in_random_order(batches, generator)


@njit
def _place(offsets: Any, keys: Any, rows: Any, batch_size: int, batch: Any) -> None:
    """The batch of each row, in the order of `rows`. `open_from[b]` leads to the first batch from b with room."""
    bits = 4
    while 1 << bits < 2 * len(keys):
        bits += 1
    shift, last_place = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
    held, last = np.full(1 << bits, -1, np.int64), np.empty(1 << bits, np.int64)
    places = np.empty(64, np.uint64)
    open_from = np.arange(len(rows) + 1)
    size = np.zeros(len(rows) + 1, np.int64)
    for at in range(len(rows)):
        first, end = offsets[rows[at]], offsets[rows[at] + 1]
        if end - first > len(places):
            places = np.empty(2 * (end - first), np.uint64)
        earliest = 0
        for i in range(first, end):
            place = (np.uint64(keys[i]) * MULTIPLIER) >> shift
            while held[place] >= 0 and held[place] != keys[i]:
                place = (place + np.uint64(1)) & last_place
            if held[place] < 0:
                held[place], last[place] = keys[i], -1
            places[i - first] = place
            earliest = max(earliest, last[place] + 1)
        found = earliest
        while open_from[found] != found:
            open_from[found] = open_from[open_from[found]]
            found = open_from[found]
        for i in range(end - first):
            last[places[i]] = found
        batch[at] = found
        size[found] += 1
        if size[found] == batch_size:
            open_from[found] = found + 1


@njit
def _gather(rows: Any, batch: Any, first: Any, out: Any) -> None:
    for at in range(len(rows)):
        out[first[batch[at]]] = rows[at]
        first[batch[at]] += 1
