"""Ways to have one message handled, and to look at what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Connection, Engine

from conquiet import DbSession, DrainLimits, Inbox, QueueConsumer, QueueMessage, RedisStreamsQueue, drain
from conquiet.consume import Handler


class ConsumeOne(Protocol):
    """Handles the next message of the queue; raises what the library raises."""

    def __call__(
        self, queue: RedisStreamsQueue, handler: Handler, engine: Engine, inbox: Inbox | None = None
    ) -> None: ...


def by_drain(queue: RedisStreamsQueue, handler: Handler, engine: Engine, inbox: Inbox | None = None) -> None:
    """With `drain`."""
    drain(queue, handler, engine, DrainLimits(max_messages=1, on_error="raise"), inbox=inbox)


def by_run(queue: RedisStreamsQueue, handler: Handler, engine: Engine, inbox: Inbox | None = None) -> None:
    """With `QueueConsumer.run`."""
    consumer = QueueConsumer(queue)

    def handle_and_stop(msg: QueueMessage, session: DbSession) -> None:
        consumer.stop()
        handler(msg, session)

    consumer.run(handler=handle_and_stop, engine=engine, inbox=inbox)


def in_session(bind: Engine | Connection, work: Callable[[DbSession], object]) -> None:
    """One DbSession around a call, as around a handler."""
    with DbSession(bind) as session:
        work(session)


def pending(queue: RedisStreamsQueue) -> int:
    """How many messages were delivered and not acked."""
    return queue.backlog_stats().pending


def redeliver(queue: RedisStreamsQueue) -> None:
    """Have the group given every message once more, the acked ones too."""
    queue.client.xgroup_setid(queue.config.stream_key, queue.config.consumer_group, "0")
