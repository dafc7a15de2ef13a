"""Everything a run needs to go on as if it had never stopped, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.files import read_tensors, write_tensors

CHECKPOINT = "checkpoint.safetensors"


def save_checkpoint(
    folder: Path,
    *,
    model: nn.Module,
    best: Mapping[str, Tensor],
    optimizers: Mapping[str, Optimizer],
    generators: Mapping[str, torch.Generator],
    counters: Mapping[str, Any],
    identity: Mapping[str, Any],
    snapshot: Mapping[str, Tensor],
) -> None:
    """Write weights, best weights, optimiser states, generator states and counters atomically.

    Args:
        folder: where `checkpoint.safetensors` goes.
        model: its state dict is saved.
        best: state dict of the best epoch so far; may be empty.
        optimizers: by name.
        generators: by name.
        counters: plain values for JSON: epoch, position, scores.
        identity: plain values that tell this run from another: its settings, a hash of its data.
        snapshot: what the epoch began with and its negatives are drawn by; may be empty.
    """
    tensors = {f"model/{name}": t for name, t in model.state_dict().items()}
    tensors |= {f"best/{name}": t for name, t in best.items()}
    for name, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{name}/{index}/{key}": value for key, value in state.items()}
    tensors |= {f"generator/{name}": generator.get_state() for name, generator in generators.items()}
    tensors |= {f"snapshot/{name}": t for name, t in snapshot.items()}
    metadata = {"counters": json.dumps(counters), "identity": json.dumps(identity)}
    write_tensors(folder / CHECKPOINT, tensors, metadata)


def load_checkpoint(
    folder: Path,
    *,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    generators: Mapping[str, torch.Generator],
    identity: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Restore what `save_checkpoint` wrote, in place.

    Returns:
        The counters, the best weights so far, and the epoch's snapshot.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: the file is damaged, or of another model.
    """
    path = folder / CHECKPOINT
    tensors, metadata = read_tensors(path)
    try:
        _check_identity(json.loads(metadata["identity"]), json.loads(json.dumps(identity)))
        counters: dict[str, Any] = json.loads(metadata["counters"])
        model.load_state_dict(_under(tensors, "model/"))
        for name, optimizer in optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in _under(tensors, f"optimizer/{name}/").items():
                index, _, part = key.partition("/")
                state.setdefault(int(index), {})[part] = value
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )
        for name, generator in generators.items():
            generator.set_state(tensors[f"generator/{name}"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} does not belong to this run: {error}. Give the data and settings it was started with, "
            "or start anew with --overwrite."
        ) from None
    return counters, _under(tensors, "best/"), _under(tensors, "snapshot/")


def _check_identity(saved: dict[str, Any], given: dict[str, Any]) -> None:
    """The two as flat settings; what differs is named with both values."""
    differing = [
        f"{name} was {saved.get(name)!r} and is now {given.get(name)!r}"
        for name in sorted(saved | given)
        if saved.get(name) != given.get(name)
    ]
    if differing:
        raise ValueError("; ".join(differing))


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
