"""Inserts many rows of which some may be there, in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, Table, insert, select
from sqlalchemy.dialects import mysql, postgresql, sqlite

from conquiet.db.session import DbSession


def insert_new(session: DbSession, table: Table, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Insert the rows whose primary key is not there, and return the keys of those.

    Each row has the same `delivery`, which no other row has.
    """
    dialect = session.connection.dialect
    key = next(iter(table.primary_key))
    if dialect.name in ("postgresql", "sqlite") and dialect.insert_executemany_returning:
        return set(session.execute(_insert_returning(table, dialect.name), rows).scalars())
    keys = [row[key.name] for row in rows]
    if dialect.name in ("mysql", "mariadb"):
        session.execute(_insert_or_keep(table), rows)
        is_own = table.c.delivery == rows[0]["delivery"]
        return set(session.scalars(select(key).where(key.in_(keys), is_own)))
    # One that another transaction adds in this moment fails the batch; by itself it is found.
    known = set(session.scalars(select(key).where(key.in_(keys))))
    new = [row for row in rows if row[key.name] not in known]
    if new:
        session.execute(insert(table), new)
    return {row[key.name] for row in new}


@lru_cache(maxsize=16)
def _insert_returning(table: Table, dialect: str) -> Executable:
    insert_into = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return insert_into(table).on_conflict_do_nothing().returning(*table.primary_key)


@lru_cache(maxsize=16)
def _insert_or_keep(table: Table) -> Executable:
    # Not IGNORE, by which every other error would be a warning, too.
    key = next(iter(table.primary_key))
    return mysql.insert(table).on_duplicate_key_update({key.name: key})
