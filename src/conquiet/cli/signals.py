"""Stopping and received_signals: a command that runs until a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self


class Stopping:
    """Notices a signal; a second one finds the earlier handlers in place, and ends the process."""

    def __init__(self, *signals: signal.Signals) -> None:
        self._signals = signals or (signal.SIGTERM, signal.SIGINT)
        self._has_come = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def wait(self, seconds: float) -> bool:
        """Whether a signal came, within this time."""
        return self._has_come.wait(seconds)

    def is_stopping(self) -> bool:
        return self._has_come.is_set()

    def __enter__(self) -> Self:
        # Signals belong to the main thread; elsewhere, as in a test, there are none to wait for.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._restore) for number in self._signals}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _restore(self, *_signal: object) -> None:
        self._has_come.set()
        self.__exit__()


@contextmanager
def received_signals() -> Iterator[list[int]]:
    """Each SIGTERM and SIGINT that comes during the block, in order; neither does anything else."""
    received: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    # A list: whatever has a lock could have it while the signal comes.
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
