"""The training loop: draw candidates, weigh them, take a step; stop early; never lose a step."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from steelyard.losses import retrieval_loss
from steelyard.negatives import Catalogue, Context, adapts, proposal
from steelyard.ragged import Ragged
from steelyard.retrieval.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.interrupts import interrupts
from steelyard.retrieval.objective import Model, batch_loss, drop_out, effective_negatives, optimizers_of

LOG = "log.jsonl"
LOGS_PER_EPOCH = 20


class Encoder(Protocol):
    """What the loop asks of a model: vectors of queries and of items, by row number."""

    def queries(self, users: Tensor) -> Tensor:
        """(n,) -> (n, d)."""
        ...

    def items(self, items: Tensor) -> Tensor:
        """(n,) -> (n, d)."""
        ...


class SequenceEncoder(Encoder, Protocol):
    """An encoder whose training pairs have queries of their own: not the user, but the user at a moment."""

    @property
    def pair_counts(self) -> Tensor:
        """Training pairs of each user, (n_users,)."""
        ...

    def pairs(
        self, users: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(n,) -> query vectors (P, d), their positives (P,), and the place in `users` of each (P,)."""
        ...


@dataclass(frozen=True)
class Step:
    """What the loop tells its watcher now and then: where it is and how it goes.

    Args:
        epoch: current epoch, from 0.
        epochs: epochs at most.
        step: steps done in this epoch.
        steps_per_epoch: steps of an epoch.
        rate: training pairs a second since the last report.
        loss: of the last batch.
        ess: mean effective number of its negatives.
        score: best validation score so far.
    """

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    rate: float
    loss: float
    ess: float
    score: float | None


@dataclass
class Counters:
    """Where a run stands; saved with every checkpoint."""

    epoch: int = 0
    position: int = 0
    pairs: int = 0
    step: int = 0
    loss_sum: float = 0.0
    best_score: float | None = None
    best_epoch: int = -1
    waited: int = 0
    log_bytes: int = 0
    seconds: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class Stopped(Exception):
    """The run was interrupted at a step's end; everything is saved and `--resume` goes on from there."""

    def __init__(self, counters: Counters, folder: Path | None) -> None:
        self.counters, self.folder = counters, folder
        where = "nothing was saved, as no folder was given" if folder is None else f"saved in {folder}"
        super().__init__(f"stopped in epoch {counters.epoch + 1} after {counters.step:,} steps; {where}")


def fit(
    model: Model,
    users: Tensor,
    items: Tensor,
    known: Ragged,
    counts: Tensor,
    config: TrainConfig,
    *,
    validate: Callable[[], dict[str, float]] | None = None,
    folder: Path | None = None,
    data: Mapping[str, str] | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    watch: Callable[[Step], None] | None = None,
) -> Counters:
    """Train an encoder by sampled softmax, and leave the weights of its best epoch in it.

    Each step takes a batch of queries of a shuffled epoch with all their positives, draws candidates that
    the batch shares, masks the ones a query is known to want, and moves the rows it touched. The positives
    of a query share its sum over candidates, so a query with many costs little more than one. After each
    epoch `validate` scores the model; the run stops once `config.patience` scores in a row brought nothing
    better.

    Args:
        model: changed in place; its encoder is an `Encoder`, or a `SequenceEncoder`, which makes its own pairs.
        users: int64, (n,): query of each training pair.
        items: int64, (n,): item of each training pair.
        known: items each query is known to want, one row a query.
        counts: int64, (I,): how many training pairs each item has.
        config: the settings.
        validate: gives validation scores by name, `config.metric` among them; None trains all epochs.
        folder: where the log and checkpoints go; None keeps nothing on disk.
        data: what tells the data from other data, by name, so that a checkpoint is not resumed on them.
        resume: go on from the folder's checkpoint.
        checkpoint_seconds: how often to write one at least (also at each epoch's end and on Ctrl-C).
        watch: called about 20 times an epoch.

    Returns:
        The counters at the end; `history` has one entry an epoch.

    Raises:
        Stopped: Ctrl-C; the state is saved.
        FloatingPointError: the loss is no longer finite.
        ValueError: nothing to train on, or a checkpoint of another run.
    """
    if len(users) == 0:
        raise ValueError("There is no training pair left after reading and splitting.")
    run = _Run(model, users, items, known, counts, config, folder, data or {}, watch)
    if resume:
        run.load()
    run.open_log()
    with interrupts() as interrupted:
        while not run.counters.finished:
            run.epoch(interrupted, checkpoint_seconds)
            scores = validate() if validate is not None else {}
            run.close_epoch(scores)
            run.save()
            if interrupted.is_set() and not run.counters.finished:
                raise Stopped(run.counters, folder)

    if run.best:
        model.load_state_dict(run.best)
    return run.counters


class _Run:
    """The state of one run and the steps that change it."""

    def __init__(
        self,
        model: Model,
        users: Tensor,
        items: Tensor,
        known: Ragged,
        counts: Tensor,
        config: TrainConfig,
        folder: Path | None,
        data: Mapping[str, str],
        watch: Callable[[Step], None] | None,
    ) -> None:
        self.model, self.known, self.config = model, known, config
        self.folder, self.watch = folder, watch
        self.identity = config.to_dict() | dict(data)
        by_user = torch.argsort(users, stable=True)
        self.pairs = Ragged(
            torch.cat([users.new_zeros(1), torch.bincount(users, minlength=len(known)).cumsum(0)]),
            items[by_user],
        )
        own: Any = model.encoder if hasattr(model.encoder, "pairs") else None
        self.sequences: SequenceEncoder | None = own
        per_user = self.pairs.counts if own is None else own.pair_counts
        self.n_pairs = int(per_user.sum())
        self.queries = (per_user > 0).nonzero().squeeze(1)
        if self.n_pairs == 0:
            raise ValueError("No user has two items in training, so nothing tells what comes next.")
        self.counts, self.snapshot = counts, dict[str, Tensor]()
        self.adapts = adapts(config.negatives)
        self.objective = retrieval_loss(config.loss)
        self.generator = config.generator(2)
        self.optimizers = optimizers_of(model, config)
        self.counters = Counters()
        self.best: Mapping[str, Tensor] = {}
        self.batch = config.batch_of(len(self.queries))
        self.steps_per_epoch = -(-len(self.queries) // self.batch)
        self.log_every = max(1, self.steps_per_epoch // LOGS_PER_EPOCH)
        self.started = time.monotonic()
        self.told = self.started, 0

    def load(self) -> None:
        assert self.folder is not None
        values, self.best, self.snapshot = load_checkpoint(
            self.folder,
            model=self.model,
            optimizers=self.optimizers,
            generators={"negatives": self.generator},
            identity=self.identity,
        )
        self.counters = Counters(**values)
        self.started = time.monotonic() - self.counters.seconds
        self.told = time.monotonic(), self.counters.pairs

    def save(self) -> None:
        self.counters.seconds = time.monotonic() - self.started
        if self.folder is not None:
            save_checkpoint(
                self.folder,
                model=self.model,
                best=self.best,
                optimizers=self.optimizers,
                generators={"negatives": self.generator},
                counters=asdict(self.counters),
                identity=self.identity,
                snapshot=self.snapshot,
            )

    def open_log(self) -> None:
        """Cut the log back to what the checkpoint knows, so that a step is logged once."""
        if self.folder is not None:
            with open(self.folder / LOG, "ab") as file:
                file.truncate(self.counters.log_bytes)

    def log(self, record: dict[str, Any]) -> None:
        if self.folder is None:
            return
        with open(self.folder / LOG, "ab") as file:
            file.write((json.dumps(record) + "\n").encode())
            self.counters.log_bytes = file.tell()

    def epoch(self, interrupted: threading.Event, checkpoint_seconds: float) -> None:
        """The rest of the current epoch."""
        shuffle = self.config.generator(1000 + self.counters.epoch)
        order = self.queries[torch.randperm(len(self.queries), generator=shuffle)]
        saved = time.monotonic()
        self.refresh()
        while self.counters.position < len(order):
            batch = order[self.counters.position : self.counters.position + self.batch]
            self.step(batch)
            if interrupted.is_set():
                self.save()
                raise Stopped(self.counters, self.folder)
            if self.folder is not None and time.monotonic() - saved >= checkpoint_seconds:
                self.save()
                saved = time.monotonic()

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the epoch's proposal; one that adapts to queries looks at the items as the epoch began."""
        encoder: Any = self.model.encoder
        if self.adapts and (self.counters.position == 0 or not self.snapshot):
            self.snapshot = {
                "items": encoder.items(torch.arange(len(self.counts))).clone(),
                "scale": self.model.log_scale.exp().clone(),
            }
        scale = float(self.snapshot.get("scale", 1.0))
        n_queries = len(self.queries) if self.sequences is None else self.n_pairs
        catalogue = Catalogue(self.counts, n_queries, self.snapshot.get("items"), scale)
        generator = self.config.generator(1_000_000 + self.counters.epoch)
        self.proposal = proposal(self.config.negatives, catalogue, generator=generator)

    def step(self, users: Tensor) -> None:
        """One step on the named queries and all their positives."""
        encoder: Any = self.model.encoder
        if self.sequences is not None:
            plain, items, _ = self.sequences.pairs(users, generator=self.generator)
            owner, queries = torch.arange(len(items)), plain
            context = Context(items, None, None, plain.detach() if self.adapts else None)
        else:
            pairs = self.pairs.take(users)
            items, owner = pairs.values, pairs.row_index()
            plain = encoder.queries(users)
            context = Context(items, self.known.take(users), owner, plain.detach() if self.adapts else None)
        draws = self.proposal.sample(context, self.config.candidates, generator=self.generator)
        # Positives and draws repeat: each item is encoded once.
        distinct, place = torch.unique(torch.cat([items, draws.ids.flatten()]), return_inverse=True)
        if self.sequences is None:  # the others have left out entries within
            queries = drop_out(plain, self.config, self.generator)
        vectors = encoder.items(distinct)
        # `embedding`, not indexing, whose gradient several threads add up in an order that changes from run to run.
        candidates = embedding(place[len(items) :], vectors).reshape(*draws.ids.shape, vectors.shape[1])
        scale = self.model.log_scale.exp()
        hits = context.hits(draws.ids)
        positive = (embedding(owner, queries) * embedding(place[: len(items)], vectors)).sum(1) * scale
        loss = batch_loss(
            self.objective, positive, queries, candidates, draws, scale, owner, hits, len(self.counts)
        )
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"The loss became {value} at step {self.counters.step}: lower --lr or raise --temperature."
            )
        self.descend(loss)
        counters = self.counters
        counters.step += 1
        counters.position += len(users)
        counters.pairs += len(items)
        counters.loss_sum += value * len(items)
        if counters.step % self.log_every == 0:
            ess = effective_negatives(queries, candidates, draws, scale, hits)
            self.tell(value, ess, draws.ids.shape[-1])

    def descend(self, loss: Tensor) -> None:
        total = self.config.epochs * self.steps_per_epoch
        cosine = 0.5 + 0.5 * math.cos(math.pi * self.counters.step / total)
        factor = self.config.decay + (1 - self.config.decay) * cosine
        for name in ("tables", "layers"):
            if name in self.optimizers:
                self.optimizers[name].param_groups[0]["lr"] = self.config.lr * factor
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers.values():
            optimizer.step()

    def tell(self, loss: float, ess: float, n_draws: int) -> None:
        counters = self.counters
        seconds = round(time.monotonic() - self.started, 3)
        self.log(
            {
                "event": "step",
                "epoch": counters.epoch,
                "step": counters.step,
                "loss": loss,
                "ess": ess,
                "draws": n_draws,
                "temperature": float(torch.exp(-self.model.log_scale.detach())),
                "seconds": seconds,
            }
        )
        if self.watch is not None:
            now = time.monotonic()
            rate = (counters.pairs - self.told[1]) / max(now - self.told[0], 1e-9)
            self.told = now, counters.pairs
            done = counters.step - counters.epoch * self.steps_per_epoch
            at = (counters.epoch, self.config.epochs, done, self.steps_per_epoch)
            self.watch(Step(*at, rate, loss, ess, counters.best_score))

    def close_epoch(self, scores: dict[str, float]) -> None:
        """Keep the best weights, and decide whether to go on."""
        counters, config = self.counters, self.config
        record = {
            "event": "epoch",
            "epoch": counters.epoch,
            "loss": counters.loss_sum / self.n_pairs,
            "validation": scores,
            "seconds": round(time.monotonic() - self.started, 3),
        }
        self.log(record)
        counters.history.append(record)
        if scores:
            score = scores[config.metric]
            if counters.best_score is None or score > counters.best_score:
                counters.best_score, counters.best_epoch, counters.waited = score, counters.epoch, 0
                self.best = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            else:
                counters.waited += 1
        counters.epoch += 1
        counters.position, counters.loss_sum = 0, 0.0
        patience_over = config.patience > 0 and counters.waited >= config.patience
        counters.finished = counters.epoch >= config.epochs or patience_over
        self.told = time.monotonic(), self.counters.pairs


def has_checkpoint(folder: Path) -> bool:
    """Whether a run in this folder can be resumed."""
    return (folder / CHECKPOINT).is_file()
