"""Cancellation between messages: an interrupted step finishes the message in its handler first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_between_messages() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether the step was interrupted; the end of the block raises it.

    A second interrupt is raised at once: the message in the handler is rolled back and stays pending.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread alone; in others Dagster's own handling applies.
        yield lambda: False
        return
    received: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def pass_on(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))
        if len(received) > 1:
            pass_on(number, frame)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if len(received) == 1:
        # Dagster's handler raises DagsterExecutionInterruptedError: the step is canceled, not succeeded.
        pass_on(*received[0])
