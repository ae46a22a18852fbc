"""Creates conquiet's own tables, safely by several processes at once."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, Table, inspect
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db.outage_codes import is_connection_lost, is_refused
from conquiet.db.probe import is_unavailable
from conquiet.errors import DatabaseUnavailableError, DbError
from conquiet.masking import scrubbed

#: Stream names are compared as bytes; MySQL's default collation would treat "Orders" as "orders".
MYSQL_OPTIONS: dict[str, Any] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_engine": "InnoDB",
}


def check_table_name(name: str) -> None:
    """Refuse a name that would need quoting in SQL."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name):
        raise ValueError(f"table must be a plain SQL name of at most 63 characters, got {name!r}")


def digest_of(*names: str) -> str:
    """Names as a key: they may be longer than an index allows, and databases differ in comparing text."""
    # Lengths first, so that ("a:b", "c") and ("a", "b:c") differ.
    return hashlib.sha256("".join([f"{len(name)}:{name}" for name in names]).encode()).hexdigest()


def fitting(name: str) -> str:
    """A name as a column of 64 characters has it: itself, or its digest if it is longer."""
    return name if len(name) <= 64 else digest_of(name)


def now_ms() -> int:
    """As it is written into rows."""
    return time.time_ns() // 1_000_000


@scrubbed()
def create_table(table: Table, engine: Engine) -> None:
    """Create the table unless it exists; of two processes that try at once, both succeed.

    Raises:
        DatabaseUnavailableError: there is no connection, or the database refuses to write now.
        DbError: it cannot be created.
    """
    try:
        table.create(engine, checkfirst=True)
    except SQLAlchemyError as error:
        try:
            is_there = inspect(engine).has_table(table.name)
        except SQLAlchemyError:
            is_there = False
        if not is_there:
            # As it restarts or fails over, which passes: what waits for a database waits for this, too.
            is_outage = is_connection_lost(error) or is_refused(error) or is_unavailable(engine)
            kind = DatabaseUnavailableError if is_outage else DbError
            raise kind(f"table {table.name} could not be created: {error}") from error


@contextmanager
def visible_sql(what: str) -> Iterator[None]:
    """Turn what SQLAlchemy raises into a `DbError` with the original as its cause."""
    try:
        yield
    except SQLAlchemyError as error:
        raise DbError(f"{what} could not be read or written: {error}") from error
