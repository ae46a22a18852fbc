"""What an administrator of PostgreSQL or MariaDB sees and does: who waits, and whose connection ends."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from tests.eventually import eventually


@dataclass(frozen=True, slots=True)
class _Words:
    own_number: str
    kill: str
    alive: str
    waiting: str


_POSTGRES = _Words(
    own_number="SELECT pg_backend_pid()",
    kill="SELECT pg_terminate_backend({number})",
    alive="SELECT count(*) FROM pg_stat_activity WHERE pid = {number}",
    waiting="""
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """,
)
_MARIADB = _Words(
    own_number="SELECT connection_id()",
    kill="KILL {number}",
    alive="SELECT count(*) FROM information_schema.processlist WHERE id = {number}",
    # Its list of transactions is a copy that polling keeps from being renewed; whoever runs long, waits.
    waiting="""
        SELECT count(*) FROM information_schema.processlist
        WHERE db = database() AND command = 'Query' AND id <> connection_id() AND time_ms > 20
    """,
)


def is_mariadb(engine: Engine) -> bool:
    """Whether it speaks MySQL's protocol, by whatever name."""
    return engine.dialect.name in ("mysql", "mariadb")


def number_of(connection: Connection) -> int:
    """The server's own number of this connection."""
    return int(connection.scalar(text(_words(connection.engine).own_number)))


def kill(engine: Engine, number: int) -> None:
    """End another connection, and wait until it has ended."""
    words = _words(engine)
    with engine.connect() as connection:
        connection.execute(text(words.kill.format(number=number)))
    eventually(lambda: _count(engine, words.alive.format(number=number)) == 0)


def await_lock_wait(engine: Engine) -> None:
    """Until a transaction of this database waits for another one; SQLite cannot tell."""
    if engine.dialect.name != "sqlite":
        eventually(lambda: _count(engine, _words(engine).waiting) > 0)


def _words(engine: Engine) -> _Words:
    return _MARIADB if is_mariadb(engine) else _POSTGRES


def _count(engine: Engine, query: str) -> int:
    # In a transaction of its own: PostgreSQL shows the same activity until the end of one.
    with engine.connect() as connection:
        return int(connection.scalar(text(query)))
