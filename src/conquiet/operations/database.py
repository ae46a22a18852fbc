"""The doctor's view of a handler's database: can it write, and does a frozen worker's transaction end?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db.probe import is_unavailable
from conquiet.db.table_creation import visible_sql
from conquiet.operations.findings import Finding

#: A transaction in which nothing happened for so long belongs to a worker that is frozen, or to no worker.
_FROZEN_AFTER_S = 60

_POSTGRES_TIMEOUT = "SELECT CAST(setting AS integer) FROM pg_settings WHERE name = :name"
_POSTGRES_IDLE = """
    SELECT a.pid, CAST(extract(epoch FROM now() - a.state_change) AS integer)
    FROM pg_stat_activity a
    WHERE a.state LIKE 'idle in transaction%' AND a.pid IN (
        SELECT l.pid FROM pg_locks l
        JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
        WHERE l.relation = to_regclass(:table)
    )
    ORDER BY 2 DESC
"""
_MYSQL_IDLE = """
    SELECT p.id, p.time FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
    WHERE p.command = 'Sleep' AND p.db = DATABASE() AND t.trx_rows_modified > 0
    ORDER BY p.time DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """One database that handlers write to."""

    #: Host and name, without a password.
    address: str
    is_read_only: bool = False
    #: The setting that ends a transaction in which nothing happens; `None` where there is none.
    timeout_name: str | None = None
    #: Its value; 0 is never, `None` unknown.
    timeout: int | None = None
    #: Open transactions that have written, here into the inbox, and do nothing: session and seconds.
    #: `None` where that is not to be seen.
    idle_sessions: tuple[tuple[int, int], ...] | None = ()


def database_facts(engine: Engine, *, inbox_table: str = "conquiet_inbox") -> DatabaseFacts:
    """Read them; nothing is written.

    Raises:
        DbError: the database cannot be reached.
    """
    address = f"{engine.url.host or ''}/{engine.url.database or ''}"
    with visible_sql("the database"), engine.connect() as connection:
        name, timeout = None, None
        idle: tuple[tuple[int, int], ...] | None = ()
        if connection.dialect.name == "postgresql":
            name = "idle_in_transaction_session_timeout"
            timeout = connection.scalar(text(_POSTGRES_TIMEOUT), {"name": name})
            rows = connection.execute(text(_POSTGRES_IDLE), {"table": inbox_table})
            idle = tuple((row[0], row[1]) for row in rows)
        elif connection.dialect.name in ("mysql", "mariadb"):
            if getattr(connection.dialect, "is_mariadb", False):
                name = "idle_transaction_timeout"
                timeout = connection.scalar(text("SELECT @@idle_transaction_timeout"))
            try:
                idle = tuple((int(row[0]), int(row[1])) for row in connection.execute(text(_MYSQL_IDLE)))
            except SQLAlchemyError:
                # It needs the privilege PROCESS.
                idle = None
    return DatabaseFacts(
        address=address,
        is_read_only=is_unavailable(engine),
        timeout_name=name,
        timeout=timeout,
        idle_sessions=idle,
    )


def check_database(facts: DatabaseFacts) -> Iterator[Finding]:
    """Can handlers write, and does a frozen worker's transaction end?"""
    if facts.is_read_only:
        text = "the database refuses to write: no message can be handled"
        to_do = "Point to the primary, or end its read-only mode; nothing is lost meanwhile."
        yield Finding("error", "database", facts.address, text, to_do)
    else:
        yield Finding("ok", "database", facts.address, "the database can be written to")
    if facts.timeout_name is not None and not facts.timeout:
        text = (
            f"{facts.timeout_name} is 0: the transaction of a worker that is frozen stays open, and its "
            "message waits, for as long as its session lives"
        )
        to_do = (
            f"Set {facts.timeout_name} to more than the longest pause within a handler, such as 10 minutes."
        )
        yield Finding("warning", "idle-transactions", facts.address, text, to_do)
    if facts.idle_sessions is None:
        text = "whether a frozen worker has a transaction open is not to be seen"
        yield Finding("note", "frozen-worker", facts.address, text, "Grant PROCESS to this user.")
    for session, seconds in facts.idle_sessions or ():
        if seconds >= _FROZEN_AFTER_S:
            text = (
                f"session {session} has an open transaction with writes and has done nothing for {seconds} s"
            )
            to_do = "If its worker is frozen or gone, end the session: the next worker handles its message."
            yield Finding("warning", "frozen-worker", facts.address, text, to_do)
