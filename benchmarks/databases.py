"""Private databases with the one table that the handlers write to."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    make_url,
    text,
)
from sqlalchemy.exc import OperationalError

from benchmarks.errors import UnavailableError

ORDERS = Table("orders", MetaData(), Column("entry_id", String(64)), Column("number", Integer))
INSERT_ORDER = insert(ORDERS)


@dataclass(frozen=True, slots=True)
class Database:
    """One database, an engine for each side: DbSession listens on its engine, and raw must not pay for it."""

    ours: Engine
    raw: Engine


@contextmanager
def open_database(kind: str, directory: Path) -> Iterator[Database]:
    """A database of its own, which is gone at the end of the block."""
    with database_url(kind, directory) as url:
        database = Database(_open_engine(url), _open_engine(url))
        ORDERS.create(database.raw)
        yield database
        database.ours.dispose()
        database.raw.dispose()


@contextmanager
def database_url(kind: str, directory: Path) -> Iterator[URL]:
    """The URL of an empty database of its own, which is gone at the end of the block."""
    with _OPENERS[kind](directory) as url:
        yield url


def _open_engine(url: URL) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", use_wal)
    return engine


@contextmanager
def _sqlite(directory: Path) -> Iterator[URL]:
    yield make_url(f"sqlite:///{directory}/{secrets.token_hex(4)}.db")


def use_wal(dbapi_connection: Any, _record: object) -> None:
    """SQLite as applications set it up: readers do not block the writer, and no flush for each commit."""
    dbapi_connection.execute("PRAGMA journal_mode=WAL")
    dbapi_connection.execute("PRAGMA synchronous=NORMAL")


@contextmanager
def _postgres(_directory: Path) -> Iterator[URL]:
    default = f"postgresql+psycopg://{getpass.getuser()}@127.0.0.1:5432/postgres"
    url = make_url(os.environ.get("CONQUIET_TEST_POSTGRES_URL", default))
    name = f"conquiet_bench_{secrets.token_hex(4)}"
    try:
        admin = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except (ImportError, OperationalError) as error:
        raise UnavailableError(f"no PostgreSQL: {str(error).splitlines()[0]}") from error
    try:
        yield url.set(database=name)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


@contextmanager
def _mariadb(_directory: Path) -> Iterator[URL]:
    default = "mysql+pymysql://root@127.0.0.1:3306/mysql?ssl_disabled=true"
    url = make_url(os.environ.get("CONQUIET_TEST_MARIADB_URL", default))
    name = f"conquiet_bench_{secrets.token_hex(4)}"
    try:
        admin = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except (ImportError, OperationalError) as error:
        raise UnavailableError(f"no MariaDB: {str(error).splitlines()[0]}") from error
    try:
        yield url.set(database=name)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}"))
        admin.dispose()


_OPENERS = {"sqlite": _sqlite, "postgres": _postgres, "mariadb": _mariadb}
