"""LockWaits: which sessions of the database keep this task's own ones waiting."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, NullPool, bindparam, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from conquiet.masking import mask

_POSTGRES = text(
    "SELECT waiting.pid, extract(epoch FROM now() - waiting.query_start), blocking.pid, "
    "coalesce(blocking.application_name, ''), coalesce(blocking.state, ''), "
    "extract(epoch FROM now() - blocking.xact_start) "
    "FROM pg_stat_activity waiting, unnest(pg_blocking_pids(waiting.pid)) AS blocker "
    "JOIN pg_stat_activity blocking ON blocking.pid = blocker WHERE waiting.pid IN :ids"
).bindparams(bindparam("ids", expanding=True))
_MYSQL = text(
    "SELECT trx_mysql_thread_id, timestampdiff(SECOND, trx_wait_started, now()), NULL, '', '', NULL "
    "FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_QUERIES = {"postgresql": _POSTGRES, "mysql": _MYSQL, "mariadb": _MYSQL}


class LockWaits:
    """Asks the database over a connection of its own, which it closes at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._query = _QUERIES.get(engine.dialect.name)
        self._ids: set[int] = set()
        self._is_refused = False

    def begin(self) -> None:
        """Learn the sessions of the engine from now on."""
        if self._query is not None:
            event.listen(self._engine, "checkout", self._checked_out)

    def end(self) -> None:
        """Learn no more."""
        if self._query is not None:
            event.remove(self._engine, "checkout", self._checked_out)

    def sentences(self) -> list[str]:
        """A sentence for each lock that a session of the engine waits for; none where it cannot be seen."""
        if self._query is None or self._is_refused or not self._ids:
            return []
        engine = create_engine(self._engine.url, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                rows = connection.execute(self._query, {"ids": sorted(self._ids)}).all()
        except SQLAlchemyError as error:
            self._is_refused = True
            return [f"whether the database's locks delay this drain cannot be seen: {mask(str(error))}"]
        finally:
            engine.dispose()
        return [_sentence(*row) for row in rows]

    def _checked_out(self, dbapi_connection: Any, _record: object, _proxy: object) -> None:
        # psycopg, psycopg2, and the drivers of MySQL.
        if (info := getattr(dbapi_connection, "info", None)) is not None:
            self._ids.add(int(info.backend_pid))
        elif hasattr(dbapi_connection, "thread_id"):
            self._ids.add(int(dbapi_connection.thread_id()))


def _sentence(
    waiting: int, waited_s: float, blocker: int | None, application: str, state: str, since_s: float | None
) -> str:
    """As `waiting for a lock …`; the rows of the queries have these columns."""
    words = f"waiting for a lock of the database for {float(waited_s or 0):.0f} s (session {waiting})"
    if blocker is None:
        return f"{words}: another transaction has it"
    name = f" of {application!r}" if application else ""
    age = "" if since_s is None else f", in its transaction for {float(since_s):.0f} s"
    return (
        f"{words}: session {blocker}{name} has it ({state}{age}); if that is an earlier try of this task "
        "that is frozen, end its process"
    )
