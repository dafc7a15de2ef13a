"""Learning when the sum over everything is too large: score a few, sample them, weigh each draw."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.draws import Draws, Estimate, Proposal, Weighted

__version__ = "0.1.0"
__all__ = ["Draws", "Estimate", "Proposal", "Weighted", "__version__"]

_PACKAGES = ("evaluation", "losses", "negatives", "optim", "reports", "retrieval", "sampling", "weights")


def __getattr__(name: str) -> Any:
    """Load torch only once something of it is asked for, so that the command line answers at once."""
    if name in ("Draws", "Estimate", "Proposal", "Weighted"):
        return getattr(import_module("steelyard.draws"), name)
    if name in _PACKAGES:
        return import_module(f"steelyard.{name}")
    raise AttributeError(f"module 'steelyard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
