"""Batches whose rows are alike by label: one source, one topic, one cluster of one source."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.negatives.batches.packing import (
    as_labels,
    below,
    check_batch_size,
    in_random_order,
    of_sizes,
    shuffled_groups,
)
from steelyard.negatives.lloyd import finite_matrix, lloyd
from steelyard.ragged import Ragged
from steelyard.sampling.successive import draw_seeds, njit


def stratified_batches(
    strata: ArrayLike | Tensor, batch_size: int, *, generator: torch.Generator | None = None
) -> Ragged:
    """An epoch of batches that each hold rows of one stratum only, in random order.

        batches of stratum s: its rows shuffled, cut into pieces of batch_size

    Rows of one source, or of one cluster of a source (`source_clusters`), are closer to each other than rows
    at large, so that the others in the batch are harder negatives. The last piece of a stratum may be short,
    as no row is lost: strata should be larger than a batch, and `batches.counts == batch_size` tells the full
    ones. Takes O(n) memory.

    Args:
        strata: int, (n,): the stratum of each row.
        batch_size: rows of a full batch, 1 or more.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, one row a batch; each of the n once.

    Raises:
        TypeError: strata or a batch size that are not integers.
        ValueError: strata that are not (n,), a batch size below 1.

    Reference:
        Merrick (2024), Embedding and clustering your data can improve contrastive pretraining, arXiv
        2407.18887; sources as strata: Merrick, Xu, Nuti and Campos (2024), Arctic-Embed, arXiv 2405.05374.
        Short batches kept are ours.
    """
    check_batch_size(batch_size)
    groups = shuffled_groups(as_labels(strata, "strata"), generator)
    pieces = (groups.counts + batch_size - 1) // batch_size
    sizes = torch.full((int(pieces.sum()),), batch_size)
    sizes[pieces.cumsum(0) - 1] = groups.counts - (pieces - 1) * batch_size
    return in_random_order(of_sizes(groups.values, sizes), generator)


def source_clusters(
    vectors: ArrayLike | Tensor,
    source: ArrayLike | Tensor,
    rows_per_cluster: int,
    *,
    iterations: int = 10,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Split each source into clusters of its own by k-means.

        k of a source = max(1, n_source // rows_per_cluster)

    Once before training, for `stratified_batches`. One cluster a source, as for `rows_per_cluster` above the
    largest source, leaves the sources themselves.

    Args:
        vectors: (n, d), finite: embeddings of the queries, or of whatever is to be alike; unit vectors for
            clusters by angle.
        source: int, (n,): the source of each row.
        rows_per_cluster: mean size of a cluster that is aimed at, many batches large.
        iterations: of k-means, at most.
        generator: source of randomness; torch's own where None.

    Returns:
        int64, (n,): the stratum of each row, numbered by rising source.

    Raises:
        TypeError: sources, iterations or a size that are not integers.
        ValueError: vectors that are not finite (n, d), sources that are not (n,), a size below 1.

    Reference:
        Merrick (2024), Embedding and clustering your data can improve contrastive pretraining, arXiv
        2407.18887 (k-means of the embeddings within each source). The number of clusters from their size is
        ours.
    """
    check_batch_size(rows_per_cluster, "rows_per_cluster")
    x, labels = finite_matrix(vectors, "vectors"), as_labels(source, "source")
    if len(labels) != len(x):
        raise ValueError(f"Give one source a vector, got {len(labels)} for {len(x)} vectors.")
    strata, taken = torch.zeros(len(x), dtype=torch.int64), 0
    by_source = of_sizes(labels.argsort(stable=True), labels.unique(return_counts=True)[1])  # type: ignore[no-untyped-call]
    for s in range(len(by_source)):
        rows = by_source.row(s)
        k = max(1, len(rows) // rows_per_cluster)
        if k > 1:
            strata[rows] = lloyd(x[rows], k, iterations=iterations, generator=generator)[1]
        strata[rows] += taken
        taken += k
    return strata


def topic_batches(
    topics: ArrayLike | Tensor,
    batch_size: int,
    n_batches: int,
    *,
    topics_per_batch: int = 1,
    generator: torch.Generator | None = None,
) -> Ragged:
    """Topic-aware sampling of TAS-B: the queries of each batch come from one topic, or from a few.

        batch = floor(b / t) queries of each of t topics, topics equally likely, queries without replacement

    A stream, not an epoch: each batch is drawn anew and a query of a small topic comes more often than one of
    a large topic. A topic with too few queries gives all it has, and the batch is short. For an epoch in
    which each row comes once take `stratified_batches`. O(n) memory, and time that of the rows returned.

    Args:
        topics: int, (n,): the topic of each query, as `lloyd` or any other clustering finds it.
        batch_size: rows of a batch, b.
        n_batches: how many batches, 0 or more.
        topics_per_batch: how many different topics share a batch, t; 1 is the paper's best.
        generator: source of randomness; torch's own where None.

    Returns:
        Row numbers, one row a batch, none twice within a batch.

    Raises:
        TypeError: topics or a number that are not integers.
        ValueError: topics that are not (n,) or empty, numbers out of range, more topics a batch than there
            are, or than rows in a batch.

    Reference:
        Hofstätter, Lin, Yang, Lin and Hanbury (2021), Efficiently teaching an effective dense retriever with
        balanced topic aware sampling, SIGIR, arXiv 2104.06967. Different topics within a batch and short
        batches are ours.
    """
    check_batch_size(batch_size)
    check_batch_size(topics_per_batch, "topics_per_batch")
    if n_batches != 0:
        check_batch_size(n_batches, "n_batches")
    groups = shuffled_groups(as_labels(topics, "topics"), generator)
    if not topics_per_batch <= min(len(groups), batch_size):
        raise ValueError(
            f"topics_per_batch must be at most the {len(groups)} topics and the {batch_size} rows of a batch, "
            f"got {topics_per_batch}."
        )
    share = batch_size // topics_per_batch
    rows = np.empty(n_batches * min(share * topics_per_batch, len(groups.values)), np.int64)
    sizes = np.zeros(n_batches, np.int64)
    seed = draw_seeds(generator, 1)[0, 0]
    offsets, members = groups.offsets.numpy(), groups.values.numpy()
    n = _draw_topics(offsets, members, np.arange(len(groups)), topics_per_batch, share, seed, rows, sizes)
    return of_sizes(torch.from_numpy(rows[:n]), torch.from_numpy(sizes))


@njit
def _draw_topics(
    offsets: Any,
    members: Any,
    topics: Any,
    topics_per_batch: int,
    share: int,
    seed: Any,
    rows: Any,
    sizes: Any,
) -> int:
    """Fill batches. The first few of a list, shuffled in place, are a fresh sample whatever its order was."""
    n, counter = 0, 0
    for batch in range(len(sizes)):
        for t in range(topics_per_batch):
            other = t + below(seed, counter, len(topics) - t)
            counter += 1
            topics[t], topics[other] = topics[other], topics[t]
            first, end = offsets[topics[t]], offsets[topics[t] + 1]
            take = min(share, end - first)
            for i in range(first, first + take):
                other = i + below(seed, counter, end - i)
                counter += 1
                members[i], members[other] = members[other], members[i]
                rows[n] = members[i]
                n += 1
            sizes[batch] += take
    return n
