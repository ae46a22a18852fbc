"""Reads: how many messages the loop reads next, how long it waits for them, and where they go."""

from __future__ import annotations

import time
from typing import Generic

from conquiet.consume.channel import M
from conquiet.consume.conclusions import MOMENT_S, Conclusions
from conquiet.consume.loop_state import LoopState
from conquiet.queue.batch_size import BatchSize


class Reads(Generic[M]):
    """Those of one loop; only its thread calls them."""

    def __init__(self, state: LoopState[M], conclusions: Conclusions[M], *, is_consumer: bool) -> None:
        self._channel, self._handling = state.channel, state.handling
        self._spans, self._tally, self._unsettled = state.spans, state.tally, state.unsettled
        self._queued = state.queued.messages
        self._conclusions = conclusions
        #: Whether others wait for a connection of the database, too.
        self._is_consumer = is_consumer
        # The size of a transaction is the user's choice.
        adapts = state.channel.is_shared and not state.handling.takes_batches
        self.sizes = BatchSize(state.limits.batch_size, adapts=adapts)
        #: Whether the last read brought less than was asked for: the next one may wait.
        self._may_wait = True
        #: Whether nothing more will come.
        self._is_exhausted = False

    def has_more(self, size: int, in_handlers: int) -> bool:
        """Whether another message may be read while some are in handlers."""
        return not self._is_exhausted and self._tally.most_to_take(size, in_handlers) > 0

    def read(self, size: int, in_handlers: int) -> int | None:
        """Settle, read up to `size` messages, and return how many entries came; `None` at the end."""
        size = self._tally.most_to_take(size, in_handlers)
        self._handling.purge_inbox()
        if self._may_wait or self._is_consumer:
            # Not only before a wait: with fewer connections than threads, busy ones take turns.
            self._handling.release()
        if self._spans.are_on:
            # Else the wait for new messages would be a part of the ack's span.
            self._unsettled.settle()
        started, started_ns = time.monotonic(), time.time_ns()
        wait_ms = int(MOMENT_S * 1000) if in_handlers else self._tally.longest_wait_ms(started)
        batch = self._channel.read(self._unsettled.settlements, size, wait_ms)
        self._unsettled.record(started_ns)
        if batch is None:
            self._is_exhausted = True
            return 0 if in_handlers else None
        # A handler may add messages: the wait for others begins when all have ended.
        is_caught_up = self._channel.is_caught_up and not in_handlers
        count = self._tally.read(batch, started, is_caught_up=is_caught_up)
        self._may_wait = count < size
        self.sizes.learn(batch)
        self._spans.received(batch.messages, started_ns)
        self._queued.extend(batch.messages)
        for entry in batch.malformed:
            self._conclusions.record(self._channel.decide_malformed(entry), entry)
        return count
