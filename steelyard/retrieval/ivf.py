"""Approximate search by an inverted file, kept beside the fingerprint of the vectors that it was built from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.files import read_json, replacing, write_json
from steelyard.negatives.context import among
from steelyard.ragged import Ragged
from steelyard.retrieval.collection import vectors_fingerprint
from steelyard.retrieval.mining import Search


def ivf_search(documents: Tensor, k: int, *, probes: int = 16, file: Path | None = None) -> Search:
    """A search through the lists of an inverted file whose centroids are nearest to a query.

    Documents are put into about 4 sqrt(I) lists by k-means; a query looks through `probes` of them. What is
    found is scored exactly, but documents in other lists are missed.

    Args:
        documents: float, (I, d).
        k: documents of a query, positives left out.
        probes: lists looked through.
        file: where the index is kept; one that is there is used if it was built from the same vectors.

    Returns:
        A search as `mine_negatives` takes it.

    Raises:
        ImportError: the extra `faiss` is not installed.
        ValueError: the file's index was built from other vectors, or is damaged.
        OSError: no room to write.
    """
    try:
        import faiss
    except ImportError:
        raise ImportError("An inverted file needs faiss: pip install 'steelyard[faiss]'.") from None
    index = _index(faiss, documents, file)
    index.nprobe = min(probes, index.nlist)

    def search(queries: Tensor, positives: Ragged) -> tuple[Tensor, Tensor]:
        most = int(positives.counts.max()) if len(positives) else 0
        wide = min(k + most, len(documents))
        found, rows = index.search(queries.contiguous().numpy(), wide)
        score, ids = torch.from_numpy(found), torch.from_numpy(rows)
        positive = among(positives, ids.clamp(min=0))
        score = score.masked_fill(positive | (ids < 0), -math.inf)
        score, order = score.sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order).masked_fill(score == -math.inf, -1)
        return score[:, :k], ids[:, :k]

    return search


def _index(faiss: Any, documents: Tensor, file: Path | None) -> Any:
    beside = None if file is None else file.with_name(file.name + ".json")
    if file is not None and file.exists():
        assert beside is not None
        note = read_json(beside)
        if not isinstance(note, dict) or note.get("vectors") != vectors_fingerprint(documents):
            raise ValueError(
                f"The index {file} was built from other vectors than these {len(documents):,} documents' (another "
                "model, or another corpus): remove it, or name another file."
            )
        try:
            return faiss.read_index(str(file))
        except RuntimeError as error:
            raise ValueError(f"The index {file} is damaged ({str(error)[:200]}): remove it.") from None
    lists = max(1, min(int(4 * math.sqrt(len(documents))), len(documents) // 39))
    quantizer = faiss.IndexFlatIP(documents.shape[1])
    index = faiss.IndexIVFFlat(quantizer, documents.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    rows = documents.contiguous().numpy()
    index.train(rows)
    index.add(rows)
    if file is not None:
        assert beside is not None
        with replacing(file) as temporary:
            faiss.write_index(index, str(temporary))
        write_json(beside, {"vectors": vectors_fingerprint(documents), "lists": lists})
    return index
