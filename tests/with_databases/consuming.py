"""Ways to have one message handled, and to look at what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from conquiet import DbSession, DrainLimits, Inbox, QueueConsumer, QueueMessage, RedisStreamsQueue, drain
from conquiet.consume import Handler

_FOREIGN_KEYS = "PRAGMA foreign_keys = ON"


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


class _OfTask:
    """An `AsyncSession` as the plain handlers of these tests use theirs: for what it runs in its greenlet."""

    def __init__(self, session: Session) -> None:
        self.orm = session
        self.execute, self.scalar, self.scalars = session.execute, session.scalar, session.scalars

    @property
    def connection(self) -> Connection:
        return self.orm.connection()


def as_async(handler: Handler) -> Handler:
    """The same handler as an `async def` one."""

    async def handle(msg: QueueMessage, session: AsyncSession) -> Any:
        return await session.run_sync(lambda of_greenlet: handler(msg, _OfTask(of_greenlet)))

    return handle


def async_engine_of(engine: Engine, **options: Any) -> AsyncEngine:
    """One on the same database, with its options; of SQLite with foreign keys, which is an event there."""
    drivers = {"sqlite": "sqlite+aiosqlite", "mysql": "mysql+asyncmy", "mariadb": "mysql+asyncmy"}
    url = engine.url.set(drivername=drivers.get(engine.dialect.name, engine.url.drivername))
    made = create_async_engine(url.difference_update_query(["ssl_disabled"]), **options)
    if engine.dialect.name == "sqlite":
        event.listen(made.sync_engine, "connect", lambda connection, _: connection.execute(_FOREIGN_KEYS))
    return made.execution_options(**engine.get_execution_options())


def by_async_drain(
    queue: RedisStreamsQueue, handler: Handler, engine: Engine, inbox: Inbox | None = None
) -> None:
    """With `drain`, the handler in an event loop."""
    by_drain(queue, as_async(handler), async_engine_of(engine), inbox)  # type: ignore[arg-type]


def by_async_run(
    queue: RedisStreamsQueue, handler: Handler, engine: Engine, inbox: Inbox | None = None
) -> None:
    """With `QueueConsumer.run`, the handler in an event loop."""
    consumer = QueueConsumer(queue)
    awaited = as_async(handler)

    async def handle_and_stop(msg: QueueMessage, session: AsyncSession) -> None:
        consumer.stop()
        await awaited(msg, session)

    consumer.run(handler=handle_and_stop, engine=async_engine_of(engine), inbox=inbox)


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
