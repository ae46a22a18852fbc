"""Room: how many bytes of messages one partition may have in memory, out of its consumer's budget."""

from __future__ import annotations

import time
from collections.abc import Sequence

from conquiet.consume.byte_budget import ByteBudget
from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.waiting import Waiting

#: How often a read that waits until other partitions have less in memory looks whether it was stopped.
_LOOK_EVERY_S = 0.02


class Room:
    """That of one partition; only the thread that reads uses it."""

    def __init__(self, budget: ByteBudget, waiting: Waiting) -> None:
        self._budget = budget
        self._waiting = waiting
        #: Bytes of what may be in handlers, by entry id.
        self._in_handlers: dict[str, int] = {}

    def ask(self) -> int:
        """How many bytes a read may bring now; 0: `wait`."""
        return self._budget.ask(self, sum(self._in_handlers.values()))

    def wait(self, wait_ms: int) -> int:
        """Ask again and again for so long, or until the partition is stopped."""
        until = time.monotonic() + wait_ms / 1000
        while not (max_bytes := self.ask()) and time.monotonic() < until and not self._waiting.is_woken:
            self._budget.wait(self, _LOOK_EVERY_S)
        if not max_bytes:
            # What waits on without asking would keep the others waiting, too.
            self._budget.wait_no_longer(self)
        return max_bytes

    def report(self, sizes: Sequence[int]) -> None:
        """A read has brought messages of these sizes."""
        self._budget.report(self, sizes, sum(self._in_handlers.values()))

    def begin(self, msg: MqMessage) -> None:
        """It may be in a handler until its `end`, however many reads come meanwhile."""
        self._in_handlers[msg.id] = len(msg.data)

    def end(self, entry_id: str) -> None:
        """It is in no handler any more."""
        self._in_handlers.pop(entry_id, None)

    def shrink(self) -> None:
        """The process had too little memory: less for all from now on."""
        self._budget.shrink()

    def leave(self) -> None:
        """The partition has nothing in memory any more."""
        self._budget.leave(self)
