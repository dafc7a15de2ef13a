"""What comes next: a causal transformer, or a recurrent network, over each user's items in the order of time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from steelyard.ragged import Ragged
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.interactions import Interactions

AT_ONCE = 256
GROUPS = 4
MOST_BEFORE = 200_000_000
"""Items before all positions of a test together, for 1.6 GB."""


def histories(data: Interactions) -> Ragged:
    """The items of each user in the order of time; where times are equal or absent, in the order of the pairs.

    Args:
        data: pairs.

    Returns:
        One row a user, not sorted by item.
    """
    rows = torch.arange(len(data)) if data.times is None else torch.argsort(data.times, stable=True)
    rows = rows[torch.argsort(data.users[rows], stable=True)]
    counts = torch.bincount(data.users, minlength=data.n_users)
    return Ragged(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), data.items[rows])


@dataclass(frozen=True)
class Positions:
    """Every position of histories but the first, as a query: what came before it is known.

    Args:
        histories: one row a history, the oldest item first.
        history: int64, (n,): the row of each query.
        before: int64, (n,): how many items came before it, from 1.
    """

    histories: Ragged
    history: Tensor
    before: Tensor

    def known(self, rows: Tensor | None = None, *, length: int | None = None) -> Ragged:
        """What came before some queries, all where None, in the order of time; the last `length` items, or all.

        Raises:
            ValueError: more items than memory should hold.
        """
        history, before = (
            (self.history, self.before) if rows is None else (self.history[rows], self.before[rows])
        )
        kept = before if length is None else before.clamp(max=length)
        offsets = torch.cat([kept.new_zeros(1), kept.cumsum(0)])
        if int(offsets[-1]) > MOST_BEFORE:
            raise ValueError(
                f"{len(kept):,} positions of the test have {int(offsets[-1]):,} items before them, more than "
                f"{MOST_BEFORE:,}: give fewer or shorter test histories, or --repeats if items come again."
            )
        first = self.histories.offsets[:-1][history] + before - kept
        place = torch.arange(int(offsets[-1])) + torch.repeat_interleave(first - offsets[:-1], kept)
        return Ragged(offsets, self.histories.values[place])

    def left_out(self) -> Ragged:
        """The items that came before each query, sorted, each once: what its ranking hides where none comes again."""
        rows = self.known()
        return Ragged.from_pairs(rows.row_index(), rows.values, len(rows))


def positions(data: Interactions) -> tuple[Interactions, Positions]:
    """Every position of histories as a query of its own, and the item that followed as what it wants.

    Args:
        data: pairs of users that are asked at each of their items but the first.

    Returns:
        One pair a query, its user named after the history and how many items came before; and the positions.

    Raises:
        ValueError: no history has two items.
    """
    rows = histories(data)
    user = torch.repeat_interleave(torch.arange(len(rows)), (rows.counts - 1).clamp(min=0))
    if len(user) == 0:
        raise ValueError("No history of the test has two items, so nothing can be asked about it.")
    queries = torch.arange(len(user))
    before = 1 + queries - torch.searchsorted(user, user)
    names = pl.DataFrame({"user": data.user_ids.gather(user.numpy()).cast(pl.String), "n": before.numpy()})
    names = names.select(pl.format("{} after {}", "user", "n").alias("user"))
    wanted = rows.values[rows.offsets[:-1][user] + before]
    asked = replace(data, users=queries, items=wanted, user_ids=names["user"], weights=None, times=None)
    return asked, Positions(rows, user, before)


class SequenceModel(nn.Module):
    """The state after each item of a sequence scores every item as the next one.

        e_t = sqrt(d) y_(s_t) + p_t                               at most `length` items, p_t counted from the end
        transformer, each layer:  x <- x + attention(norm(x)),  x <- x + W2 relu(W1 norm(x));  h = norm(x), causal
        gru:                      h = GRU(e) without p
        score(t, i) = <h_t, y_i> / temperature,      both of length 1 for "cosine"

    Items have one table y for input and output, with sparse gradients; layers are dense. Sequences are laid out
    from the left, so that causality alone keeps padding away from what is real. In training a longer history is
    cut into windows of `length`, at places that change from pass to pass, so that every item but a user's first is a
    target once a pass; recommendations look at the last window.

    Args:
        n_items: number of items.
        dim: length of the vectors.
        cell: "transformer" or "gru".
        length: how many items a state looks back at.
        layers: transformer blocks, of one head, or layers of the GRU.
        cosine: normalise states and item vectors.
        dropout: share of entries left out of inputs and layer outputs in training.
        items_of: histories to train on; None once training is over.
        n_states: how many states `finish` will have left, for a model to load weights into.
        generator: source of initial weights.

    Reference:
        Kang & McAuley (2018), Self-attentive sequential recommendation, arXiv 1808.09781; Hidasi et al. (2016),
        Session-based recommendations with recurrent neural networks, arXiv 1511.06939, for the GRU.
    """

    states: Tensor | None

    def __init__(
        self,
        n_items: int,
        dim: int,
        cell: str,
        *,
        length: int = 50,
        layers: int = 2,
        cosine: bool = False,
        dropout: float = 0.0,
        items_of: Ragged | None = None,
        n_states: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.length, self.cosine, self.dropout, self.items_of = length, cosine, dropout, items_of
        self.blocks = nn.ModuleList()
        with torch.random.fork_rng(devices=[]):  # layers draw from the global generator before ours sets them
            self.item = nn.Embedding(n_items, dim, sparse=True)
            if cell == "gru":
                self.gru = nn.GRU(dim, dim, num_layers=layers, batch_first=True)
            else:
                self.place = nn.Parameter(torch.empty(length, dim))
                self.blocks.extend(_Block(dim) for _ in range(layers))
                self.last = nn.LayerNorm(dim)
        _set_weights(self, generator)
        self.register_buffer("states", torch.empty(n_states, dim) if n_states else None)

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        n_items: int,
        *,
        items_of: Ragged | None = None,
        n_states: int = 0,
        generator: torch.Generator | None = None,
    ) -> SequenceModel:
        """A model as the settings say."""
        return cls(
            n_items,
            config.dim,
            config.cell,
            length=config.length,
            layers=config.layers,
            cosine=config.similarity == "cosine",
            dropout=config.dropout,
            items_of=items_of,
            n_states=n_states,
            generator=generator,
        )

    def account(self) -> str:
        """How many histories are cut into windows, and how many users give no training pair."""
        counts = self._needed().counts
        cut, alone = int((counts > self.length + 1).sum()), int((counts == 1).sum())
        return (
            f"{int(self.pair_counts.sum()):,} (position, next item) pairs; {cut:,} of {len(counts):,} users have more "
            f"than {self.length + 1} items and are cut into windows; {alone:,} have one item and give no pair."
        )

    @property
    def pair_counts(self) -> Tensor:
        """How many (position, next item) pairs each user gives, int64, (n_users,)."""
        return (self._needed().counts - 1).clamp(min=0)

    def pairs(
        self, users: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The training pairs of users: the state at each position, and the item that followed.

        Args:
            users: int64, (n,), each with two items or more.
            generator: of the dropout and of where long histories are cut; None cuts them from the end.

        Returns:
            States (P, d), items (P,), and the place in `users` of each pair's user (P,).
        """
        rows = self._needed().take(users)
        shift = torch.zeros(len(rows), dtype=torch.int64)
        if generator is not None:
            shift = torch.randint(self.length, shift.shape, generator=generator)
        windows = _windows(rows, self.length, shift)
        before = Ragged(windows.offsets - torch.arange(len(windows) + 1), _without_ends(windows, first=False))
        owner = torch.repeat_interleave(torch.arange(len(rows)), rows.counts - 1)
        # Windows of like length together: less padding.
        order = torch.argsort(before.counts, stable=True)
        place = Ragged(before.offsets, torch.arange(len(owner)))
        states = torch.empty(len(owner), self.item.embedding_dim, dtype=self.item.weight.dtype)
        for some in order.chunk(min(GROUPS, len(order))):
            run, real = self._run(before.take(some), self.dropout, generator)
            states = states.index_copy(0, place.take(some).values, run[real])
        return self._finish(states), _without_ends(windows, first=True), owner

    def queries(self, users: Tensor) -> Tensor:
        """The state after all that each user took, (n,) -> (n, d)."""
        return self.states[users] if self.states is not None else self.after(self._needed().take(users))

    def after(self, sequences: Ragged) -> Tensor:
        """The state after the last item of each sequence, (n, d); 0 after an empty one."""
        out = torch.zeros(len(sequences), self.item.embedding_dim)
        rows = (sequences.counts > 0).nonzero().squeeze(1)
        for some in torch.split(rows, AT_ONCE):
            last = _last(sequences.take(some), self.length)
            states, _ = self._run(last, 0.0, None)
            out = out.index_copy(0, some, self._finish(states[torch.arange(len(some)), last.counts - 1]))
        return out

    def items(self, items: Tensor) -> Tensor:
        """Vectors of items, (n,) -> (n, d)."""
        return self._finish(self.item(items))

    @torch.no_grad()
    def finish(self, sequences: Ragged) -> None:
        """Keep the state of each user after the given histories, so that the saved model answers without them."""
        self.states, self.items_of = self.after(sequences), None

    def _run(self, rows: Ragged, dropout: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """States (n, longest, d) of sequences laid out from the left, and which are real (n, longest)."""
        longest = int(rows.counts.max())
        column = torch.arange(longest)
        real = column < rows.counts.unsqueeze(1)
        padded = torch.zeros(real.shape, dtype=torch.int64)
        padded[real] = rows.values
        x = self.item(padded) * math.sqrt(self.item.embedding_dim)
        if not len(self.blocks):
            states, _ = self.gru(_drop(x, dropout, generator))
            return _drop(states, dropout, generator), real
        from_end = (self.length - rows.counts.unsqueeze(1) + column).clamp(max=self.length - 1)
        x = _drop(x + functional.embedding(from_end, self.place), dropout, generator)
        for block in self.blocks:
            x = block(x, dropout, generator)
        return self.last(x), real

    def _finish(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=-1) if self.cosine else vectors

    def _needed(self) -> Ragged:
        if self.items_of is None:
            raise ValueError("This model was loaded without the histories it was trained on; use `after`.")
        return self.items_of


class _Block(nn.Module):
    """Causal self-attention of one head and a point-wise layer, each on normalised input and added to it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor:
        # One head, (n, 1, L, d): the form for which PyTorch has a kernel that never holds the L x L weights.
        query, key, value = self.project(self.before(x)).unsqueeze(1).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        x = x + _drop(self.out(attended), dropout, generator)
        inner = _drop(functional.relu(self.inner(self.between(x))), dropout, generator)
        return x + _drop(self.outer(inner), dropout, generator)


def _drop(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Leave out a share of the entries and give back their mean; from our generator, so that a run can resume."""
    if share == 0:
        return x
    return x * (torch.rand(x.shape, generator=generator) >= share) / (1 - share)


def _set_weights(model: nn.Module, generator: torch.Generator | None) -> None:
    """Tables of standard deviation 0.02, layers of fan_in^(-1/2), biases 0; norms stay at 1 and 0."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                table = name in ("item.weight", "place")
                p.normal_(0, 0.02 if table else p.shape[1] ** -0.5, generator=generator)
            elif "bias" in name:
                p.zero_()


def _last(rows: Ragged, length: int) -> Ragged:
    """The last `length` values of each row."""
    counts = rows.counts.clamp(max=length)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    shift = torch.repeat_interleave(rows.offsets[1:] - counts - offsets[:-1], counts)
    return Ragged(offsets, rows.values[torch.arange(len(shift)) + shift])


def _windows(rows: Ragged, length: int, shift: Tensor) -> Ragged:
    """Rows cut into windows that overlap by one value, so that each value but a row's first follows another once.

    A row of at most `length` + 1 values is one window. A longer one is cut `length` and `length` from its end, the
    last window being shorter by its row's `shift`, in [0, length).
    """
    pairs = rows.counts - 1
    shift = shift.masked_fill(pairs <= length, 0)
    counts = (pairs + shift + length - 1) // length
    row = torch.repeat_interleave(torch.arange(len(rows)), counts)
    from_end = counts.cumsum(0)[row] - 1 - torch.arange(len(row))
    near = (from_end * length - shift[row]).clamp(min=0)
    far = torch.minimum(pairs[row], (from_end + 1) * length - shift[row])
    sizes = far - near + 1
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    first = rows.offsets[1:][row] - far - 1
    return Ragged(
        offsets,
        rows.values[torch.arange(int(offsets[-1])) + torch.repeat_interleave(first - offsets[:-1], sizes)],
    )


def _without_ends(rows: Ragged, *, first: bool) -> Tensor:
    """The values of all rows without the first of each, or without the last; no row is empty."""
    kept = torch.ones(len(rows.values), dtype=torch.bool)
    kept[rows.offsets[:-1] if first else rows.offsets[1:] - 1] = False
    return rows.values[kept]
