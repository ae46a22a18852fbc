"""The scene of one crash: its own stream and its own database."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from conquiet import DbSession, Inbox, Outbox, QueueConfig, QueueMessage, RedisStreamsQueue
from conquiet.consume import BatchHandler, Handler, batch_handler, dead_letter_stream
from conquiet.queue import open_client
from tests.services import Client, open_engine

GROUP = "billing"
WORKER = "worker-1"
BLOCK_MS = 20
#: A table each and nothing else, so all sites can share them: statements are compiled once.
INBOX, OUTBOX = Inbox(), Outbox()

#: What handlers write: one row per effect, in order; doubles are allowed, so that they can be seen.
effects = Table(
    "effects", MetaData(), Column("id", Integer, primary_key=True), Column("entry_id", String(64))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a site is; all that crosses a fork."""

    url: str
    stream: str
    database: Path
    has_inbox: bool = False
    has_outbox: bool = False
    #: Handlers are `async def`, over an AsyncEngine.
    is_async: bool = False


@functools.cache
def engine_at(database: Path) -> Engine:
    """One engine for all sites at a path: each of them closes its connections, what is compiled is kept."""
    return open_engine(f"sqlite:///{database}")


def handler_engine(address: Address) -> Engine | AsyncEngine:
    """The engine that handlers have: that of the site, or one for `async def` handlers."""
    if not address.is_async:
        return engine_at(address.database)
    return create_async_engine(f"sqlite+aiosqlite:///{address.database}", connect_args={"timeout": 60})


def as_handler(handle: Callable[..., Any], engine: Engine | AsyncEngine) -> Handler:
    """The same handler, for an AsyncEngine as an `async def` one."""
    if isinstance(engine, Engine):
        return handle
    if isinstance(handle, BatchHandler):
        return batch_handler(as_handler(handle.handle_all, engine))

    async def handle_async(messages: Any, session: AsyncSession) -> Any:
        return await session.run_sync(lambda of_greenlet: handle(messages, of_greenlet))

    return handle_async


class Site:
    """One process' own clients of an address, connected when made."""

    def __init__(self, address: Address, *, client_name: str) -> None:
        self.stream = address.stream
        self.outbox_stream = f"{address.stream}:outbox"
        self.dead_letters = dead_letter_stream(address.stream)
        self.inbox: Any = INBOX if address.has_inbox else None
        self.outbox: Any = OUTBOX if address.has_outbox else None
        self.client: Client = open_client(address.url, client_name=client_name, decode_responses=True)
        self.queue = self.queue_of(WORKER)
        self.engine = engine_at(address.database)
        self.engine.connect().close()
        self.handler_engine = handler_engine(address)

    def create_tables(self) -> None:
        """Create what an application creates before it consumes; the inbox is left to conquiet."""
        effects.create(self.engine)
        if self.outbox is not None:
            self.outbox.create_table(self.engine)

    def queue_of(self, consumer: str, *, claim_idle_ms: int = 60_000) -> RedisStreamsQueue:
        """The queue under another consumer's name."""
        config = QueueConfig(self.stream, GROUP, consumer, block_ms=BLOCK_MS, claim_idle_ms=claim_idle_ms)
        return RedisStreamsQueue(self.client, config)

    def entry_ids(self, last: str = "+") -> list[str]:
        """What is in the stream, up to `last`."""
        return [entry_id for entry_id, _ in self.client.xrange(self.stream, max=last)]

    def handle(self, msg: QueueMessage, session: DbSession) -> None:
        """The handler of every scenario: one effect, and with an outbox one message about it."""
        session.execute(insert(effects), {"entry_id": msg.id})
        if self.outbox is not None:
            self.outbox.enqueue(session, self.outbox_stream, {"id": msg.id})

    def delete_streams(self) -> None:
        """Leave the server as it was found."""
        self.client.delete(self.stream, self.outbox_stream, self.dead_letters)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.engine.dispose()
