"""Micro-batches into a database: one transaction for each partition of a batch, each handled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from conquiet.consume import DeadLetter, Retry, check_handler, load_handler
from conquiet.consume.handling import MessageHandling
from conquiet.db import DbSession, Inbox
from conquiet.errors import ConquietError
from conquiet.spark.task_context import QUERY_ID, current_task

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

    Raises:
        TypeError: the handler would not run when it is called; of a reference, this fails the batch.
    """
    if not isinstance(handler, str):
        check_handler(handler)

    def drain(df: DataFrame, batch_id: int) -> None:
        Inbox(table=inbox_table).create_table(_engine(database_url))
        parts = df.rdd.getNumPartitions()

        def handle_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            call = load_handler(handler) if isinstance(handler, str) else handler
            check_handler(call)
            task, engine = current_task(), _engine(database_url)
            query = task.getLocalProperty(QUERY_ID)
            stream = f"spark:{name}:{batch_id}" if query is None else f"spark:{query}:{name}:{batch_id}"
            partition = PartitionMessage(stream, f"{task.partitionId()}/{parts}", batches)
            inbox = Inbox(table=inbox_table)
            handling = MessageHandling(lambda msg, session: call(msg.payload, session), engine, inbox)
            try:
                outcome = handling.handle(partition)
            finally:
                handling.release()
                engine.dispose()
            if isinstance(outcome, Retry | DeadLetter):
                raise ConquietError(
                    f"the handler answered {outcome!r} for partition {partition.id} of {stream}: a batch is "
                    "handled as a whole; raise an error to have Spark run it again"
                )
            yield pa.record_batch([pa.array([partition.read], pa.int64())], names=["rows"])

        # An action that returns a number for each partition, and moves the rows as Arrow batches.
        df.mapInArrow(handle_partition, "rows long").collect()

    return drain


@dataclass(slots=True)
class PartitionMessage:
    """One partition of one batch, as the message that `MessageHandling` handles."""

    stream: str
    id: str
    batches: Iterator[pa.RecordBatch]
    group: str = "drain_batch"
    attempt: int = 1
    #: Rows that the handler has taken so far.
    read: int = 0

    @property
    def identity(self) -> tuple[str, str]:
        """By which the inbox knows it: the batch and its partition."""
        return self.stream, self.id

    @property
    def payload(self) -> Iterator[dict[str, Any]]:
        """The rows, one after the other."""
        for batch in self.batches:
            self.read += batch.num_rows
            yield from batch.to_pylist()


def _engine(database_url: str) -> Engine:
    return create_engine(database_url, poolclass=NullPool)
