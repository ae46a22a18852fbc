"""What is done with one message: one transaction, the inbox, the handler, the commit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from conquiet.arguments import check_non_negative_int
from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.channel import Message
from conquiet.consume.outcome import Ack, Answer, DeadLetter, Outcome, Retry, Skipped
from conquiet.consume.purges import Purges
from conquiet.db import DbSession, Inbox, is_read_only
from conquiet.db.probe import is_unavailable
from conquiet.errors import ConquietError, DatabaseUnavailableError, DbError
from conquiet.logs import MessageLog
from conquiet.masking import scrubbed, shown

#: `handler(msg, session)`, or without a database `handler(msg)`; it may return `Ack`, `Retry`, `DeadLetter`.
Handler = Callable[..., Any]

_log = MessageLog(logging.getLogger(__name__))


_ACK = Ack()
_SKIPPED = Skipped()


class MessageHandling:
    """Handles messages one by one, each in its own transaction, over one kept connection; one thread.

    A kept connection saves a checkout for each message; it is given back on an error, on `release()` and at
    the end of the `with` block.
    """

    #: Whether it handles a batch of messages in one transaction.
    takes_batches = False
    #: Handlers run where they are called.
    event_loop = None

    def __init__(
        self,
        handler: Handler,
        engine: Engine | None,
        inbox: Inbox | bool | None = None,
        *,
        before_commit: Callable[[], None] | None = None,
        purge: Callable[[DbSession], bool] | None = None,
    ) -> None:
        if engine is not None and not isinstance(engine, Engine):
            of_url = "; `create_engine(url)` makes one" if isinstance(engine, str) else ""
            remedy = (
                "; an AsyncEngine is for `async def` handlers" if hasattr(engine, "sync_engine") else of_url
            )
            raise TypeError(f"engine must be a SQLAlchemy Engine, not {shown(engine)}{remedy}")
        if isinstance(inbox, bool):
            inbox = Inbox() if inbox else None
        if inbox is not None and not isinstance(inbox, Inbox):
            raise TypeError(f"inbox must be an Inbox, True for one of its own, or None, not {inbox!r}")
        if inbox is not None and engine is None:
            raise ValueError("inbox needs an engine")
        check_handler(handler, arguments=1 if engine is None else 2)
        if isinstance(handler, BatchHandler):
            raise TypeError(f"{handler!r} handles batches; here each message is handled by itself")
        self._handler = handler
        self._engine = engine
        self._inbox = inbox
        self._before_commit = before_commit
        self._purges = Purges(inbox, purge)
        self._connection: Connection | None = None
        self._options: Mapping[str, Any] = {}
        #: The inbox row that the current handling has written.
        self._delivery: str | None = None
        self._session: DbSession | None = None

    def handle(self, msg: Message) -> Outcome:
        """Handle and commit; whatever is raised, the message must stay pending.

        A lost connection in the middle of a commit leaves open whether it was committed.
        """
        if self._engine is None:
            return answer_of(self._handler(msg))
        self._delivery = None
        try:
            connection = self._connection or self._connect()
            self._session = DbSession(connection)
            with self._session as session:
                if self._inbox is not None:
                    self._delivery = self._inbox.record(session, msg)
                    if self._delivery is None:
                        raise _FoundInInboxError  # noqa: TRY301 -- it leaves the transaction
                answer = answer_of(self._handler(msg, session))
                if not isinstance(answer, Ack):
                    raise RolledBackError(answer)  # noqa: TRY301 -- it leaves the transaction
                if self._before_commit is not None:
                    # The last moment at which a lost lease costs nothing: the commit follows.
                    self._before_commit()
        except _FoundInInboxError as found:
            # The insert was refused; only a committed row says that the message is done.
            if not self.has_handled(msg):
                raise DbError(
                    f"the database refused the inbox row of entry {msg.id}, but the inbox does not have it"
                ) from found
            return _SKIPPED
        except BaseException as error:
            self._end_failed((msg,), error)
            if isinstance(error, RolledBackError):
                return error.answer
            raise
        if connection.get_execution_options() != self._options:
            # A handler may have set options on the connection, such as a schema; they end with its message.
            self.release()
        return answer

    def handle_batch(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Only for handlers of batches."""
        raise TypeError(f"{self._handler!r} takes one message, not {len(messages)}")

    def for_another_thread(self) -> MessageHandling:
        """The same with a connection of its own."""
        return MessageHandling(
            self._handler,
            self._engine,
            self._inbox,
            before_commit=self._before_commit,
            purge=self._purges.other,
        )

    @property
    def has_inbox(self) -> bool:
        """Whether it asks the database what was handled before."""
        return self._inbox is not None

    def has_handled(self, msg: Message) -> bool:
        """Whether the inbox has it from an earlier delivery; always `False` without an inbox."""
        if self._inbox is None:
            return False
        try:
            with DbSession(self._connection or self._connect()) as session:
                return self._inbox.has(session, msg)
        except SQLAlchemyError as error:
            self.release()
            text = f"the inbox could not be asked for entry {msg.id}: {error}"
            raise DatabaseUnavailableError(text) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the kept connection back, as before a wait of unknown length."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def has_connection(self) -> bool:
        """Whether it keeps one now."""
        return self._connection is not None

    @property
    def is_time_to_purge(self) -> bool:
        """Whether `purge_inbox` would do anything."""
        return self._purges.are_due(has_connection=self.has_connection)

    def purge_inbox(self) -> None:
        """Take one step of the inbox's retention if it is time; between messages, it never fails one."""
        if self.is_time_to_purge:
            is_done = self._purges.take_step(lambda: DbSession(self._connection or self._connect()))
            if not is_done:
                self.release()

    def is_database_unavailable(self) -> bool:
        """Whether the database cannot be used now; never without one."""
        return self._engine is not None and is_unavailable(self._engine)

    def create_inbox_table(self) -> None:
        """Create the table of the inbox, if there is one, unless it is there."""
        if self._inbox is not None and self._engine is not None:
            self._inbox.create_table(self._engine)

    def prepare(self) -> None:
        """Do what is done once, before the first drain: create the table of the inbox."""
        with self:
            """It is there now."""

    def close(self) -> None:
        """Give the kept connection back; at the end."""
        self.release()

    def __enter__(self) -> Self:
        self.create_inbox_table()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @scrubbed()
    def _connect(self) -> Connection:
        assert self._engine is not None  # noqa: S101 -- for mypy: only messages with a database come here
        try:
            self._connection = self._engine.connect()
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError(f"no connection to the database: {error}") from error
        self._options = self._connection.get_execution_options()
        return self._connection

    def _end_failed(self, messages: Sequence[Message], error: BaseException) -> None:
        if self._connection is not None and is_read_only(error):
            # As one to the primary of before a failover: the pool would hand it out again.
            self._connection.invalidate()
        self.release()
        # Rolled back with the rest, unless the handler found a way to commit: then its redelivery must not be
        # skipped. A commit that failed half-way may have been made after all; then the row is true and stays.
        if self._inbox is None or self._engine is None or self._delivery is None:
            return
        if self._session is not None and self._session.may_be_committed:
            return
        try:
            with DbSession(self._engine) as session:
                self._inbox.take_back(session, self._delivery, *messages)
        except (ConquietError, SQLAlchemyError) as also:
            error.add_note(f"and the inbox could not be checked for a row of {messages[0].id}: {also}")


class _FoundInInboxError(Exception):
    """Leaves the transaction of a message that was handled before."""


class RolledBackError(Exception):
    """Leaves the transaction of a handler that answered with a retry or a dead letter."""

    def __init__(self, answer: Retry | DeadLetter) -> None:
        self.answer = answer


def is_async(handler: object) -> bool:
    """Whether calling it makes a coroutine."""
    function = getattr(handler, "handle_all", handler)
    of_object = getattr(function, "__call__", None)  # noqa: B004 -- of an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(of_object)


def check_handler(handler: object, *, arguments: int | None = None, may_be_async: bool = False) -> None:
    """Refuse what would fail, or do nothing, with every message."""
    call = "handler(msg)" if arguments == 1 else "handler(msg, session)"
    if not callable(handler):
        raise TypeError(f"handler must be callable as {call}, got {handler!r}")
    function = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    for one in (handler, function):
        if inspect.iscoroutinefunction(one) and not may_be_async:
            raise TypeError(
                f"handler must be a plain function: {handler!r} would not run when it is called; `drain` and "
                "consumers await it if engine is an AsyncEngine, as create_async_engine makes it"
            )
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise TypeError(f"handler must be a plain function: {handler!r} would not run when it is called")
    if arguments is None:
        return
    try:
        inspect.signature(handler).bind(*[None] * arguments)
    except TypeError as error:
        prefix = "without an engine" if arguments == 1 else "with an engine"
        raise TypeError(f"{prefix}, handler must be callable as {call}: {handler!r}") from error
    except ValueError:
        # Some builtins have no signature.
        return


def answer_of(result: object) -> Answer:
    """What a handler's result means; anything but an answer is an `Ack`.

    Raises:
        TypeError: it may not have run yet, so that to commit and ack now would lose the message.
    """
    if result is None:
        return _ACK
    if isinstance(result, Ack | Retry | DeadLetter):
        if isinstance(result, Retry) and result.delay_ms is not None:
            check_non_negative_int("delay_ms", result.delay_ms)
        if not isinstance(result, Ack) and not isinstance(result.reason, str):
            raise TypeError(f"handler returned {result!r}, whose reason must be a str")
        return result
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise TypeError(f"handler returned {result!r}, which has not run yet")
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or isinstance(result, Future):
        raise TypeError(f"handler returned {result!r}, which may not have run yet")
    if isinstance(result, type) and issubclass(result, Ack | Retry | DeadLetter):
        raise TypeError(f"handler returned the class {result.__name__}; return an instance of it")
    return _ACK
