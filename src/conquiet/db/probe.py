"""Asks a database that has failed one message whether it would fail all of them."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db.guard import driver_of


def is_unavailable(engine: Engine) -> bool:
    """Whether no connection can be had now that can write."""
    try:
        with engine.connect() as connection:
            connection.scalar(select(1))
            is_refusing = _is_read_only(connection)
            if is_refusing:
                # It may be one to what was the primary before a failover: the pool must not keep it.
                connection.invalidate()
            return is_refusing
    except (SQLAlchemyError, sqlite3.Error):
        return True


def _is_read_only(connection: Connection) -> bool:
    match connection.dialect.name:
        case "postgresql":
            # Also on in a standby.
            return str(connection.scalar(text("SELECT current_setting('transaction_read_only')"))) == "on"
        case "mysql" | "mariadb":
            return str(connection.scalar(text("SELECT @@global.read_only"))) not in ("0", "OFF")
    if connection.dialect.name == "sqlite" and not driver_of(connection).in_transaction:
        driver: Any = connection.connection.dbapi_connection
        # It takes the one write lock; in a read-only file it does not fail, and only the write does.
        driver.execute("BEGIN IMMEDIATE")
        try:
            version = driver.execute("PRAGMA user_version").fetchone()[0]
            driver.execute(f"PRAGMA user_version = {version:d}")
        finally:
            driver.rollback()
    return False
