"""Wires a host process' signals to `stop()`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Protocol


class Stoppable(Protocol):
    """Anything with a loop that ends after `stop()`."""

    def stop(self) -> None:
        """Ask the loop to end."""


def install_signal_handlers(
    consumer: Stoppable, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Callable[[], None]:
    """Stop the consumer on the first of these signals, then call the handler that was there before.

    A second signal finds the earlier handlers in place again. Returns a function that puts them back
    at once. Call it from the main thread, as Python asks for signals.

    Examples:
        >>> consumer = QueueConsumer(queue)
        >>> restore = install_signal_handlers(consumer)  # SIGTERM: finish the message, then return from run()
        >>> restore()
    """
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        consumer.stop()
        restore()
        earlier = before[signal.Signals(number)]
        # Python's own Ctrl-C handler would raise in the middle of the message that stop() lets finish.
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)

    for number in signals:
        signal.signal(number, on_signal)
    return restore
