"""Ctrl-C between two steps, not within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag that is looked at between steps; a second one interrupts at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def ask(_signal: int, _frame: FrameType | None) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
