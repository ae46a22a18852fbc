"""An insert that is executed for every message, compiled once for each driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy.exc import DBAPIError

from conquiet.db.guard import TransactionGuard, driver_of
from conquiet.db.psycopg_begin import StatementWithBegin

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect, Insert, TextClause

#: Text, parameters that are constant, the names of all if they go by position, and with the BEGIN.
_Compiled = tuple[str, dict[str, Any], list[str] | None, StatementWithBegin | None]


def has_other_schema(connection: Connection) -> bool:
    """Whether the names of tables are translated, as with one schema for each tenant."""
    return bool(connection.get_execution_options().get("schema_translate_map"))


class DriverStatement:
    """An insert in the words of each driver, by itself: SQLAlchemy takes three times as long."""

    def __init__(self, insert: Insert | TextClause) -> None:
        self._insert = insert
        self._compiled: WeakKeyDictionary[Dialect, _Compiled] = WeakKeyDictionary()

    def execute(self, connection: Connection, row: Mapping[str, Any]) -> None:
        """Execute it, without what it returns; an error is SQLAlchemy's."""
        if has_other_schema(connection):
            # Which one, only SQLAlchemy knows.
            connection.execute(self._insert, row).close()
            return
        dialect = connection.dialect
        compiled = self._compiled.get(dialect)
        if compiled is None:
            made = self._insert.compile(dialect=dialect)
            constants = {name: value for name, value in made.params.items() if value is not None}
            names = list(made.positiontup or ()) if made.positional else None
            with_begin = StatementWithBegin(str(made)) if StatementWithBegin.is_for(dialect) else None
            compiled = self._compiled.setdefault(dialect, (str(made), constants, names, with_begin))
        text, constants, names, with_begin = compiled
        values = {**constants, **row}
        parameters: Any = values if names is None else tuple([values[name] for name in names])
        events = connection.engine.dispatch
        # Somebody wants to see each statement, as a tracing library.
        if connection.engine.echo or events.before_cursor_execute or events.after_cursor_execute:
            connection.exec_driver_sql(text, parameters).close()
        else:
            _execute_by_driver(connection, text, parameters, with_begin)


def _execute_by_driver(
    connection: Connection, text: str, parameters: Any, with_begin: StatementWithBegin | None
) -> None:
    dialect, pooled = connection.dialect, connection.connection
    TransactionGuard.note_statement(pooled.dbapi_connection)
    cursor = pooled.cursor()
    try:
        if with_begin is None or not with_begin.execute(driver_of(connection), parameters):
            dialect.do_execute(cursor, text, parameters)
    except dialect.loaded_dbapi.Error as error:
        is_lost = dialect.is_disconnect(error, pooled, cursor)
        if is_lost:
            # SQLAlchemy sees it for itself, and drops this connection and the older ones of its pool.
            with suppress(DBAPIError):
                connection.exec_driver_sql("SELECT 1").close()
        raise DBAPIError.instance(
            *(text, parameters, error, dialect.loaded_dbapi.Error),
            connection_invalidated=is_lost,
            dialect=dialect,
        ) from error
    except BaseException as error:
        # Ctrl-C in the middle of a reply: the next statement would read the rest of it.
        connection.invalidate(error)
        raise
    finally:
        with suppress(dialect.loaded_dbapi.Error):
            cursor.close()
