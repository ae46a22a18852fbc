"""Cancellation between messages: a step that is told to stop finishes the message at hand first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_between_messages() -> Iterator[Callable[[], bool]]:
    """Hands out a function that tells whether this step was told to stop; at the end the interrupt is raised.

    A second interrupt is raised at once: the message at hand is rolled back and stays pending.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread alone; there Dagster's own handling stands.
        yield lambda: False
        return
    received: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))
        if len(received) > 1:
            _pass_on(before, *received[-1])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if len(received) == 1:
        # Dagster's handler raises DagsterExecutionInterruptedError: the step is canceled, not succeeded.
        _pass_on(before, *received[0])


def _pass_on(before: Mapping[signal.Signals, object], number: int, frame: FrameType | None) -> None:
    handler = before[signal.Signals(number)]
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        raise KeyboardInterrupt(f"told to stop by {signal.Signals(number).name}")
