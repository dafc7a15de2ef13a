"""The whole job: read, split, train, evaluate, and leave a model folder that answers questions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.files import alone_in, write_json
from steelyard.negatives import Catalogue, adapts, proposal
from steelyard.ragged import Ragged
from steelyard.retrieval.checkpoint import CHECKPOINT
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.factors import MatrixFactorization
from steelyard.retrieval.folder import CONFIG, ITEMS, SEEN, USERS, WEIGHTS
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.loop import LOG, Encoder, Model, Step, fit, has_checkpoint
from steelyard.retrieval.measuring import Parts, measure
from steelyard.retrieval.retriever import Retriever
from steelyard.retrieval.splitting import split
from steelyard.retrieval.towers import TextTowers

METRICS, REPORT = "metrics.json", "report.html"
OURS = {CONFIG, WEIGHTS, ITEMS, USERS, SEEN, METRICS, REPORT, LOG, CHECKPOINT}


@dataclass(frozen=True)
class Trained:
    """What a training run leaves: the model, and everything measured about it.

    Args:
        retriever: answers questions.
        metrics: what `metrics.json` holds.
    """

    retriever: Retriever
    metrics: dict[str, Any]


def train(
    data: Interactions,
    test: Interactions | None = None,
    config: TrainConfig | None = None,
    *,
    split_by: str = "random",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
    watch: Callable[[Step], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Trained:
    """Train a retriever, choose its epoch on validation data, and measure it on the test.

    Without `test` a tenth of the data is held out for it, the way `split_by` says; validation data is
    always carved from what is left, never from the test.

    Args:
        data: interactions, or (query, document) pairs.
        test: held-out pairs over the same vocabularies.
        config: settings; the defaults of the data's kind where None.
        split_by: "random", "leave-last-out" or "time".
        out: folder for model, metrics, log and checkpoints; None keeps everything in memory.
        resume: go on from the folder's checkpoint; the result is bit for bit that of an uninterrupted run.
        overwrite: replace what an earlier run left in the folder.
        checkpoint_seconds: how often the whole state is saved.
        watch: called about 20 times an epoch.
        say: called with a line at each stage.

    Returns:
        The retriever and its metrics.

    Raises:
        FileExistsError: `out` holds something, and neither `resume` nor `overwrite` was given.
        ValueError: data and settings do not fit, or a checkpoint of another run.
        FloatingPointError: the loss is no longer finite.
        OSError: no room to write.
        Stopped: Ctrl-C; `resume` goes on.
    """
    say = say or (lambda _: None)
    config = config or TrainConfig.of("text" if data.is_text else "mf")
    if (config.model == "text") != data.is_text:
        kinds = {True: "texts", False: "ids"}
        raise ValueError(f"The model {config.model!r} does not fit data of {kinds[data.is_text]}.")
    folder = None if out is None else Path(out).expanduser()
    if folder is not None:
        _check_folder(folder, resume, overwrite)
    parts = partition(data, test, config, split_by)
    _check_negatives(config, parts.train.item_counts())
    with ExitStack() as held:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone_in(folder))
            _check_folder(folder, resume, overwrite)  # again: another run may have just finished
            _clear(folder, resume)

        say(
            f"{len(parts.train):,} pairs to train on, {len(parts.validation):,} for validation, "
            f"{len(parts.test):,} for the test; {data.n_items:,} items."
        )
        started = time.monotonic()
        model = build(parts, config)
        say(_memory(model, config, data.n_items))
        known = parts.train.known()
        counters = fit(
            model,
            parts.train.users,
            parts.train.items,
            known,
            parts.train.item_counts(),
            config,
            validate=validator(model, parts.validation, known, config.metric),
            folder=folder,
            data={"data": data.fingerprint(), "test": parts.test.fingerprint(), "split": split_by},
            resume=resume and folder is not None and has_checkpoint(folder),
            checkpoint_seconds=checkpoint_seconds,
            watch=watch,
        )
        retriever = _retriever(model, config, data, parts.seen)
        say(
            f"Best epoch {counters.best_epoch + 1} of {counters.epoch}; ranking all {data.n_items:,} items for the test."
        )
        seconds = round(time.monotonic() - started, 1)
        if folder is not None:
            retriever.save(folder)
        metrics = measure(retriever, parts, counters) | {
            "train_seconds": seconds,
            "reading": data.reading.to_dict(),
        }
        metrics |= {"n_users": data.n_users, "n_items": data.n_items}
        if folder is not None:
            write_json(folder / METRICS, metrics)
            (folder / CHECKPOINT).unlink(missing_ok=True)
        return Trained(retriever, metrics)


def _check_negatives(config: TrainConfig, counts: Tensor) -> None:
    """Say what is wrong with the negatives before anything is touched."""
    generator = config.generator(0)
    if adapts(config.negatives):  # a small catalogue tells a wrong name or number
        items = torch.randn(64, config.dim, generator=generator)
        proposal(config.negatives, Catalogue(torch.ones(64), items=items), generator=generator)
    else:
        proposal(config.negatives, counts)


def partition(data: Interactions, test: Interactions | None, config: TrainConfig, split_by: str) -> Parts:
    """Cut data into training, validation and test pairs.

    Raises:
        ValueError: nothing is left to train on, or nothing can be held out.
    """
    if data.n_items < 2:
        raise ValueError("There is one item in the catalogue, so there is nothing to rank.")
    if data.n_users < 2:
        raise ValueError("There is one user (or query), so nothing can be held out from others.")
    rest = data
    if test is None:
        rest, test = split(data, split_by, seed=config.seed)
    users = None if split_by == "time" else config.validation_users
    try:
        kept, validation = split(
            rest, split_by, fraction=config.validation, users=users, seed=config.seed + 1
        )
    except ValueError as error:
        raise ValueError(
            f"No validation data can be carved out of what is left for training: {error}"
        ) from None

    seen = (
        rest.known() if not data.is_text else Ragged.from_pairs(rest.users[:0], rest.items[:0], test.n_users)
    )
    return Parts(kept, validation, test, seen)


def build(parts: Parts, config: TrainConfig) -> Model:
    """An untrained model for the data, its initial weights from the seed."""
    data = parts.train
    generator = config.generator(1)
    if config.model == "mf":
        cosine = config.similarity == "cosine"
        encoder: torch.nn.Module = MatrixFactorization(
            data.n_users, data.n_items, config.dim, cosine=cosine, generator=generator
        )
    else:
        assert data.item_texts is not None
        encoder = TextTowers.over(data.user_ids, data.item_texts, config.dim, generator=generator)
    return Model(encoder, config)


def validator(
    model: Model, validation: Interactions, known: Ragged, metric: str
) -> Callable[[], dict[str, float]]:
    """A function that ranks the whole catalogue for the held-out users and gives the scores at the metric's cut-off.

    Args:
        model: looked at anew at each call.
        validation: held-out pairs.
        known: training items of each user, left out of the ranking.
        metric: such as "ndcg@20".
    """
    encoder: Encoder = model.encoder  # type: ignore[assignment]
    targets = validation.known()
    users = (targets.counts > 0).nonzero().squeeze(1)
    targets, known, cut = targets.take(users), known.take(users), int(metric.partition("@")[2])

    @torch.no_grad()
    def validate() -> dict[str, float]:
        items = encoder.items(torch.arange(validation.n_items))
        result = ranking_metrics(
            count_ranks(encoder.queries(users), items, targets, known), targets, k=(cut,)
        )
        return {name: result.mean(name) for name in result.names}

    return validate


@torch.no_grad()
def _retriever(model: Model, config: TrainConfig, data: Interactions, seen: Ragged) -> Retriever:
    encoder: Encoder = model.encoder  # type: ignore[assignment]
    items = encoder.items(torch.arange(data.n_items))
    text = data.is_text
    return Retriever(
        config,
        model,
        items,
        data.item_ids,
        data.item_texts,
        None if text else data.user_ids,
        None if text else seen,
    )


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    """Refuse what would be lost."""
    if resume and overwrite:
        raise ValueError("Give --resume to go on or --overwrite to start anew, not both.")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give --out a folder.")
    found = {path.name for path in folder.iterdir() if not _left_behind(path)} if folder.exists() else set()
    if found and not (resume or overwrite):
        raise FileExistsError(
            f"{folder} is not empty; give --resume to go on, --overwrite to start anew, or another --out."
        )
    if resume and METRICS in found and CHECKPOINT not in found:
        raise FileExistsError(f"The training in {folder} is finished; there is nothing to resume.")
    if resume and CHECKPOINT not in found and found - {LOG}:
        raise FileExistsError(f"{folder} holds no checkpoint to resume; give another --out.")
    foreign = sorted(found - OURS)
    if foreign:
        raise FileExistsError(
            f"{folder} holds {', '.join(foreign[:3])}, which steelyard did not write; give another --out."
        )


def _clear(folder: Path, resume: bool) -> None:
    """Remove what an earlier run left, or, to resume, only its half-written files."""
    for path in folder.iterdir():
        if not resume or _left_behind(path):
            path.unlink()


def _left_behind(path: Path) -> bool:
    """A temporary file of a run that was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _memory(model: Model, config: TrainConfig, n_items: int) -> str:
    """What the run will hold, said before it starts: tables, best weights, optimiser, chunk, item vectors."""
    tables = sum(p.numel() * p.element_size() for p in model.parameters())
    moments = tables // config.dim * (2 if config.optimizer == "adam" else 1)
    total = 2 * tables + moments + n_items * config.dim * 4 + (64 << 20)
    return f"Memory: about {total / 2**20:,.0f} MiB for weights (twice: the best epoch is kept), optimiser and buffers."
