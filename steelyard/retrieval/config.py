"""What a training run is made of: every choice, checked, and written beside the model."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch

from steelyard.losses import retrieval_loss
from steelyard.negatives import adapts

Model = Literal["mf", "text", "vectors", "sequence"]
METRIC = re.compile(r"(recall|precision|ndcg|map|hit_rate|mrr)@[1-9]\d{0,5}")
LARGEST_SEED = 2**40
Similarity = Literal["cosine", "dot"]
OWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "adapter": ("vectors", ("linear", "mlp")),
    "adapt": ("vectors", ("query", "document", "both")),
    "cell": ("sequence", ("transformer", "gru")),
    "length": ("sequence", ()),
    "layers": ("sequence", ()),
}
"""Settings of one model alone, and what they may be; none named: whole numbers from 1."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run; `TrainConfig.of(model)` gives the tuned defaults of a model.

    Args:
        model: "mf" (a vector for each user and item), "text" (two towers over hashed n-grams), "vectors" (frozen
            vectors of a pretrained encoder, with trained adapters) or "sequence" (a network over each user's items
            in the order of time).
        negatives: proposal, as `steelyard.negatives.proposal` reads it: "uniform", "popularity:0.75",
            "in-batch+uniform", "everything" (the full softmax), "top50+uniform" and others that adapt to the query.
        loss: as `steelyard.losses.retrieval_loss` reads it: "softmax" (sampled softmax: the likelihood of the
            positives), "bsl:1.2" (bilateral softmax: negatives push more than a likelihood asks, which holds
            back the fit of noisy positives), "sl@20" (the top 20), "bpr", "gbce:0.75" and others.
        candidates: draws shared by each batch, K.
        dim: length of the vectors; for "vectors" 0, which becomes that of the vectors given.
        epochs: passes over the data at most.
        batch: queries a step, each with all its positives; 0 takes a hundredth of them, from 8 to 256.
        lr: learning rate at the start.
        optimizer: of tables, "adagrad" (row-wise Adagrad) or "adam" (row-wise Adam); adapters take Adam.
        decay: share of the learning rate that is left at the last epoch, falling along a cosine.
        dropout: share of a query vector's entries that each step leaves out.
        similarity: "cosine" or "dot".
        temperature: scores are similarities divided by it.
        learn_temperature: train the temperature too.
        patience: stop after so many evaluations in a row without a better validation score; 0 never.
        metric: validation score that chooses the epoch, such as "ndcg@20".
        validation: share of the held-out users' interactions that is carved out for validation; 0 trains on
            everything, and on to the last epoch.
        validation_users: how many users (text: queries) are held out from at most.
        seed: seed of everything random.
        adapter: of "vectors" alone: "linear" or "mlp".
        adapt: of "vectors" alone: the side with an adapter, "query", "document" or "both".
        cell: of "sequence" alone: "transformer" or "gru".
        length: of "sequence" alone: how many items a state looks back at; longer histories train in windows of it.
        layers: of "sequence" alone: blocks of the transformer, or layers of the GRU.
        repeats: of "sequence" alone: items come again, so that what a user took stays in the ranking. (The data keep
            repeats if they were read so.)

    Raises:
        TypeError: a value of another type.
        ValueError: a value outside its range, said with the mend.
    """

    model: Model = "mf"
    negatives: str = "uniform"
    loss: str = "bsl:1.2"
    candidates: int = 4096
    dim: int = 64
    epochs: int = 120
    batch: int = 0
    lr: float = 0.01
    optimizer: Literal["adagrad", "adam"] = "adam"
    decay: float = 0.02
    dropout: float = 0.1
    similarity: Similarity = "cosine"
    temperature: float = 0.09
    learn_temperature: bool = False
    patience: int = 30
    metric: str = "ndcg@20"
    validation: float = 0.1
    validation_users: int = 4096
    seed: int = 0
    adapter: str = ""
    adapt: str = ""
    cell: str = ""
    length: int = 0
    layers: int = 0
    repeats: bool = False

    def __post_init__(self) -> None:
        for f in fields(self):
            value, kind = getattr(self, f.name), type(f.default)
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise TypeError(f"{f.name} must be of type {kind.__name__}, got {value!r}.")
        choices = {
            "model": ("mf", "text", "vectors", "sequence"),
            "optimizer": ("adagrad", "adam"),
            "similarity": ("cosine", "dot"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if not METRIC.fullmatch(self.metric):
            raise ValueError(
                f"metric must be recall, precision, ndcg, map, hit_rate or mrr with a cut-off, such as ndcg@20; "
                f"got {self.metric!r}."
            )
        for name in ("candidates", "dim", "epochs", "validation_users"):
            least = 0 if name == "dim" and self.model == "vectors" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        for name in ("batch", "patience", "seed"):
            if not 0 <= getattr(self, name) < LARGEST_SEED:
                raise ValueError(f"{name} must lie in [0, {LARGEST_SEED}), got {getattr(self, name)}.")
        if retrieval_loss(self.loss).bounded and (self.similarity != "cosine" or self.learn_temperature):
            raise ValueError(
                f"The loss {self.loss!r} wants cosines and a fixed temperature: give --loss softmax, or leave "
                "--similarity and --learn-temperature."
            )
        if self.loss.split(":")[0] == "gbce" and self.negatives not in ("uniform", "everything"):
            raise ValueError(
                f"The loss gbce is calibrated for uniform negatives, and they are {self.negatives!r}: leave "
                "--negatives, or take another loss."
            )
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie in (0, 1], got {self.decay}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}.")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must lie in [0, 1), got {self.validation}.")
        self._check_own()

    def _check_own(self) -> None:
        """What one model takes, and the others do not."""
        vectors = self.model == "vectors"
        if self.repeats and self.model != "sequence":
            raise ValueError(f"repeats is a setting of the model sequence, and the model is {self.model!r}.")
        for name, (model, allowed) in OWN.items():
            value = getattr(self, name)
            if self.model != model and value:
                raise ValueError(
                    f"{name} is a setting of the model {model}, and the model is {self.model!r}."
                )
            if self.model == model and allowed and value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
            if self.model == model and not allowed and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if vectors and self.similarity != "cosine":
            raise ValueError("The model vectors scores by cosine: leave --similarity.")
        if vectors and self.optimizer != "adam":
            raise ValueError(
                "The model vectors has no tables, and its adapters take Adam: leave --optimizer."
            )

    @classmethod
    def of(cls, model: Model, **changes: Any) -> TrainConfig:
        """The defaults of a model with some settings changed.

        Args:
            model: "mf", "text", "vectors" or "sequence".
            changes: settings by name; None leaves a setting at its default.

        Returns:
            The settings.

        Raises:
            ValueError: an unknown model or setting, or a value outside its range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"Unknown settings {', '.join(unknown)}; there are {', '.join(sorted(known))}.")
        if changes.get("similarity") == "dot" or changes.get("learn_temperature"):
            changes = {"loss": "softmax"} | {k: v for k, v in changes.items() if (k, v) != ("loss", None)}
        negatives, loss = changes.get("negatives"), changes.get("loss")
        apart = isinstance(loss, str) and retrieval_loss(loss).fused is None
        if apart or (isinstance(negatives, str) and adapts(negatives)):
            changes = {"candidates": 256} | {
                k: v for k, v in changes.items() if (k, v) != ("candidates", None)
            }
        base = DEFAULTS.get(model)
        if base is None:
            raise ValueError(f"model must be one of {', '.join(DEFAULTS)}, got {model!r}.")
        return replace(base, **{name: value for name, value in changes.items() if value is not None})

    def batch_of(self, n_queries: int) -> int:
        """Queries a step for a data set of so many: `batch`, or a hundredth of them, from 8 to 256."""
        return self.batch or min(max(n_queries // 100, 8), 256)

    def generator(self, purpose: int) -> torch.Generator:
        """A generator of the seed's own for each purpose: 1 initial weights, 2 candidates and dropout, 1000 + e the order of epoch e."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + purpose)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


DEFAULTS: dict[str, TrainConfig] = {
    "mf": TrainConfig(),
    "text": TrainConfig(
        model="text",
        negatives="in-batch",
        loss="softmax",
        candidates=1024,
        dim=256,
        epochs=3,
        batch=1024,
        lr=0.1,
        optimizer="adagrad",
        decay=1.0,
        dropout=0.0,
        temperature=0.05,
        patience=10,
        metric="ndcg@10",
        validation_users=1024,
    ),
    "vectors": TrainConfig(
        model="vectors",
        negatives="in-batch+uniform",
        loss="softmax",
        candidates=1024,
        dim=0,
        epochs=30,
        batch=256,
        lr=0.001,
        dropout=0.0,
        temperature=0.05,
        patience=5,
        metric="ndcg@10",
        validation_users=1024,
        adapter="linear",
        adapt="both",
    ),
    "sequence": TrainConfig(
        model="sequence",
        negatives="uniform",
        loss="softmax",
        candidates=1024,
        dim=64,
        epochs=100,
        batch=128,
        lr=0.005,
        dropout=0.1,
        temperature=0.07,
        patience=10,
        metric="ndcg@10",
        validation_users=1024,
        cell="transformer",
        length=50,
        layers=2,
    ),
}

PRESETS: dict[str, dict[str, Any]] = {
    "sasrec": {"loss": "bce", "candidates": 256},
    "gsasrec": {"loss": "gbce:0.75", "candidates": 256},
    "tron": {"negatives": "in-batch+uniform"},
    "gru4rec": {
        "cell": "gru",
        "layers": 1,
        "loss": "bpr-max",
        "negatives": "in-batch+popularity:0.75",
    },
}
"""Losses and negatives of published sequence models by name; candidates are shared by the batch, scores are cosines."""


def preset_changes(name: str, model: str | None) -> tuple[Model, dict[str, Any]]:
    """The model and the settings that a preset stands for.

    Args:
        name: in `PRESETS`.
        model: the one asked for besides, or None.

    Raises:
        ValueError: an unknown preset, or one of another model.
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown preset {name!r}; there are {', '.join(PRESETS)}.")
    if model not in (None, "sequence"):
        raise ValueError(
            f"The preset {name} is of the model sequence, and the model is {model!r}: leave one."
        )
    return "sequence", dict(PRESETS[name])
