"""QueueConsumer: the loop around one queue, as plain as it can be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.handler_kinds import PayloadType, new_handling
from conquiet.consume.handling import Handler, MessageHandling
from conquiet.consume.outcome import Ack, DeadLetter, Retry, Settlement, Skipped
from conquiet.consume.spans import Spans
from conquiet.db import Inbox
from conquiet.errors import MessageRejectedError
from conquiet.logs import naming_messages_of
from conquiet.masking import shown
from conquiet.queue import QueueConfig, QueueMessage, RedisStreamsQueue
from conquiet.tracing import Where, active_traces

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from conquiet.consume.async_handling import AsyncHandling


class QueueConsumer:
    """Delivers one message at a time until `stop()`; never acks, retries or reclaims by itself.

    `run` is the one exception to the first: there a message is acked after the commit of its handler's
    transaction.

    Examples:
        >>> consumer = QueueConsumer(queue)
        >>> def bill_one(msg, session):
        ...     bill(msg, session)
        ...     consumer.stop()  # or by a signal: see install_signal_handlers
        >>> queue.enqueue({"order_id": 10})
        '1...-0'
        >>> consumer.run(handler=bill_one, engine=engine)
    """

    def __init__(self, queue: RedisStreamsQueue) -> None:
        if not isinstance(queue, RedisStreamsQueue):
            raise TypeError(f"queue must be a RedisStreamsQueue, got {shown(queue)}")
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
        return self.queue.config

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def stop(self) -> None:
        """Start no new read; from any thread or signal handler. A read that waits ends within `block_ms`."""
        self._is_stopping = True

    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        """Wait for one message, `None` if none came or the consumer is stopping."""
        if self._is_stopping:
            return None
        return _first(self.queue.read(self.config.block_ms if block_ms is None else block_ms))

    def iter_messages(self) -> Iterator[QueueMessage]:
        """Yield messages until stopped; ack each one yourself."""
        while not self._is_stopping:
            msg = self.next()
            if msg is not None:
                yield msg

    def ack(self, msg: QueueMessage) -> None:
        self.queue.ack(msg)

    def claim_stale(self, min_idle_ms: int | None = None, count: int = 10) -> list[QueueMessage]:
        """Take over stale messages, idle for `claim_idle_ms` unless given; only when called."""
        return self.queue.claim_stale(
            self.config.claim_idle_ms if min_idle_ms is None else min_idle_ms, count
        )

    def run(
        self,
        *,
        handler: Handler,
        engine: Engine | AsyncEngine,
        inbox: Inbox | bool | None = None,
        payload: Any = None,
    ) -> None:
        """Read, open a DbSession, handle, commit, ack, until stopped; any failure ends it and is raised.

        With an inbox, a message that was handled before is acked without its handler. Handler and payload
        are as in `drain`.
        """
        if isinstance(handler, BatchHandler):
            raise TypeError(f"{handler!r} handles batches; here each message is handled by itself")
        payload_type = PayloadType.of(payload, self.queue.codec)
        with new_handling(handler, engine, inbox, payload=payload_type) as handling:
            running = _Running(self.queue, handling)
            with naming_messages_of(running):
                msg = running.read(self)
                while not (msg is None and self._is_stopping):
                    handling.purge_inbox()
                    if msg is None:
                        handling.release()
                        msg = running.read(self)
                    else:
                        running.handle(msg)
                        msg = running.ack_and_read(self, msg)


class _Running:
    """One `run`: its messages, with their spans and log fields."""

    def __init__(self, queue: RedisStreamsQueue, handling: MessageHandling | AsyncHandling) -> None:
        config = queue.config
        self._queue = queue
        self._handling = handling
        where = Where(
            destination=config.stream_key, group=config.consumer_group, consumer=config.consumer_name
        )
        self._spans = Spans(where, config.stream_key)
        self.consumer = config.consumer_name
        self.in_handler: QueueMessage | None = None

    def read(self, consumer: QueueConsumer) -> QueueMessage | None:
        started_ns = time.time_ns()
        msg = consumer.next()
        self._spans.received([] if msg is None else [msg], started_ns)
        return msg

    def handle(self, msg: QueueMessage) -> None:
        self.in_handler = msg
        try:
            traces = active_traces()
            if traces is None:
                outcome = self._handling.handle(msg)
            else:
                with self._spans.processing(traces, [msg]) as [processing]:
                    outcome = self._handling.handle(msg)
                names = {Skipped: "skipped", Ack: "handled"}
                processing.ended(names.get(type(outcome), "failed"))
        finally:
            self.in_handler = None
        if isinstance(outcome, Retry | DeadLetter):
            raise MessageRejectedError(msg.id, stream=msg.stream, answer=outcome)

    def ack_and_read(self, consumer: QueueConsumer, done: QueueMessage) -> QueueMessage | None:
        # After the commit; a crash in between redelivers, the other order would lose.
        started_ns = time.time_ns()
        if consumer.is_stopping or self._spans.are_on:
            settlements = [Settlement("ack", done.id, done.delivery_count)]
            try:
                self._queue.ack_ids([done.id])
            except Exception as error:
                self._spans.settled(settlements, started_ns, str(error))
                raise
            self._spans.settled(settlements, started_ns)
            return self.read(consumer)
        # The server acks before it waits for the next one: one round trip less for each message.
        msg = _first(self._queue.ack_and_read([done.id], consumer.config.block_ms))
        self._spans.received([] if msg is None else [msg], started_ns)
        return msg


def _first(messages: list[QueueMessage]) -> QueueMessage | None:
    return messages[0] if messages else None
