"""An insert that is executed for every message, compiled once for each driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect, Insert, TextClause

#: Text, parameters that are constant, and the names of all if they go by position.
_Compiled = tuple[str, dict[str, Any], list[str] | None]


def has_other_schema(connection: Connection) -> bool:
    """Whether the names of tables are translated, as with one schema for each tenant."""
    return bool(connection.get_execution_options().get("schema_translate_map"))


class DriverStatement:
    """An insert in the words of each driver, in half of the time that SQLAlchemy takes to execute one."""

    def __init__(self, insert: Insert | TextClause) -> None:
        self._insert = insert
        self._compiled: WeakKeyDictionary[Dialect, _Compiled] = WeakKeyDictionary()

    def execute(self, connection: Connection, row: Mapping[str, Any]) -> None:
        """Execute it, without what it returns."""
        if has_other_schema(connection):
            # Which one, only SQLAlchemy knows.
            connection.execute(self._insert, row).close()
            return
        compiled = self._compiled.get(connection.dialect)
        text, constants, names = self._compile(connection.dialect) if compiled is None else compiled
        values = {**constants, **row}
        parameters = values if names is None else tuple([values[name] for name in names])
        connection.exec_driver_sql(text, parameters).close()

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled = self._insert.compile(dialect=dialect)
        names = list(compiled.positiontup or ()) if compiled.positional else None
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        return self._compiled.setdefault(dialect, (str(compiled), constants, names))
