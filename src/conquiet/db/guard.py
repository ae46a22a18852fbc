"""Guards the transaction of one message against a silent end.

A handler may swallow an SQL error and return normally. After some errors the database has rolled back
everything so far, and some drivers then commit without an error: PostgreSQL answers COMMIT with ROLLBACK,
MySQL goes on in a new transaction after a deadlock. Such a commit would ack a message without its effects. A
handler that ends the transaction itself, by SQL text or by a statement that commits implicitly, could leave
the inbox row of a message that was not handled.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Self
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, event, text
from sqlalchemy.engine import ExceptionContext, ExecutionContext

from conquiet.db.statements import effect_on_transaction
from conquiet.errors import DbError

_LIBPQ_IDLE = 0
_LIBPQ_IN_ERROR = 3
#: ER_LOCK_DEADLOCK, ER_LOCK_TABLE_FULL and MariaDB's ER_CHECKREAD undo the whole transaction, not only the
#: statement; ER_LOCK_WAIT_TIMEOUT does where the server is set so.
_MYSQL_UNDOES_ALL = {(1213,), (1206,), (1020,), (1205,)}

_SAVEPOINT = "conquiet_guard"

_watched: WeakSet[Dialect] = WeakSet()


class TransactionGuard:
    """Watches one transaction from its beginning to its end, and detects when it was ended before."""

    __slots__ = (
        *("_dbapi_connection", "_has_savepoint"),
        *("connection", "has_executed", "has_run_unknown", "is_undone"),
    )

    #: By the id of the DBAPI connection: some pools give the same one to several `Connection`s.
    open: dict[int, TransactionGuard] = {}  # noqa: RUF012 -- shared on purpose

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Kept, so that its id stays its own.
        self._dbapi_connection = connection.connection.dbapi_connection
        self.is_undone = False
        self.has_executed = False
        #: Whether a procedure or the like ran, which may have changed settings of the connection.
        self.has_run_unknown = False
        self._has_savepoint = False

    @classmethod
    def begin(cls, connection: Connection) -> Self:
        """Guard the transaction that has just begun on the connection.

        Raises:
            DbError: the engine is in AUTOCOMMIT mode, where a rollback undoes nothing.
        """
        if connection.dialect not in _watched:
            _watch(connection)
        guard = cls(connection)
        guard._ensure_transaction()
        cls.open[id(guard._dbapi_connection)] = guard
        return guard

    @classmethod
    def note_statement(cls, dbapi_connection: object) -> None:
        """A statement of ours is executed by the driver, where SQLAlchemy does not see it."""
        guard = cls.open.get(id(dbapi_connection))
        if guard is not None:
            guard.has_executed = True

    def end(self) -> None:
        """Allow commits on the connection again, at the end of a DbSession."""
        if self.open.get(id(self._dbapi_connection)) is self:
            del self.open[id(self._dbapi_connection)]

    def check(self) -> None:
        """Check, before the commit, that the transaction is still the one that the handler wrote in.

        Raises:
            DbError: the database or the handler ended it.
        """
        self.check_savepoint()
        if self.is_undone or self._is_ended():
            raise DbError("the handler's transaction was ended or undone before its commit")

    def set_savepoint(self) -> None:
        """Mark the transaction before a statement that may end it on the server, as a MySQL procedure can."""
        self.has_run_unknown = True
        if not self._has_savepoint:
            self._execute(f"SAVEPOINT {_SAVEPOINT}")
            self._has_savepoint = True

    def check_savepoint(self) -> None:
        """Note it if the transaction with the mark was ended: its savepoints are gone with it."""
        if self._has_savepoint:
            self._has_savepoint = False
            try:
                self._execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            except self.connection.dialect.loaded_dbapi.Error:
                self.is_undone = True

    def _execute(self, statement: str) -> None:
        assert self._dbapi_connection is not None  # noqa: S101 -- for mypy: the transaction is open
        cursor = self._dbapi_connection.cursor()
        try:
            cursor.execute(statement)
        finally:
            cursor.close()

    def _is_ended(self) -> bool:
        if self.connection.dialect.name == "sqlite":
            return not driver_of(self.connection).in_transaction
        if self.connection.dialect.name != "postgresql":
            return False
        status = getattr(getattr(self._dbapi_connection, "info", None), "transaction_status", None)
        if status is None:
            # A driver without this status: in an aborted transaction the server refuses even this.
            self.connection.execute(text("SELECT 1"))
            return False
        return status == _LIBPQ_IN_ERROR or (self.has_executed and status == _LIBPQ_IDLE)

    def _ensure_transaction(self) -> None:
        # With SQLAlchemy's recipe of an explicit BEGIN, or autocommit=False, sqlite3 is in one already.
        dbapi_connection, driver = self._dbapi_connection, driver_of(self.connection)
        if dbapi_connection is None or getattr(driver, "in_transaction", False):
            return
        is_sqlite = self.connection.dialect.name == "sqlite"
        # An attribute of sqlite3 from Python 3.12 on; the dialect checks the older one.
        is_autocommit = is_sqlite and getattr(driver, "autocommit", False) is True
        if is_autocommit or self.connection.dialect.detect_autocommit_setting(dbapi_connection):
            raise DbError(
                "the engine is in AUTOCOMMIT mode, where a rollback undoes nothing; use another engine"
            )
        if is_sqlite:
            # By itself sqlite3 begins only before INSERT, UPDATE and DELETE: a new table, a savepoint or a
            # WITH … INSERT that comes first would be committed at once.
            self._execute("BEGIN")


def driver_of(connection: Connection) -> Any:
    """The driver's own connection; of one that awaits, what SQLAlchemy has around it looks like another's."""
    return connection.connection.driver_connection


def roll_back(connection: Connection) -> None:
    """Undo what was not committed, on the server too; a connection that cannot is dropped."""
    # After a commit that failed or was refused SQLAlchemy counts the transaction as ended and sends no
    # ROLLBACK: the next commit on this connection would commit it.
    is_cut_short = connection.get_transaction() is not None and not connection.in_transaction()
    try:
        connection.rollback()
        if is_cut_short and not connection.invalidated:
            connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 -- the driver's own; the server rolls back when the connection closes
        connection.invalidate(error)


def _watch(connection: Connection) -> None:
    """Have all users of the engine, whatever options they set on it, asked before they do what could harm."""
    dialect = connection.dialect
    _refuse_intruder(connection.connection)
    # Not the events of these names: with one of them on an engine its statements take a quarter longer.
    for name, check in (("do_begin", _refuse_intruder), ("do_commit", _refuse_commit)):
        setattr(dialect, name, _checked(check, getattr(dialect, name)))
    for name in ("do_execute", "do_executemany"):
        event.listen(dialect, name, _refuse_end)
    event.listen(
        dialect,
        "do_execute_no_params",
        lambda cursor, statement, context: _refuse_end(cursor, statement, None, context),
    )
    event.listen(dialect, "handle_error", _note_undone)
    _watched.add(dialect)


def _checked(check: Callable[[Any], None], action: Callable[[Any], None]) -> Callable[[Any], None]:
    def check_and_do(pooled: Any) -> None:
        # Quick where nobody handles a message at this moment, as before its own begin and commit.
        if TransactionGuard.open:
            check(pooled)
        action(pooled)

    return check_and_do


def _refuse_intruder(pooled: Any) -> None:
    guard = TransactionGuard.open.get(id(pooled.dbapi_connection))
    # Its own connection begins only when nothing is begun: its handler has ended the message's transaction.
    if guard is not None and guard.connection.get_transaction() is not None:
        # What it does from now on, even a reset by its pool, happens in the message's transaction.
        guard.is_undone = True
        raise DbError(
            "this pool shares the connection of a message that is being handled; "
            "use one with a connection for each user, such as QueuePool or NullPool"
        )


def _refuse_commit(pooled: Any) -> None:
    if id(pooled.dbapi_connection) in TransactionGuard.open:
        raise DbError("a handler must not commit: its DbSession does, when the handler returns")


def _refuse_end(_cursor: Any, statement: str, _parameters: Any, context: ExecutionContext) -> None:
    if not TransactionGuard.open:
        return
    connection = context.root_connection
    guard = TransactionGuard.open.get(id(connection.connection.dbapi_connection))
    if guard is None:
        return
    guard.has_executed = True
    effect = effect_on_transaction(statement, context.dialect.name)
    if effect is None:
        return
    if effect == "controls":
        raise DbError(f"a handler must not begin or end transactions: {statement:.60}")
    if effect == "commits":
        raise DbError(f"this statement would commit the handler's transaction: {statement:.60}")
    if effect == "may end":
        guard.set_savepoint()
    else:
        # Ours is gone with an earlier one of the handler's.
        guard.check_savepoint()


def _note_undone(context: ExceptionContext) -> None:
    connection, error = context.connection, context.original_exception
    if connection is None or context.is_disconnect:
        return
    guard = TransactionGuard.open.get(id(connection.connection.dbapi_connection))
    is_mysql = context.dialect.name in ("mysql", "mariadb")
    if guard is not None and is_mysql and error.args[:1] in _MYSQL_UNDOES_ALL:
        guard.is_undone = True
    if guard is not None and isinstance(error, sqlite3.Error):
        # A full disk, ON CONFLICT ROLLBACK and others: there was a transaction, and now there is none.
        guard.is_undone |= guard._is_ended()
