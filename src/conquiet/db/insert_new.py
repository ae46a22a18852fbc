"""Inserts many rows of which some may be there, in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ARRAY, Executable, Table, bindparam, column, func, insert, select, true
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.types import Text

from conquiet.db.lock_timeout import lock_timeout, restored_from, shortened
from conquiet.db.session import DbSession


def insert_new(
    session: DbSession, table: Table, rows: Sequence[Mapping[str, Any]], lock_timeout_s: int
) -> set[str]:
    """Insert the rows whose primary key is not there, and return the keys of those.

    Each row has the same `delivery`, which no other row has. For other transactions it waits no longer than
    `lock_timeout_s`; SQLite has its own timeout.
    """
    dialect = session.connection.dialect
    if dialect.name == "postgresql" and dialect.insert_returning:
        parameters = {"rows": json.dumps(rows), "lock_timeout": f"{lock_timeout_s}s"}
        return set(session.scalar(_statement(table, dialect.name), parameters) or ())
    with lock_timeout(session, lock_timeout_s):
        return _insert_new(session, table, rows)


def _insert_new(session: DbSession, table: Table, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    dialect = session.connection.dialect
    key = next(iter(table.primary_key))
    if dialect.name == "sqlite" and dialect.insert_executemany_returning:
        return set(session.execute(_statement(table, dialect.name), rows).scalars())
    keys = [row[key.name] for row in rows]
    if dialect.name in ("mysql", "mariadb"):
        session.execute(_statement(table, "mysql"), rows)
        is_own = table.c.delivery == rows[0]["delivery"]
        return set(session.scalars(select(key).where(key.in_(keys), is_own)))
    # One that another transaction adds in this moment fails the batch; by itself it is found.
    known = set(session.scalars(select(key).where(key.in_(keys))))
    new = [row for row in rows if row[key.name] not in known]
    if new:
        session.execute(insert(table), new)
    return {row[key.name] for row in new}


@lru_cache(maxsize=16)
def _statement(table: Table, dialect: str) -> Executable:
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing().returning(*table.primary_key)
    if dialect == "mysql":
        # Not IGNORE, by which every other error would be a warning, too.
        key = next(iter(table.primary_key))
        return mysql.insert(table).on_duplicate_key_update({key.name: key})
    # One parameter for all rows: thousands of them take the driver longer than the rows take the server.
    columns = [column(one.name, one.type) for one in table.c]
    records = func.json_to_recordset(bindparam("rows", type_=Text).cast(JSON)).table_valued(*columns)
    records, own = records.render_derived(with_types=True), shortened()
    rows = select(*records.c).join_from(own, records, true())
    insertion = postgresql.insert(table).from_select(list(table.c), rows)
    inserted = insertion.on_conflict_do_nothing().returning(*table.primary_key).cte("inserted")
    # All are inserted before there is a list of them, and then the lock timeout is as before.
    every = select(func.array_agg(inserted.c[0], type_=ARRAY(Text)).label("key")).subquery("every")
    return select(every.c.key, restored_from(own))
