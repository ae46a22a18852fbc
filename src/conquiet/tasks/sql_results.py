"""ResultStore: the result of a task in its own transaction, kept if and only if its effects are."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from sqlalchemy import BigInteger, Column, Engine, MetaData, String, Table, Text, insert, select
from sqlalchemy.dialects.mysql import LONGTEXT

from conquiet.db import DbSession
from conquiet.db.retention import PURGE_STEP, check_keep_for, delete_oldest
from conquiet.db.table_creation import MYSQL_OPTIONS, check_table_name, create_table, fitting
from conquiet.tasks import clock


class ResultStore(Protocol):
    """Keeps the results of tasks that take a `DbSession`, for the case that their worker dies before the ack.

    What callers read is the record in Redis, written in the step of the ack. The next worker finds the inbox
    row of a task that was committed and not acked, does not run it again, and writes what `load` returns into
    that record. Another one is set as `app.result_store` before a worker starts, and tested by
    `conquiet.testing.ResultStoreContract`.

    Examples:
        >>> class Compressed(SqlResults):
        ...     def load(self, engine, task_id):
        ...         print("asked for", task_id)
        ...         return super().load(engine, task_id)
        >>> shop = TaskApp(server.url, database=engine, namespace="compressed")
        >>> shop.result_store = Compressed()  # before a worker starts
    """

    def create_table(self, engine: Engine) -> None:
        """Create what it needs, unless it exists; called when a worker starts."""

    def save(self, session: DbSession, task_id: str, result: bytes) -> None:
        """Write the result in the transaction of the task: it stands or falls with the effects.

        It is JSON, or `@` and the reference of a result in the payload store: a text, to be kept as it is.
        """

    def load(self, engine: Engine, task_id: str) -> bytes | None:
        """The result of a task as it was saved, `None` if there is none."""

    def purge_step(self, session: DbSession) -> bool:
        """Delete some of what is too old to be asked for, and return whether there may be more.

        Workers call it between tasks, about once a minute; one that keeps everything returns `False`.
        """


class SqlResults:
    """A row for each task that took a `DbSession`; the default.

    Args:
        keep_for: workers delete older rows; a task that was committed longer ago, and not acked since, has no
            result. `None` keeps them for ever.

    Examples:
        >>> shop = TaskApp(server.url, database=engine, namespace="shop")
        >>> shop.result_store = SqlResults(table="shop_results")
    """

    def __init__(
        self, *, table: str = "conquiet_task_results", keep_for: timedelta | None = timedelta(days=30)
    ) -> None:
        check_table_name(table)
        check_keep_for(keep_for)
        self._keep_for = keep_for
        self._table = Table(
            table,
            MetaData(),
            Column("task_id", String(64), primary_key=True),
            Column("result", Text().with_variant(LONGTEXT(), "mysql", "mariadb"), nullable=False),
            Column("finished_at_ms", BigInteger, nullable=False, index=True),
            **MYSQL_OPTIONS,
        )

    def create_table(self, engine: Engine) -> None:
        """Create the table unless it exists."""
        create_table(self._table, engine)

    def save(self, session: DbSession, task_id: str, result: bytes) -> None:
        """Write the result, in the transaction of the task."""
        row = {"task_id": fitting(task_id), "result": result.decode(), "finished_at_ms": clock.now_ms()}
        session.execute(insert(self._table), row)

    def load(self, engine: Engine, task_id: str) -> bytes | None:
        """The result of a task as JSON, `None` if there is none."""
        with engine.connect() as connection:
            found = connection.execute(
                select(self._table.c.result).where(self._table.c.task_id == fitting(task_id))
            ).scalar()
        return None if found is None else str(found).encode()

    def purge_step(self, session: DbSession) -> bool:
        """Delete up to 1,000 rows that are older than `keep_for`."""
        if self._keep_for is None:
            return False
        columns = self._table.c
        found = delete_oldest(session, columns.task_id, columns.finished_at_ms, self._keep_for, PURGE_STEP)
        return found == PURGE_STEP
