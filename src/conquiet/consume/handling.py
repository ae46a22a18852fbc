"""What is done with one message: one transaction, the inbox, the handler, the commit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db import DbSession, Inbox
from conquiet.errors import ConquietError, DatabaseUnavailableError, DbError
from conquiet.masking import scrubbed, shown
from conquiet.queue import QueueMessage

Handler = Callable[[QueueMessage, DbSession], None]


class Outcome(Enum):
    """How a message ended; both mean that it may be acked."""

    #: The handler ran and its transaction is committed.
    HANDLED = "handled"
    #: The inbox has it from an earlier delivery.
    SKIPPED = "skipped"


class MessageHandling:
    """Handles messages one by one, each in its own transaction, over one kept connection.

    A kept connection saves a checkout for each message; it is given back on an error, on `release()` and at
    the end of the `with` block.
    """

    def __init__(self, handler: Handler, engine: Engine, inbox: Inbox | None = None) -> None:
        check_handler(handler)
        if not isinstance(engine, Engine):
            raise TypeError(f"engine must be a SQLAlchemy Engine, not {shown(engine)}")
        if inbox is not None and not isinstance(inbox, Inbox):
            raise TypeError(f"inbox must be an Inbox or None, not {inbox!r}")
        self._handler = handler
        self._engine = engine
        self._inbox = inbox
        self._connection: Connection | None = None
        self._options: Mapping[str, Any] = {}
        #: The inbox row that the current handling has written.
        self._delivery: str | None = None
        self._session: DbSession | None = None

    def handle(self, msg: QueueMessage) -> Outcome:
        """Handle and commit; whatever is raised, the message must stay pending.

        A lost link in the middle of a commit leaves open whether it was committed.
        """
        self._delivery = None
        try:
            self._session = DbSession(self._connected())
            with self._session as session:
                self._record(msg, session)
                refuse_unfinished(self._handler(msg, session))
        except _FoundInInboxError as found:
            return self._confirmed(msg, found)
        except BaseException as error:
            self.release()
            self._take_back(msg, error)
            raise
        self._release_if_changed()
        return Outcome.HANDLED

    def has_handled(self, msg: QueueMessage) -> bool:
        """Whether the inbox has it from an earlier delivery; without an inbox nobody knows."""
        if self._inbox is None:
            return False
        try:
            with DbSession(self._connected()) as session:
                return self._inbox.has(session, stream=msg.stream, group=msg.group, entry_id=msg.id)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the kept connection back, as before a wait of unknown length."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def is_database_unavailable(self) -> bool:
        """Whether no working connection can be had now."""
        try:
            with self._engine.connect() as connection:
                connection.scalar(select(1))
        except SQLAlchemyError:
            return True
        return False

    def __enter__(self) -> Self:
        if self._inbox is not None:
            self._inbox.create_table(self._engine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._options = self._connection.get_execution_options()
        return self._connection

    @scrubbed()
    def _connect(self) -> Connection:
        try:
            return self._engine.connect()
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError(f"no connection to the database: {error}") from error

    def _record(self, msg: QueueMessage, session: DbSession) -> None:
        if self._inbox is None:
            return
        self._delivery = self._inbox.record(session, stream=msg.stream, group=msg.group, entry_id=msg.id)
        if self._delivery is None:
            raise _FoundInInboxError

    def _take_back(self, msg: QueueMessage, error: BaseException) -> None:
        # Rolled back with the rest, unless the handler found a way to commit: then its redelivery must not be
        # skipped. A commit that failed half-way may have been made after all; then the row is true and stays.
        if self._inbox is None or self._delivery is None:
            return
        if self._session is not None and self._session.may_be_committed:
            return
        place = {"stream": msg.stream, "group": msg.group, "entry_id": msg.id}
        try:
            with DbSession(self._engine) as session:
                self._inbox.take_back(session, self._delivery, **place)
        except (ConquietError, SQLAlchemyError) as also:
            error.add_note(f"and the inbox could not be checked for a row of {msg.id}: {also}")

    def _release_if_changed(self) -> None:
        # A handler may have set options on the connection, such as a schema; they are not the next message's.
        connection = self._connection
        if connection is not None and connection.get_execution_options() != self._options:
            self.release()

    def _confirmed(self, msg: QueueMessage, found: Exception) -> Outcome:
        # The insert was refused; only a committed row says that the message is done.
        if not self.has_handled(msg):
            raise DbError(f"the inbox refused {msg.id} but does not have it") from found
        return Outcome.SKIPPED


class _FoundInInboxError(Exception):
    """Leaves the transaction of a message that was handled before."""


def check_handler(handler: object) -> None:
    """Refuse what would do nothing when it is called."""
    if not callable(handler):
        raise TypeError(f"handler must be callable as handler(msg, session), got {handler!r}")
    call = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    for function in (handler, call):
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(f"handler must be a plain function: {handler!r} would not run when it is called")


def refuse_unfinished(result: object) -> None:
    """Refuse what a handler returned if it has not run yet: to commit and ack now would lose the message."""
    if result is None:
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise TypeError(f"handler returned {result!r}, which has not run yet")
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or isinstance(result, Future):
        raise TypeError(f"handler returned {result!r}, which may not have run yet")
