"""QueueConsumer: the loop around one queue, as plain as it can be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from sqlalchemy import Engine

from conquiet.consume.handling import Handler, MessageHandling
from conquiet.consume.observing import ObservedHandling
from conquiet.db import Inbox
from conquiet.logs import naming_messages_of
from conquiet.queue import QueueConfig, QueueMessage, RedisStreamsQueue


class QueueConsumer:
    """Delivers one message at a time until `stop()`; never acks, retries or reclaims by itself.

    `run` is the one exception to the first: there the commit of the handler's transaction is the word that
    the message may be acked.
    """

    def __init__(self, queue: RedisStreamsQueue) -> None:
        if queue.config.max_read_count != 1:
            raise ValueError(
                f"max_read_count must be 1 for a QueueConsumer, got {queue.config.max_read_count!r}; "
                "`drain` reads several at a time"
            )
        self.queue = queue
        # A plain attribute: a signal handler may set it at any moment, a lock could be held then.
        self._is_stopping = False

    @property
    def config(self) -> QueueConfig:
        """The queue's configuration."""
        return self.queue.config

    @property
    def is_stopping(self) -> bool:
        """Whether `stop()` was called."""
        return self._is_stopping

    def stop(self) -> None:
        """Start no new read; from any thread or signal handler. A read that waits ends within `block_ms`."""
        self._is_stopping = True

    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        """Wait for one message, `None` if none came or the consumer is stopping."""
        if self._is_stopping:
            return None
        return _only(self.queue.read(self.config.block_ms if block_ms is None else block_ms))

    def iter_messages(self) -> Iterator[QueueMessage]:
        """Yield messages until stopped; ack each one yourself."""
        while not self._is_stopping:
            msg = self.next()
            if msg is not None:
                yield msg

    def ack(self, msg: QueueMessage) -> None:
        """Acknowledge one message."""
        self.queue.ack(msg)

    def claim_stale(self, min_idle_ms: int | None = None, count: int = 10) -> list[QueueMessage]:
        """Take over stale messages, idle for `claim_idle_ms` unless told otherwise; only when called."""
        return self.queue.claim_stale(
            self.config.claim_idle_ms if min_idle_ms is None else min_idle_ms, count
        )

    def run(self, *, handler: Handler, engine: Engine, inbox: Inbox | None = None) -> None:
        """Read, open a DbSession, handle, commit, ack, until stopped; any failure ends it and is raised.

        With an inbox, a message that was handled before is acked without its handler.
        """
        with ExitStack() as stack:
            handling = stack.enter_context(MessageHandling(handler, engine, inbox))
            observed = ObservedHandling(self.queue, handling)
            stack.enter_context(naming_messages_of(observed))
            msg = self._next(observed)
            while not (msg is None and self._is_stopping):
                if msg is None:
                    handling.release()
                    msg = self._next(observed)
                else:
                    observed.handle(msg)
                    msg = self._ack_and_next(observed, msg)

    def _next(self, observed: ObservedHandling) -> QueueMessage | None:
        started = time.time_ns()
        msg = self.next()
        observed.has_read(started, 1)
        return msg

    def _ack_and_next(self, observed: ObservedHandling, done: QueueMessage) -> QueueMessage | None:
        # After the commit; a crash in between redelivers, the other order would lose.
        if self._is_stopping or observed.is_traced:
            observed.ack([done.id])
            return self._next(observed)
        # The server acks before it waits for the next one: one round trip less for each message.
        started = time.time_ns()
        messages = self.queue.ack_and_read([done.id], self.config.block_ms)
        observed.has_read(started, 1)
        return _only(messages)


def _only(messages: list[QueueMessage]) -> QueueMessage | None:
    return messages[0] if messages else None
