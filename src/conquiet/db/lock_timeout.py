"""A shorter lock timeout for some statements of a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import (
    CTE,
    Function,
    Insert,
    Table,
    Text,
    TextClause,
    bindparam,
    case,
    cast,
    func,
    insert,
    select,
    text,
    true,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import INTERVAL

from conquiet.db.session import DbSession

#: In ms; 0 is none.
_SHORTEN = text(
    "SELECT s.setting, set_config('lock_timeout', CASE WHEN CAST(s.setting AS integer) BETWEEN 1 AND :most "
    "THEN s.setting ELSE CAST(:most AS text) END, true) FROM pg_settings s WHERE s.name = 'lock_timeout'"
)


@contextmanager
def lock_timeout(session: DbSession, seconds: int) -> Iterator[None]:
    """Within the block wait no longer than this for other transactions; SQLite has its own timeout."""
    match session.connection.dialect.name:
        case "postgresql":
            before = session.execute(_SHORTEN, {"most": seconds * 1000}).scalar_one()
            yield
            # Not after an error: the setting ends with the transaction.
            session.execute(text("SELECT set_config('lock_timeout', :before, true)"), {"before": before})
        case "mysql" | "mariadb":
            before = int(session.scalar(text("SELECT @@innodb_lock_wait_timeout")))
            session.execute(text(f"SET SESSION innodb_lock_wait_timeout = {min(before, seconds)}"))
            try:
                yield
            finally:
                # The connection goes back to its pool.
                if not session.connection.invalidated:
                    session.execute(text(f"SET SESSION innodb_lock_wait_timeout = {before}"))
        case _:
            yield


def insert_within_on_mariadb(table: Table, seconds: int) -> TextClause:
    """An insert for MariaDB that waits no longer than this for other transactions, in one statement."""
    quoted = mysql.dialect().identifier_preparer
    columns = ", ".join(quoted.format_column(column) for column in table.c)
    values = ", ".join(f":{column.name}" for column in table.c)
    # A shorter timeout of the session stays.
    own = f"innodb_lock_wait_timeout = LEAST(@@innodb_lock_wait_timeout, {seconds:d})"
    insertion = f"INSERT INTO {quoted.format_table(table)} ({columns}) VALUES ({values})"  # noqa: S608 -- a checked name
    return text(f"SET STATEMENT {own} FOR {insertion}")


def insert_within(table: Table) -> Insert:
    """An insert for PostgreSQL that waits no longer than `lock_timeout` for other transactions.

    One statement, so that it costs no round trip. As above, a shorter timeout of the session stays, and later
    statements have its own again.
    """
    own = shortened()
    row = select(*(bindparam(column.name, type_=column.type) for column in table.c)).select_from(own)
    # It comes after the insert.
    restored = restored_from(own)
    names = [column.name for column in table.c]
    return insert(table).from_select(names, row).add_cte(own).returning(restored)


def shortened() -> CTE:
    """For PostgreSQL: a lock timeout of `lock_timeout` from here on, and what it was before."""
    before, given = func.current_setting("lock_timeout"), bindparam("lock_timeout", type_=Text)
    is_shorter = cast(before, INTERVAL).between(text("interval '1 ms'"), cast(given, INTERVAL))
    now = func.set_config("lock_timeout", case((is_shorter, before), else_=given), true())
    return select(before.label("before"), now.label("now")).cte("own")


def restored_from(own: CTE) -> Function[str]:
    """The lock timeout as it was before `shortened`."""
    return func.set_config("lock_timeout", select(own.c.before).scalar_subquery(), true())
