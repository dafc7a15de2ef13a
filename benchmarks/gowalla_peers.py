"""Training on Gowalla, side by side with implicit (ALS, BPR) and RecBole (BPR): how soon, how good, how much memory.

All have 64 factors, as many threads, the same training pairs (the file less the validation pairs that Steelyard
carves from it) and the same measure: the full ranking of the test, training and validation pairs left out. The
clock starts once the data is in a contender's own form and stands still while factors are measured, after every
epoch. The epoch is chosen by NDCG@20 on the validation pairs; a level is reached by the first epoch at or above it.

Each runs in a process of its own, after a warm-up on a few users; and once more for two epochs without any
measuring, for its memory: the peak of the process (PyTorch and data are in it, for all of them), and how far
training raised it over what was resident when library and data were loaded.

    python benchmarks/gowalla_peers.py [--only NAME] [--epochs N] [--users N] [--grid]

`--grid` tries the settings of the peers on the validation pairs, never the test, and prints the best.
Peers: pip install implicit; pip install --no-deps recbole and what its import then asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.evaluation import count_ranks, ranking_metrics
from steelyard.ragged import Ragged
from steelyard.retrieval import TrainConfig, read_interactions, read_test
from steelyard.retrieval.job import build
from steelyard.retrieval.loop import fit
from steelyard.retrieval.parts import Parts, partition

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cf-gowalla"
DIM = 64
SEED = 0
LEVELS = (0.08, 0.10, 0.11, 0.12, 0.13, 0.14)
WARM_UP_USERS = 256
MEMORY_EPOCHS = 2

Factors = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Point:
    """A contender after an epoch: seconds of training, NDCG@20 of validation, and two measures of the test."""

    seconds: float
    validation: float
    ndcg: float
    recall: float


class Enough(Exception):
    """Thrown out of a peer's callback to end its training."""


@dataclass
class Curve:
    """The clock of a contender and what was measured while it stood still."""

    parts: Parts
    patience: int
    look: str = "test"  # or "validation" alone, or "nothing"
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    resumed: float = 0.0

    def start(self) -> None:
        self.resumed = time.perf_counter()

    @torch.no_grad()
    def measure(self, factors: Factors) -> float:
        """Stop the clock, score the factors of users and items, and let the clock go on."""
        self.seconds += time.perf_counter() - self.resumed
        parts = self.parts
        validation, ndcg, recall = float(len(self.points)), math.nan, math.nan
        if self.look != "nothing":
            users, items = factors()
            validation, _ = scores(users, items, parts.validation.known(), parts.train.known())
            if self.look == "test":
                ndcg, recall = scores(users, items, parts.test.known(), parts.seen)
        self.points.append(Point(self.seconds, validation, ndcg, recall))
        self.resumed = time.perf_counter()
        return validation

    def measure_or_end(self, factors: Factors) -> None:
        """The same for a peer, whose training ends when nothing has become better for long."""
        self.measure(factors)
        if len(self.points) - 1 - self.best >= self.patience:
            raise Enough

    @property
    def best(self) -> int:
        """The epoch that validation chooses, from 0."""
        return max(range(len(self.points)), key=lambda at: self.points[at].validation)


def scores(users: Tensor, items: Tensor, targets: Ragged, seen: Ragged) -> tuple[float, float]:
    """NDCG@20 and recall@20 over the users with targets."""
    who = (targets.counts > 0).nonzero().squeeze(1)
    wanted = targets.take(who)
    metrics = ranking_metrics(count_ranks(users[who], items, wanted, seen.take(who)), wanted, k=(20,))
    return metrics.mean("ndcg@20"), metrics.mean("recall@20")


def steelyard(parts: Parts, curve: Curve, epochs: int) -> None:
    config = TrainConfig.of("mf", dim=DIM, epochs=epochs)
    train = parts.train
    curve.start()
    model = build(parts, config)
    encoder: Any = model.encoder

    def factors() -> tuple[Tensor, Tensor]:
        return encoder.queries(torch.arange(train.n_users)), encoder.items(torch.arange(train.n_items))

    def validate() -> dict[str, float]:
        return {config.metric: curve.measure(factors)}

    fit(model, train.users, train.items, train.known(), train.item_counts(), config, validate=validate)


def run_implicit(model: Any, parts: Parts, curve: Curve) -> None:
    from scipy.sparse import csr_matrix

    known = parts.train.known()
    ones = np.ones(len(known.values), dtype=np.float32)
    indices, offsets = (part.numpy().astype(np.int32) for part in (known.values, known.offsets))
    matrix = csr_matrix((ones, indices, offsets), (len(known), parts.train.n_items))

    def factors() -> tuple[Tensor, Tensor]:
        return torch.from_numpy(model.user_factors), torch.from_numpy(model.item_factors)

    curve.start()
    with contextlib.suppress(Enough):
        model.fit(matrix, show_progress=False, callback=lambda *_: curve.measure_or_end(factors))


def implicit_als(parts: Parts, curve: Curve, epochs: int, **settings: float) -> None:
    from implicit.cpu.als import AlternatingLeastSquares

    threads = torch.get_num_threads()
    model = AlternatingLeastSquares(
        factors=DIM, iterations=epochs, num_threads=threads, random_state=SEED, **settings
    )
    run_implicit(model, parts, curve)


def implicit_bpr(parts: Parts, curve: Curve, epochs: int, **settings: float) -> None:
    """Besides its 64 factors the model has a bias for each item."""
    from implicit.cpu.bpr import BayesianPersonalizedRanking

    threads = torch.get_num_threads()
    model = BayesianPersonalizedRanking(
        factors=DIM, iterations=epochs, num_threads=threads, random_state=SEED, **settings
    )
    run_implicit(model, parts, curve)


def recbole_bpr(parts: Parts, curve: Curve, epochs: int, **settings: float) -> None:
    """RecBole's own loader, negative sampler, model, optimiser and epoch; its epochs are called one by one."""
    restore_numpy_names()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        trainer, loader = recbole_trainer(parts, Path(folder), settings)
        names = loader.dataset.field2id_token
        users = token_rows(names["user_id"], parts.train.n_users)
        items = token_rows(names["item_id"], parts.train.n_items)
        model = trainer.model

        def factors() -> tuple[Tensor, Tensor]:
            return model.user_embedding.weight[users], model.item_embedding.weight[items]

        curve.start()
        with contextlib.suppress(Enough):
            for epoch in range(epochs):
                trainer._train_epoch(loader, epoch)
                curve.measure_or_end(factors)


def restore_numpy_names() -> None:
    """RecBole 1.2 names them when it reads its settings; NumPy dropped them in 2.0."""
    for name, value in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
        setattr(np, name, value)


def recbole_trainer(parts: Parts, folder: Path, settings: dict[str, float]) -> tuple[Any, Any]:
    """Its trainer and its training loader, fed from its own kind of file.

    The validation file is there to give the items of the validation pairs a row; nothing else reads it.
    """
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender import BPR
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    (folder / "gowalla").mkdir()
    for name, part in {"train": parts.train, "valid": parts.validation, "test": parts.test}.items():
        lines = [
            f"{user}\t{item}\n" for user, item in zip(part.users.tolist(), part.items.tolist(), strict=True)
        ]
        (folder / "gowalla" / f"gowalla.{name}.inter").write_text(
            "user_id:token\titem_id:token\n" + "".join(lines)
        )
    fixed = {
        "data_path": str(folder),
        "checkpoint_dir": str(folder),
        "benchmark_filename": ["train", "valid", "test"],
        "load_col": {"inter": ["user_id", "item_id"]},
        "use_gpu": False,
        "seed": SEED,
        "embedding_size": DIM,
        "show_progress": False,
    }
    config = Config(model="BPR", dataset="gowalla", config_dict=fixed | settings)
    init_seed(SEED, True)
    loader = data_preparation(config, create_dataset(config))[0]
    return Trainer(config, BPR(config, loader.dataset)), loader


def token_rows(tokens: np.ndarray, size: int) -> Tensor:
    """Where each of our rows is in RecBole's table; those it never saw are at its padding, row 0."""
    rows = torch.zeros(size, dtype=torch.int64)
    rows[torch.from_numpy(tokens[1:].astype(np.int64))] = torch.arange(1, len(tokens))
    return rows


@dataclass(frozen=True)
class Contender:
    """Who runs, for how many epochs at most, with which settings, and which settings were tried.

    Args:
        package: what is imported before memory is counted.
        run: trains, and has the curve measure after each epoch.
        epochs: at most.
        patience: epochs without a better validation score after which it ends.
        settings: those used.
        grid: those tried by `--grid`.
    """

    package: str
    run: Callable[..., None]
    epochs: int
    patience: int
    settings: dict[str, float] = field(default_factory=dict)
    grid: dict[str, tuple[float, ...]] = field(default_factory=dict)


# Chosen by validation NDCG@20 alone, with one thread. implicit ALS, 15 iterations at most: alpha 40 gave .0887 with
# regularization 10 and .0877 with 100; alpha 100, .0873 with 10; alpha 10, .0810 with .1, .0804 with 10 and .0734
# with 100; alpha 1, .061 with .01 to 10. implicit BPR, looked at every tenth epoch: learning rate .05 gave .0493
# at epoch 40 with regularization .001 (still rising) and .0385 with .01 (epoch 60); .1, .0426 and .0351. The rest
# of the grids was not run for this, nor RecBole's: its settings are its own defaults. `--grid` runs them all.
CONTENDERS = {
    "steelyard": Contender(
        "steelyard", steelyard, TrainConfig.of("mf").epochs, TrainConfig.of("mf").patience
    ),
    "implicit-als": Contender(
        "implicit.cpu.als",
        implicit_als,
        epochs=40,
        patience=5,
        settings={"alpha": 40.0, "regularization": 10.0},
        grid={"alpha": (1.0, 10.0, 40.0, 100.0), "regularization": (0.01, 0.1, 1.0, 10.0, 100.0)},
    ),
    "implicit-bpr": Contender(
        "implicit.cpu.bpr",
        implicit_bpr,
        epochs=200,
        patience=30,
        settings={"learning_rate": 0.05, "regularization": 0.001},
        grid={"learning_rate": (0.01, 0.05, 0.1), "regularization": (0.0001, 0.001, 0.01)},
    ),
    "recbole-bpr": Contender(
        "recbole.trainer",
        recbole_bpr,
        epochs=200,
        patience=10,
        settings={"learning_rate": 0.001, "weight_decay": 0.0, "train_batch_size": 2048},
        grid={
            "learning_rate": (0.0005, 0.001, 0.005),
            "weight_decay": (0.0, 1e-6),
            "train_batch_size": (2048,),
        },
    ),
}


def load(n_users: int | None) -> Parts:
    data = read_interactions(DATA / "train.txt.gz")
    test = read_test(DATA / "test.txt.gz", data)
    if n_users is not None:
        data, test = (part.select(part.users < n_users) for part in (data, test))
    return partition(data, test, TrainConfig.of("mf", dim=DIM), "random")


def few_users(parts: Parts) -> Parts:
    """The same vocabularies and few pairs, to compile and import what training needs."""
    few = [part.select(part.users < WARM_UP_USERS) for part in (parts.train, parts.validation, parts.test)]
    return Parts(few[0], few[1], few[2], parts.seen)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak() -> None:
    """Give back what reading left free and let the peak start anew, so that neither hides training (Linux)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def run_curve(contender: Contender, epochs: int, parts: Parts) -> dict[str, Any]:
    contender.run(few_users(parts), Curve(few_users(parts), 1), 1, **contender.settings)
    curve = Curve(parts, contender.patience)
    contender.run(parts, curve, epochs, **contender.settings)
    return {"points": [asdict(point) for point in curve.points], "best": curve.best}


def run_memory(contender: Contender, epochs: int, parts: Parts) -> dict[str, Any]:
    peak = peak_mib()
    reset_peak()
    before = peak_mib()
    curve = Curve(parts, MEMORY_EPOCHS, look="nothing")
    contender.run(parts, curve, min(epochs, MEMORY_EPOCHS), **contender.settings)
    return {"peak": max(peak, peak_mib()), "growth": peak_mib() - before}


def run_grid(name: str, contender: Contender, epochs: int, parts: Parts) -> None:
    """Every combination in turn: its best validation NDCG@20 and where that was reached."""
    tried: list[tuple[float, dict[str, float]]] = []
    for combination in itertools.product(*contender.grid.values()):
        settings = dict(zip(contender.grid, combination, strict=True))
        curve = Curve(parts, contender.patience, look="validation")
        contender.run(parts, curve, epochs, **settings)
        best = curve.points[curve.best]
        tried.append((best.validation, settings))
        where = f"epoch {curve.best + 1} of {len(curve.points)}, {best.seconds:.0f} s"
        print(f"{name} {settings}: validation {best.validation:.4f} at {where}", flush=True)
    print(f"{name}: best {max(tried, key=lambda trial: trial[0])[1]}")


def run_alone(name: str, what: str, n_users: int | None, epochs: int | None) -> None:
    warnings.simplefilter("ignore")
    contender = CONTENDERS[name]
    importlib.import_module(contender.package)
    parts, most = load(n_users), epochs or contender.epochs
    if what == "grid":
        run_grid(name, contender, most, parts)
    else:
        run = run_curve if what == "curve" else run_memory
        print(json.dumps(run(contender, most, parts)))


def spawn(name: str, what: str, options: list[str]) -> dict[str, Any] | None:
    """A process of its own; implicit asks for one BLAS thread, as it makes threads itself."""
    command = [sys.executable, __file__, "--only", name, "--alone", what, *options]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    if what == "grid":
        subprocess.run(command, check=False, env=environment)
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        print(f"{name} failed and is left out: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def reach(result: dict[str, Any] | None, level: float) -> float | None:
    points = result["points"] if result else []
    return next((point["seconds"] for point in points if point["ndcg"] >= level), None)


def cell(value: float | None, ours: float | None, form: str) -> str:
    if value is None:
        return f"{'-':>16}"
    ratio = f" (x{value / ours:.2f})" if ours else ""
    return f"{format(value, form) + ratio:>16}"


def report(results: dict[str, dict[str, Any]]) -> None:
    """One table of speed, one of quality and memory; ratios are to steelyard."""
    ours = results.get("steelyard")
    print("\nSeconds of training until test NDCG@20 reaches a level (ratio to steelyard)")
    print(f"{'':14}" + "".join(f"{level:16.2f}" for level in LEVELS))
    for name, result in results.items():
        row = [cell(reach(result, level), reach(ours, level), ".1f") for level in LEVELS]
        print(f"{name:14}" + "".join(row))
    forms = {"ndcg@20": ".4f", "recall@20": ".4f", "seconds": ".1f", "s an epoch": ".2f"}
    forms |= {"growth MiB": ".0f", "peak MiB": ".0f"}
    print("\nAt the epoch that validation chose, and memory (ratio to steelyard)")
    print(f"{'':14}{'epoch':>10}{'valid':>8}" + "".join(f"{head:>16}" for head in forms))
    for name, result in results.items():
        values, base = at_best(result), at_best(ours) if ours else {}
        row = [cell(values[head], base.get(head), form) for head, form in forms.items()]
        of = f"{result['best'] + 1}/{len(result['points'])}"
        print(f"{name:14}{of:>10}{values['validation']:8.4f}" + "".join(row))


def at_best(result: dict[str, Any]) -> dict[str, float]:
    point, last = result["points"][result["best"]], result["points"][-1]
    return {
        "validation": point["validation"],
        "ndcg@20": point["ndcg"],
        "recall@20": point["recall"],
        "seconds": point["seconds"],
        "s an epoch": last["seconds"] / len(result["points"]),
        "growth MiB": result["growth"],
        "peak MiB": result["peak"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Training on Gowalla against implicit and RecBole.")
    parser.add_argument("--only", choices=CONTENDERS, help="one contender")
    parser.add_argument("--epochs", type=int, help="epochs at most")
    parser.add_argument("--users", type=int, help="the pairs of the first users only")
    parser.add_argument("--grid", action="store_true", help="choose the settings of the peers by validation")
    parser.add_argument("--alone", choices=("curve", "memory", "grid"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"The Gowalla split is missing: expected {DATA} with train.txt.gz and test.txt.gz.")
    if options.alone:
        run_alone(options.only, options.alone, options.users, options.epochs)
        return
    names = [name for name in CONTENDERS if options.only in (None, name)]
    packages = {CONTENDERS[name].package.partition(".")[0] for name in names}
    for package in sorted({"torch", "numpy", "numba", *packages} - {"steelyard"}):
        found = importlib.util.find_spec(package) is not None
        print(f"{package} {importlib.metadata.version(package) if found else 'not installed: left out'}")
        names = [name for name in names if found or not CONTENDERS[name].package.startswith(package)]
    print(f"{torch.get_num_threads()} threads")
    passed = [
        f"--{key}={value}" for key, value in (("users", options.users), ("epochs", options.epochs)) if value
    ]
    if options.grid:
        for name in names:
            if CONTENDERS[name].grid:
                spawn(name, "grid", passed)
        return
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        print(f"{name} {CONTENDERS[name].settings or 'defaults'}", flush=True)
        curve, memory = spawn(name, "curve", passed), spawn(name, "memory", passed)
        if curve and memory:
            results[name] = curve | memory
    report(results)


if __name__ == "__main__":
    main()
