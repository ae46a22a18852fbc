"""AsyncHandling: messages through an `async def` handler, for a drain outside of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy.util import await_only

from conquiet.consume.channel import Message
from conquiet.consume.event_loop import EventLoop
from conquiet.consume.handling import MessageHandling
from conquiet.consume.outcome import Outcome
from conquiet.errors import HandlerCancelledError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from conquiet.db import DbSession


class AsyncHandling:
    """The handling of the same messages inside of the event loop, where all of its calls go; one thread.

    That is the one of plain handlers, over the engine's connections: transaction, inbox, guard and commit are
    the same code, in greenlets of which each waits for its database by giving way to the others.
    """

    def __init__(self, inside: MessageHandling, engine: AsyncEngine | None) -> None:
        self._inside = inside
        self._engine = engine
        self._loop: EventLoop | None = None
        self.takes_batches = inside.takes_batches
        self.has_inbox = inside.has_inbox

    @property
    def event_loop(self) -> EventLoop:
        """Where its handlers run; from its first use to `close`."""
        if self._loop is None:
            self._loop = EventLoop.enter(self._engine)
        return self._loop

    def handle(self, msg: Message) -> Outcome:
        """As `MessageHandling.handle`."""
        return self.event_loop.call(self._inside.handle, msg)

    def handle_batch(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """As `MessageHandling.handle_batch`."""
        return self.event_loop.call(self._inside.handle_batch, messages)

    def for_another_thread(self) -> MessageHandling:
        """The handling inside of the event loop, with a connection of its own."""
        return self._inside.for_another_thread()

    def has_handled(self, msg: Message) -> bool:
        """As `MessageHandling.has_handled`."""
        return self.has_inbox and self.event_loop.call(self._inside.has_handled, msg)

    def release(self) -> None:
        """As `MessageHandling.release`."""
        if self._inside.has_connection:
            self.event_loop.call(self._inside.release)

    def purge_inbox(self) -> None:
        """As `MessageHandling.purge_inbox`."""
        if self._inside.is_time_to_purge:
            self.event_loop.call(self._inside.purge_inbox)

    def is_database_unavailable(self) -> bool:
        """As `MessageHandling.is_database_unavailable`."""
        return self.event_loop.call(self._inside.is_database_unavailable)

    def create_inbox_table(self) -> None:
        """As `MessageHandling.create_inbox_table`."""
        if self.has_inbox:
            self.event_loop.call(self._inside.create_inbox_table)

    def prepare(self) -> None:
        """Do what is done once, before the first drain: create the table of the inbox."""
        with self:
            """It is there now."""

    def close(self) -> None:
        """Give the connection back and leave the event loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.call(self._inside.release)
            finally:
                loop.leave()

    def __enter__(self) -> Self:
        try:
            self.create_inbox_table()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def awaiting(handler: Callable[..., Awaitable[Any]], engine: AsyncEngine | None) -> Callable[..., Any]:
    """A plain handler that awaits this one, for greenlets; it gets an `AsyncSession`."""
    if engine is None:
        return lambda messages: await_only(_ended(handler(messages)))

    def call(messages: Any, session: DbSession) -> Any:
        return await_only(_ended(handler(messages, session.async_orm(engine))))

    return call


async def _ended(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except asyncio.CancelledError as error:
        # Of a task that it has awaited: it must not end the drain, as an exit does.
        raise HandlerCancelledError("the handler was cancelled, or awaited a task that was") from error
