"""The whole job: read, split, train, evaluate, and leave a model folder that answers questions."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.files import alone_in, half_written, write_json
from steelyard.losses import retrieval_loss
from steelyard.negatives import Catalogue, adapts, proposal
from steelyard.ragged import Ragged
from steelyard.retrieval.adapters import VECTORS, FrozenVectors, VectorTowers, holds_other
from steelyard.retrieval.bm25 import bm25_available
from steelyard.retrieval.checkpoint import CHECKPOINT
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.encoding import SentenceEncoder
from steelyard.retrieval.factors import MatrixFactorization
from steelyard.retrieval.folder import CONFIG, ITEMS, SEEN, USERS, WEIGHTS
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.loop import LOG, Encoder, Step, fit, has_checkpoint
from steelyard.retrieval.measuring import measure
from steelyard.retrieval.objective import Model
from steelyard.retrieval.parts import Parts, partition
from steelyard.retrieval.retriever import Retriever
from steelyard.retrieval.sequences import SequenceModel, histories
from steelyard.retrieval.towers import TextTowers

METRICS, REPORT = "metrics.json", "report.html"
OURS = {CONFIG, WEIGHTS, ITEMS, USERS, SEEN, METRICS, REPORT, LOG, CHECKPOINT, VECTORS}


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
    vectors: tuple[Any, Any] | None = None,
    encoder: SentenceEncoder | None = None,
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
        vectors: of the model "vectors" on ids: float (n_users, d) and (n_items, d), in the order of the ids.
        encoder: of the model "vectors" on texts: what makes their vectors.
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
        ValueError: data, vectors and settings do not fit, or a checkpoint of another run.
        FloatingPointError: the loss is no longer finite.
        OSError: no room to write.
        Stopped: Ctrl-C; `resume` goes on.
    """
    say = say or (lambda _: None)
    config = config or TrainConfig.of("text" if data.is_text else "mf")
    _check_kind(config, data, vectors, encoder)
    frozen = None if vectors is None else FrozenVectors.given(*vectors, data)
    folder = None if out is None else Path(out).expanduser()
    if folder is not None:
        _check_folder(folder, resume, overwrite)
    parts = partition(data, test, config, split_by)
    if frozen is not None:
        config = frozen.settings(config)
    check_negatives(config, parts.train.item_counts())
    with ExitStack() as held:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone_in(folder))
            _check_folder(folder, resume, overwrite)  # again: another run may have just finished
            _clear(folder, resume, keep=encoder is not None)

        say(
            f"{len(parts.train):,} pairs to train on, {len(parts.validation):,} for validation, "
            f"{len(parts.test):,} for the test; {data.n_items:,} items."
        )
        started = time.monotonic()
        if encoder is not None:
            frozen = _encoded(data, parts.test, encoder, folder, overwrite, say)
            config = frozen.settings(config)
        model = build(parts, config, frozen)
        say(_memory(model, config, parts.train))
        if isinstance(model.encoder, SequenceModel):
            say(model.encoder.account())
        made = {} if frozen is None else {"vectors": frozen.fingerprint()}
        known = parts.train.known()
        counters = fit(
            model,
            parts.train.users,
            parts.train.items,
            known,
            parts.train.item_counts(),
            config,
            validate=_validate(model, parts, config),
            folder=folder,
            data={"data": data.fingerprint(), "test": parts.test.fingerprint(), "split": split_by} | made,
            resume=resume and folder is not None and has_checkpoint(folder),
            checkpoint_seconds=checkpoint_seconds,
            watch=watch,
        )
        retriever = _retriever(model, config, data, parts)
        chosen = (
            f"Best epoch {counters.best_epoch + 1} of {counters.epoch}"
            if config.validation
            else "The last epoch"
        )
        besides = ", and by BM25" if data.is_text and bm25_available() else ""
        say(f"{chosen}; ranking all {data.n_items:,} items for the test{besides}.")
        seconds = round(time.monotonic() - started, 1)
        if folder is not None:
            retriever.save(folder)
        metrics = measure(retriever, parts, counters) | {
            "train_seconds": seconds,
            "reading": data.reading.to_dict(),
        }
        metrics |= {"n_users": data.n_users, "n_items": data.n_items}
        if isinstance(model.encoder, VectorTowers):
            model.encoder.let_go()
        if folder is not None:
            write_json(folder / METRICS, metrics)
            (folder / CHECKPOINT).unlink(missing_ok=True)
        return Trained(retriever, metrics)


def _check_kind(
    config: TrainConfig, data: Interactions, vectors: object, encoder: SentenceEncoder | None
) -> None:
    """Refuse a model that does not fit the data or what else was given."""
    if config.model != "vectors" and (vectors is not None or encoder is not None):
        raise ValueError(
            f"Vectors and an encoder are for the model 'vectors', and the model is {config.model!r}."
        )
    if config.model == "vectors":
        if data.is_text and (encoder is None or vectors is not None):
            raise ValueError(
                "The model 'vectors' on texts wants an encoder of texts, and no vectors beside it."
            )
        if not data.is_text and (vectors is None or encoder is not None):
            raise ValueError(
                "The model 'vectors' on ids wants vectors of queries and documents, and no encoder."
            )
    elif (config.model == "text") != data.is_text:
        kinds = {True: "texts", False: "ids"}
        raise ValueError(f"The model {config.model!r} does not fit data of {kinds[data.is_text]}.")


def _encoded(
    data: Interactions,
    test: Interactions,
    encoder: SentenceEncoder,
    folder: Path | None,
    overwrite: bool,
    say: Callable[[str], None],
) -> FrozenVectors:
    say(f"Encoding {data.n_users:,} queries and {data.n_items:,} documents with {encoder.name}.")
    return FrozenVectors.encoded(
        data, test, encoder, None if folder is None else folder / VECTORS, overwrite=overwrite,
        watch=lambda what, done, total: say(f"{what}: {done:,} of {total:,}"),
    )  # fmt: skip


def check_negatives(config: TrainConfig, counts: Tensor) -> None:
    """Say what is wrong with the negatives before anything is touched."""
    if config.loss.startswith("gbce") and config.negatives == "uniform" and config.candidates >= len(counts):
        raise ValueError(
            f"The loss gbce wants fewer draws than there are items, {len(counts):,}, and they are "
            f"{config.candidates:,}: give fewer candidates, or the negatives 'everything'."
        )
    generator = config.generator(0)
    if adapts(config.negatives):  # a small catalogue tells a wrong name or number
        items = torch.randn(64, config.dim or 8, generator=generator)
        proposal(config.negatives, Catalogue(torch.ones(64), items=items), generator=generator)
    else:
        proposal(config.negatives, counts)


def build(parts: Parts, config: TrainConfig, frozen: FrozenVectors | None = None) -> Model:
    """An untrained model for the data, its initial weights from the seed.

    Args:
        parts: the data.
        config: the settings.
        frozen: of the model "vectors": what is adapted.
    """
    data = parts.train
    generator = config.generator(1)
    if config.model == "mf":
        cosine = config.similarity == "cosine"
        encoder: torch.nn.Module = MatrixFactorization(
            data.n_users, data.n_items, config.dim, cosine=cosine, generator=generator
        )
    elif config.model == "sequence":
        encoder = SequenceModel.of(config, data.n_items, items_of=histories(data), generator=generator)
    elif config.model == "vectors":
        if frozen is None:
            raise ValueError("The model 'vectors' wants frozen vectors.")
        encoder = VectorTowers(config.dim, config.adapter, config.adapt, frozen=frozen, generator=generator)
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


def _validate(model: Model, parts: Parts, config: TrainConfig) -> Callable[[], dict[str, float]] | None:
    if not config.validation:
        return None
    none = parts.train.select(torch.zeros(len(parts.train), dtype=torch.bool))
    left_out = none if config.repeats else parts.train
    return validator(model, parts.validation, left_out.known(), config.metric)


@torch.no_grad()
def _retriever(model: Model, config: TrainConfig, data: Interactions, parts: Parts) -> Retriever:
    if isinstance(model.encoder, VectorTowers):
        model.encoder.finish()
    if isinstance(model.encoder, SequenceModel) and parts.history is not None:
        model.encoder.finish(parts.history)
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
        None if text else parts.seen,
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
    if resume and CHECKPOINT not in found and found - {LOG, VECTORS}:
        raise FileExistsError(f"{folder} holds no checkpoint to resume; give another --out.")
    if holds_other(folder / VECTORS):
        found = (found - {VECTORS}) | {f"{VECTORS} of another kind"}
    foreign = sorted(found - OURS) + sorted(n for n in found & OURS - {VECTORS} if not (folder / n).is_file())
    if CHECKPOINT not in found and not _is_log(folder / LOG, alone=found <= {LOG, VECTORS}):
        foreign += sorted(found & OURS - {VECTORS})  # every run has a log; names alone do not make files ours
    if foreign:
        raise FileExistsError(
            f"{folder} holds {', '.join(foreign[:3])}, which steelyard did not write; give another --out."
        )


def _clear(folder: Path, resume: bool, keep: bool) -> None:
    """Remove what an earlier run left, or, to resume, only its half-written files; encoded texts may be kept."""
    for path in folder.iterdir():
        if path.name == VECTORS and path.is_dir():
            if not (resume or keep):
                shutil.rmtree(path)
        elif not resume or _left_behind(path):
            path.unlink()


def _left_behind(path: Path) -> bool:
    """A temporary file of a run that was killed."""
    return half_written(path) in OURS


def _is_log(path: Path, *, alone: bool) -> bool:
    """Whether a file is the log of a run; an empty one is if nothing else was written."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        line = file.readline(10_000)
    return line.startswith(b'{"event": ') or (alone and not line)


def _memory(model: Model, config: TrainConfig, train: Interactions) -> str:
    """What the run will hold, said before it starts: tables, best weights, optimiser, a step, item vectors."""
    tables = sum(p.numel() * p.element_size() for p in model.parameters())
    moments = tables // config.dim * (2 if config.optimizer == "adam" else 1)
    total = (
        2 * tables + moments + train.n_items * config.dim * 4 + (64 << 20) + 4 * _step(model, config, train)
    )
    what = "weights (twice: the best epoch is kept), optimiser, a training step and buffers"
    if isinstance(model.encoder, VectorTowers) and model.encoder.frozen is not None:
        frozen = model.encoder.frozen
        total += 2 * tables + 4 * (2 * frozen.queries.numel() + frozen.documents.numel())
        what = "frozen and adapted vectors, " + what
    return f"Memory: about {total / 2**20:,.0f} MiB for {what}."


def _step(model: Model, config: TrainConfig, train: Interactions) -> int:
    """How many numbers a step of mean size holds, by what was measured: activations, and scores that are not fused."""
    sequence = isinstance(model.encoder, SequenceModel)
    per_user = model.encoder.pair_counts if isinstance(model.encoder, SequenceModel) else train.known().counts
    n_queries = max(int((per_user > 0).sum()), 1)
    batch = min(config.batch_of(n_queries), n_queries)
    pairs = int(per_user.sum()) * batch // n_queries
    each = (20 + 20 * config.layers if config.cell == "transformer" else 19 + 8 * config.layers) * config.dim
    held = pairs * each if sequence else 0
    if adapts(config.negatives):
        held += 3 * (pairs if sequence else batch) * config.candidates * config.dim
    if adapts(config.negatives) or retrieval_loss(config.loss).fused is None:
        held += 14 * pairs * config.candidates
    return held
