"""Search by 8-bit codes with certified bounds: exact answers, and few products of whole vectors."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from steelyard.ragged import Ragged
from steelyard.retrieval.shortlist import LANES, Shortlist, pair_room

BLOCK, TILE = 1024, 512
"""Queries a block and items a tile: the vectors of a tile stay near while the block asks for them."""
SAMPLE = 4096
ASKED = 32
STEP = 64
TRIALS = 3


@dataclass(frozen=True)
class CodedItems:
    """Items in the first p of d orthogonal directions, in whole numbers from -127 to 127.

    Args:
        items: float32, (I, d): the vectors themselves.
        basis: float32, (d, p), orthonormal columns; None for the coordinates as they are (p = d).
        codes: int8, (I, p).
        scale: float32, (I,): item = scale * codes in the first p directions, up to an error.
        rest: float32, (I,): length of what lies outside them.
        error: float64, (tiles,): the longest error of a tile.
        length: float64, (tiles,): the longest item of a tile.
        sample: int64, (m,): some items, evenly spaced.
    """

    items: Tensor
    basis: Tensor | None
    codes: Tensor
    scale: Any
    rest: Any
    error: Any
    length: Any
    sample: Tensor


def code_items(items: Tensor, queries: Tensor, k: int) -> CodedItems | None:
    """Codes of the items that make a search for the k best shorter, or None where the plain search is best.

        q = B q' + r,  d = B d' + s          B: the first p principal directions;  r, s orthogonal to them
        q' = a n + u,  d' = b m + v          n, m: whole numbers in [-127, 127];  u, v: rounding errors
        <q, d> <= a b <n, m> + |u| |d| + |a n| |v| + |r| |s|

    Only a pair whose bound exceeds the query's k-th best score so far needs its score. The number p
    is the one with the least work on a sample of items and queries, and p = d has no r and s at all.

    Args:
        items: float32, (I, d), contiguous.
        queries: float, (n, d): the queries, or some that are like them.
        k: how many will be asked for.

    Returns:
        The codes; None on a machine without products of 8-bit numbers, for vectors that are not finite or
        of extreme length, and where the bound would spare no work.

    Reference:
        Ram & Gray (2012), Maximum inner-product search using cone trees, KDD (bounds of inner products by
        Cauchy-Schwarz); Li et al. (2017), FEXIPRO, SIGMOD (the first principal directions, and
        whole numbers, as bounds). The combination, with the errors measured, is reconstructed from these ideas.
    """
    count, d = items.shape
    if not fast_integers() or count < SAMPLE or len(queries) == 0 or d < STEP:
        return None
    seen, like = items[_spaced(count, SAMPLE)], queries[_spaced(len(queries), SAMPLE)].detach().float()
    if not all(bool(x.isfinite().all()) and in_range(float(x.abs().max())) for x in (seen, like)):
        return None
    asked = like[_spaced(len(like), ASKED)]
    directions = _directions(seen, like)
    bar = (asked @ seen.T).topk(max(1, round(k * SAMPLE / count)), dim=1).values[:, -1:]
    work = {0: 0.0233 * d + 0.1}
    for p in [*range(STEP, d, STEP), d]:
        basis = None if p == d else _mixed(directions[:, :p])
        alive = _survivors(_Coded.of(asked, basis), _Coded.of(seen, basis), bar)
        rotation = 0.0 if basis is None else 0.0233 * d * p * (1 / len(queries) + 1 / count)
        work[p] = 0.0046 * p + 0.2 + rotation + 0.08 * d * alive
    p = min(work, key=work.__getitem__)
    if p == 0:
        return None
    sample = _spaced(count, min(SAMPLE, count // 16))
    return _code_all(items, None if p == d else _mixed(directions[:, :p]), sample)


def search_block(
    coded: CodedItems,
    queries: Tensor,
    k: int,
    banned: Ragged | None,
    scores: Tensor,
    rows: Tensor,
    trial: int,
) -> Tensor:
    """Write the k best of each query, and give the queries that are to be searched again, a trial later.

    The bar starts at a guess, a score that more than k items of the catalogue should exceed, by a sample. If k
    of them do, the answer is the exact one. A later trial starts lower, and the last at -inf.

    Args:
        coded: the items.
        queries: float32, (n, d), contiguous.
        k: how many, at most the number of items.
        banned: items that are left out, n rows, each rising.
        scores: float32, (n, k), filled with -inf.
        rows: int64, (n, k), filled with -1.
        trial: from 0, less than `TRIALS`.
    """
    expected = k * len(coded.sample) / len(coded.items)
    spread = 1.5 if trial == 0 else 6.0
    rank = math.ceil(expected + spread * math.sqrt(expected) + 1)
    near = _Coded.of(queries, coded.basis)
    last = trial == TRIALS - 1
    bar = np.full(len(queries), -np.inf, np.float32) if last else _guess(coded, near, rank)
    found = Shortlist(queries, coded.items, k, banned, bar)
    _sweep(coded, near, found)
    done = found.held >= (0 if last else k)
    found.finish(scores, rows, np.where(done, np.arange(len(done)), -1))
    return torch.from_numpy(~done).nonzero().squeeze(1)


def in_range(length: float) -> bool:
    """Whether products of vectors of this length neither overflow nor vanish in float32."""
    return 2.0**-40 < length < 2.0**40


def rounding(d: int) -> float:
    """Relative error of a float32 product of vectors of length `d`, in any order of summation."""
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set by the newer switches of single backends
        exact = False
    return 1.01 * (d + 4) * 2.0**-24 + (0.0 if exact else 2.0**-7)


@functools.cache
def fast_integers() -> bool:
    """Whether this machine multiplies 8-bit numbers faster than float32, and without saturation."""
    known = getattr(torch.cpu, "_is_vnni_supported", None)
    if known is None or not known() or not hasattr(torch, "_int_mm"):
        return False
    extreme = torch.tensor([127, -127], dtype=torch.int8).repeat_interleave(STEP)
    rows = torch.stack([extreme, -extreme, extreme.abs(), -extreme.abs()]).repeat(16, 1)
    return bool((torch._int_mm(rows, rows.T) == (rows.double() @ rows.double().T)).all())


@dataclass(frozen=True)
class _Coded:
    """Vectors in whole numbers, with the lengths of what that leaves out; one entry a vector."""

    codes: Tensor
    scale: Any
    rest: Any
    error: Any
    kept: Any
    length: Any

    @classmethod
    def of(cls, x: Tensor, basis: Tensor | None) -> _Coded:
        n, d = x.shape
        p = d if basis is None else basis.shape[1]
        made = cls(torch.empty(n, p, dtype=torch.int8), *(np.empty(n, t) for t in (*"ff", *"ddd")))
        # Of the product with the basis, whose entries are themselves rounded.
        slip = 0.0 if basis is None else (rounding(d) + 2.0**-24) * math.sqrt(p)
        inside = (x if basis is None else x @ basis).numpy()
        _encode(x.numpy(), inside, slip, made.codes.numpy(), *made.lengths())
        return made

    def lengths(self) -> tuple[Any, Any, Any, Any, Any]:
        return self.scale, self.rest, self.error, self.kept, self.length


def _code_all(items: Tensor, basis: Tensor | None, sample: Tensor) -> CodedItems | None:
    """The codes of all items, block by block; None where a length is out of range."""
    count, d = items.shape
    p = d if basis is None else basis.shape[1]
    codes = torch.empty(count, p, dtype=torch.int8)
    scale, rest = np.empty(count, np.float32), np.empty(count, np.float32)
    tiles = -(-count // TILE)
    error, length = np.empty(tiles), np.empty(tiles)
    step = 8 * TILE
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        made = _Coded.of(items[part], basis)
        codes[part], scale[part], rest[part] = made.codes, made.scale, made.rest
        for t in range(start // TILE, -(-part.stop // TILE)):
            own = slice(t * TILE - start, (t + 1) * TILE - start)
            error[t], length[t] = made.error[own].max(), made.length[own].max()
    if not in_range(float(length.max())) or not np.isfinite(length).all():
        return None
    return CodedItems(items, basis, codes, scale, rest, error, length, sample)


def _directions(items: Tensor, queries: Tensor) -> Tensor:
    """Orthonormal columns, float64, the directions of most energy first; many queries have a say as the items."""
    energy = [(x.T @ x).double() / float(x.square().sum()) for x in (items, queries)]
    say = min(1.0, len(queries) / (8 * items.shape[1]))
    vectors: Tensor = torch.linalg.eigh(energy[0] + say * energy[1])[1]
    return vectors.flip(1)


def _spaced(count: int, most: int) -> Tensor:
    """Up to `most` of `count` rows, evenly spaced."""
    size = min(count, most)
    return torch.arange(size) * count // size


def _mixed(directions: Tensor) -> Tensor:
    """The same subspace in random directions, so that the energy is spread and few codes are small."""
    p = directions.shape[1]
    noise = torch.randn(p, p, dtype=torch.float64, generator=torch.Generator().manual_seed(p))
    turn: Tensor = torch.linalg.qr(noise)[0]
    return (directions @ turn).float()


def _survivors(queries: _Coded, items: _Coded, bar: Tensor) -> float:
    """Share of the pairs whose bound exceeds their query's bar."""
    scale, rest, error, kept, _ = (torch.from_numpy(x).double() for x in queries.lengths())
    to, over, slip, _, long = (torch.from_numpy(x).double() for x in items.lengths())
    bound = (queries.codes.float() @ items.codes.float().T) * torch.outer(scale, to)
    bound += torch.outer(error, long) + torch.outer(kept, slip) + torch.outer(rest, over)
    return float((bound > bar).double().mean())


def _guess(coded: CodedItems, queries: _Coded, rank: int) -> Any:
    """The `rank`-th best product with the sampled items, one a query, by codes alone; -inf where there is none."""
    bar = np.full(len(queries.codes), -np.inf, np.float32)
    if rank <= len(coded.sample):
        made = torch._int_mm(queries.codes, coded.codes[coded.sample].T)
        _nth_largest(made.numpy(), coded.scale[coded.sample.numpy()], rank, queries.scale, bar)
    return bar


def _sweep(coded: CodedItems, queries: _Coded, found: Shortlist) -> None:
    """Push all pairs whose bound exceeds the bar, tile by tile."""
    n, d = len(queries.codes), coded.items.shape[1]
    made, pairs = torch.empty(n, TILE, dtype=torch.int32), pair_room(TILE)
    count = len(coded.items)
    for t, first in enumerate(range(0, count, TILE)):
        part = slice(first, min(first + TILE, count))
        if part.stop - first == TILE:
            torch._int_mm(queries.codes, coded.codes[part].T, out=made)
        else:
            made = torch._int_mm(queries.codes, coded.codes[part].T)
        products, at = made.numpy(), 0
        tile = coded.scale[part], coded.rest[part], coded.error[t], coded.length[t], rounding(d) + 2.0**-20
        while at < n:
            at, size = _above_bound(products, *queries.lengths(), *tile, found.bar, first, at, *pairs)
            found.push(*pairs, size)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _encode(
    x: Any, inside: Any, slip: float, codes: Any, scale: Any, rest: Any, error: Any, kept: Any, length: Any
) -> None:
    n, p = inside.shape
    bits, largest = inside.view(np.int32), np.zeros(1, np.int32)
    for b in range(n):
        row, whole, within, off, held, most = inside[b], 0.0, 0.0, 0.0, 0.0, np.int32(0)
        for j in range(
            p
        ):  # the bits of positive floats rise with them, and a maximum of integers is vectorised
            most = max(most, np.int32(bits[b, j] & np.int32(0x7FFFFFFF)))
        largest[0] = most
        top = largest.view(np.float32)[0]
        step, to = np.float32(1), np.float32(1)
        if top > 1e-25:
            step, to = np.float32(top / np.float32(127)), np.float32(np.float32(127) / top)
        for j in range(x.shape[1]):
            whole += np.float64(x[b, j]) * np.float64(x[b, j])
        for j in range(p):
            code = np.floor(row[j] * to + np.float32(0.5))
            codes[b, j] = np.int8(min(max(code, np.float32(-127)), np.float32(127)))
        for j in range(p):
            value = np.float64(codes[b, j]) * np.float64(step)
            gap = np.float64(row[j]) - value
            off += gap * gap
            held += value * value
            within += np.float64(row[j]) * np.float64(row[j])
        size = math.sqrt(whole)
        scale[b], length[b], kept[b] = step, size, math.sqrt(held)
        error[b] = math.sqrt(off) * (1 + 1e-9) + slip * size
        rest[b] = 0
        if slip > 0:
            least = max(math.sqrt(within) - slip * size, 0.0)
            rest[b] = math.sqrt(max(whole - least * least, 0.0)) * (1 + 1e-6)


@numba.njit(cache=True, nogil=True)
def _nth_largest(products: Any, scale: Any, rank: int, factor: Any, out: Any) -> None:
    """The `rank`-th largest of scaled products in each row, times the row's factor."""
    width = products.shape[1]
    best = np.empty(rank, np.float32)
    for b in range(len(products)):
        row = products[b]
        best[:] = -np.inf
        for at in range(0, width - width % LANES, LANES):
            part, own = row[at : at + LANES], scale[at : at + LANES]
            limit, hit = best[rank - 1], np.int16(0)
            for j in range(LANES):
                hit |= np.int16(np.float32(part[j]) * own[j] > limit)
            if hit == 0:
                continue
            for j in range(LANES):
                value = np.float32(part[j]) * own[j]
                if value > best[rank - 1]:
                    place = rank - 1
                    while place > 0 and best[place - 1] < value:
                        best[place] = best[place - 1]
                        place -= 1
                    best[place] = value
        out[b] = best[rank - 1] * factor[b]


@numba.njit(cache=True, nogil=True)
def _above_bound(
    products: Any,
    scale: Any,
    rest: Any,
    error: Any,
    kept: Any,
    length: Any,
    to: Any,
    over: Any,
    slip: float,
    long: float,
    unit: float,
    bar: Any,
    first: int,
    start: int,
    pair_row: Any,
    pair_item: Any,
) -> Any:
    """Pairs whose bound exceeds the bar, from row `start` on, as far as the room goes: next row, number of pairs."""
    n, width = products.shape
    mark = np.zeros((width + 7) // 8 * 8, np.int8)
    words = mark.view(np.int64)
    size = 0
    for b in range(start, n):
        if size + width > len(pair_row):
            return b, size
        slack = error[b] * long + kept[b] * slip + unit * length[b] * long
        limit = np.float32((bar[b] - slack * (1 + 1e-9)) / scale[b])
        outside = np.float32(rest[b] / scale[b] * (1 + 1e-6))
        row = products[b]
        for j in range(width):  # vector comparisons without a branch
            mark[j] = np.float32(row[j]) * to[j] + outside * over[j] > limit
        for w in range(len(words)):
            if words[w] == 0:
                continue
            for j in range(8 * w, min(8 * w + 8, width)):
                pair_row[size], pair_item[size] = b, first + j
                size += mark[j]
    return n, size
