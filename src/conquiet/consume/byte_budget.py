"""ByteBudget: how many bytes of messages the threads of one process have in memory, all together."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from conquiet.queue.batch_size import BATCH_BYTES


class ByteBudget:
    """A channel asks before each read, and reports what came; what it had before counts no longer, but
    for what is in handlers.

    Thread-safe. Those that must wait are served in turn, as soon as others have read. A read that is alone
    may bring any message, also one that is larger than the whole budget: else it would never be handled.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: dict[object, int] = {}
        #: In the order in which they asked first; set when it is time to ask again.
        self._waiting: dict[object, threading.Event] = {}
        #: Of the largest message lately; until the first one has come, reads take turns.
        self._largest: int | None = None

    def ask(self, channel: object, in_handlers: int = 0) -> int:
        """How many bytes a read may bring beside what is in handlers.

        0: it must wait, and ask again until it gets them, or waits no longer.
        """
        with self._lock:
            self._keep(channel, in_handlers)
            used = sum(self._kept.values())
            granted = min(self._most, max(self._most // 4, self._largest or self._most))
            if used <= self._most // 4:
                # Little is in memory, as of a handler that takes hours: nobody waits for its end.
                granted = min(granted, self._most - used)
            is_next = next(iter(self._waiting), channel) == channel
            if not is_next or (used and used + granted > self._most):
                self._waiting.setdefault(channel, threading.Event()).clear()
                return 0
            self._waiting.pop(channel, None)
            self._keep(channel, in_handlers + granted)
            self._call_next()
            return min(BATCH_BYTES, granted)

    def wait(self, channel: object, timeout_s: float) -> None:
        """Wait until it is time to ask again, or for so long."""
        with self._lock:
            turn = self._waiting.get(channel)
        if turn is not None:
            turn.wait(timeout_s)

    def report(self, channel: object, sizes: Sequence[int], in_handlers: int = 0) -> None:
        """A read has brought messages of these sizes; they count until its next one."""
        with self._lock:
            if sizes:
                # A large one is remembered for some batches: others may follow.
                self._largest = max(*sizes, (self._largest or 0) // 2, 1)
            self._keep(channel, in_handlers + sum(sizes))
            self._call_next()

    def shrink(self) -> int:
        """The process had too little memory: less from now on, in the end one message at a time; how much."""
        with self._lock:
            self._most = max(1, self._most // 2)
            return self._most

    def wait_no_longer(self, channel: object) -> None:
        """The channel asks no more for now: others need not wait for its turn."""
        with self._lock:
            self._waiting.pop(channel, None)
            self._call_next()

    def leave(self, channel: object) -> None:
        """The channel reads no more for now, and has nothing in memory."""
        with self._lock:
            self._kept.pop(channel, None)
            self._waiting.pop(channel, None)
            self._call_next()

    def _call_next(self) -> None:
        # The others follow: each that was granted its read calls the next one.
        for turn in self._waiting.values():
            turn.set()
            return

    def _keep(self, channel: object, size: int) -> None:
        if size:
            self._kept[channel] = size
        else:
            self._kept.pop(channel, None)
