"""Which errors say that the database is unavailable, by the codes of each database."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy.exc import DBAPIError

from conquiet.errors import causes_of

#: PostgreSQL, by SQLSTATE: read-only (a standby, `default_transaction_read_only`), out of disk, memory or
#: connections, `lock_timeout`, shutting down or starting, a file that cannot be read or written.
#: Not deadlocks (40P01), serialization failures (40001) or statement timeouts (57014): a retry is for them.
_SQLSTATES = frozenset(
    {
        *("25006", "53000", "53100", "53200", "53300", "55P03"),
        *("57P01", "57P02", "57P03", "57P05", "58000", "58030"),
    }
)
#: Connection exceptions.
_SQLSTATE_CLASS = "08"
#: MySQL and MariaDB: read-only (1290, 1792, 1836), disk or table full (1021, 1026, 1030, 1114), lock wait
#: timeout (1205), too many connections (1040, 1203, 1226), out of memory or threads (1037, 1041, 1135),
#: shutting down (1053, 3168), a Galera node without its cluster (1047). Not deadlocks (1213, 1020, 1206).
_MYSQL_ERRORS = frozenset(
    {
        *(1021, 1026, 1030, 1037, 1040, 1041, 1047, 1053, 1114, 1135),
        *(1203, 1205, 1226, 1290, 1792, 1836, 3168),
    }
)
#: SQLite, by primary result code: locked by another connection, read-only, disk full or failing.
_SQLITE_ERRORS = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    }
)
_SQLITE_PRIMARY = 0xFF
_LOCK_TIMEOUTS = frozenset({"55P03", 1205})
_READ_ONLY = frozenset({"25006", 1290, 1792, 1836})


def is_connection_lost(error: BaseException) -> bool:
    """Whether this exception, or one of its causes, is a lost connection to the database."""
    return any(cause.connection_invalidated for cause in _database_errors(error))


def is_refused(error: BaseException) -> bool:
    """Whether this exception, or one of its causes, says that the database answers and refuses to write."""
    return any(is_refusal(_code_of(cause.orig)) for cause in _database_errors(error))


def is_read_only(error: BaseException) -> bool:
    """Whether it is refused as read-only, which may be true of this one session and of no other."""
    return any(_code_of(cause.orig) in _READ_ONLY for cause in _database_errors(error))


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether the statement waited for another transaction for as long as it may."""
    return _code_of(error.orig) in _LOCK_TIMEOUTS


def is_refusal(code: str | int | None) -> bool:
    """Whether a code stands for a database that cannot write now; SQLite's are negative."""
    if isinstance(code, str):
        return code in _SQLSTATES or code.startswith(_SQLSTATE_CLASS)
    if code is None or code == -sqlite3.SQLITE_BUSY_SNAPSHOT:
        # A transaction that read before others wrote: SQLite's serialization failure.
        return False
    return code in _MYSQL_ERRORS if code >= 0 else -code & _SQLITE_PRIMARY in _SQLITE_ERRORS


def _code_of(error: Any) -> str | int | None:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else -code
    # psycopg and asyncpg, psycopg2, pg8000.
    facts = error.args[0] if error is not None and error.args else None
    of_pg8000 = facts.get("C") if isinstance(facts, dict) else None
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or of_pg8000
    # MySQL's drivers: the connectors have an `errno` and a SQLSTATE too, which says less.
    number = getattr(error, "errno", None) or facts
    return number if isinstance(number, int) else sqlstate


def _database_errors(error: BaseException) -> list[DBAPIError]:
    return [cause for cause in causes_of(error) if isinstance(cause, DBAPIError)]
