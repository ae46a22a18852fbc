"""Guards a transaction against ends that nobody would see.

A handler may swallow an SQL error and return as if all were well. After some errors the database has undone
everything so far, and some drivers then commit without a word: PostgreSQL answers COMMIT with ROLLBACK, MySQL
goes on in a new transaction after a deadlock. Such a commit would ack a message whose effects are gone. And a
handler that ends the transaction itself, by SQL text or by a statement that commits implicitly, could leave
the inbox row of a message that was not handled.
"""

from __future__ import annotations

import re
import sqlite3
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import ExceptionContext

from conquiet.errors import DbError

_LIBPQ_IN_ERROR = 3
#: ER_LOCK_DEADLOCK and MariaDB's ER_CHECKREAD undo the whole transaction, not only the statement;
#: ER_LOCK_WAIT_TIMEOUT does where the server is set so.
_MYSQL_UNDOES_ALL = {(1213,), (1020,), (1205,)}
_ENDS_TRANSACTION = re.compile(
    r"\s*(?:commit|end|abort|begin|start\s+transaction|rollback(?!\s+(?:\w+\s+)?to\b))\b", re.IGNORECASE
)
_MYSQL_COMMITS = re.compile(
    r"\s*(?:alter|create(?!\s+temporary)|drop(?!\s+temporary)|rename|truncate|lock\s+tables|grant|revoke|analyze)\b",
    re.IGNORECASE,
)

_watched: WeakSet[Engine] = WeakSet()
#: The ids of connections on which a DbSession is open, and whether the database undid its transaction. Asked
#: for every statement, so it is a plain dict; `end_guarded` always follows.
_open: dict[int, bool] = {}


def begin_guarded(connection: Connection) -> None:
    """Guard the transaction that has just begun on the connection.

    Raises:
        DbError: the engine is in AUTOCOMMIT mode, where a rollback undoes nothing.
    """
    _watch(connection.engine)
    _ensure_transaction(connection)
    _open[id(connection)] = False


def end_guarded(connection: Connection) -> None:
    """Let the connection commit again: at the end of a DbSession, whichever way it ends."""
    _open.pop(id(connection), None)


def is_undone(connection: Connection) -> bool:
    """Whether a commit now would commit less than the handler wrote."""
    if _open.get(id(connection), False):
        return True
    if connection.dialect.name != "postgresql":
        return False
    info = getattr(connection.connection.dbapi_connection, "info", None)
    status = getattr(info, "transaction_status", None)
    if status is None:
        # A driver that does not tell: in an aborted transaction the server refuses even this.
        connection.execute(text("SELECT 1"))
        return False
    return int(status) == _LIBPQ_IN_ERROR


def roll_back(connection: Connection) -> None:
    """Undo what was not committed, on the server too; a connection that cannot is dropped."""
    # After a commit that failed or was refused SQLAlchemy takes the transaction for ended and sends no
    # ROLLBACK: the next commit on this connection would commit it.
    is_cut_short = connection.get_transaction() is not None and not connection.in_transaction()
    try:
        connection.rollback()
        if is_cut_short and not connection.invalidated:
            connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 -- the driver's own; the server forgets the transaction, and so do we
        connection.invalidate(error)


def _watch(engine: Engine) -> None:
    if engine not in _watched:
        event.listen(engine, "handle_error", _note_undone)
        event.listen(engine, "commit", _refuse_commit)
        event.listen(engine, "before_cursor_execute", _refuse_end)
        _watched.add(engine)


def _ensure_transaction(connection: Connection) -> None:
    dbapi_connection = connection.connection.dbapi_connection
    # sqlite3 tells; with SQLAlchemy's recipe of an explicit BEGIN, or its own autocommit=False, it is in one.
    if dbapi_connection is None or getattr(dbapi_connection, "in_transaction", False):
        return
    # An attribute of sqlite3 from Python 3.12 on; the dialect looks at its elder.
    is_autocommit = isinstance(dbapi_connection, sqlite3.Connection) and (
        getattr(dbapi_connection, "autocommit", False) is True
    )
    if is_autocommit or connection.dialect.detect_autocommit_setting(dbapi_connection):
        raise DbError("the engine is in AUTOCOMMIT mode, where a rollback undoes nothing; use another engine")
    if isinstance(dbapi_connection, sqlite3.Connection):
        # By itself sqlite3 begins only before INSERT, UPDATE and DELETE: a new table, a savepoint or a
        # WITH … INSERT that comes first would be committed at once.
        dbapi_connection.execute("BEGIN")


def _refuse_commit(connection: Connection) -> None:
    if id(connection) in _open:
        raise DbError("a handler must not commit: its DbSession does, when the handler returns")


def _refuse_end(connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
    if id(connection) not in _open:
        return
    if _ENDS_TRANSACTION.match(statement):
        raise DbError(f"a handler must not begin or end transactions: {statement:.60}")
    if connection.dialect.name in ("mysql", "mariadb") and _MYSQL_COMMITS.match(statement):
        raise DbError(f"this statement would commit the handler's transaction: {statement:.60}")


def _note_undone(context: ExceptionContext) -> None:
    connection, error = context.connection, context.original_exception
    if connection is None or context.is_disconnect or id(connection) not in _open:
        return
    if isinstance(error, sqlite3.Error):
        # A full disk, ON CONFLICT ROLLBACK and others: there was a transaction, and now there is none.
        has_undone = not getattr(connection.connection.dbapi_connection, "in_transaction", True)
    else:
        has_undone = context.dialect.name in ("mysql", "mariadb") and error.args[:1] in _MYSQL_UNDOES_ALL
    if has_undone:
        _open[id(connection)] = True
