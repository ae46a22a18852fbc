"""Finds out that a database undid a transaction by itself.

A handler may swallow an SQL error and return as if all were well. After some errors the database has undone
everything so far, and some drivers then commit without a word: PostgreSQL answers COMMIT with ROLLBACK, MySQL
goes on in a new transaction after a deadlock. Such a commit would ack a message whose effects are gone.
"""

from __future__ import annotations

import sqlite3
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import ExceptionContext

from conquiet.errors import DbError

_MARK = "conquiet_rolled_back"
_LIBPQ_IN_ERROR = 3
#: ER_LOCK_DEADLOCK and MariaDB's ER_CHECKREAD undo the whole transaction, not only the statement.
_MYSQL_UNDOES_ALL = {(1213,), (1020,)}
#: SQLITE_NOMEM, SQLITE_INTERRUPT, SQLITE_IOERR and SQLITE_FULL may do the same; so does ON CONFLICT ROLLBACK.
_SQLITE_UNDOES_ALL = {7, 9, 10, 13}

_watched: WeakSet[Engine] = WeakSet()


def watch_rollbacks(engine: Engine) -> None:
    """Note, from now on, errors after which this engine's database has undone a transaction."""
    if engine not in _watched:
        event.listen(engine, "handle_error", _note_rollback)
        _watched.add(engine)


def forget_rollback(connection: Connection) -> None:
    """A new transaction begins on the connection."""
    connection.info.pop(_MARK, None)


def is_rolled_back(connection: Connection) -> bool:
    """Whether a commit now would commit less than the handler wrote."""
    if connection.info.get(_MARK, False):
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


def refuse_autocommit(connection: Connection) -> None:
    """Refuse a connection on which a rollback undoes nothing."""
    dbapi_connection = connection.connection.dbapi_connection
    if dbapi_connection is None or not connection.dialect.detect_autocommit_setting(dbapi_connection):
        return
    # sqlite3 with an explicit BEGIN (SQLAlchemy's recipe) looks like autocommit, but is in a transaction.
    if not getattr(dbapi_connection, "in_transaction", False):
        raise DbError("the engine is in AUTOCOMMIT mode, where a rollback undoes nothing; use another engine")


def _note_rollback(context: ExceptionContext) -> None:
    connection, error = context.connection, context.original_exception
    if connection is None or context.is_disconnect:
        return
    if isinstance(error, sqlite3.Error):
        has_undone = _has_sqlite_undone(connection, error)
    else:
        has_undone = context.dialect.name in ("mysql", "mariadb") and error.args[:1] in _MYSQL_UNDOES_ALL
    if has_undone:
        connection.info[_MARK] = True


def _has_sqlite_undone(connection: Connection, error: sqlite3.Error) -> bool:
    # sqlite3 began a transaction for the statement; that it is gone means that SQLite undid it.
    if getattr(connection.connection.dbapi_connection, "in_transaction", True):
        return False
    return isinstance(error, sqlite3.IntegrityError) or error.sqlite_errorcode & 0xFF in _SQLITE_UNDOES_ALL
