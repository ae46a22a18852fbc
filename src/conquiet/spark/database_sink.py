"""Micro-batches into a database: one transaction for each partition of a batch, each handled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from conquiet.consume import load_handler
from conquiet.db import DbSession, Inbox
from conquiet.errors import DbError
from conquiet.spark.task_context import QUERY_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Called with the rows of one partition, as dicts, and the transaction that they belong to.
BatchHandler = Callable[[Iterator[dict[str, Any]], DbSession], None]


def drain_batch(
    handler: BatchHandler | str, database_url: str, *, name: str, inbox_table: str = "conquiet_inbox"
) -> Callable[[DataFrame, int], None]:
    """What `writeStream.foreachBatch` needs to handle each partition of a batch in one transaction.

    The transaction also has a row of the inbox that names query, batch and partition: a batch that Spark runs
    again finds it and does nothing, so that effects in the database happen once. This needs a batch to be
    divided alike when it is run again: a source that is `redis-stream`, and no shuffle whose number of
    partitions changes.

    Args:
        handler: a function, or `package.module:function`.
        name: of this query; with another one, or with a new checkpoint, every batch is new.
    """

    def drain(df: DataFrame, batch_id: int) -> None:
        Inbox(table=inbox_table).create_table(_engine(database_url))
        parts = df.rdd.getNumPartitions()
        work = _partition_work(handler, database_url, inbox_table, f"{name}:{batch_id}", parts)
        # An action that returns a number for each partition, and moves the rows as Arrow batches.
        df.mapInArrow(work, "rows long").collect()

    return drain


def _partition_work(
    handler: BatchHandler | str, database_url: str, inbox_table: str, batch: str, parts: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None  # noqa: S101 -- Spark runs this in a task
        call = load_handler(handler) if isinstance(handler, str) else handler
        inbox, count = Inbox(table=inbox_table), 0

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal count
            for record_batch in batches:
                count += record_batch.num_rows
                yield from record_batch.to_pylist()

        query = task.getLocalProperty(QUERY_ID)
        place = {
            "stream": f"spark:{batch}" if query is None else f"spark:{query}:{batch}",
            "group": "drain_batch",
            "entry_id": f"{task.partitionId()}/{parts}",
        }
        engine = _engine(database_url)
        try:
            with DbSession(engine) as session:
                _record(inbox, session, place)
                call(rows(), session)
        except _FoundInInboxError as found:
            _confirm(inbox, engine, place, found)
            count = 0
        finally:
            engine.dispose()
        yield pa.record_batch([pa.array([count], pa.int64())], names=["rows"])

    return work


def _record(inbox: Inbox, session: DbSession, place: dict[str, str]) -> None:
    if inbox.record(session, **place) is None:
        raise _FoundInInboxError


def _confirm(inbox: Inbox, engine: Any, place: dict[str, str], found: Exception) -> None:
    # The insert was refused; only a committed row says that the partition is done.
    with DbSession(engine) as session:
        if not inbox.has(session, **place):
            raise DbError(f"the inbox refused {' '.join(place.values())} but does not have it") from found


class _FoundInInboxError(Exception):
    """Leaves the transaction of a partition that was handled before."""


def _engine(database_url: str) -> Any:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    return create_engine(database_url, poolclass=NullPool)
